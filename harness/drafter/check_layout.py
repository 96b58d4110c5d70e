"""Rules on names and shapes: every tensor the config asks for, in its size, and no other."""

from collections import Counter

from harness.drafter.drafter import Drafter
from harness.drafter.findings import Finding
from harness.drafter.keys import plain_name
from harness.drafter.layout import IGNORED_PARTS, Layout, Shape, expected_layout
from harness.drafter.tensors import TensorHeader

_HEAD_PARTS = ("q_proj.", "k_proj.", "v_proj.", "o_proj.", "q_norm.", "k_norm.")
_MLP_PARTS = ("gate_proj.", "up_proj.", "down_proj.")
_FLOATS, _TABLES = ("F8", "F16", "BF16", "F32"), ("d2t", "t2d")
_CONVERT = "`harness convert --to speculators` writes it with plain names"
_FROM_SOURCE = "take the drafter from its source again, or convert the original"


def check_names(drafter: Drafter, purpose: str) -> list[Finding]:
    """Spelling of names: `model.` in front, `midlayer.` in a nested folder, two for one tensor."""
    findings = []
    counts = Counter(plain_name(key) for key in drafter.tensors)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        findings.append(
            _error("prefix", twice[0], "each tensor once", "two spellings of one tensor",
                   "Which of the two is used depends on the order of the file.", _FROM_SOURCE)
        )  # fmt: skip
    prefixed = [key for key in drafter.tensors if key.startswith("model.")]
    if prefixed and purpose == "serve":
        findings.append(
            _error("prefix", prefixed[0], plain_name(prefixed[0]), prefixed[0],
                   "vLLM refuses the folder: it puts `model.` in front itself.", _CONVERT)
        )  # fmt: skip
    if drafter.format == "speculators" and "midlayer." in drafter.key_prefix and purpose == "serve":
        finding = _error(
            "S25", drafter.key_prefix, "layers.0.", drafter.key_prefix,
            "vLLM serves it, but speculators would train on a freshly initialised layer.", _CONVERT,
        )  # fmt: skip
        findings.append(finding.model_copy(update={"severity": "warning"}))
    return findings


def check_layout(drafter: Drafter) -> list[Finding]:
    """Missing, unexpected and misshapen tensors (S1-S5, S11, S12, S16, S17)."""
    layout = expected_layout(drafter)
    stored = {plain_name(key): header for key, header in drafter.tensors.items()}
    if drafter.is_quantised:
        return _check_quantised(drafter, layout, stored)
    findings = [_missing(drafter, name) for name in layout.required if name not in stored]
    if drafter.format != "mla" and drafter.num_heads % drafter.num_kv_heads:
        findings.append(_undivided(drafter))
    known = layout.required | layout.optional
    for name, header in stored.items():
        if name in known:
            if header.shape != known[name]:
                findings.append(_misshapen(drafter, name, known[name], header))
        elif not any(part in name for part in IGNORED_PARTS) and not _is_mask(drafter, name):
            findings.append(_unexpected(drafter, name, header))
    return findings + _check_table_types(stored)


def _check_quantised(
    drafter: Drafter, layout: Layout, stored: dict[str, TensorHeader]
) -> list[Finding]:
    """What a quantiser leaves alone: norms and tables, and the shapes of 8 and 16 bit floats."""
    vectors = [name for name, shape in layout.required.items() if len(shape) == 1]
    findings = [_missing(drafter, name) for name in vectors if name not in stored]
    for name, expected in (layout.required | layout.optional).items():
        header = stored.get(name)
        is_plain = header is not None and (header.dtype.startswith(_FLOATS) or name in _TABLES)
        if header is not None and is_plain and header.shape != expected:
            findings.append(_misshapen(drafter, name, expected, header))
    return [*findings, *_check_table_types(stored), _quantised()]


def _missing(drafter: Drafter, name: str) -> Finding:
    if name == "d2t":
        found = f"none, with draft_vocab_size {drafter.draft_vocab_size} < {drafter.vocab_size}"
        return _error(
            "S4", name, f"offsets, int64 [{drafter.draft_vocab_size}]", found,
            "vLLM would take draft id i for verifier id i and accept almost nothing.",
            "export d2t with the weights; it is in the trainer's folder or checkpoint",
        )  # fmt: skip
    if name == "lm_head.weight":
        return _error(
            "S5", name, f"[{drafter.draft_vocab_size}, {drafter.hidden_size}]", "none",
            f"vLLM would score with the verifier's first {drafter.draft_vocab_size} rows.",
            "export lm_head.weight with the weights",
        )  # fmt: skip
    if name.startswith("fc_norm."):
        return _error(
            "S12", name, "a weight per aux layer, as fc_norm is true", "none",
            "vLLM would scale the aux hidden states by ones.",
            "set fc_norm to what the drafter was trained with, or export the weights",
        )  # fmt: skip
    return _error(
        "S3", name, "the tensor", "none",
        "vLLM loads without a word and keeps its random or zero initial values.", _FROM_SOURCE,
    )  # fmt: skip


def _misshapen(drafter: Drafter, name: str, expected: Shape, header: TensorHeader) -> Finding:
    rule, consequence, fix = "shape", "vLLM refuses to load the drafter.", _FROM_SOURCE
    is_cut = all(want <= have for want, have in zip(expected, header.shape, strict=False))
    cut = "" if is_cut and len(expected) == len(header.shape) else None
    if name == "fc.weight" and header.shape[:1] == expected[:1]:
        return _wrong_fc(drafter, expected, header)
    if any(part in name for part in _HEAD_PARTS):
        rule = "S1"
        stored = drafter.head_dim_tensors
        configured = drafter.head_dim_configured
        origin = f"head_dim {configured}" if configured else _default_head_dim(drafter)
        fix = f"set head_dim to {stored} in config.json" if stored else _FROM_SOURCE
        if drafter.format == "mla":
            fix = "correct qk_nope_head_dim, qk_rope_head_dim, v_head_dim in config.json"
            origin = "these sizes"
        if cut is not None:
            consequence = (
                f"{origin}: vLLM would cut {name.split('.')[-2]} from {_text(header.shape)} to "
                f"{_text(expected)} ({drafter.head_dim} values per head) and accept almost nothing."
            )
    elif any(part in name for part in _MLP_PARTS):
        rule, fix = "S2", "set intermediate_size to what the tensors have"
        if cut is not None:
            consequence = (
                f"vLLM would cut {name.split('.')[-2]} to {drafter.intermediate_size} "
                "intermediate values and accept almost nothing."
            )
    return _error(rule, name, _text(expected), _text(header.shape), consequence, fix)


def _undivided(drafter: Drafter) -> Finding:
    return _error(
        "shape", "num_key_value_heads", f"a divisor of num_attention_heads {drafter.num_heads}",
        str(drafter.num_kv_heads), "vLLM refuses the drafter, after the verifier has loaded.",
        "correct num_attention_heads or num_key_value_heads in config.json",
    )  # fmt: skip


def _default_head_dim(drafter: Drafter) -> str:
    if drafter.head_dim != drafter.hidden_size // drafter.num_heads:
        return f"no head_dim, so transformers' {drafter.head_dim} for Qwen3"
    return f"no head_dim, so {drafter.hidden_size} / {drafter.num_heads} = {drafter.head_dim}"


def _wrong_fc(drafter: Drafter, expected: Shape, header: TensorHeader) -> Finding:
    states = header.shape[1] / drafter.target_hidden_size
    return _error(
        "S16", "fc.weight", f"{_text(expected)} for {drafter.num_aux} aux hidden states",
        f"{_text(header.shape)}: {states:g} states of target_hidden_size "
        f"{drafter.target_hidden_size}",
        "vLLM refuses the drafter: it sizes fc by num_aux_hidden_states, not by the list of ids.",
        "set num_aux_hidden_states beside the layer sizes (in transformer_layer_config if nested)",
    )  # fmt: skip


def _unexpected(drafter: Drafter, name: str, header: TensorHeader) -> Finding:
    shape = _text(header.shape)
    if name == "input_norm.weight" and drafter.format != "mla":
        return _error(
            "S11", name, "norm_before_fc true, or no such tensor", f"norm_before_fc false, {shape}",
            "vLLM would drop the weight and skip the norm that the drafter was trained with.",
            "set norm_before_fc to true in config.json",
        )  # fmt: skip
    if name.startswith("fc_norm."):
        return _error(
            "S12", name, "fc_norm true, or no such tensor", f"fc_norm false, {shape}",
            "vLLM refuses to load the drafter.", "set fc_norm to true in config.json",
        )  # fmt: skip
    if name.endswith(".bias"):
        return _error(
            "S17", name, "attention_bias true, or no bias", shape,
            "vLLM would drop the bias without a word.",
            "set attention_bias to true if the drafter was trained with it",
        )  # fmt: skip
    if name == "d2t":
        return _error(
            "S4", name, f"no table: draft_vocab_size is vocab_size ({drafter.vocab_size})", shape,
            "vLLM refuses a table that it has no use for.",
            "set draft_vocab_size to the table's length, or leave the table out",
        )  # fmt: skip
    return _error(
        "unexpected", name, "only tensors that the config asks for", shape,
        "vLLM refuses to load the drafter.", "leave the tensor out, or correct the config",
    )  # fmt: skip


def _check_table_types(stored: dict[str, TensorHeader]) -> list[Finding]:
    findings = []
    for name, dtype in (("d2t", "I64"), ("t2d", "BOOL")):
        header = stored.get(name)
        if header and header.dtype != dtype:
            findings.append(
                _error("S6", name, dtype, header.dtype,
                       "The table may be rounded or misread.", f"store {name} as {dtype}")
            )  # fmt: skip
    return findings


def _is_mask(drafter: Drafter, name: str) -> bool:
    kind = drafter.config.get("speculators_model_type")
    return name == "mask_hidden" and (kind == "peagle" or "mask_token_id" in drafter.config)


def _quantised() -> Finding:
    return Finding(
        rule="quantised", severity="warning", subject="quantization_config",
        expected="plain weights", found="a quantised drafter",
        consequence="Names, packed shapes and values of quantised weights are not checked.",
        fix="verify the drafter before it is quantised",
    )  # fmt: skip


def _text(shape: Shape) -> str:
    return f"[{', '.join(str(size) for size in shape)}]"


def _error(  # noqa: PLR0917 - the six columns of a finding, in the order of its document
    rule: str, subject: str, expected: str, found: str, consequence: str, fix: str
) -> Finding:
    return Finding(
        rule=rule, severity="error", subject=subject, expected=expected, found=found,
        consequence=consequence, fix=fix,
    )  # fmt: skip

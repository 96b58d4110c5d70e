"""Rules on what no tensor shows: aux layers, flags, rope, dtype; alone, by verifier, by parent."""

import math
from typing import Any

from harness.drafter.drafter import Drafter
from harness.drafter.findings import Finding, Severity
from harness.drafter.verifier import Verifier

_DEFAULT_THETA = 10000.0
_NARROWING = {("F32", "bfloat16"), ("F32", "float16"), ("BF16", "float16")}
_ON_PURPOSE = "correct config.json; if it was changed on purpose, verify without --parent"


def check_config(drafter: Drafter) -> list[Finding]:
    """Aux layer ids and flags that the config leaves to a default or states in a lost place."""
    findings = _check_aux(drafter)
    if drafter.format == "speculators" and "norm_before_residual" not in drafter.given:
        findings.append(
            _finding("S10", "warning", "norm_before_residual", "a value", "none",
                     "vLLM takes it for true and speculators for false.",
                     "write what the drafter was trained with into config.json")
        )  # fmt: skip
    if drafter.norm_before_fc and drafter.fc_norm:
        findings.append(
            _finding("S11", "error", "norm_before_fc, fc_norm", "one of the two", "both true",
                     "Aux states are normed twice in vLLM; speculators refuses to load.",
                     "set the flag to false whose weights are absent")
        )  # fmt: skip
    if drafter.norm_before_fc and drafter.format == "mla":
        findings.append(
            _finding("S11", "error", "norm_before_fc", "false in an MLA drafter", "true",
                     "vLLM's MLA drafter has no such norm: it is skipped, or refused.",
                     "serve a drafter of the flat family, or one trained without the norm")
        )  # fmt: skip
    if "sliding_attention" in drafter.layer_types and drafter.sliding_window is None:
        findings.append(
            _finding("S20", "warning", "sliding_window", "tokens, as layer_types is sliding",
                     "none", "The drafter attends to the whole context; it may not have so far.",
                     "write the training window into config.json")
        )  # fmt: skip
    return findings


def _check_aux(drafter: Drafter) -> list[Finding]:
    name, ids = "eagle_aux_hidden_state_layer_ids", drafter.aux_layer_ids
    if ids is None:
        return [
            _finding("S13", "warning", name, "the trained layers", "none",
                     "vLLM falls back to (2, n/2, n-3): right only if they were trained on.",
                     "write the ids at the top level of config.json")
        ]  # fmt: skip
    findings = []
    if drafter.aux_layer_source == "eagle_config":
        findings.append(
            _finding("S13", "warning", name, "at the top level", f"{list(ids)} in eagle_config",
                     "vLLM's second model runner does not look there and takes its default.",
                     "copy the ids to the top level of config.json")
        )  # fmt: skip
    if list(ids) != sorted(set(ids)):
        findings.append(
            _finding("S15", "error", name, str(sorted(set(ids))), str(list(ids)),
                     "Verifiers hand layers over sorted and once each: fc's columns are permuted.",
                     "sort the ids, and fc's column blocks with them")
        )  # fmt: skip
    if len(ids) != drafter.num_aux:
        findings.append(
            _finding("S16", "error", name, f"{drafter.num_aux} ids", f"{len(ids)}: {list(ids)}",
                     "vLLM sizes fc by num_aux_hidden_states (3 by default) and refuses.",
                     f"set num_aux_hidden_states to {len(ids)} beside the layer sizes")
        )  # fmt: skip
    return findings


def check_against_verifier(drafter: Drafter, verifier: Verifier) -> list[Finding]:
    """Sizes that must equal the verifier's, aux ids within its depth, dtype, rope."""
    findings = []
    pairs = (
        ("vocab_size", verifier.vocab_size, drafter.vocab_size),
        ("target_hidden_size", verifier.hidden_size, drafter.target_hidden_size),
    )
    for subject, expected, found in pairs:
        if expected != found:
            findings.append(
                _finding("S21", "error", subject, f"{expected}, as {verifier.reference} has",
                         str(found), "The drafter was trained for another verifier.",
                         "give the verifier that it was trained for")
            )  # fmt: skip
    if drafter.hidden_size != verifier.hidden_size and not drafter.has_embed:
        findings.append(
            _finding("S9", "error", "embed_tokens.weight",
                     f"the drafter's own, [{drafter.vocab_size}, {drafter.hidden_size}]", "none",
                     f"vLLM would share the verifier's, which is {verifier.hidden_size} wide.",
                     "export embed_tokens.weight with the weights")
        )  # fmt: skip
    findings += _check_aux_depth(drafter, verifier)
    findings += _check_identity(drafter, verifier)
    findings += _check_window(drafter, verifier)
    theta = verifier.rope_parameters.get("rope_theta", _DEFAULT_THETA)
    if "rope_parameters" not in drafter.given and theta != _DEFAULT_THETA:
        findings.append(
            _finding("S18", "warning", "rope_theta", f"a value (the verifier has {theta:g})",
                     "none", f"vLLM takes {_DEFAULT_THETA:g}; training mostly copies the verifier.",
                     "write rope_parameters as trained into config.json")
        )  # fmt: skip
    return findings


def _check_window(drafter: Drafter, verifier: Verifier) -> list[Finding]:
    """Cache layers of two kinds: vLLM (0.26 to 0.33) makes groups as large as the smaller kind."""
    if verifier.is_windowed or "sliding_attention" not in drafter.layer_types:
        return []
    return [
        _finding("window-groups", "info", "layer_types", "full_attention, as the verifier has",
                 f"a window of {drafter.sliding_window}",
                 f"vLLM puts the verifier's {verifier.num_layers} layers into cache groups of "
                 f"{drafter.num_layers}, and prepares each group anew in every step.",
                 "serve with --disable-hybrid-kv-cache-manager, or train with sliding_window: full")
    ]  # fmt: skip


def _check_aux_depth(drafter: Drafter, verifier: Verifier) -> list[Finding]:
    ids, depth = drafter.aux_layer_ids or (), verifier.num_layers
    name = "eagle_aux_hidden_state_layer_ids"
    if ids and max(ids) > depth:
        return [
            _finding("S14", "error", name, f"at most {depth}, the verifier's layers",
                     str(list(ids)), "No such layer: vLLM hands over fewer states, or fails.",
                     "give the verifier that the drafter was trained for")
        ]  # fmt: skip
    zero_based = tuple(i - 1 for i in verifier.default_aux_layer_ids)
    if ids == zero_based and ids != verifier.default_aux_layer_ids:
        return [
            _finding("S14", "warning", name, f"{list(verifier.default_aux_layer_ids)} in vLLM's "
                     "convention (id i is the input of layer i)", str(list(ids)),
                     "The ids look like an exporter's that names the layer whose output is taken.",
                     "if so, add 1 to each; `harness replay` shows which fits")
        ]  # fmt: skip
    return []


def _check_identity(drafter: Drafter, verifier: Verifier) -> list[Finding]:
    findings = []
    narrowed = [d for d in drafter.dtypes if (d, verifier.dtype) in _NARROWING]
    if narrowed:
        findings.append(
            _finding("S23", "warning", "dtype", str(verifier.dtype), ", ".join(narrowed),
                     "vLLM casts the drafter to the verifier's dtype and loses precision.",
                     f"measure it as it will be served, or convert to {verifier.dtype}")
        )  # fmt: skip
    named = drafter.verifier_architectures
    if named and verifier.architectures and not set(named) & set(verifier.architectures):
        findings.append(
            _finding("S21", "warning", "verifier.architectures", ", ".join(verifier.architectures),
                     ", ".join(named), "The drafter names another kind of verifier.",
                     "give the verifier that it was trained for")
        )  # fmt: skip
    if drafter.verifier_name and not _is_same_name(drafter.verifier_name, verifier):
        findings.append(
            _finding("S21", "info", "verifier.name_or_path", verifier.reference,
                     drafter.verifier_name, "`vllm serve DRAFTER` would look for it there.",
                     "name the verifier explicitly when serving")
        )  # fmt: skip
    return findings


def check_against_parent(drafter: Drafter, parent: Drafter) -> list[Finding]:
    """What a child must share with its parent for the parent's weights to mean the same."""
    findings = []
    if drafter.rope_parameters != parent.rope_parameters:
        findings.append(_differs("S18", "rope_parameters", parent, drafter))
    rules: tuple[tuple[str, str, Severity], ...] = (
        ("S1", "head_dim", "error"),
        ("S10", "norm_before_residual", "error"),
        ("S11", "norm_before_fc", "error"),
        ("S12", "fc_norm", "error"),
        ("S12", "norm_output", "error"),
        ("S14", "aux_layer_ids", "warning"),
        ("S20", "sliding_window", "warning"),
        ("S24", "hidden_act", "error"),
        ("S24", "rms_norm_eps", "error"),
        ("S24", "tie_word_embeddings", "error"),
        ("S24", "logit_scale", "error"),
    )
    for rule, name, severity in rules:
        if not _is_equal(getattr(drafter, name), getattr(parent, name)):
            findings.append(_differs(rule, name, parent, drafter, severity))
    return findings


def _differs(
    rule: str, name: str, parent: Drafter, child: Drafter, severity: Severity = "error"
) -> Finding:
    expected, found = _text(getattr(parent, name)), _text(getattr(child, name))
    return _finding(
        rule, severity, name, f"{expected}, as the parent has", found,
        "The parent's weights are used in another arithmetic than they were trained in.",
        _ON_PURPOSE,
    )  # fmt: skip


def _is_equal(left: object, right: object) -> bool:
    """Equality that takes 1e-05 and its float32 spelling for the same number."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-6)
    return left == right


def _is_same_name(name: str, verifier: Verifier) -> bool:
    last = name.rstrip("/").rsplit("/", 1)[-1]
    return name in (verifier.reference, str(verifier.path)) or last == verifier.path.name


def _text(value: Any) -> str:
    return "none" if value is None else str(list(value) if isinstance(value, tuple) else value)


def _finding(  # noqa: PLR0917 - the columns of a finding, in the order of its document
    rule: str, severity: Severity, subject: str, expected: str, found: str, consequence: str,
    fix: str,
) -> Finding:  # fmt: skip
    return Finding(
        rule=rule, severity=severity, subject=subject, expected=expected, found=found,
        consequence=consequence, fix=fix,
    )  # fmt: skip

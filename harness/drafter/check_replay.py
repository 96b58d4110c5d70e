"""What only a replay shows: a config that says another arithmetic than the drafter was trained in.

The changes that are tried come from config.json, the verifier and the parent; what they mean is
said here in the words of a config. Imports torch: import it only where a replay is really run.
"""

from typing import Any

import torch

from eval.counterfactual import Counterfactuals, Tried
from eval.draft import load_tensors
from eval.facts import DraftFacts
from eval.scoring import Subject
from eval.variants import EMBED, Change, list_changes
from eval.verifier import VerifierParts
from harness.drafter.drafter import Drafter
from harness.drafter.findings import Finding
from harness.drafter.verifier import Verifier
from harness.errors import CheckError

RULES = {
    "norm_before_residual": "S10",
    "norm_output": "S12",
    "aux_layer_ids": "S14",
    "rope_parameters": "S18",
    "windows": "S20",
    "hidden_act": "S24",
}
_NAMES = {
    "aux_layer_ids": "eagle_aux_hidden_state_layer_ids",
    "windows": "sliding_window, layer_types",
}
_IN_DECODER = ("rope_parameters", "windows", "hidden_act")
_PARENT, _VERIFIER = "the parent's", "the verifier's"
_LEAST_LENGTH = 1.2
"""Below this a drafter is as good as dead: no healthy one that was seen came near."""


def require_same_sizes(drafter: Drafter, parent: Drafter | None) -> None:
    """Refuses a parent of other sizes, whose tensors tell nothing of this drafter's.

    Raises:
        CheckError: Says which sizes.
    """
    if parent is None:
        return
    mine, theirs = ((d.vocab_size, d.hidden_size) for d in (drafter, parent))
    if mine != theirs:
        raise CheckError(
            f"expected a parent of vocabulary and width {mine}, as the drafter has, found {theirs}",
            "name the drafter that it was finetuned from",
        )


def load_subject(drafter: Drafter, facts: DraftFacts, parts: VerifierParts) -> Subject:
    """The drafter with its tensors in the dtype and on the device of the verifier's parts."""
    dtype, device = parts.norm_D.dtype, parts.norm_D.device
    tensors = {
        name: tensor.to(device, dtype if tensor.is_floating_point() else None)
        for name, tensor in load_tensors(drafter.path).items()
    }
    return Subject(facts, tensors, parts)


def possible_changes(
    drafter: Drafter, subject: Subject, verifier: Verifier, parent: Drafter | None
) -> list[Change]:
    """What may have been lost between training and config.json."""
    ropes = [verifier.rope_parameters] + ([parent.rope_parameters] if parent else [])
    return list_changes(
        subject.facts,
        verifier.num_layers,
        rope_parameters=[rope for rope in ropes if rope],
        windows=_known_windows(drafter, parent),
        embeddings=_other_embeddings(drafter, subject, parent),
    )


def findings_of(result: Counterfactuals, drafter: Drafter) -> list[Finding]:
    """Each change for the better as an error, then what was measured, then what was not judged."""
    findings = [_found(tried, drafter) for tried in result.found]
    findings.append(_measured(result))
    if result.walk_length.value < _LEAST_LENGTH and not result.found:
        findings.append(_dead(result))
    findings += [
        Finding(
            rule=_rule(one.subject, one.value),
            severity="info",
            subject=_name(one.subject),
            expected="answers long enough to compare " + _text(one.subject, one.value, drafter),
            found=one.reason,
            consequence="This rule was not checked.",
            fix="give longer prompts: --prompts, or a larger --max-tokens",
        )
        for one in result.not_judged
    ]
    return findings


def summary_lines(result: Counterfactuals) -> list[tuple[str, ...]]:
    """What was tried, for a table: change, acceptance length, its gain, the loss's gain."""
    return [
        (
            f"{_name(tried.subject)} {tried.value}",
            f"{tried.length:.3f}",
            f"{tried.length_gain.value:+.1%}",
            f"{tried.loss_gain.value:+.2%} [{tried.loss_gain.low:+.2%}, "
            f"{tried.loss_gain.high:+.2%}]",
        )
        for tried in result.tried
    ]


def _known_windows(drafter: Drafter, parent: Drafter | None) -> list[int]:
    """Windows that some config names, in use or not: a lost layer_types leaves its window."""
    layer = drafter.config.get("transformer_layer_config")
    written = (layer if isinstance(layer, dict) else drafter.config).get("sliding_window")
    named = [written, drafter.sliding_window, parent.sliding_window if parent else None]
    return [window for window in dict.fromkeys(named) if type(window) is int and window > 0]


def _other_embeddings(
    drafter: Drafter, subject: Subject, parent: Drafter | None
) -> dict[str, torch.Tensor]:
    embed = subject.parts.embed_VD
    found = {_VERIFIER: embed} if drafter.has_embed else {}
    if parent and parent.has_embed:
        found[_PARENT] = load_tensors(parent.path)[EMBED].to(embed.device, embed.dtype)
    return found


def _found(tried: Tried, drafter: Drafter) -> Finding:
    loss, length = tried.loss_gain, tried.length_gain
    configured = tried.length / (1 + length.value)
    return Finding(
        rule=_rule(tried.subject, tried.value),
        severity="error",
        subject=_name(tried.subject),
        expected=_text(tried.subject, tried.value, drafter)
        + f": the loss falls by {loss.value:.2%} [{loss.low:.2%}, {loss.high:.2%}], "
        f"the acceptance length over all positions goes from {configured:.3f} to "
        f"{tried.length:.3f} ({length.value:+.1%})",
        found=_configured(tried.subject, drafter),
        consequence=f"On {tried.num_entries} positions of {tried.num_prompts} prompts the drafter "
        "agrees better with the verifier in another arithmetic: it was trained in that one.",
        fix=_fix(tried, drafter),
    )


def _measured(result: Counterfactuals) -> Finding:
    walk, everywhere = result.walk_length, result.length
    return Finding(
        rule="replay",
        severity="info",
        subject="acceptance length",
        expected=f"none of {len(result.tried)} other readings of the config to fit better",
        found=f"{len(result.found)} of them; as configured {walk.value:.2f} "
        f"[{walk.low:.2f}, {walk.high:.2f}] (all positions {everywhere.value:.2f}), "
        f"K={result.k}, {result.num_prompts} prompts, {result.num_entries} positions",
        consequence="What a server would accept, as the config stands.",
        fix="none needed" if not result.found else "correct what is named, and verify again",
    )


def _dead(result: Counterfactuals) -> Finding:
    return Finding(
        rule="replay",
        severity="warning",
        subject="acceptance length",
        expected=f"at least {_LEAST_LENGTH}",
        found=f"{result.walk_length.value:.3f}",
        consequence="The drafter is hardly ever right, and nothing that was tried explains it.",
        fix="look at the rules that need --deep, at the verifier's revision, and at its training",
    )


def _rule(subject: str, value: str) -> str:
    if subject == EMBED:
        return "S9" if value == _PARENT else "S8"
    return RULES[subject]


def _name(subject: str) -> str:
    return _NAMES.get(subject, subject)


def _text(subject: str, value: str, drafter: Drafter) -> str:
    """A value of a change as config.json spells it."""
    if subject == "windows":
        kind = "full_attention" if value == "None" else "sliding_attention"
        types = f"layer_types {[kind] * drafter.num_layers}"
        return types if value == "None" else f"sliding_window {value} with {types}"
    if subject == "aux_layer_ids":
        return value.replace("(", "[").replace(",)", "]").replace(")", "]")
    return {"True": "true", "False": "false"}.get(value, value)


def _configured(subject: str, drafter: Drafter) -> str:
    if subject == EMBED:
        return "the drafter's own copy" if drafter.has_embed else "none: the verifier's is shared"
    if subject == "windows":
        kinds = list(drafter.layer_types) or "none"
        return f"sliding_window {drafter.sliding_window or 'none'} with layer_types {kinds}"
    value: Any = getattr(drafter, subject)
    text = str(value) if value is not None else "none: vLLM's default"
    return _text(subject, text, drafter)


def _fix(tried: Tried, drafter: Drafter) -> str:
    if tried.subject == EMBED and tried.value == _VERIFIER:
        return f"leave {EMBED} out of the file: the verifier's is shared then"
    if tried.subject == EMBED:
        return f"copy {EMBED} from the parent into the file, or export it from the training"
    is_nested = drafter.format == "speculators" and tried.subject in _IN_DECODER
    where = "config.json: transformer_layer_config" if is_nested else "config.json"
    value = _text(tried.subject, tried.value, drafter)
    if tried.subject == "windows":
        return f"set in {where}: {value}"
    return f"set {_name(tried.subject)} to {value} in {where}"

"""What a replay must know of a drafter and a verifier, in the words of `eval.facts`."""

from eval.facts import DraftFacts, VerifierFacts
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier, final_norm_key
from harness.errors import CheckError, ConfigError

_DEFAULT_EPS = 1e-6
ONE_PLUS_NORMS = ("gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_5", "qwen3_5_text")
"""Verifiers whose final norm multiplies by 1 + weight, which speculators' EAGLE-3 does not do.
Source: speculators 0.9.0, models/utils.py."""


def draft_facts(drafter: Drafter, verifier: Verifier) -> DraftFacts:
    """The arithmetic of a drafter as vLLM would take it from its config.json.

    Raises:
        CheckError: A kind of drafter that cannot be replayed: MLA, parallel drafting, quantised.
    """
    reason = None
    if drafter.format == "mla":
        reason = "its attention is multi-head latent (MLA)"
    elif drafter.config.get("speculators_model_type") == "peagle":
        reason = "it drafts in parallel (P-EAGLE)"
    elif drafter.is_quantised:
        reason = "its weights are quantised"
    elif drafter.model_type not in ("llama", "qwen3"):
        reason = f"its layers are of type {drafter.model_type}"
    if reason:
        raise CheckError(
            f"{drafter.path} cannot be replayed: {reason}", "measure it with harness bench"
        )
    return DraftFacts(
        kind=drafter.model_type,
        hidden_size=drafter.hidden_size,
        target_hidden_size=drafter.target_hidden_size,
        num_layers=drafter.num_layers,
        num_heads=drafter.num_heads,
        num_kv_heads=drafter.num_kv_heads,
        head_dim=drafter.head_dim,
        num_aux=drafter.num_aux,
        aux_layer_ids=drafter.aux_layer_ids or verifier.default_aux_layer_ids,
        vocab_size=drafter.vocab_size,
        draft_vocab_size=drafter.draft_vocab_size,
        norm_before_residual=drafter.norm_before_residual,
        norm_before_fc=drafter.norm_before_fc,
        norm_output=drafter.norm_output,
        fc_norm=drafter.fc_norm,
        rms_norm_eps=drafter.rms_norm_eps,
        hidden_act=drafter.hidden_act,
        rope_parameters=drafter.rope_parameters,
        max_position_embeddings=drafter.max_position_embeddings,
        windows=_windows(drafter),
    )


def verifier_facts(verifier: Verifier, digest: str) -> VerifierFacts:
    """Where the parts of a verifier lie that a replay needs.

    Raises:
        ConfigError: It lacks one, or its final norm is of another kind.
    """
    if verifier.model_type in ONE_PLUS_NORMS:
        raise ConfigError(
            f"verifier: {verifier.model_type} scales its final norm by 1 + weight, which replay "
            "does not: its predictions would be wrong"
        )
    if verifier.embed_key is None or verifier.lm_head_key is None:
        raise ConfigError(
            f"verifier: expected an embedding and an output head in {verifier.path}, found "
            f"{verifier.embed_key} and {verifier.lm_head_key}"
        )
    return VerifierFacts(
        path=verifier.path,
        digest=digest,
        num_layers=verifier.num_layers,
        embed_key=verifier.embed_key,
        head_key=verifier.lm_head_key,
        norm_key=final_norm_key(verifier),
        rms_norm_eps=verifier.rms_norm_eps or _DEFAULT_EPS,
        dtype=verifier.dtype,
    )


def _windows(drafter: Drafter) -> tuple[int | None, ...]:
    """Window by layer; vLLM takes a layer without a type for one that sees everything."""
    kinds = (*drafter.layer_types, *[""] * drafter.num_layers)[: drafter.num_layers]
    return tuple(drafter.sliding_window if kind == "sliding_attention" else None for kind in kinds)

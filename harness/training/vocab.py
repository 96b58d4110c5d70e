"""The draft vocabulary that a configuration names, checked before anything is trained on it."""

from pathlib import Path

from harness.config.train import TrainConfig
from harness.corpus.draftvocab import DraftVocab, load_vocab
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError


def settle_vocab(
    config: TrainConfig, verifier: Verifier, digest: str, folder: Path | None
) -> tuple[DraftVocab | None, TrainConfig]:
    """The vocabulary under `draft_vocab`, and the configuration with its size.

    Args:
        config: As it was asked for.
        verifier: The training's.
        digest: The verifier's.
        folder: Of `harness data vocab`; None where the configuration names none.

    Raises:
        ConfigError: There is none, or `draft_vocab_size` says otherwise.
        CheckError: It is another verifier's, or was changed.
    """
    if folder is None:
        return None, config
    vocab = load_vocab(folder)
    size = len(vocab.target_ids)
    if vocab.verifier_digest != digest:
        raise CheckError(
            f"draft_vocab: expected a vocabulary of {verifier.reference} (digest {digest[:12]}), "
            f"found {folder}, of a verifier with digest {vocab.verifier_digest[:12]}",
            "build it from this verifier's tokens: harness data vocab",
        )
    if config.draft_vocab_size not in (None, size):
        raise ConfigError(
            f"draft_vocab_size: {config.draft_vocab_size} contradicts draft_vocab, which holds "
            f"{size} tokens",
            "leave draft_vocab_size out",
        )
    return vocab, config.model_copy(update={"draft_vocab_size": size})

"""Conversations to training rows: token ids, a loss mask on the answers alone, token counts.

The folder is what speculators 0.9.0 reads as `data_path`: an arrow data set with the columns
`input_ids`, `loss_mask` and `seq_len`, and `token_freq.pt`, from which draft vocabularies are made.
`statistics.html` says what it is made of, `dropped.jsonl` what is not in it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.corpus.conversations import Conversation, load_conversations
from harness.corpus.dialogues import Unusable, read_dialogues
from harness.corpus.manifest import (
    Manifest,
    Plan,
    begin_stage,
    finish_stage,
    hold_folder,
)
from harness.corpus.rowfiles import write_rows
from harness.corpus.storage import require_space
from harness.corpus.template import ChatTemplate
from harness.corpus.trainrows import build_all
from harness.digests import digest_files, sha256_file
from harness.drafter.verifier import Verifier, verifier_digest
from harness.errors import CheckError, ConfigError

_BYTES_PER_TOKEN = 20
"""An int32 and an int64 column, token counts and statistics; what is beyond it is to spare."""


class PrepareConfig(Frozen):
    """How rows are cut and ordered."""

    seq_length: int = Field(default=2048, ge=16)
    """Tokens per row at most; what lies beyond is cut off and counted."""
    seed: int = 0
    """Of the order of the rows: the trainer takes the last ones for validation."""
    limit: int | None = Field(default=None, ge=1)
    """Conversations at most, the first by id."""
    trust_remote_code: bool = False
    """Run the tokenizer's code in the verifier's folder; of use for conversations as text."""

    def plan(self) -> dict[str, Any]:
        """What the rows depend on. `limit`, which came later, stands only where it is given."""
        named = {"seq_length", "seed"} | ({"limit"} if self.limit else set())
        return self.model_dump(include=named)


class _Source(NamedTuple):
    """Where the conversations come from, and how many there are, where that is known."""

    inputs: dict[str, str]
    origins: dict[str, str]
    conversations: Iterable[Conversation | Unusable]
    total: int


def prepare(
    conversations_path: Path,
    verifier: Verifier,
    out_dir: Path,
    config: PrepareConfig,
    *,
    cache_dir: Path | None = None,
    overwrite: bool = False,
    progress: ProgressFn,
) -> Manifest:
    """Writes conversations in the form that speculators' trainer reads, and their statistics.

    Args:
        conversations_path: A finished regeneration, whose token ids are taken as they are; or JSONL
            with answers as text, which the verifier's chat template and tokenizer render.
        verifier: Whose answers they are.
        out_dir: The stage's folder; owned by the stage afterwards.
        config: How to cut.
        cache_dir: Keeps the verifier's digest between calls.
        overwrite: Replace other or finished work in `out_dir`.
        progress: Told the conversations done so far.

    Raises:
        SpecError: A line of the JSONL is malformed; file and line are named.
        ConfigError: No finished regeneration, no chat template, or `out_dir` holds other work.
        CheckError: The conversations were changed, or are another verifier's.
        WorkError: No row is left.
    """
    open_source = _open_stage if conversations_path.is_dir() else _open_text
    source = open_source(conversations_path, verifier, config, cache_dir)
    plan = Plan(stage="prepare", inputs=source.inputs, config=config.plan())
    with hold_folder(out_dir):
        if finished := begin_stage(out_dir, plan, overwrite=overwrite):
            return finished
        progress("preparing", 0, source.total)
        built = build_all(source.conversations, verifier, config, source.total, progress)
        require_space(out_dir, _BYTES_PER_TOKEN * built.counts["tokens"], "the token rows")
        names = write_rows(out_dir, built, config, verifier.vocab_size)
        files = digest_files(out_dir, names)
        return finish_stage(out_dir, plan, built.counts, files, source.origins)


def _open_stage(
    folder: Path, verifier: Verifier, config: PrepareConfig, cache_dir: Path | None
) -> _Source:
    source, conversations = load_conversations(folder)
    require_verifier(source, verifier, cache_dir)
    inputs = {"conversations": source.digest, "verifier": source.inputs["verifier"]}
    total = source.counts["conversations"]
    if config.limit is not None and config.limit < total:
        total = config.limit
        conversations = iter(sorted(conversations, key=lambda one: one.id)[:total])
    return _Source(inputs, dict(source.origins), conversations, total)


def _open_text(
    path: Path, verifier: Verifier, config: PrepareConfig, cache_dir: Path | None
) -> _Source:
    if not path.is_file():
        raise ConfigError(
            f"expected a folder of stage 'regenerate' or a JSONL file, found none: {path}",
            "make one with: harness data regenerate",
        )
    digest = verifier_digest(verifier, cache_dir)
    inputs = {"conversations": sha256_file(path), "verifier": digest}
    origins = {"conversations": path.name, "verifier": verifier.reference}
    conversations = _read_text(path, verifier, config)
    return _Source(inputs, origins, conversations, config.limit or 0)


def _read_text(
    path: Path, verifier: Verifier, config: PrepareConfig
) -> Iterator[Conversation | Unusable]:
    """A generator: the tokenizer is loaded only if there is work to do."""
    template = ChatTemplate.load(verifier, trust_remote_code=config.trust_remote_code)
    yield from read_dialogues(path, template, config.limit)


def require_verifier(source: Manifest, verifier: Verifier, cache_dir: Path | None) -> None:
    """Refuses a verifier other than the one that a stage's folder was made with.

    Raises:
        CheckError: Names both by reference and digest.
    """
    expected, found = source.inputs["verifier"], verifier_digest(verifier, cache_dir)
    if expected != found:
        raise CheckError(
            f"expected the verifier of stage {source.stage!r}, {source.origins.get('verifier')} "
            f"({expected[:12]}), found {verifier.reference} ({found[:12]})",
            "a drafter learns from its own verifier only: give the same --verifier to every stage",
        )

"""Token rows to hidden states on disk, and the finished corpus that a training reads.

The folder is complete in itself: `tokens/` is a copy of the prepared rows, `hidden_states/` holds
`hs_<row>.safetensors` (`hidden_states` [tokens, captured layers, hidden size], `token_ids`) in the
layout of speculators 0.9.0's offline reader, the final norm's input last.
"""

import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.corpus.journal import Journal
from harness.corpus.manifest import (
    JOURNAL_NAME,
    MANIFEST_NAME,
    Manifest,
    Plan,
    begin_stage,
    check_files,
    finish_stage,
    hold_folder,
    load_manifest,
    require_space,
)
from harness.corpus.tokens import read_token_ids, require_verifier
from harness.digests import FileDigest, digest_files, join_digests, sha256_bytes, write_atomic
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError

if TYPE_CHECKING:
    import torch

TOKENS_DIR = "tokens"
STATES_DIR = "hidden_states"
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_HEADER_BYTES = 256
_NUM_QUEUED = 2
"""Batches that may wait to be written: bounds memory when the disk is slower than the model."""


class ExtractConfig(Frozen):
    """What is captured and how it is stored; `batch_tokens` sets the pace alone."""

    aux_layer_ids: tuple[int, ...] | None = None
    """Layers whose inputs the drafter sees; None: the verifier's default (2, n//2, n-3)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    batch_tokens: int | None = Field(default=None, ge=1)
    """Tokens per forward pass, padding included; a longer row is a batch of its own. None: what
    suits the device (`capture.default_batch_tokens`)."""


class Corpus(Frozen):
    """A finished corpus: everything a training needs to know of it."""

    dir: Path
    tokens_dir: Path
    """`data_path` of speculators' trainer."""
    hidden_states_dir: Path
    digest: str
    num_conversations: int
    num_rows: int
    num_tokens: int
    num_loss_tokens: int
    longest_row_tokens: int
    verifier_reference: str
    verifier_digest: str
    aux_layer_ids: tuple[int, ...]
    dtype: str

    @classmethod
    def load(
        cls, folder: Path, *, deep: bool = True, progress: ProgressFn | None = None
    ) -> "Corpus":
        """Reads a finished corpus and checks its files, with `deep` byte by byte.

        Raises:
            ConfigError: No finished corpus there.
            CheckError: A file is missing or changed; names the file and the stage.
        """
        manifest = load_manifest(folder, "extract")
        check_files(folder, manifest, deep=deep, progress=progress)
        counts = manifest.counts
        return cls(
            dir=folder.resolve(),
            tokens_dir=folder.resolve() / TOKENS_DIR,
            hidden_states_dir=folder.resolve() / STATES_DIR,
            digest=manifest.digest,
            num_conversations=counts["conversations"],
            num_rows=counts["rows"],
            num_tokens=counts["tokens"],
            num_loss_tokens=counts["loss_tokens"],
            longest_row_tokens=counts["longest_row_tokens"],
            verifier_reference=manifest.origins["verifier"],
            verifier_digest=manifest.inputs["verifier"],
            aux_layer_ids=tuple(manifest.config["aux_layer_ids"]),
            dtype=manifest.config["dtype"],
        )

    def num_train_rows(self, val_ratio: float) -> int:
        """Rows, the first ones, that a training with this `val_ratio` trains on."""
        return int(self.num_rows * (1 - val_ratio))

    def require_verifier(self, verifier: Verifier, digest: str) -> None:
        """Refuses to be used beside a verifier whose hidden states these are not.

        Raises:
            CheckError: Names both verifiers by reference and digest.
        """
        if self.verifier_digest != digest:
            raise CheckError(
                f"expected a corpus of the verifier {verifier.reference} (digest {digest[:12]}), "
                f"found {self.dir}, which was made with {self.verifier_reference} "
                f"(digest {self.verifier_digest[:12]})",
                "name the verifier of the corpus, or extract the corpus again with this one",
            )


class Batch(NamedTuple):
    """Rows that go through the verifier together."""

    rows: tuple[int, ...]
    num_tokens: int
    """Without padding."""


def extract(
    tokens_dir: Path,
    verifier: Verifier,
    out_dir: Path,
    config: ExtractConfig,
    *,
    cache_dir: Path | None = None,
    overwrite: bool = False,
    progress: ProgressFn,
) -> Manifest:
    """Writes the verifier's hidden states for every prepared row.

    Can be killed at any point: finished files are in a journal with their digests, a later call
    makes the rest, in the same batches, so that the bytes come out the same.

    Raises:
        ConfigError: No prepared rows, layers the verifier lacks, or other work in `out_dir`.
        CheckError: The rows were changed, or are another verifier's.
        PrerequisiteError: The disk is too full; nothing was started.
        VerifierError: The verifier cannot be loaded or overflows.
    """
    source = load_manifest(tokens_dir, "prepare")
    check_files(tokens_dir, source, deep=True)
    require_verifier(source, verifier, cache_dir)
    layer_ids = _require_layers(config.aux_layer_ids, verifier)
    plan = Plan(
        stage="extract",
        inputs={"tokens": source.digest, "verifier": source.inputs["verifier"]},
        config={"aux_layer_ids": list(layer_ids), "dtype": config.dtype},
    )
    with hold_folder(out_dir):
        if finished := begin_stage(out_dir, plan, overwrite=overwrite):
            return finished
        rows = read_token_ids(tokens_dir)
        tokens_files = _copy_tokens(tokens_dir, source, out_dir / TOKENS_DIR)
        _make_states_dir(out_dir / STATES_DIR)
        with Journal(out_dir / JOURNAL_NAME) as journal:
            work = _Extraction(rows, out_dir, journal, progress)
            work.run(verifier, (*layer_ids, verifier.num_layers), config)
        counts = {**source.counts, "longest_row_tokens": max(map(len, rows))}
        files = join_digests([*tokens_files, *work.done.values()])
        origins = {**source.origins, "verifier": verifier.reference}
        return finish_stage(out_dir, plan, counts, files, origins)


def plan_batches(lengths: Sequence[int], batch_tokens: int) -> list[Batch]:
    """Rows of like length together, longest first, so that little is padded and memory peaks early.

    The plan depends on the lengths and the budget alone.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    batches: list[Batch] = []
    while order:
        size = max(1, batch_tokens // max(1, lengths[order[0]]))
        taken, order = order[:size], order[size:]
        batches.append(Batch(tuple(taken), sum(lengths[row] for row in taken)))
    return batches


def estimate_bytes(lengths: Sequence[int], num_layer_ids: int, hidden_size: int, dtype: str) -> int:
    """Bytes on disk of the hidden states of rows with these lengths."""
    per_token = num_layer_ids * hidden_size * _ITEM_BYTES[dtype] + 8
    return sum(lengths) * per_token + len(lengths) * _HEADER_BYTES


class _Extraction:
    """The files so far, and the making of the rest."""

    def __init__(
        self, rows: list[list[int]], out_dir: Path, journal: Journal, progress: ProgressFn
    ) -> None:
        self.done: dict[int, FileDigest] = {}
        self._rows = rows
        self._out_dir = out_dir
        self._journal = journal
        self._progress = progress
        for document in journal.read():
            digest = FileDigest.model_validate(document["file"])
            path = out_dir / digest.name
            if path.is_file() and path.stat().st_size == digest.num_bytes:
                self.done[document["row"]] = digest

    def run(self, verifier: Verifier, layer_ids: tuple[int, ...], config: ExtractConfig) -> None:
        """Runs the verifier over every batch that has a file missing; writing goes on beside it."""
        lengths = [len(row) for row in self._rows]
        missing = [length for row, length in enumerate(lengths) if row not in self.done]
        if not missing:
            return
        needed = estimate_bytes(missing, len(layer_ids), verifier.hidden_size, config.dtype)
        require_space(self._out_dir, needed, f"hidden states of {sum(missing)} tokens")
        # Loading torch and transformers takes seconds; a finished stage needs neither.
        from eval.capture import LayerCapture, default_batch_tokens  # noqa: PLC0415

        batches = plan_batches(lengths, config.batch_tokens or default_batch_tokens())
        pending = [batch for batch in batches if not self.done.keys() >= set(batch.rows)]
        self._progress("loading the verifier", 0, 0)
        capture = LayerCapture.load(verifier.path, layer_ids, verifier.num_layers, config.dtype)
        num_done = sum(lengths) - sum(batch.num_tokens for batch in pending)
        writes: list[Future[None]] = []
        with ThreadPoolExecutor(max_workers=1) as writer:
            for batch in pending:
                self._progress("extracting", num_done, sum(lengths))
                states = capture.run([self._rows[row] for row in batch.rows])
                writes.append(writer.submit(self._write, batch, states))
                if len(writes) > _NUM_QUEUED:
                    writes.pop(0).result()
                num_done += batch.num_tokens
            for write in writes:
                write.result()
        self._progress("extracting", num_done, sum(lengths))

    def _write(self, batch: Batch, states: Sequence["torch.Tensor"]) -> None:
        import torch  # noqa: PLC0415 - loaded by now, see above
        from safetensors.torch import save  # noqa: PLC0415

        entries = {}
        for row, row_states in zip(batch.rows, states, strict=True):
            if row in self.done:
                continue
            token_ids = torch.tensor(self._rows[row], dtype=torch.long)
            raw = save({"hidden_states": row_states.contiguous(), "token_ids": token_ids})
            name = f"{STATES_DIR}/hs_{row}.safetensors"
            write_atomic(self._out_dir / name, raw)
            entries[row] = FileDigest(name=name, num_bytes=len(raw), sha256=sha256_bytes(raw))
        self._journal.append({"row": r, "file": d.model_dump()} for r, d in entries.items())
        self.done |= entries


def _make_states_dir(folder: Path) -> None:
    """Makes the folder, or clears it of the temporary file that a kill left behind."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob(".hs_*"):
        path.unlink()


def _require_layers(asked: tuple[int, ...] | None, verifier: Verifier) -> tuple[int, ...]:
    layer_ids = asked or verifier.default_aux_layer_ids
    is_sound = list(layer_ids) == sorted(set(layer_ids)) and layer_ids[0] >= 0
    if not is_sound or layer_ids[-1] >= verifier.num_layers:
        raise ConfigError(
            f"aux_layer_ids: expected increasing layers from 0 to {verifier.num_layers - 1} of "
            f"{verifier.reference}, found {', '.join(map(str, layer_ids))}",
            f"leave them out for {verifier.default_aux_layer_ids}; the last state is always added",
        )
    return layer_ids


def _copy_tokens(tokens_dir: Path, source: Manifest, folder: Path) -> list[FileDigest]:
    shutil.rmtree(folder, ignore_errors=True)
    names = [file.name for file in source.files.files]
    for name in (*names, MANIFEST_NAME):
        write_atomic(folder / name, (tokens_dir / name).read_bytes())
    if digest_files(folder, names).root != source.files.root:
        raise CheckError(f"prepare: {tokens_dir} was changed while it was copied", "run again")
    return [
        FileDigest(name=f"{TOKENS_DIR}/{f.name}", num_bytes=f.num_bytes, sha256=f.sha256)
        for f in digest_files(folder, (*names, MANIFEST_NAME)).files
    ]

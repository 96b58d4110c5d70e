"""Token rows to hidden states on disk: the stage `extract`.

The folder is complete in itself: `tokens/` is a copy of the prepared rows, `hidden_states/` holds
`hs_<row>.safetensors` (see `harness.corpus.storage`), the final norm's input last.
"""

import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from eval.progress import ProgressFn
from harness.corpus.backends import Backend, open_backend
from harness.corpus.batches import Batch, Budget, Schedule, plan_batches
from harness.corpus.extractplan import (
    ORIGIN_BUDGETS,
    ExtractConfig,
    build_plan,
    require_rows,
    spell_budgets,
)
from harness.corpus.hidden_states import STATES_DIR, TOKENS_DIR, state_name
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
)
from harness.corpus.pace import Pace
from harness.corpus.rowfiles import read_token_ids
from harness.corpus.storage import encode, estimate_bytes, require_space
from harness.corpus.tokens import require_verifier
from harness.digests import FileDigest, digest_files, join_digests, sha256_bytes, write_atomic
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError

if TYPE_CHECKING:
    import torch

_NUM_QUEUED = 2
"""Batches that may wait to be written: bounds memory when the disk is slower than the model."""
_UNASKED_BYTES = 20_000_000_000
_UNASKED_S = 3600.0


def extract(
    tokens_dir: Path,
    verifier: Verifier,
    out_dir: Path,
    config: ExtractConfig,
    *,
    cache_dir: Path | None = None,
    overwrite: bool = False,
    is_agreed: bool = False,
    progress: ProgressFn,
) -> Manifest:
    """Writes the verifier's hidden states for every prepared row.

    Can be killed at any point: finished files are in a journal with their digests, a later call
    makes the rest, in the same batches, so that the bytes come out the same.

    Args:
        tokens_dir: Folder of `harness data prepare`.
        verifier: Whose states.
        out_dir: The stage's folder; owned by the stage afterwards.
        config: What is captured, and how.
        cache_dir: Keeps the verifier's digest between calls.
        overwrite: Replace other or finished work in `out_dir`.
        is_agreed: Go on where it takes more than 20 GB or an hour.
        progress: Told the tokens done, with the pace.

    Raises:
        ConfigError: No prepared rows, layers the verifier lacks, other work in `out_dir`, or more
            bytes or time than was agreed to.
        CheckError: The rows were changed, or are another verifier's.
        PrerequisiteError: The disk is too full; nothing was started.
        VerifierError: The verifier cannot be loaded, overflows, or one row is more than fits.
    """
    source = load_manifest(tokens_dir, "prepare")
    check_files(tokens_dir, source, deep=True)
    require_verifier(source, verifier, cache_dir)
    plan = build_plan(source, verifier, config)
    with hold_folder(out_dir):
        if finished := begin_stage(out_dir, plan, overwrite=overwrite):
            return finished
        rows = read_token_ids(tokens_dir)
        require_rows(rows, verifier, config)
        tokens_files = _copy_tokens(tokens_dir, source, out_dir / TOKENS_DIR)
        _make_states_dir(out_dir / STATES_DIR)
        with Journal(out_dir / JOURNAL_NAME) as journal:
            first = first_row(plan)
            work = Extraction(
                rows[first:], out_dir, journal, progress, is_agreed=is_agreed, first_row=first
            )
            work.take_up()
            work.run(verifier, captured_ids(plan, verifier), config)
        counts = {**source.counts, "longest_row_tokens": max(map(len, rows))}
        files = join_digests([*tokens_files, *work.done.values()])
        origins = {
            **source.origins,
            "verifier": verifier.reference,
            ORIGIN_BUDGETS: spell_budgets(work.budgets),
        }
        return finish_stage(out_dir, plan, counts, files, origins)


class Extraction:
    """The files so far, and the making of the rest.

    Args:
        rows: Token ids of every row that is stored.
        out_dir: The stage's folder.
        journal: Open; told of every file, and of the budgets.
        progress: Told how far it is.
        is_agreed: Whether it may take any number of bytes and hours.
        first_row: Number of the first of the rows in the corpus.
    """

    def __init__(
        self,
        rows: list[list[int]],
        out_dir: Path,
        journal: Journal,
        progress: ProgressFn,
        *,
        is_agreed: bool,
        first_row: int = 0,
    ) -> None:
        self.done: dict[int, FileDigest] = {}
        self.budgets: list[Budget] = []
        self._rows = rows
        self._out_dir = out_dir
        self._journal = journal
        self._progress = progress
        self._is_agreed = is_agreed
        self._first_row = first_row

    def take_up(self) -> None:
        """Counts what an earlier call did: whole files, and the budgets it ended up with."""
        for document in self._journal.read():
            if "budget" in document:
                self.budgets.append(Budget.model_validate(document["budget"]))
                continue
            digest = FileDigest.model_validate(document["file"])
            path = self._out_dir / digest.name
            if path.is_file() and path.stat().st_size == digest.num_bytes:
                self.done[document["row"]] = digest

    def run(self, verifier: Verifier, layer_ids: tuple[int, ...], config: ExtractConfig) -> None:
        """Runs the verifier over every batch that has a file missing; writing goes on beside it."""
        missing = [len(ids) for row, ids in enumerate(self._rows) if row not in self.done]
        if not missing:
            return
        needed = estimate_bytes(missing, len(layer_ids), verifier.hidden_size, config.dtype)
        what = f"hidden states of {sum(missing)} tokens"
        require_space(self._out_dir, needed, what)
        if needed > _UNASKED_BYTES:
            self._require_agreement(f"{what} take {needed / 1e9:.1f} GB")
        if config.max_model_len is None:
            config = config.model_copy(update={"max_model_len": max(map(len, self._rows)) + 1})
        self._progress("loading the verifier", 0, 0)
        log_path = self._out_dir / "server.log"
        with open_backend(verifier, layer_ids, config, log_path) as backend:
            self._settle_budgets(config, backend.estimate_batch_tokens(verifier))
            schedule = Schedule([len(ids) for ids in self._rows], self.budgets)
            with ThreadPoolExecutor(max_workers=1) as writer:
                self._run_all(schedule, backend, config.dtype, writer)

    def _settle_budgets(self, config: ExtractConfig, estimated: int) -> None:
        """The budgets of an earlier call; a smaller one asked for by number counts from here on.

        Raises:
            ConfigError: A larger one is asked for than the work was begun with.
        """
        asked = config.batch_tokens
        if not self.budgets:
            self._add_budget(Budget(first_batch=0, tokens=asked or estimated))
            return
        begun = self.budgets[0].tokens
        if asked is not None and asked > begun:
            raise ConfigError(
                f"batch_tokens: the work was begun with {begun} tokens a pass, asked {asked}",
                "leave --batch-tokens out or give less, or --overwrite to begin again",
            )
        if asked is not None and asked < min(budget.tokens for budget in self.budgets):
            plan = plan_batches([len(ids) for ids in self._rows], begun)
            made = [number for number, batch in enumerate(plan) if self.done.keys() & batch.rows]
            self._add_budget(Budget(first_batch=max(made, default=-1) + 1, tokens=asked))

    def _add_budget(self, budget: Budget) -> None:
        self.budgets.append(budget)
        self._journal.append([{"budget": budget.model_dump()}])

    def _run_all(
        self,
        schedule: Schedule,
        backend: Backend,
        dtype: str,
        writer: ThreadPoolExecutor,
    ) -> None:
        from eval.errors import MemoryShortError  # noqa: PLC0415 - beside its only use

        pace = Pace(self._rows, self.done, self._progress)
        writes: list[Future[None]] = []
        for number, batch in schedule:
            wanted = [row for row in batch.rows if row not in self.done]
            if not wanted:
                continue
            pace.tell()
            try:
                states = backend.run([self._rows[row] for row in batch.rows])
            except MemoryShortError:
                lower = schedule.halve(number, batch)
                if lower is None:
                    raise
                self._add_budget(lower)
                continue
            writes.append(writer.submit(self._write, batch, states, dtype))
            if len(writes) > _NUM_QUEUED:
                writes.pop(0).result()
            pace.add(sum(len(self._rows[row]) for row in wanted))
            if not self._is_agreed and pace.left_s > _UNASKED_S:
                writes[-1].result()
                self._require_agreement(
                    f"at {pace.tokens_per_s:.0f} tokens/s the rest takes {pace.left_s / 3600:.1f} h"
                )
        for write in writes:
            write.result()
        pace.tell()

    def _require_agreement(self, what: str) -> None:
        if not self._is_agreed:
            raise ConfigError(
                f"extract: {what}; more than {_UNASKED_BYTES / 1e9:.0f} GB or "
                f"{_UNASKED_S / 3600:.0f} h is not begun unasked",
                "say --yes; --dtype bfloat16 or fp8 takes a half or a quarter of float32",
            )

    def _write(self, batch: Batch, states: Sequence["torch.Tensor"], dtype: str) -> None:
        entries = {}
        for row, row_states in zip(batch.rows, states, strict=True):
            if row in self.done:
                continue
            raw = encode(row_states, self._rows[row], dtype)
            name = f"{STATES_DIR}/{state_name(self._first_row + row)}"
            write_atomic(self._out_dir / name, raw)
            entries[row] = FileDigest(name=name, num_bytes=len(raw), sha256=sha256_bytes(raw))
        self._journal.append({"row": r, "file": d.model_dump()} for r, d in entries.items())
        self.done |= entries


def first_row(plan: Plan) -> int:
    """The first row whose states are stored; those before it are made during trainings."""
    return int(plan.config.get("first_row", 0))


def captured_ids(plan: Plan, verifier: Verifier) -> tuple[int, ...]:
    """Layer ids of the states in their order; the last is the final norm's input."""
    return (*plan.config["aux_layer_ids"], verifier.num_layers)


def _make_states_dir(folder: Path) -> None:
    """Makes the folder, or clears it of the temporary file that a kill left behind."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob(".hs_*"):
        path.unlink()


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

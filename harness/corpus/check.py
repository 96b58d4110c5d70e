"""Whether the files of a corpus are what they should be, by their headers, and the mending of it.

A header names a file's tensors and their ends, so a file that was cut short, holds other layers or
another dtype is found without reading its states; the token ids, which are read, tell a file of
another row or of older rows. With `deep` every byte is compared with the manifest.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.corpus.extraction import Extraction, captured_ids, first_row
from harness.corpus.extractplan import ExtractConfig, read_budgets
from harness.corpus.hidden_states import STATES_DIR, TOKENS_DIR, state_name
from harness.corpus.journal import Journal
from harness.corpus.manifest import (
    JOURNAL_NAME,
    Manifest,
    Plan,
    finish_stage,
    hold_folder,
    load_manifest,
)
from harness.corpus.rowfiles import read_token_ids
from harness.corpus.storage import TOKEN_IDS, expected_tensors
from harness.corpus.tokens import require_verifier
from harness.digests import join_digests, sha256_file
from harness.drafter.tensors import TensorHeader, UnreadableError, read_file_headers
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError

_EVERY = 500
"""Files between two words on how far it is."""
_SAMPLE = 9
"""Files that tell the hidden size."""

Kind = Literal["missing", "truncated", "mismatched", "stale", "changed", "stranger"]
"""Not there; cut short or no safetensors; other shapes or dtype; states of other tokens; other
bytes than the manifest's; a file of no row."""


class StateFinding(Frozen):
    """One file that is not what it should be."""

    name: str
    """Relative to the corpus."""
    kind: Kind
    row: int | None
    """Whose states can be made again; None where that would not help."""
    expected: str
    found: str


class Repair(Frozen):
    """What a repair did."""

    num_files: int
    is_same: bool
    """All files have the bytes of the manifest again; else the corpus has a new digest."""
    digest: str


def check_corpus(
    folder: Path, *, deep: bool = False, progress: ProgressFn | None = None
) -> tuple[Manifest, list[StateFinding]]:
    """Every finding about the files of a finished extraction.

    Args:
        folder: Its folder.
        deep: Read every byte.
        progress: Told the files done.

    Raises:
        ConfigError: No finished extraction there.
        CheckError: The manifest, or the copy of the rows, was changed: that is not for repair.
    """
    manifest = load_manifest(folder, "extract")
    findings = [*_check_tokens(folder, manifest)]
    if findings:
        return manifest, findings  # without the rows nothing else can be told
    rows = read_token_ids(folder / TOKENS_DIR)
    layout = _Layout(
        num_states=len(manifest.config["aux_layer_ids"]) + 1,
        hidden_size=_hidden_size(folder, manifest, len(rows)),
        dtype=manifest.config["dtype"],
    )
    digests = {file.name: file for file in manifest.files.files}
    for row, ids in list(enumerate(rows))[first_row(manifest) :]:
        name = f"{STATES_DIR}/{state_name(row)}"
        found = _check_row(folder, row, ids, layout)
        if found is None and deep and sha256_file(folder / name) != digests[name].sha256:
            expected, text = f"SHA-256 {digests[name].sha256[:12]}", "other bytes"
            found = StateFinding(name=name, kind="changed", row=row, expected=expected, found=text)
        findings += [found] if found else []
        if progress and (row % _EVERY == 0 or row + 1 == len(rows)):
            progress("checking", row + 1, len(rows))
    return manifest, [*findings, *_find_strangers(folder, range(first_row(manifest), len(rows)))]


def repair_corpus(
    folder: Path,
    verifier: Verifier,
    findings: Sequence[StateFinding],
    *,
    cache_dir: Path | None = None,
    progress: ProgressFn,
) -> Repair:
    """Makes the files of the findings again, and no others, in the passes they were made in.

    Can be killed at any point: the files it has not made are found again by the next check.

    Args:
        folder: Of a finished extraction.
        verifier: The one it was made with.
        findings: Of `check_corpus`.
        cache_dir: Keeps the verifier's digest between calls.
        progress: Told how far it is.

    Raises:
        ConfigError: The rows themselves are damaged, or a folder stands among the states.
        CheckError: Another verifier.
        VerifierError: The verifier cannot be loaded, or overflows.
    """
    beyond = [finding for finding in findings if finding.row is None and finding.kind != "stranger"]
    if beyond:
        raise ConfigError(
            f"{folder}: {beyond[0].name} is {beyond[0].kind}: it cannot be made from the states",
            "extract again from the prepared rows: harness data extract --overwrite",
        )
    for finding in findings:
        if (folder / finding.name).is_dir():
            raise ConfigError(
                f"{folder / finding.name}: expected files alone, found a folder",
                "it was not made by harness data: move it away",
            )
    manifest = load_manifest(folder, "extract")
    require_verifier(manifest, verifier, cache_dir)
    first = first_row(manifest)
    bad = {finding.row - first for finding in findings if finding.row is not None}
    rows = read_token_ids(folder / TOKENS_DIR)[first:]
    known = {file.name: file for file in manifest.files.files}
    with hold_folder(folder):
        for finding in findings:
            (folder / finding.name).unlink(missing_ok=True)
        with Journal(folder / JOURNAL_NAME) as journal:
            work = Extraction(rows, folder, journal, progress, is_agreed=True, first_row=first)
            names = {row: f"{STATES_DIR}/{state_name(first + row)}" for row in range(len(rows))}
            work.done = {row: known[name] for row, name in names.items() if row not in bad}
            work.budgets = read_budgets(manifest)
            work.run(verifier, captured_ids(manifest, verifier), _config(manifest))
        rest = [file for file in known.values() if not file.name.startswith(f"{STATES_DIR}/")]
        files = join_digests([*rest, *work.done.values()])
        if files.root == manifest.files.root:
            (folder / JOURNAL_NAME).unlink()
            return Repair(num_files=len(bad), is_same=True, digest=manifest.digest)
        plan = Plan.model_validate(manifest.model_dump(include=set(Plan.model_fields)))
        made = finish_stage(folder, plan, manifest.counts, files, dict(manifest.origins))
        return Repair(num_files=len(bad), is_same=False, digest=made.digest)


def _config(manifest: Manifest) -> ExtractConfig:
    known = {key: value for key, value in manifest.config.items() if key != "first_row"}
    return ExtractConfig.model_validate(known)


def _check_tokens(folder: Path, manifest: Manifest) -> Iterator[StateFinding]:
    """The copy of the rows, which everything else is held against: every byte of it."""
    for file in manifest.files.files:
        if file.name.startswith(f"{STATES_DIR}/"):
            continue
        path = folder / file.name
        is_there = path.is_file()
        if is_there and sha256_file(path) == file.sha256:
            continue
        yield StateFinding(
            name=file.name, kind="changed" if is_there else "missing", row=None,
            expected=f"SHA-256 {file.sha256[:12]}", found="other bytes" if is_there else "none",
        )  # fmt: skip


class _Layout(NamedTuple):
    """What every file of a corpus has in common."""

    num_states: int
    hidden_size: int
    dtype: str


def _check_row(folder: Path, row: int, ids: Sequence[int], layout: _Layout) -> StateFinding | None:
    name = f"{STATES_DIR}/{state_name(row)}"

    def finding(kind: Kind, expected: object, found: object) -> StateFinding:
        return StateFinding(name=name, kind=kind, row=row, expected=str(expected), found=str(found))

    if not (folder / name).is_file():
        return finding("missing", "a file", "none")
    try:
        headers = read_file_headers(folder, name)
    except UnreadableError as error:
        return finding("truncated", error.expected, error.found)
    for key, tensor in expected_tensors(len(ids), *layout).items():
        header = headers.get(key)
        text = f"{key} {tensor.dtype} {list(tensor.shape)}"
        if header is None:
            return finding("mismatched", text, f"only {', '.join(sorted(headers))}")
        if (header.dtype, header.shape) != tensor:
            is_cut = key == TOKEN_IDS or header.shape[1:] == tensor.shape[1:]
            kind: Kind = "stale" if is_cut and header.dtype == tensor.dtype else "mismatched"
            return finding(kind, text, f"{header.dtype} {list(header.shape)}")
    kept = _read_ids(folder / name, headers[TOKEN_IDS])
    differing = np.flatnonzero(kept != np.asarray(ids, dtype=np.int64))
    if len(differing):
        at = int(differing[0])
        return finding("stale", f"token {ids[at]} at {at}", f"token {int(kept[at])}")
    return None


def _read_ids(path: Path, header: TensorHeader) -> npt.NDArray[np.int64]:
    with path.open("rb") as stream:
        stream.seek(header.start)
        return np.frombuffer(stream.read(header.num_bytes), dtype=np.int64)


def _hidden_size(folder: Path, manifest: Manifest, num_rows: int) -> int:
    """Of the verifier, by what most of the first files that can be read hold.

    Raises:
        CheckError: Not one of the files can be read.
    """
    found: list[int] = []
    for row in range(first_row(manifest), num_rows):
        try:
            header = read_file_headers(folder / STATES_DIR, state_name(row)).get("hidden_states")
        except (UnreadableError, OSError):
            continue
        found += [header.shape[-1]] if header and header.shape else []
        if len(found) == _SAMPLE:
            break
    if not found:
        raise CheckError(
            f"{folder}: expected hidden states of {num_rows} rows of stage {manifest.stage!r}, "
            "found no readable file",
            "extract again from the prepared rows: harness data extract --overwrite",
        )
    return max(set(found), key=found.count)


def _find_strangers(folder: Path, rows: range) -> Iterator[StateFinding]:
    """Files of no row: left by a kill, by hand, or by a corpus of more rows."""
    known = {state_name(row) for row in rows}
    for path in sorted((folder / STATES_DIR).iterdir()):
        if path.name not in known:
            yield StateFinding(
                name=f"{STATES_DIR}/{path.name}", kind="stranger", row=None,
                expected=f"files of {len(rows)} rows", found=f"{path.stat().st_size} bytes",
            )  # fmt: skip

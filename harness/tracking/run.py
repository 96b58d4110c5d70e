"""One MLflow run as the rest of the harness sees it, whatever store is behind it.

The one place for the rules of writing: nothing non-finite, no truncated text, numeric params that
sort, and a final status that is right however the process ends.
"""

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from harness.digests import FolderDigest
from harness.errors import TrackingError
from harness.redaction import redacted, redacted_bytes
from harness.tracking import names, spelling
from harness.tracking.pictures import MISSING, write_pngs
from harness.tracking.records import Dataset, Metric, NewCheckpoint, RunStatus

_HEARTBEAT_S = 30.0
_LARGEST_TEXT_BYTES = 64 << 20
"""Larger files are weights or states, no logs."""


class HtmlFigure(Protocol):
    """A plotly figure, without importing plotly."""

    def to_html(self, **options: Any) -> str:
        """The figure as a page."""


class RunWriter(Protocol):
    """The writes that a store must offer for `Run` to work."""

    def write_batch(
        self,
        run_id: str,
        *,
        metrics: Sequence[Metric] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Writes points, params and tags, in as few transactions as the store allows."""

    def write_text(self, run_id: str, name: str, text: str) -> None:
        """Stores a text artifact under the path `name`."""

    def write_file(self, run_id: str, path: Path, folder: str) -> None:
        """Stores a copy of a file in an artifact folder."""

    def write_dataset(self, run_id: str, dataset: Dataset, profile: str) -> None:
        """Links a data set to the run as input; `profile` is JSON."""

    def write_model_inputs(self, run_id: str, model_ids: Sequence[str]) -> None:
        """Links checkpoints to the run as inputs."""

    def write_checkpoint(self, run_id: str, checkpoint: NewCheckpoint, files: Path | None) -> str:
        """Creates a LoggedModel that is an output of the run; uploads the folder `files` too."""

    def write_status(self, run_id: str, status: RunStatus) -> None:
        """Ends the run."""


class Run:
    """An open run. As a context manager it ends FINISHED, FAILED or KILLED by what happened.

    Every method raises TrackingError when the store cannot be written.
    """

    def __init__(self, writer: RunWriter, run_id: str, name: str, root_dir: Path) -> None:
        self.run_id = run_id
        self.name = name
        self._writer = writer
        self._root_dir = root_dir
        self._is_open = True
        self._last_beat = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_open:
            return
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.finish(RunStatus.FINISHED)
            return
        status = RunStatus.FAILED if isinstance(error, Exception) else RunStatus.KILLED
        try:
            self.finish(status, reason=spelling.failure_text(error))
        except TrackingError as second:
            error.add_note(f"and run {self.run_id} could not be closed: {second.message}")

    def log_params(self, params: Mapping[str, object]) -> None:
        """Logs params; numbers also as metrics `hp/<name>`, so that the UI can sort by them.

        Text over 6,000 characters goes to the artifact `params/<key>.txt`, its digest to a tag;
        the param says so. Logging another value for a key that is there is refused by the store.
        """
        texts: dict[str, str] = {}
        tags: dict[str, str] = {}
        mirrors: list[Metric] = []
        now = int(time.time() * 1000)
        for raw_key, value in params.items():
            key = names.clean_key(raw_key)
            texts[key] = spelling.param_text(value)
            if len(texts[key]) > spelling.PARAM_LIMIT_CHARACTERS:
                texts[key], tags[names.TAG_LONG_PARAM.format(key=key)] = self._store_long(
                    key, texts[key]
                )
            number = spelling.finite_number(value)
            if number is not None:
                mirror = names.METRIC_HYPERPARAMETER.format(name=key)
                mirrors.append(Metric(mirror, number, 0, now))
        self._writer.write_batch(self.run_id, metrics=mirrors, params=texts, tags=tags)

    def log_metrics(self, metrics: Sequence[Metric]) -> None:
        """Logs points of curves in one batch; NaN and infinity become a tag, never a point."""
        points: list[Metric] = []
        tags = self._heartbeat()
        now = int(time.time() * 1000)
        for metric in metrics:
            key = names.clean_key(metric.key)
            if math.isfinite(metric.value):
                time_ms = now if metric.timestamp_ms is None else metric.timestamp_ms
                points.append(Metric(key, float(metric.value), metric.step, time_ms))
            else:
                tags[names.TAG_NONFINITE.format(key=key)] = f"{metric.value} at step {metric.step}"
        if points or tags:
            self._writer.write_batch(self.run_id, metrics=points, tags=tags)

    def set_tags(self, tags: Mapping[str, object]) -> None:
        """Sets tags, overwriting; text over MLflow's 8,000 characters is cut and marked so."""
        texts = {names.clean_key(key): spelling.tag_text(value) for key, value in tags.items()}
        self._writer.write_batch(self.run_id, tags=texts)

    def set_description(self, markdown: str) -> None:
        """The text at the top of the run's page in the UI."""
        self.set_tags({names.TAG_DESCRIPTION: markdown})

    def log_text(self, name: str, text: str) -> None:
        """Stores a text artifact; `name` is a relative path such as `config/train.yaml`."""
        place = spelling.require_artifact_path(name)
        self._writer.write_text(self.run_id, place, redacted(text))

    def log_file(self, path: Path, folder: str = "") -> None:
        """Stores a copy of a file in an artifact folder ("" is the top)."""
        if not path.is_file():
            raise TrackingError(f"expected a file to log as artifact, found none: {path}")
        place = spelling.require_artifact_path(folder) if folder else ""
        with _without_secrets(path) as clean:
            self._writer.write_file(self.run_id, clean, place)

    def log_figure(self, figure: HtmlFigure, name: str) -> None:
        """Stores one figure, as `log_figures` does."""
        self.log_figures({name: figure})

    def log_figures(self, figures: Mapping[str, HtmlFigure]) -> None:
        """Stores plotly figures as `<name>.html`, interactive, and `<name>.png`; both offline.

        Without a browser there are no PNG files; a tag of the run says so.
        """
        for name, figure in figures.items():
            page = figure.to_html(include_plotlyjs=True, full_html=True)
            self.log_text(f"{name}.html", page)
        places = {Path(name).name: str(Path(name).parent) for name in figures}
        with tempfile.TemporaryDirectory() as scratch:
            drawn = write_pngs({Path(n).name: f for n, f in figures.items()}, Path(scratch))
            for path in drawn:
                folder = places[path.stem]
                self.log_file(path, "" if folder == "." else folder)
        if figures and not drawn:
            self.set_tags({names.TAG_PICTURES: MISSING})

    def log_dataset(
        self,
        name: str,
        source: str,
        digest: str,
        context: str,
        profile: Mapping[str, object] | None = None,
    ) -> None:
        """Links a data set by content digest; the whole digest is kept beside MLflow's short one.

        Args:
            name: What people call it, such as the corpus folder's name.
            source: Where it is: a path or URI.
            digest: SHA-256 of its content in hex.
            context: `training`, `validation` or `evaluation`.
            profile: Counts worth seeing beside it (conversations, tokens, ...).
        """
        dataset = Dataset(name=name, source=redacted(source), digest=digest, context=context)
        self._writer.write_dataset(self.run_id, dataset, json.dumps(dict(profile or {})))

    def log_model_inputs(self, model_ids: Sequence[str]) -> None:
        """Says which checkpoints this run measured or started from."""
        self._writer.write_model_inputs(self.run_id, list(model_ids))

    def log_checkpoint(
        self,
        name: str,
        path: Path,
        *,
        step: int,
        epoch: int | None,
        digest: FolderDigest,
        params: Mapping[str, object] | None = None,
        tags: Mapping[str, object] | None = None,
        upload_below_bytes: int = 0,
    ) -> str:
        """Records a checkpoint as a LoggedModel by reference and returns its model id.

        The files named by `digest` are uploaded too when together they are smaller than
        `upload_below_bytes`; otherwise they stay where they are, and the manifest alone goes
        into the store.
        """
        files = path.resolve() if digest.num_bytes < upload_below_bytes else None
        place = self._portable(path.resolve())
        facts = {
            **(params or {}),
            names.MODEL_PARAM_PATH: place,
            names.MODEL_PARAM_DIGEST: digest.root,
            names.MODEL_PARAM_STEP: step,
            names.MODEL_PARAM_EPOCH: epoch,
            names.MODEL_PARAM_NUM_BYTES: digest.num_bytes,
        }
        marks = {**(tags or {}), names.MODEL_TAG_UPLOADED: files is not None}
        checkpoint = NewCheckpoint(
            name=name,
            digest=digest,
            step=step,
            params={names.clean_key(k): spelling.param_text(v) for k, v in facts.items()},
            tags={names.clean_key(k): spelling.tag_text(v) for k, v in marks.items()},
        )
        return self._writer.write_checkpoint(self.run_id, checkpoint, files)

    def finish(self, status: RunStatus = RunStatus.FINISHED, reason: str | None = None) -> None:
        """Ends the run with this status; leaving the `with` block afterwards changes nothing."""
        if reason:
            self.set_tags({names.TAG_FAILURE: reason})
        self._writer.write_status(self.run_id, status)
        self._is_open = False

    def _store_long(self, key: str, text: str) -> tuple[str, str]:
        """Puts a long param where it fits; returns the text that points there and its SHA-256."""
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.log_text(f"params/{key}.txt", text)
        return f"see artifact params/{key}.txt, sha256 {digest}", digest

    def _heartbeat(self) -> dict[str, str]:
        now = time.monotonic()
        if now - self._last_beat < _HEARTBEAT_S:
            return {}
        self._last_beat = now
        return {names.TAG_HEARTBEAT: datetime.now(UTC).isoformat(timespec="seconds")}

    def _portable(self, path: Path) -> str:
        """Relative to the project folder where possible, so that a moved project keeps working."""
        return str(
            path.relative_to(self._root_dir) if path.is_relative_to(self._root_dir) else path
        )


@contextmanager
def _without_secrets(path: Path) -> Iterator[Path]:
    """The file, or a copy of the same name with its secrets struck out."""
    raw = path.read_bytes() if path.stat().st_size <= _LARGEST_TEXT_BYTES else b""
    clean = redacted_bytes(raw)
    if clean == raw:
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / path.name
        copy.write_bytes(clean)
        yield copy

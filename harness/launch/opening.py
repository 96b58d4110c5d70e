"""Which launcher a command was asked for."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from harness.errors import PrerequisiteError
from harness.launch.ports import Launcher
from harness.launch.ray import RayLauncher
from harness.settings import Settings


class Kind(StrEnum):
    """Where work runs."""

    LOCAL = "local"
    RAY = "ray"
    SLURM = "slurm"


_PACKAGES = {Kind.RAY: "ray", Kind.SLURM: "submitit"}


@contextmanager
def open_launcher(kind: Kind, address: str, settings: Settings) -> Iterator[Launcher | None]:
    """The launcher of a kind; None for this machine. What runs on it ends with the block.

    Args:
        kind: Which one.
        address: Of a Ray cluster; of Slurm, the partition.
        settings: Of the project, whose folder every host sees.

    Raises:
        PrerequisiteError: The package for it is not installed.
    """
    if kind is Kind.LOCAL:
        yield None
        return
    package = _PACKAGES[kind]
    if importlib.util.find_spec(package) is None:
        raise PrerequisiteError(
            f"--launcher {kind} needs the package {package}, which is not installed",
            f"pip install 'drafter-harness[{kind}]'",
        )
    if kind is Kind.SLURM:
        from harness.launch.slurm import SlurmLauncher  # noqa: PLC0415 - its package is an extra

        with SlurmLauncher(address, settings) as launcher:
            yield launcher
        return
    with RayLauncher(address, settings) as launcher:
        yield launcher

"""Which hosts may run tasks: with the code that was shipped, like the first, on this folder."""

from pathlib import Path
from typing import NamedTuple

from harness.config.load import Frozen
from harness.errors import PrerequisiteError


class Wanted(Frozen):
    """The cluster, and what its hosts must be like."""

    address: str
    code_dir: Path
    """What is shipped: a copy of the code, which nobody edits meanwhile."""
    code: str
    """Its digest."""
    marker: Path
    """A file of the project folder that each host must see."""
    only_host: str | None
    """Where the store is a file: the one host that may write it."""


class HostFacts(NamedTuple):
    """What decides whether a host may run tasks."""

    host: str
    code: str
    versions: dict[str, str]
    sees_folder: bool


class Hosts:
    """The hosts that were seen. Packages may differ from ours, but not from one to the other."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._versions: tuple[str, dict[str, str]] | None = None

    def require_fit(self, facts: HostFacts) -> None:
        """Refuses a host that is not as it must be.

        Raises:
            PrerequisiteError: It has other code or other packages, does not see the project, or
                would write a database file over the network.
        """
        wanted = self._wanted
        if facts.code != wanted.code:
            raise PrerequisiteError(
                f"host {facts.host} has code {facts.code}, expected {wanted.code}, which was "
                "shipped to it",
                "remove the other harness from the PYTHONPATH of `ray start` there; if files "
                "were edited just now, call again",
            )
        if not facts.sees_folder:
            raise PrerequisiteError(
                f"host {facts.host} does not see the project folder: {wanted.marker} was just "
                "written, and is not there",
                "mount the project folder on every host, at the same path",
            )
        if wanted.only_host not in {None, facts.host}:
            raise PrerequisiteError(
                f"the store is an SQLite file of {wanted.only_host}, host {facts.host} would "
                "write it over the network, where SQLite loses data",
                "start the server of deploy/up.sh and name it in MLFLOW_TRACKING_URI",
            )
        first, versions = self._versions = self._versions or (facts.host, facts.versions)
        if facts.versions != versions:
            differing = [
                f"{name} {facts.versions.get(name)} and {versions.get(name)}"
                for name in sorted(facts.versions.keys() | versions.keys())
                if facts.versions.get(name) != versions.get(name)
            ]
            raise PrerequisiteError(
                f"hosts {facts.host} and {first} differ: {', '.join(differing)}",
                "install the same lock on every host (requirements/install.sh)",
            )

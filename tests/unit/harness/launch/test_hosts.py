import re
from pathlib import Path

import pytest

from harness.errors import PrerequisiteError
from harness.launch.hosts import HostFacts, Hosts, Wanted

WANTED = Wanted(
    address="a:1",
    code_dir=Path("/project/code"),
    code="c" * 64,
    marker=Path("/project/m"),
    only_host=None,
)
FIT = HostFacts("one", "c" * 64, {"torch": "2.13", "vllm": "0.32"}, sees_folder=True)


def test_hosts_that_are_alike_are_taken() -> None:
    hosts = Hosts(WANTED)
    hosts.require_fit(FIT)
    hosts.require_fit(FIT._replace(host="two"))


def test_a_host_with_other_code_is_refused_and_both_are_named() -> None:
    with pytest.raises(PrerequisiteError, match=f"{'d' * 64}, expected {'c' * 64}"):
        Hosts(WANTED).require_fit(FIT._replace(code="d" * 64))


def test_a_host_with_other_packages_than_the_first_is_refused_by_name() -> None:
    hosts = Hosts(WANTED)
    hosts.require_fit(FIT)
    other = FIT._replace(host="two", versions={"torch": "2.14", "vllm": "0.32"})
    with pytest.raises(PrerequisiteError, match=re.escape("two and one differ: torch 2.14 and")):
        hosts.require_fit(other)


def test_a_host_without_the_project_folder_is_refused() -> None:
    with pytest.raises(PrerequisiteError, match="does not see the project folder: /project/m"):
        Hosts(WANTED).require_fit(FIT._replace(sees_folder=False))


def test_a_database_file_is_written_by_its_own_host_alone() -> None:
    hosts = Hosts(WANTED.model_copy(update={"only_host": "one"}))
    hosts.require_fit(FIT)
    with pytest.raises(PrerequisiteError, match="SQLite file of one, host two") as caught:
        hosts.require_fit(FIT._replace(host="two"))
    assert "MLFLOW_TRACKING_URI" in str(caught.value.hint)

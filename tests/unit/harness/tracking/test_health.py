import shutil
import sqlite3
from collections import namedtuple

import pytest
from fakes.memory_store import MemoryStore
from fakes.trained import bench, train

from harness.config.policy import Policy
from harness.settings import Settings
from harness.tracking.embedded import write_marker
from harness.tracking.health import Check, check_machine, check_store
from harness.tracking.promotion import promote

usage = namedtuple("usage", "total used free")


@pytest.fixture
def embedded(settings: Settings) -> Settings:
    uri = f"sqlite:///{settings.mlruns_dir / 'mlflow.db'}"
    return settings.model_copy(update={"tracking_uri": uri})


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_a_machine_without_a_store_is_well(embedded: Settings) -> None:
    found = by_name(check_machine(embedded))["store"]
    assert found.state == "ok"
    assert "made on first use" in found.found
    assert not embedded.mlruns_dir.exists()


def test_a_moved_store_names_the_cure(embedded: Settings) -> None:
    mlruns = embedded.mlruns_dir
    mlruns.mkdir()
    with sqlite3.connect(mlruns / "mlflow.db") as connection:
        connection.execute("CREATE TABLE runs (id)")
    write_marker(mlruns)
    moved = mlruns.with_name("elsewhere") / "mlruns"
    shutil.copytree(mlruns, moved)
    root = embedded.model_copy(
        update={"root_dir": moved.parent, "tracking_uri": f"sqlite:///{moved / 'mlflow.db'}"}
    )
    found = by_name(check_machine(root))["store"]
    assert (found.state, found.fix) == ("failed", f"harness store relocate {mlruns} {moved}")


def test_a_file_that_is_no_database_is_found(embedded: Settings) -> None:
    embedded.mlruns_dir.mkdir()
    (embedded.mlruns_dir / "mlflow.db").write_text("not a database, but long enough for one")
    assert by_name(check_machine(embedded))["store"].state == "failed"


def test_a_full_disk_is_a_warning(embedded: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10, 9, 10**8))
    found = by_name(check_machine(embedded))["disk of the store"]
    assert (found.state, found.found) == ("warning", "0.1 GB free")


def test_missing_packages_are_named(embedded: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.tracking.health._version", lambda _: None)
    found = by_name(check_machine(embedded))
    assert found["torch"].state == found["vllm"].state == "failed"


def test_two_vllm_distributions_are_one_too_many(
    embedded: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.tracking.health._version", lambda _: "0.32.0")
    assert "two distributions" in by_name(check_machine(embedded))["vllm"].found


def test_torchvision_beside_a_cpu_torch_is_refused(
    embedded: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"torch": "2.13.0+cpu", "torchvision": "0.28.0"}
    monkeypatch.setattr("harness.tracking.health._version", versions.get)
    found = by_name(check_machine(embedded))["torch companions"]
    assert (found.state, found.fix) == ("failed", "pip uninstall torchvision")


def test_an_alias_that_left_the_log_is_found(store: MemoryStore, settings: Settings) -> None:
    run_id, models = train(store, settings)
    bench(store, models, settings.root_dir / "verifier")
    promote([f"run:{run_id}@1"], "tiny", Policy(min_acceptance_length=1.1), settings, store)
    assert {c.state for c in check_store(settings, store)} == {"ok"}
    store.registry.create_version("tiny", store.get_checkpoint(models[0]), {})
    store.registry.set_alias("tiny", "champion", 2)
    found = by_name(check_store(settings, store))["champion of tiny"]
    assert (found.state, found.found) == ("failed", "version 2, the log says version 1")


def test_a_broken_log_is_found(store: MemoryStore, settings: Settings) -> None:
    settings.mlruns_dir.mkdir()
    (settings.mlruns_dir / "decisions.jsonl").write_text("{}\n")
    (found,) = check_store(settings, store)
    assert found.state == "failed"

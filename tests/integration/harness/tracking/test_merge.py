"""Runs of another machine's store come beside those that are here, ids and figures unchanged."""

import shutil
from pathlib import Path

import pytest
from fakes.store_contract import weights

from harness.settings import Settings, load_settings
from harness.tracking import names
from harness.tracking.embedded import DATABASE, write_marker
from harness.tracking.merge import Merged, merge_store
from harness.tracking.migrate import Place, find_place
from harness.tracking.records import RunStatus
from harness.tracking.relocate import relocate_store
from harness.tracking.store import Store, open_store

from .test_migrate import fill

__all__ = ["weights"]


@pytest.fixture
def there(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Settings:
    """Another project, as on another machine."""
    root = tmp_path_factory.mktemp("there")
    uri = f"sqlite:///{root / 'mlruns' / DATABASE}"
    found = load_settings(root).model_copy(update={"tracking_uri": uri})
    found.mlruns_dir.mkdir()
    shutil.copyfile(migrated_database, found.mlruns_dir / DATABASE)
    relocate_store(Path(migrated_database.with_suffix(".root").read_text()), found.mlruns_dir)
    write_marker(found.mlruns_dir)
    return found


def bring(source: Settings, target: Settings) -> Merged:
    def place(settings: Settings) -> Place:
        return find_place(str(settings.mlruns_dir), settings, None)

    return merge_store(place(source), place(target), lambda *_: None)


def seen(store: Store, run_id: str) -> list[object]:
    """A run as `snapshot` sees it, without what is registered, which stays where it is."""
    return [
        (run.run_id, run.name, run.status, run.params, run.metrics, run.tags, run.datasets)
        for run in store.find_runs()
        if run.run_id == run_id or run.tags.get(names.TAG_PARENT) == run_id
    ] + [
        (c.model_id, c.digest, c.metrics, store.checkpoint_manifest(c.model_id))
        for c in store.checkpoints(run_id)
    ]


def test_ended_runs_come_beside_those_that_are_here(
    settings: Settings, store: Store, there: Settings, weights: Path
) -> None:
    other = open_store(there)
    # Here experiments are numbered otherwise, and the same data set has another id.
    with store.start_run(names.KIND_BENCH, "own", experiment="of here") as own:
        own.log_params({"a": 1})
    with store.start_run(names.KIND_TRAIN, "own", experiment=names.EXPERIMENT_TRAIN) as trained:
        trained.log_dataset("corpus", "/data/corpus", "ab" * 32, "training", {"rows": 3})
    before = [snapshot_of(store, run) for run in (own.run_id, trained.run_id)]
    run_id = fill(other, there, weights)
    going_on = other.start_run(names.KIND_TRAIN, "open", experiment=names.EXPERIMENT_TRAIN)

    brought = bring(there, settings)
    assert len(brought.run_ids) == 2
    assert len(brought.model_ids) == 2
    assert going_on.run_id not in brought.run_ids, "what is open may still change"
    assert seen(store, run_id) == seen(other, run_id)
    assert len(seen(store, run_id)) == 4
    assert store.read_text(run_id, "params/prompt.txt") == "ü" * 9000
    assert [snapshot_of(store, run) for run in (own.run_id, trained.run_id)] == before
    assert store.registry.names() == (), "promotions are made in one place"
    with store.start_run(names.KIND_TRAIN, "own", experiment=names.EXPERIMENT_TRAIN) as next_run:
        next_run.log_dataset("corpus", "/data/corpus", "ab" * 32, "training", {"rows": 3})
    assert store.get_run(next_run.run_id).status is RunStatus.FINISHED

    going_on.finish()
    assert bring(there, settings).run_ids == (going_on.run_id,), "only what was not here"
    assert bring(there, settings).run_ids == ()
    other.resume_run(run_id).finish(RunStatus.FAILED, "it went on")
    assert bring(there, settings).run_ids == (run_id,), "what went on since comes again"
    assert store.get_run(run_id).status is RunStatus.FAILED


def snapshot_of(store: Store, run_id: str) -> object:
    run = store.get_run(run_id)
    return run.name, run.status, run.params, run.tags, run.datasets

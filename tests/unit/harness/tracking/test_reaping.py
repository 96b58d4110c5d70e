from fakes.memory_store import MemoryStore

from harness.tracking import names
from harness.tracking.reaping import open_runs, reap
from harness.tracking.records import RunStatus
from harness.tracking.run import Run


def start(store: MemoryStore, **tags: str) -> Run:
    return store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN, tags=tags)


def test_only_runs_whose_process_is_gone_are_closed(store: MemoryStore) -> None:
    ours = start(store)
    gone = start(store, **{names.TAG_PROCESS_START: "1"})
    elsewhere = start(store, **{names.TAG_HOST: "elsewhere"})
    unknown = start(store, **{names.TAG_PID: "?"})
    verdicts = {run.run_id: run.verdict for run in open_runs(store)}
    assert verdicts == {
        ours.run_id: "alive",
        gone.run_id: "gone",
        elsewhere.run_id: "elsewhere",
        unknown.run_id: "unknown",
    }
    assert [run.run_id for run in reap(store)] == [gone.run_id]
    closed = store.get_run(gone.run_id)
    assert closed.status == RunStatus.KILLED
    assert "ended without closing it" in closed.tags[names.TAG_FAILURE]
    assert store.get_run(ours.run_id).status == RunStatus.RUNNING
    assert reap(store) == ()

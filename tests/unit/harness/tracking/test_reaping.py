from fakes.memory_store import MemoryStore

from harness.tracking import names
from harness.tracking.reaping import open_runs, reap, settle_task
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


def test_runs_of_a_lost_task_are_given_time_to_close_and_are_closed_then(
    store: MemoryStore,
) -> None:
    left, other = start(store, **{names.TAG_TASK: "t"}), start(store, **{names.TAG_TASK: "u"})
    waited: list[float] = []
    assert not settle_task(store, "t", waited.append)
    assert sum(waited) == 45
    assert store.get_run(left.run_id).status is RunStatus.KILLED
    assert store.get_run(other.run_id).status is RunStatus.RUNNING

    def finish(_: float) -> None:
        store.attach_run(other.run_id).finish(RunStatus.FINISHED)

    assert settle_task(store, "u", finish), "it had only been cut off"

"""The move of an alias: raced, broken off, settled."""

import pytest
from fakes.memory_store import MemoryStore
from fakes.trained import train

from harness.errors import ConfigError, PromotionError
from harness.settings import Settings
from harness.tracking import history, names, registry
from harness.tracking.decisions import Decision, DecisionLog
from harness.tracking.records import Checkpoint, RunStatus


class KilledError(BaseException):
    """What SIGKILL looks like from inside: nothing more is done."""


@pytest.fixture
def checkpoints(store: MemoryStore, settings: Settings) -> tuple[Checkpoint, ...]:
    run_id, _ = train(store, settings)
    return store.checkpoints(run_id)


def draft(checkpoint: Checkpoint, expected: int | None) -> Decision:
    return Decision(
        sequence=0,
        made_at="2026-11-29T00:00:00+00:00",
        who="someone@somewhere",
        action="promoting",
        model="tiny",
        from_version=expected,
        to_version=None,
        model_id=checkpoint.model_id,
        run_id=checkpoint.run_id,
        weights_digest=checkpoint.digest,
        bench_run_id=None,
        gates=(),
        policy={},
        policy_digest="",
        versions={},
        previous_hash="",
    )


def move(
    store: MemoryStore, settings: Settings, checkpoint: Checkpoint, expected: int | None
) -> Decision:
    return registry.move_champion(store, settings, draft(checkpoint, expected), checkpoint)


def test_the_second_of_two_promoters_is_told(
    store: MemoryStore, settings: Settings, checkpoints: tuple[Checkpoint, ...]
) -> None:
    move(store, settings, checkpoints[0], None)
    with pytest.raises(PromotionError, match="to be none, found version 1"):
        move(store, settings, checkpoints[1], None)
    assert store.registry.aliases("tiny") == {"champion": 1}
    assert [d.action for d in DecisionLog(settings.mlruns_dir).read()] == ["promoting", "promoted"]


def test_an_alias_moved_by_hand_is_noticed(
    store: MemoryStore, settings: Settings, checkpoints: tuple[Checkpoint, ...]
) -> None:
    move(store, settings, checkpoints[0], None)
    store.registry.create_version("tiny", checkpoints[1], {})
    store.registry.set_alias("tiny", "champion", 2)
    with pytest.raises(PromotionError, match="to be version 1, found version 2"):
        move(store, settings, checkpoints[1], 1)


STEPS = (
    "create_version",
    "append:promoting",
    "set_alias:champion",
    "set_alias:previous",
    "set_version_tags:superseded",
    "set_version_tags:harness.state': 'champion",
    "append:promoted",
    "start_run",
)
"""Every write of a promotion, in order."""


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_killed_between_any_two_steps_one_champion_stands_and_the_next_command_mends_the_rest(  # noqa: PLR0917 - fixtures and cases
    store: MemoryStore,
    settings: Settings,
    checkpoints: tuple[Checkpoint, ...],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    is_after: bool,
) -> None:
    move(store, settings, checkpoints[0], None)
    log = DecisionLog(settings.mlruns_dir)
    method, _, detail = step.partition(":")
    owner = {"append": DecisionLog, "start_run": store}.get(method, store.registry)
    original = getattr(owner, method)

    def killed(*arguments: object, **options: object) -> object:
        if detail and detail not in str(arguments):
            return original(*arguments, **options)
        if is_after:
            original(*arguments, **options)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, killed)
        with pytest.raises(KilledError):
            move(store, settings, checkpoints[1], 1)
    moved_at = STEPS.index("set_alias:champion")
    is_new = (STEPS.index(step), is_after) >= (moved_at, True)
    champion = 2 if is_new else 1
    assert store.registry.aliases("tiny")["champion"] == champion

    with registry.promotion_lock(settings):
        registry.mend(store, log)
    assert store.registry.aliases("tiny") == (
        {"champion": 2, "previous": 1} if is_new else {"champion": 1}
    )
    decisions = log.read()
    is_begun = (STEPS.index(step), is_after) >= (STEPS.index("append:promoting"), True)
    expected = "promoted" if is_new or not is_begun else "abandoned"
    assert decisions[-1].action == expected
    assert history.pending(decisions) is None
    states = [v.tags.get(names.TAG_STATE) for v in store.registry.versions("tiny")]
    assert states[champion - 1] == "champion"
    assert states.count("champion") == 1
    finished = store.find_runs(kind=names.KIND_PROMOTION, status=RunStatus.FINISHED)
    copies = [run.tags[names.TAG_DECISION_HASH] for run in finished]
    assert copies.count(decisions[-1].hash) == 1

    done = move(store, settings, checkpoints[1], champion)
    assert done.to_version == 2
    assert store.registry.aliases("tiny")["champion"] == 2


def test_the_beginning_of_a_line_is_no_decision(
    store: MemoryStore, settings: Settings, checkpoints: tuple[Checkpoint, ...]
) -> None:
    move(store, settings, checkpoints[0], None)
    log = DecisionLog(settings.mlruns_dir)
    with log.path.open("a") as stream:
        stream.write('{"schema_version": 1, "seq')
    assert len(log.read()) == 2
    move(store, settings, checkpoints[1], 1)
    assert [d.action for d in log.read()] == ["promoting", "promoted"] * 2


def test_mending_what_is_whole_adds_nothing(
    store: MemoryStore, settings: Settings, checkpoints: tuple[Checkpoint, ...]
) -> None:
    move(store, settings, checkpoints[0], None)
    log = DecisionLog(settings.mlruns_dir)
    assert registry.mend(store, log) is None
    assert len(log.read()) == 2
    assert len(store.find_runs(kind=names.KIND_PROMOTION)) == 1


def test_a_version_is_made_once_for_a_checkpoint(
    store: MemoryStore, settings: Settings, checkpoints: tuple[Checkpoint, ...]
) -> None:
    store.registry.create_version("tiny", checkpoints[0], {})
    assert move(store, settings, checkpoints[0], None).to_version == 1
    (version,) = store.registry.versions("tiny")
    assert version.tags[names.TAG_STATE] == "champion"


def test_names_of_models() -> None:
    assert registry.require_model_name("smollm2-135m") == "smollm2-135m"
    with pytest.raises(ConfigError):
        registry.require_model_name("a/b")

"""The move of an alias: raced, broken off, settled."""

import pytest
from fakes.memory_store import MemoryStore
from fakes.trained import train

from harness.errors import ConfigError, PromotionError
from harness.settings import Settings
from harness.tracking import names, registry
from harness.tracking.decisions import Decision, DecisionLog
from harness.tracking.records import Checkpoint


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
    return registry.move_champion(store, settings, checkpoint, draft(checkpoint, expected), {})


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


@pytest.mark.parametrize(
    ("step", "champion", "settled"),
    [
        ("create_version", 1, None),
        ("set_alias:previous", 1, "abandoned"),
        ("set_version_tags:superseded", 1, "abandoned"),
        ("set_alias:champion", 1, "abandoned"),
        ("set_version_tags:champion", 2, "promoted"),
    ],
)
def test_killed_at_any_step_one_champion_stands(  # noqa: PLR0917 - fixtures and cases
    store: MemoryStore,
    settings: Settings,
    checkpoints: tuple[Checkpoint, ...],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    champion: int,
    settled: str | None,
) -> None:
    move(store, settings, checkpoints[0], None)
    method, _, detail = step.partition(":")
    original = getattr(store.registry, method)

    def killed(*arguments: object) -> object:
        if not detail or detail in str(arguments):
            raise KilledError
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(store.registry, method, killed)
        with pytest.raises(KilledError):
            move(store, settings, checkpoints[1], 1)
    assert store.registry.aliases("tiny")["champion"] == champion

    log = DecisionLog(settings.mlruns_dir)
    registry.settle(store, log)
    last = log.read()[-1]
    assert last.action == (settled or "promoted")
    assert last.to_version == (1 if settled is None else 2)

    done = move(store, settings, checkpoints[1], champion)
    assert done.to_version == 2
    assert store.registry.aliases("tiny")["champion"] == 2


def test_settling_a_settled_log_adds_nothing(
    store: MemoryStore, settings: Settings, checkpoints: tuple[Checkpoint, ...]
) -> None:
    move(store, settings, checkpoints[0], None)
    log = DecisionLog(settings.mlruns_dir)
    registry.settle(store, log)
    assert len(log.read()) == 2


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

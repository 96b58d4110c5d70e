"""Gates against the champion: one bench, paired by prompt, the interval against the limit."""

from collections.abc import Sequence

import pytest
from fakes.bench_results import prompt_samples
from fakes.memory_store import MemoryStore
from fakes.trained import bench, train

from harness.config.policy import Policy
from harness.errors import ConfigError
from harness.settings import Settings
from harness.tracking.deciding import Promotion
from harness.tracking.promotion import promote

FIRST = Policy(min_acceptance_length=1.1)
GAIN = "acceptance_length less the champion's"
RATIO = "decode_speedup over the champion's"
OLD = [4, 5, 6, 5, 4, 5, 6, 5, 4, 5, 6, 5]
BETTER = [count + 2 for count in OLD]
MIXED = [count + (6 if number % 2 else -2) for number, count in enumerate(OLD)]


@pytest.fixture
def models(store: MemoryStore, settings: Settings) -> list[str]:
    """Two checkpoints, the first of them champion."""
    run_id, models = train(store, settings)
    bench(store, models[:1], settings.root_dir / "verifier")
    promote([f"run:{run_id}@0"], "tiny", FIRST, settings, store)
    return models


def measured(
    store: MemoryStore,
    settings: Settings,
    models: list[str],
    accepted: Sequence[int],
    *,
    tpot_s: float = 0.05,
    policy: Policy,
) -> Promotion:
    """The second checkpoint against the champion, in one bench with these counts by prompt."""
    old, new = (store.get_checkpoint(model).name for model in models)
    samples = (
        *prompt_samples("baseline", [0] * len(OLD), 0.06, k=None),
        *prompt_samples(old, OLD),
        *prompt_samples(new, accepted, tpot_s),
    )
    bench(store, models, settings.root_dir / "verifier", result_changes={"samples": samples})
    reference = f"models:/{models[1]}"
    return promote([reference], "tiny", policy, settings, store, is_dry_run=True)


def gates(promotion: Promotion) -> dict[str, tuple[bool | None, str]]:
    return {gate.name: (gate.is_passed, gate.found) for gate in promotion.gates}


@pytest.mark.parametrize(
    ("accepted", "is_passed"), [(BETTER, True), (OLD, True), (OLD[:1] * 12, False)]
)
def test_acceptance_against_the_champion(
    store: MemoryStore, settings: Settings, models: list[str], accepted: list[int], is_passed: bool
) -> None:
    policy = Policy(min_acceptance_length=1.1, min_acceptance_gain=0.0)
    found = gates(measured(store, settings, models, accepted, policy=policy))[GAIN]
    assert found[0] is is_passed
    assert "[" in found[1]


def test_a_gain_that_is_asked_for_must_be_proved(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    policy = Policy(min_acceptance_length=1.1, min_acceptance_gain=0.15)
    done = measured(store, settings, models, MIXED, policy=policy)
    is_passed, found = gates(done)[GAIN]
    assert (done.action, is_passed) == ("would refuse", False)
    assert "more would tell" in found, "its value passes, its interval does not"


@pytest.mark.parametrize(("tpot_s", "is_passed"), [(0.045, True), (0.055, False)])
def test_speed_against_the_champion(
    store: MemoryStore, settings: Settings, models: list[str], tpot_s: float, is_passed: bool
) -> None:
    policy = Policy(min_acceptance_length=1.1, min_speedup_ratio=1.0)
    done = measured(store, settings, models, OLD, tpot_s=tpot_s, policy=policy)
    assert gates(done)[RATIO][0] is is_passed
    assert done.action == ("would promote" if is_passed else "would refuse")


def test_one_category_that_loses_too_much_refuses(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    policy = Policy(min_acceptance_length=1.1, max_category_regression=0.05)
    done = gates(measured(store, settings, models, MIXED, policy=policy))
    assert done["chat against the champion"][0] is False
    assert done["code against the champion"][0] is True
    loose = policy.model_copy(update={"max_category_regression": 0.2})
    assert measured(store, settings, models, MIXED, policy=loose).action == "would promote"


def test_a_bench_without_the_champion_is_no_evidence(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    bench(store, models[1:], settings.root_dir / "verifier")
    reference = f"models:/{models[1]}"
    with pytest.raises(ConfigError, match="these drafters together") as caught:
        promote([reference], "tiny", FIRST, settings, store)
    assert caught.value.hint == f"harness bench --drafter {reference} --drafter models:/tiny/1"


def test_what_is_missing_is_measured_together_with_the_champion(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    asked = []

    def measure(references: Sequence[str]) -> str:
        asked.append(tuple(references))
        return bench(store, models, settings.root_dir / "verifier")

    reference = f"models:/{models[1]}"
    planned = promote([reference], "tiny", FIRST, settings, store, measure=measure, is_dry_run=True)
    assert (planned.action, planned.to_measure) == ("would measure", (reference, "models:/tiny/1"))
    assert planned.is_passed is False
    assert asked == []
    done = promote([reference], "tiny", FIRST, settings, store, measure=measure)
    assert asked == [(reference, "models:/tiny/1")]
    assert (done.action, done.from_version, done.to_version) == ("promoted", 1, 2)

"""Back to an earlier champion, and an alias that was moved without harness made right again."""

import pytest
from fakes.memory_store import MemoryStore
from fakes.trained import bench, train

from harness.config.policy import Policy
from harness.errors import CheckError, ConfigError, PromotionError
from harness.settings import Settings
from harness.tracking import history, names
from harness.tracking.audit import Check, check_registry, delete_version
from harness.tracking.deciding import approve
from harness.tracking.decisions import Decision, DecisionLog
from harness.tracking.promotion import promote
from harness.tracking.rollback import roll_back, settle

POLICY = Policy(min_acceptance_length=1.1)


@pytest.fixture
def models(store: MemoryStore, settings: Settings) -> list[str]:
    """Two checkpoints of which first one, then the other was made champion of `tiny`."""
    _, models = train(store, settings)
    bench(store, models, settings.root_dir / "verifier")
    for model in models:
        promote([f"models:/{model}"], "tiny", POLICY, settings, store)
    return models


def flip(store: MemoryStore, model: str) -> None:
    weights = store.get_checkpoint(model).path / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[len(raw) // 3] ^= 1
    weights.write_bytes(raw)


def failures(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.found for check in checks if check.state != "ok"}


def test_a_rollback_goes_to_the_champion_before_and_says_so(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    done = roll_back("tiny", settings, store, reason="answers cut short")
    assert (done.action, done.from_version, done.to_version) == ("rolled_back", 2, 1)
    assert store.registry.aliases("tiny") == {"champion": 1}, "nothing is before the first one"
    one, two = store.registry.versions("tiny")
    assert (one.tags[names.TAG_STATE], two.tags[names.TAG_STATE]) == ("champion", "rolled_back")
    last = DecisionLog(settings.mlruns_dir).read()[-1]
    assert (last.reason, last.weights_digest) == (
        "answers cut short",
        store.get_checkpoint(models[0]).digest,
    )
    assert failures(check_registry(settings, store)) == {}
    with pytest.raises(PromotionError, match="earlier champions: none"):
        roll_back("tiny", settings, store)
    promote([f"models:/{models[1]}"], "tiny", POLICY, settings, store)
    assert store.registry.aliases("tiny") == {"champion": 2, "previous": 1}


class KilledError(BaseException):
    """What SIGKILL looks like from inside."""


def kill_at_the_end(monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    append = DecisionLog.append

    def killed(log: DecisionLog, draft: Decision) -> Decision:
        if draft.action == action:
            raise KilledError
        return append(log, draft)

    monkeypatch.setattr(DecisionLog, "append", killed)


def test_a_rollback_that_was_killed_is_ended_by_the_same_command_and_goes_back_once(
    store: MemoryStore, settings: Settings, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    promote([f"models:/{models[0]}"], "tiny", POLICY, settings, store)
    with monkeypatch.context() as patch:
        kill_at_the_end(patch, "rolled_back")
        with pytest.raises(KilledError):
            roll_back("tiny", settings, store)
    done = roll_back("tiny", settings, store)
    assert (done.action, done.to_version) == ("rolled_back", 2)
    assert store.registry.aliases("tiny") == {"champion": 2, "previous": 1}
    assert failures(check_registry(settings, store)) == {}


def test_a_promotion_that_was_killed_is_ended_by_the_same_command(
    store: MemoryStore, settings: Settings, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    again = ([f"models:/{models[0]}"], "tiny", POLICY, settings, store)
    with monkeypatch.context() as patch:
        kill_at_the_end(patch, "promoted")
        with pytest.raises(KilledError):
            promote(*again)
    assert promote(*again).action == "champion already"
    assert DecisionLog(settings.mlruns_dir).read()[-1].action == "promoted"
    assert failures(check_registry(settings, store)) == {}


def test_only_a_former_champion_is_rolled_back_to(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    for version in (2, 7):
        with pytest.raises(PromotionError, match="earlier champions: 1"):
            roll_back("tiny", settings, store, to=version)


def test_changed_weights_are_not_rolled_back_to(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    flip(store, models[0])
    with pytest.raises(CheckError, match=r"model\.safetensors"):
        roll_back("tiny", settings, store)
    assert store.registry.aliases("tiny")["champion"] == 2


def test_an_alias_moved_by_hand_stops_promotions_until_it_is_settled(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    store.registry.set_alias("tiny", "champion", 1)
    found = failures(check_registry(settings, store))
    assert found == {"champion of tiny": "version 1, the log says version 2"}
    for command in (
        lambda: promote([f"models:/{models[1]}"], "tiny", POLICY, settings, store),
        lambda: roll_back("tiny", settings, store),
    ):
        with pytest.raises(PromotionError, match="moved without harness") as caught:
            command()
        assert "settle tiny --by log" in str(caught.value.hint)
    settle("tiny", settings, store, is_by_alias=False)
    assert store.registry.aliases("tiny") == {"champion": 2, "previous": 1}
    assert failures(check_registry(settings, store)) == {}
    with pytest.raises(ConfigError, match="where the log says"):
        settle("tiny", settings, store, is_by_alias=False)


def test_where_the_alias_is_can_be_accepted(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    store.registry.set_alias("tiny", "champion", 1)
    settle("tiny", settings, store, is_by_alias=True)
    assert store.registry.aliases("tiny")["champion"] == 1
    assert history.logged_champion(DecisionLog(settings.mlruns_dir).read(), "tiny") == 1
    assert failures(check_registry(settings, store)) == {}


def test_an_alias_that_was_taken_away_is_put_back(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    store.registry.delete_alias("tiny", "champion")
    settle("tiny", settings, store, is_by_alias=False)
    assert store.registry.aliases("tiny") == {"champion": 2, "previous": 1}


def test_an_alias_that_nobody_decided_is_taken_away(store: MemoryStore, settings: Settings) -> None:
    _, (model, _) = train(store, settings)
    store.registry.create_version("tiny", store.get_checkpoint(model), {})
    store.registry.set_alias("tiny", "champion", 1)
    settle("tiny", settings, store, is_by_alias=False)
    assert store.registry.aliases("tiny") == {}
    assert failures(check_registry(settings, store)) == {}


def test_a_check_hashes_what_has_an_alias(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    flip(store, models[0])
    (found,) = failures(check_registry(settings, store)).items()
    assert found[0] == "weights of models:/tiny/1"
    assert "model.safetensors" in found[1]


def test_a_version_made_anew_under_an_old_number_is_found(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    store.registry.delete_version("tiny", 2)
    store.registry.create_version("tiny", store.get_checkpoint(models[0]), {})
    store.registry.set_alias("tiny", "champion", 2)
    found = failures(check_registry(settings, store))["weights of models:/tiny/2"]
    assert f"{store.get_checkpoint(models[1]).digest} was decided" in found


def test_lines_cut_off_the_log_are_missed(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    embedded = settings.model_copy(
        update={"tracking_uri": f"sqlite:///{settings.mlruns_dir / 'mlflow.db'}"}
    )
    log = DecisionLog(settings.mlruns_dir)
    log.path.write_text("".join(log.path.read_text().splitlines(keepends=True)[:2]))
    checks = {c.name: c for c in check_registry(embedded, store)}
    assert checks["decision log"].state == "ok", "the rest of the chain holds"
    assert checks["copies in the store"].state == "failed"
    assert "1 of 2 are not in the log" in checks["copies in the store"].found


def test_a_version_with_an_alias_or_a_past_is_not_deleted(
    store: MemoryStore, settings: Settings, models: list[str]
) -> None:
    with pytest.raises(PromotionError, match="has the alias champion"):
        delete_version("tiny", 2, settings, store)
    roll_back("tiny", settings, store)
    with pytest.raises(PromotionError, match="was champion"):
        delete_version("tiny", 2, settings, store)
    store.registry.create_version("tiny", store.get_checkpoint(models[0]), {})
    assert delete_version("tiny", 3, settings, store).version == 3
    assert [v.version for v in store.registry.versions("tiny")] == [1, 2]
    with pytest.raises(ConfigError, match="no version 3"):
        delete_version("tiny", 3, settings, store)


def test_an_approval_names_the_digest_and_holds_for_one_move(
    store: MemoryStore, settings: Settings
) -> None:
    _, models = train(store, settings)
    bench(store, models, settings.root_dir / "verifier")
    policy = POLICY.model_copy(update={"require_approval": True})

    def ask(model: str) -> str:
        return promote([f"models:/{model}"], "tiny", policy, settings, store).action

    digests = [store.get_checkpoint(model).digest for model in models]
    assert ask(models[0]) == ask(models[0]) == "waits for approval"
    log = DecisionLog(settings.mlruns_dir)
    assert [d.action for d in log.read()] == ["proposed"]
    for wrong in (digests[1], digests[0][:11], "0" * 12):
        with pytest.raises(PromotionError, match="open proposal"):
            approve("tiny", wrong, settings, store)
    assert store.registry.names() == ()
    approve("tiny", digests[0][:12], settings, store)
    assert ask(models[0]) == "promoted"
    assert log.read()[-1].approved_by == log.read()[1].who
    assert ask(models[1]) == "waits for approval"
    with pytest.raises(PromotionError, match="open proposal"):
        approve("tiny", digests[0], settings, store)

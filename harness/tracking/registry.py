"""Champions: an alias moved under a lock, from the version one expects, with a record of it.

The order is: record that it begins, move `champion`, move `previous`, describe and tag the
versions, record that it is done, put the record into the store. The one step that counts is the
move of `champion`. Killed anywhere, the old champion stands untouched or the new one stands;
`mend` does the rest.
"""

from collections.abc import Mapping

from harness.errors import ConfigError, PromotionError
from harness.settings import Settings
from harness.tracking import history, names
from harness.tracking.decisions import ENDS, Decision, DecisionLog, now_text, who
from harness.tracking.embedded import HeldLock, store_lock
from harness.tracking.reaping import reap
from harness.tracking.records import Checkpoint, ModelVersion, RunStatus
from harness.tracking.resolve import MODEL_NAME
from harness.tracking.store import Store
from harness.tracking.version_text import describe_version

_LOCK = ".harness-promotion.lock"
_LOCK_TIMEOUT_S = 60.0
_STATE_LEFT = {"promoting": "superseded", "rolling_back": "rolled_back", "settling": "superseded"}


def require_model_name(name: str) -> str:
    """Refuses names that could not be a reference or would leave a folder."""
    if not MODEL_NAME.fullmatch(name) or name.startswith("m-"):
        raise ConfigError(
            f"expected a model name of letters, digits, '.', '_' and '-', found {name!r}",
            "for example: smollm2-135m",
        )
    return name


def promotion_lock(settings: Settings) -> HeldLock:
    """Held by whoever moves an alias, writes to the decision log or frees checkpoints."""
    settings.mlruns_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return store_lock(settings.mlruns_dir, _LOCK, _LOCK_TIMEOUT_S)


def champion_of(store: Store, name: str) -> int | None:
    """The version that is champion now."""
    return store.registry.aliases(name).get(names.ALIAS_CHAMPION)


def require_alias_as_logged(store: Store, log: DecisionLog, name: str) -> int | None:
    """The champion, after making sure that it is the one that was decided.

    Raises:
        PromotionError: The alias was moved without harness.
        CheckError: The log is broken.
    """
    decisions = log.read()
    logged, now = history.logged_champion(decisions, name), champion_of(store, name)
    begun = history.pending(decisions)
    is_unfinished = begun is not None and (begun.model, begun.to_version) == (name, now)
    if now != logged and not is_unfinished:
        raise PromotionError(
            f"the alias champion of {name} was moved without harness: expected "
            f"{spoken(logged)}, as {log.path.name} says, found {spoken(now)}",
            f"harness registry settle {name} --by log moves it back, --by alias accepts it",
        )
    return now


def move_champion(
    store: Store,
    settings: Settings,
    draft: Decision,
    checkpoint: Checkpoint | None = None,
    version_tags: Mapping[str, str] | None = None,
) -> Decision:
    """Moves the alias if the champion is still the one that the decision started from.

    Args:
        store: The store.
        settings: Names the folder of lock and log.
        draft: The decision; `from_version` is the expected champion, `to_version` where the alias
            goes; None takes it away.
        checkpoint: Of a promotion, which goes to its version, made where there is none.
        version_tags: What that version shall say about itself.

    Raises:
        PromotionError: Someone else moved the alias since the decision was begun.
        CheckError: The decision log is broken.
    """
    log = DecisionLog(settings.mlruns_dir)
    with promotion_lock(settings):
        mend(store, log)
        now = _require_expected(store, draft)
        if checkpoint is not None:
            version = _version_of(store, draft.model, checkpoint, version_tags or {})
            changes = {"to_version": version.version, "previous_version": now}
            draft = draft.model_copy(update=changes)
        return _carry_out(store, log, draft)


def record(store: Store, settings: Settings, draft: Decision) -> Decision:
    """Writes down a decision that moves nothing: a refusal, a proposal, an approval."""
    log = DecisionLog(settings.mlruns_dir)
    with promotion_lock(settings):
        mend(store, log)
        return _publish(store, log.append(draft))


def recover(store: Store, settings: Settings) -> Decision | None:
    """Ends what a killed process began, and returns what it recorded."""
    log = DecisionLog(settings.mlruns_dir)
    if not log.path.is_file():
        return None
    with promotion_lock(settings):
        return mend(store, log)


def mend(store: Store, log: DecisionLog) -> Decision | None:
    """Ends what a killed process began, by what the alias says now; returns what it recorded.

    The caller holds the lock, so whoever began is dead.
    """
    reap(store)
    decisions = log.read()
    begun = history.pending(decisions)
    if begun is None:
        if decisions and not _is_published(store, decisions[-1]):
            _publish(store, decisions[-1])
        return None
    changes: dict[str, object] = {"made_at": now_text(), "who": who()}
    if champion_of(store, begun.model) != begun.to_version:
        return _publish(store, log.append(begun.model_copy(update={"action": "abandoned"})))
    _follow_champion(store, begun)
    changes["action"] = ENDS[begun.action]
    return _publish(store, log.append(begun.model_copy(update=changes)))


def spoken(version: int | None) -> str:
    """`version 3`, or `none`."""
    return "none" if version is None else f"version {version}"


def _require_expected(store: Store, draft: Decision) -> int | None:
    now = champion_of(store, draft.model)
    if now != draft.from_version:
        raise PromotionError(
            f"another promotion was faster: expected champion of {draft.model} to be "
            f"{spoken(draft.from_version)}, found {spoken(now)}",
            "compare with the new champion and run the command again",
        )
    return now


def _version_of(
    store: Store, name: str, checkpoint: Checkpoint, tags: Mapping[str, str]
) -> ModelVersion:
    """The checkpoint's version; one that an earlier, broken-off promotion made is used again."""
    for version in store.registry.versions(name):
        if version.model_id == checkpoint.model_id:
            store.registry.set_version_tags(name, version.version, tags)
            return version
    return store.registry.create_version(name, checkpoint, tags)


def _carry_out(store: Store, log: DecisionLog, draft: Decision) -> Decision:
    begun = log.append(draft)
    _point(store, begun.model, names.ALIAS_CHAMPION, begun.to_version)
    found = champion_of(store, begun.model)
    if found != begun.to_version:
        raise PromotionError(
            f"the alias was moved behind our back: expected champion of {begun.model} to be "
            f"{spoken(begun.to_version)}, found {spoken(found)}",
            "find out who writes to this store without harness, then run the command again",
        )
    _follow_champion(store, begun)
    ended = {"action": ENDS[begun.action], "made_at": now_text()}
    return _publish(store, log.append(begun.model_copy(update=ended)))


def _follow_champion(store: Store, begun: Decision) -> None:
    """What is to be true once the champion has moved. May be done twice."""
    _point(store, begun.model, names.ALIAS_PREVIOUS, begun.previous_version)
    left = begun.from_version
    known = {version.version for version in store.registry.versions(begun.model)}
    if left in known and left is not None and left != begun.to_version:
        tags = {names.TAG_STATE: _STATE_LEFT[begun.action]}
        store.registry.set_version_tags(begun.model, left, tags)
    if begun.to_version is None:
        return
    if begun.action == "promoting":
        run, checkpoint = store.get_run(str(begun.run_id)), store.get_checkpoint(begun.model_id)
        text = describe_version(begun, checkpoint, run)
        store.registry.describe_version(begun.model, begun.to_version, text)
    tags = {names.TAG_STATE: "champion"}
    store.registry.set_version_tags(begun.model, begun.to_version, tags)


def _point(store: Store, name: str, alias: str, version: int | None) -> None:
    now = store.registry.aliases(name).get(alias)
    if version is not None and now != version:
        store.registry.set_alias(name, alias, version)
    elif version is None and now is not None:
        store.registry.delete_alias(name, alias)


def _publish(store: Store, decision: Decision) -> Decision:
    """The decision once more as a run of its own: for the UI, and to find a log that lost lines."""
    name = names.base_run_name(names.KIND_PROMOTION, [decision.model, decision.action])
    tags = {
        "model": decision.model,
        "action": decision.action,
        names.TAG_DECISION_HASH: decision.hash,
    }
    with store.start_run(
        names.KIND_PROMOTION, name, experiment=names.EXPERIMENT_PROMOTIONS, tags=tags
    ) as run:
        if decision.model_id:
            run.log_model_inputs([decision.model_id])
        run.log_text(names.ARTIFACT_DECISION, decision.model_dump_json(indent=2))
        run.log_params({gate.name: gate.found for gate in decision.gates})
    return decision


def _is_published(store: Store, decision: Decision) -> bool:
    tags = {names.TAG_DECISION_HASH: decision.hash}
    done = RunStatus.FINISHED
    return bool(store.find_runs(kind=names.KIND_PROMOTION, tags=tags, status=done, limit=1))

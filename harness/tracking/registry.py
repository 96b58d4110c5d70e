"""Champions: an alias moved under a lock, from the version one expects, with a record of it.

The order is: record `promoting`, move `previous`, move `champion`, record `promoted`. Killed
between any two, the old champion stands or the new one does; the next promotion settles the record.
"""

from harness.errors import ConfigError, PromotionError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.decisions import Decision, DecisionLog, now_text, who
from harness.tracking.embedded import HeldLock, store_lock
from harness.tracking.records import Checkpoint, ModelVersion
from harness.tracking.resolve import MODEL_NAME
from harness.tracking.store import Store

_LOCK = ".harness-promotion.lock"
_LOCK_TIMEOUT_S = 60.0


def require_model_name(name: str) -> str:
    """Refuses names that could not be a reference or would leave a folder."""
    if not MODEL_NAME.fullmatch(name) or name.startswith("m-"):
        raise ConfigError(
            f"expected a model name of letters, digits, '.', '_' and '-', found {name!r}",
            "for example: --name smollm2-135m",
        )
    return name


def promotion_lock(settings: Settings) -> HeldLock:
    """Held by whoever moves an alias or writes to the decision log."""
    settings.mlruns_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return store_lock(settings.mlruns_dir, _LOCK, _LOCK_TIMEOUT_S)


def champion_of(store: Store, name: str) -> int | None:
    """The version that is champion now."""
    return store.registry.aliases(name).get(names.ALIAS_CHAMPION)


def move_champion(
    store: Store,
    settings: Settings,
    checkpoint: Checkpoint,
    draft: Decision,
    version_tags: dict[str, str],
) -> Decision:
    """Makes a checkpoint the champion if the champion is still the one the decision started from.

    Args:
        store: The store.
        settings: Names the folder of lock and log.
        checkpoint: The candidate.
        draft: The decision; `from_version` is the expected champion.
        version_tags: What the model version shall say about itself.

    Raises:
        PromotionError: Someone else moved the alias since the decision was begun.
        CheckError: The decision log is broken.
    """
    log = DecisionLog(settings.mlruns_dir)
    with promotion_lock(settings):
        settle(store, log)
        now = champion_of(store, draft.model)
        if now != draft.from_version:
            raise PromotionError(
                f"another promotion was faster: expected champion of {draft.model} to be "
                f"{_spoken(draft.from_version)}, found {_spoken(now)}",
                "compare with the new champion and run harness promote again",
            )
        version = _version_of(store, draft.model, checkpoint, version_tags)
        begun = draft.model_copy(update={"action": "promoting", "to_version": version.version})
        log.append(begun)
        _move(store, draft.model, version.version, now)
        return log.append(begun.model_copy(update={"action": "promoted", "made_at": now_text()}))


def settle(store: Store, log: DecisionLog) -> None:
    """Closes the record of a promotion whose process died: by what the alias says now."""
    decisions = log.read()
    if not decisions or decisions[-1].action != "promoting":
        return
    last = decisions[-1]
    is_done = champion_of(store, last.model) == last.to_version
    action = "promoted" if is_done else "abandoned"
    log.append(last.model_copy(update={"action": action, "made_at": now_text(), "who": who()}))


def record_refusal(settings: Settings, draft: Decision) -> Decision:
    """Writes down that a promotion was refused."""
    with promotion_lock(settings):
        return DecisionLog(settings.mlruns_dir).append(draft)


def _version_of(
    store: Store, name: str, checkpoint: Checkpoint, tags: dict[str, str]
) -> ModelVersion:
    """The checkpoint's version; one that an earlier, broken-off promotion made is used again."""
    for version in store.registry.versions(name):
        if version.model_id == checkpoint.model_id:
            store.registry.set_version_tags(name, version.version, tags)
            return version
    return store.registry.create_version(name, checkpoint, tags)


def _move(store: Store, name: str, version: int, before: int | None) -> None:
    registry = store.registry
    if before is not None and before != version:
        registry.set_alias(name, names.ALIAS_PREVIOUS, before)
        registry.set_version_tags(name, before, {names.TAG_STATE: "superseded"})
    registry.set_alias(name, names.ALIAS_CHAMPION, version)
    found = champion_of(store, name)
    if found != version:
        raise PromotionError(
            f"the alias was moved behind our back: expected champion of {name} to be "
            f"{_spoken(version)}, found {_spoken(found)}",
            "find out who writes to this store without harness, then promote again",
        )
    registry.set_version_tags(name, version, {names.TAG_STATE: "champion"})


def _spoken(version: int | None) -> str:
    return "none" if version is None else f"version {version}"

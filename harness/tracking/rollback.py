"""The champion put back: to the one before, to one that was champion once, or to what the log says.

Where to is read from the decision log; that the weights are still the same is read from the files.
"""

from collections.abc import Sequence

from eval.progress import ProgressFn
from harness.digests import digest_json
from harness.drafter.provenance import package_versions
from harness.errors import CheckError, ConfigError, PromotionError
from harness.settings import Settings
from harness.tracking import history, names, registry
from harness.tracking.decisions import ENDS, Action, Decision, DecisionLog, Gate, now_text, who
from harness.tracking.resolve import count_hashed, require_unchanged, resolve_drafter
from harness.tracking.store import Store

_SHORT = 12


def roll_back(
    model: str,
    settings: Settings,
    store: Store,
    *,
    to: int | None = None,
    reason: str | None = None,
    progress: ProgressFn | None = None,
) -> Decision:
    """Makes an earlier champion champion again, after its files were hashed again.

    One that was killed before and is asked for again is ended, not followed by a second one.

    Args:
        model: The registered model.
        settings: Where the log is.
        store: The open store.
        to: The version; None takes the champion before the present one.
        reason: Why, for the log.
        progress: Told about hashing.

    Raises:
        PromotionError: There is no such champion, or another command moved the alias meanwhile.
        CheckError: Its files are gone or were changed.
    """
    registry.require_model_name(model)
    ended = registry.recover(store, settings)
    if ended and _is_done(ended, model, to):
        return ended
    log = DecisionLog(settings.mlruns_dir)
    now = registry.require_alias_as_logged(store, log, model)
    decisions = log.read()
    earlier = history.champions(decisions, model)[:-1]
    target = _target(model, earlier, now, to)
    draft = _draft(model, "rolling_back", now, reason)
    draft = _with_weights(draft, target, decisions, settings, store, progress=progress)
    return registry.move_champion(store, settings, _with_previous(draft, decisions))


def settle(model: str, settings: Settings, store: Store, *, is_by_alias: bool) -> Decision:
    """Makes alias and log agree, after the alias was moved without harness.

    Args:
        model: The registered model.
        settings: Where the log is.
        store: The open store.
        is_by_alias: Accept where the alias is now; else move it back to where the log says.

    Raises:
        ConfigError: They agree already.
        CheckError: The files of the version that the alias is to have are gone or changed.
    """
    registry.require_model_name(model)
    decisions = DecisionLog(settings.mlruns_dir).read()
    stack, aliases = history.champions(decisions, model), store.registry.aliases(model)
    now, previous = (aliases.get(a) for a in (names.ALIAS_CHAMPION, names.ALIAS_PREVIOUS))
    logged = _last(stack)
    if (logged, _last(stack[:-1])) == (now, previous):
        raise ConfigError(
            f"the aliases of {model} are where the log says, champion: {registry.spoken(now)}",
            "there is nothing to settle",
        )
    target = now if is_by_alias else logged
    reason = (
        f"moved without harness: the log said {registry.spoken(logged)}, the alias "
        f"{registry.spoken(now)}; settled by {'alias' if is_by_alias else 'log'}"
    )
    draft = _draft(model, "settling", now, reason)
    if target is not None:
        draft = _with_weights(draft, target, decisions, settings, store)
    return registry.move_champion(store, settings, _with_previous(draft, decisions))


def _is_done(ended: Decision, model: str, to: int | None) -> bool:
    """Whether a rollback that was killed, and ended just now, is the one that is asked for."""
    is_asked = to is None or to == ended.to_version
    return (ended.model, ended.action) == (model, "rolled_back") and is_asked


def _with_previous(draft: Decision, decisions: Sequence[Decision]) -> Decision:
    """The decision with the champion before, as it will be once this is done."""
    done = draft.model_copy(update={"action": ENDS[draft.action]})
    after = history.champions([*decisions, done], draft.model)
    return draft.model_copy(update={"previous_version": _last(after[:-1])})


def _target(model: str, earlier: Sequence[int], now: int | None, to: int | None) -> int:
    target = to if to is not None else _last(earlier)
    if target is None or target == now or target not in earlier:
        known = ", ".join(map(str, dict.fromkeys(earlier))) or "none"
        wanted = "" if to is None else f", version {to},"
        raise PromotionError(
            f"expected an earlier champion of {model}{wanted} to go back to; earlier champions: "
            f"{known}",
            f"harness registry history {model}",
        )
    return target


def _last(versions: Sequence[int]) -> int | None:
    return versions[-1] if versions else None


def _with_weights(
    draft: Decision,
    target: int,
    decisions: Sequence[Decision],
    settings: Settings,
    store: Store,
    *,
    progress: ProgressFn | None = None,
) -> Decision:
    """The decision for a version whose files are what was recorded and what was decided."""
    reference = f"models:/{draft.model}/{target}"
    drafter = resolve_drafter(reference, settings, store)
    total = drafter.checkpoint.num_bytes if drafter.checkpoint else 0
    found = require_unchanged(drafter, store, count_hashed(progress, total))
    decided = history.weights_of(decisions, draft.model, target) or found
    if found != decided:
        raise CheckError(
            f"{reference} is not what was decided: expected root digest {decided}, found {found}",
            "the version was deleted and made anew without harness; promote a run instead",
        )
    required, seen = (f"sha256 {digest[:_SHORT]}" for digest in (decided, found))
    changes = {
        "to_version": target,
        "model_id": drafter.model_id,
        "run_id": drafter.run_id,
        "weights_digest": found,
        "gates": (Gate(name="weights", required=required, found=seen, is_passed=True),),
    }
    return draft.model_copy(update=changes)


def _draft(model: str, action: Action, now: int | None, reason: str | None) -> Decision:
    return Decision(
        sequence=0,
        made_at=now_text(),
        who=who(),
        action=action,
        model=model,
        from_version=now,
        to_version=None,
        model_id="",
        run_id=None,
        weights_digest="",
        bench_run_id=None,
        gates=(),
        policy={},
        policy_digest=digest_json({}),
        versions=package_versions(),
        reason=reason,
        previous_hash="",
    )

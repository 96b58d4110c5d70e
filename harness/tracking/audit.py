"""Whether aliases, files and the store's copies are what the decision log says: `registry check`.

Nothing here changes anything but `delete_version`, which asks the same questions first.
"""

from collections.abc import Sequence
from typing import Literal

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.errors import ConfigError, HarnessError, PromotionError
from harness.settings import Settings
from harness.tracking import history, names, registry
from harness.tracking.decisions import Decision, DecisionLog
from harness.tracking.records import ModelVersion
from harness.tracking.resolve import count_hashed, require_unchanged, resolve_drafter
from harness.tracking.store import Store

State = Literal["ok", "warning", "failed"]


class Check(Frozen):
    """One thing looked at."""

    name: str
    state: State
    found: str
    fix: str | None = None


def check_registry(
    settings: Settings,
    store: Store,
    model: str | None = None,
    *,
    progress: ProgressFn | None = None,
) -> list[Check]:
    """The log's chain, its copies in the store, each alias, and the files behind each alias.

    Args:
        settings: Where the log is.
        store: The open store.
        model: Only this one; None: all.
        progress: Told about hashing.
    """
    checks, decisions = check_log(settings, store)
    models = [model] if model else list(known_models(decisions, store))
    for name in models:
        checks += check_aliases(name, decisions, store)
        for version in store.registry.versions(name):
            if version.aliases:
                checks.append(_check_weights(version, decisions, settings, store, progress))
    return checks


def known_models(decisions: Sequence[Decision], store: Store) -> tuple[str, ...]:
    """Every model that the registry or the log has, sorted."""
    return tuple(sorted({*store.registry.names(), *history.logged_models(decisions)}))


def check_log(settings: Settings, store: Store) -> tuple[list[Check], tuple[Decision, ...]]:
    """The chain of the log, an unfinished move, and whether the store has lines that it lacks."""
    try:
        decisions = DecisionLog(settings.mlruns_dir).read()
    except HarnessError as error:
        broken = Check(name="decision log", state="failed", found=error.message, fix=error.hint)
        return [broken], ()
    checks = [Check(name="decision log", state="ok", found=f"{len(decisions)} lines, chain holds")]
    begun = history.pending(decisions)
    if begun:
        checks.append(
            Check(
                name=f"decision {begun.sequence}",
                state="warning",
                found=f"{begun.action} {begun.model} was begun by {begun.who} and not ended",
                fix="the next promotion or rollback, or harness registry check, ends it",
            )
        )
    checks.append(_check_copies(decisions, settings, store))
    return checks, decisions


def check_aliases(model: str, decisions: Sequence[Decision], store: Store) -> list[Check]:
    """Whether `champion` and `previous` point where the log says."""
    aliases = store.registry.aliases(model)
    stack = history.champions(decisions, model)
    begun = history.pending(decisions)
    if begun and begun.model == model:
        return []  # it moves just now, or is mended by the next command
    wanted = {
        names.ALIAS_CHAMPION: stack[-1] if stack else None,
        names.ALIAS_PREVIOUS: stack[-2] if len(stack) > 1 else None,
    }
    checks = []
    for alias, version in wanted.items():
        found = aliases.get(alias)
        is_same = found == version
        text = registry.spoken(found)
        checks.append(
            Check(
                name=f"{alias} of {model}",
                state="ok" if is_same else "failed" if alias == "champion" else "warning",
                found=text if is_same else f"{text}, the log says {registry.spoken(version)}",
                fix=None if is_same else f"harness registry settle {model} --by log (or alias)",
            )
        )
    return checks


def delete_version(model: str, version: int, settings: Settings, store: Store) -> ModelVersion:
    """Forgets a version that no alias and no decision names; its files stay.

    Raises:
        ConfigError: There is no such version.
        PromotionError: It has an alias, or was champion: MLflow would drop the alias silently.
    """
    registry.require_model_name(model)
    with registry.promotion_lock(settings):
        decisions = DecisionLog(settings.mlruns_dir).read()
        found = next((v for v in store.registry.versions(model) if v.version == version), None)
        if found is None:
            raise ConfigError(
                f"expected a version of {model}, found no version {version}",
                f"harness registry show {model}",
            )
        if found.aliases:
            raise PromotionError(
                f"version {version} of {model} has the alias {', '.join(found.aliases)}",
                f"harness rollback {model}, or promote another one first",
            )
        if version in history.recorded_versions(decisions, model):
            raise PromotionError(
                f"version {version} of {model} was champion, and the log names it",
                "keep it as the record; harness gc frees its files",
            )
        store.registry.delete_version(model, version)
    return found


def _check_copies(decisions: Sequence[Decision], settings: Settings, store: Store) -> Check:
    """Each decision is in the store once more: one that the log lacks was cut off or rewritten."""
    kept = {decision.hash for decision in decisions}
    copies = store.find_runs(kind=names.KIND_PROMOTION)
    lost = [run for run in copies if run.tags.get(names.TAG_DECISION_HASH) not in kept]
    if not lost:
        return Check(name="copies in the store", state="ok", found=f"{len(copies)}, all in the log")
    shown = ", ".join(f"{run.name} ({run.run_id})" for run in lost[:3])
    found = f"{len(lost)} of {len(copies)} are not in the log: {shown}"
    if not settings.is_embedded:
        fix = "decided in another project folder, or the log lost lines"
        return Check(name="copies in the store", state="warning", found=found, fix=fix)
    fix = f"restore {DecisionLog(settings.mlruns_dir).path} from a backup"
    return Check(name="copies in the store", state="failed", found=found, fix=fix)


def _check_weights(
    version: ModelVersion,
    decisions: Sequence[Decision],
    settings: Settings,
    store: Store,
    progress: ProgressFn | None,
) -> Check:
    reference = f"models:/{version.name}/{version.version}"
    name = f"weights of {reference}"
    decided = history.weights_of(decisions, version.name, version.version)
    try:
        drafter = resolve_drafter(reference, settings, store)
        total = drafter.checkpoint.num_bytes if drafter.checkpoint else 0
        found = require_unchanged(drafter, store, count_hashed(progress, total))
    except HarnessError as error:
        return Check(name=name, state="failed", found=error.message, fix=error.hint)
    if decided and found != decided:
        text = f"sha256 {found}, but {decided} was decided"
        return Check(name=name, state="failed", found=text, fix="promote a run instead")
    return Check(name=name, state="ok", found=f"sha256 {found}")

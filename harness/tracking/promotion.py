"""The whole of `harness promote`: find the evidence, pick the best, ask every gate, decide."""

from collections.abc import Sequence

from eval.progress import ProgressFn
from eval.result import BenchRow
from harness.config.load import Frozen
from harness.config.policy import Policy
from harness.digests import digest_json
from harness.drafter.provenance import package_versions
from harness.settings import Settings
from harness.tracking import gates, measurements, names, registry
from harness.tracking.decisions import Decision, Gate, now_text, who
from harness.tracking.evidence import (
    Evidence,
    figure_of,
    find_evidence,
    known,
    rank,
    resolve_checkpoint,
)
from harness.tracking.resolve import ResolvedDrafter
from harness.tracking.store import Store


class Promotion(Frozen):
    """One decision and what it rests on."""

    model: str
    reference: str
    action: str
    """promoted, refused, champion already, or would promote / would refuse in a dry run."""
    from_version: int | None
    to_version: int | None
    model_id: str
    run_id: str | None
    bench_run_id: str
    weights_digest: str
    gates: tuple[Gate, ...]
    candidates: dict[str, float | None]
    """Reference to the figure that ranked it."""

    @property
    def is_passed(self) -> bool:
        """Whether every gate passed."""
        return all(gate.is_passed for gate in self.gates)


def promote(
    references: Sequence[str],
    name: str,
    policy: Policy,
    settings: Settings,
    store: Store,
    *,
    is_dry_run: bool = False,
    progress: ProgressFn | None = None,
) -> Promotion:
    """Makes the best of the candidates champion of a model, if the policy lets it.

    Args:
        references: Checkpoints of the store, all measured by one bench.
        name: The registered model.
        policy: The gates.
        settings: Where the project is.
        store: The open store.
        is_dry_run: Asks every gate, changes nothing.
        progress: Told about hashing.

    Raises:
        ConfigError: A reference is no checkpoint of the store, or no bench measured them all.
        PromotionError: Another promoter was faster.
    """
    registry.require_model_name(name)
    expected = registry.champion_of(store, name)
    candidates = [resolve_checkpoint(reference, settings, store) for reference in references]
    found = find_evidence(candidates, policy, store)
    best = max(candidates, key=lambda candidate: rank(found[candidate.reference].row, policy))
    evidence = found[best.reference]
    asked = _ask(best, evidence, policy, settings, store, progress=progress)
    promotion = Promotion(
        model=name,
        reference=best.reference,
        action="would promote" if all(gate.is_passed for gate in asked) else "would refuse",
        from_version=expected,
        to_version=None,
        model_id=known(best).model_id,
        run_id=best.run_id,
        bench_run_id=evidence.bench.run_id,
        weights_digest=known(best).digest,
        gates=tuple(asked),
        candidates={ref: figure_of(item.row, policy) for ref, item in found.items()},
    )
    if is_dry_run:
        return promotion
    if promotion.is_passed and expected and expected == _version_of(promotion, store):
        return promotion.model_copy(update={"action": "champion already", "to_version": expected})
    return _decide(promotion, (best, evidence), policy, settings, store)


def _version_of(promotion: Promotion, store: Store) -> int | None:
    versions = store.registry.versions(promotion.model)
    return next((v.version for v in versions if v.model_id == promotion.model_id), None)


def _ask(
    drafter: ResolvedDrafter,
    evidence: Evidence,
    policy: Policy,
    settings: Settings,
    store: Store,
    *,
    progress: ProgressFn | None,
) -> list[Gate]:
    done, total = 0, known(drafter).num_bytes

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress("hashing the weights", done, total)

    asked = gates.check_figures(policy, evidence.row, evidence.bench)
    asked.append(gates.check_weights(drafter, evidence.row.digest, store, on_bytes))
    if policy.require_verify_clean:
        asked.append(
            gates.check_files(drafter, evidence.bench.tags.get(names.TAG_VERIFIER), settings)
        )
    if policy.require_provenance and drafter.run_id:
        asked.append(gates.check_provenance(store.get_run(drafter.run_id), store))
    return asked


def _decide(
    promotion: Promotion,
    best: tuple[ResolvedDrafter, Evidence],
    policy: Policy,
    settings: Settings,
    store: Store,
) -> Promotion:
    document = policy.model_dump(mode="json")
    draft = Decision(
        sequence=0,
        made_at=now_text(),
        who=who(),
        action="promoting" if promotion.is_passed else "refused",
        model=promotion.model,
        from_version=promotion.from_version,
        to_version=None,
        model_id=promotion.model_id,
        run_id=promotion.run_id,
        weights_digest=promotion.weights_digest,
        bench_run_id=promotion.bench_run_id,
        gates=promotion.gates,
        policy=document,
        policy_digest=digest_json(document),
        versions=package_versions(),
        previous_hash="",
    )
    if promotion.is_passed:
        drafter, evidence = best
        tags = _version_tags(promotion, evidence.row)
        decision = registry.move_champion(store, settings, known(drafter), draft, tags)
    else:
        decision = registry.record_refusal(settings, draft)
    _log_decision(decision, store)
    return promotion.model_copy(
        update={"action": decision.action, "to_version": decision.to_version}
    )


def _version_tags(promotion: Promotion, row: BenchRow) -> dict[str, str]:
    figures = measurements.row_metrics(row)
    return {
        "weights.digest": promotion.weights_digest,
        "bench.run_id": promotion.bench_run_id,
        **{key: f"{value:.6g}" for key, value in figures.items()},
    }


def _log_decision(decision: Decision, store: Store) -> None:
    """The decision once more as a run of its own, for those who look in the UI."""
    name = names.base_run_name(names.KIND_PROMOTION, [decision.model, decision.action])
    tags = {"model": decision.model, "action": decision.action, "decision.hash": decision.hash}
    with store.start_run(
        names.KIND_PROMOTION, name, experiment=names.EXPERIMENT_PROMOTIONS, tags=tags
    ) as run:
        run.log_model_inputs([decision.model_id])
        run.log_text(names.ARTIFACT_DECISION, decision.model_dump_json(indent=2))
        run.log_params({gate.name: gate.found for gate in decision.gates})

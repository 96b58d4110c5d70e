"""The whole of `harness promote`: find or make the evidence, pick the best, ask every gate, decide.

The files are asked before anything is measured: changed or unsound weights cost no measurement.
"""

from collections.abc import Callable, Sequence

from eval.progress import ProgressFn
from eval.result import BenchRow
from harness.config.policy import Policy
from harness.errors import ConfigError
from harness.settings import Settings
from harness.tracking import gates, measurements, registry
from harness.tracking.candidacy import Candidacy, Candidate, open_candidacy
from harness.tracking.deciding import Promotion, decide
from harness.tracking.decisions import Gate
from harness.tracking.evidence import Search, best_row, figure_of, rank, read_evidence
from harness.tracking.records import Checkpoint
from harness.tracking.rivalry import check_against, planned_against
from harness.tracking.store import Store

MeasureFn = Callable[[Sequence[str]], str]
"""Measures drafters together and returns the id of the bench run."""
_NOTHING = Search(None, None, ())


def promote(
    references: Sequence[str],
    name: str,
    policy: Policy,
    settings: Settings,
    store: Store,
    *,
    measure: MeasureFn | None = None,
    is_dry_run: bool = False,
    is_remeasuring: bool = False,
    progress: ProgressFn | None = None,
) -> Promotion:
    """Makes the best of the candidates champion of a model, if the policy lets it.

    Args:
        references: Checkpoints of the store.
        name: The registered model.
        policy: The gates.
        settings: Where the project is.
        store: The open store.
        measure: Measures candidates and champion together where no bench did so; None refuses.
        is_dry_run: Asks every gate, measures and changes nothing.
        is_remeasuring: Measures even where a bench did so already.
        progress: Told about hashing.

    Raises:
        ConfigError: A reference is no checkpoint of the store, or there is no evidence.
        PromotionError: Another promoter was faster, or the alias was moved without harness.
    """
    case = open_candidacy(references, name, policy, settings, store, progress=progress)
    search = _NOTHING if is_remeasuring else case.find_bench()
    if search.bench is None:
        unmeasured = _ask_unmeasured(case, search)
        if is_dry_run:
            return unmeasured
        if unmeasured.action == "would refuse":
            return decide(unmeasured, None, policy, settings, store)
        search = _measure(case, search, measure)
    best, row = _pick(case, search)
    promotion = _ask(case, search, best)
    if is_dry_run:
        return promotion
    if promotion.is_passed and case.champion and case.rival_of(best) is None:
        registry.recover(store, settings)  # it may have been killed right after it became champion
        now = {"action": "champion already", "to_version": case.expected}
        return promotion.model_copy(update=now)
    return decide(promotion, row, policy, settings, store)


def _ask_unmeasured(case: Candidacy, search: Search) -> Promotion:
    """What the files say, and what will be asked; of several candidates the first that fails."""
    for candidate in case.candidates:
        asked = case.ask_files(candidate, None)
        is_failed = not all(gate.is_passed for gate in asked)
        if is_failed or candidate is case.candidates[-1]:
            break
    rival = case.rival_of(candidate)
    planned = gates.check_measured(case.policy, None, candidate.run)
    planned += planned_against(case.policy) if rival else []
    action = "would refuse" if is_failed else "would measure"
    found = _promotion(case, candidate, action, [*asked, *planned], search)
    return found if is_failed else found.model_copy(update={"to_measure": case.references})


def _measure(case: Candidacy, search: Search, measure: MeasureFn | None) -> Search:
    if measure is None:
        what = "these drafters together" if len(case.references) > 1 else "this drafter"
        reasons = "".join(f"\n  {reason}" for reason in search.passed_over)
        raise ConfigError(
            f"no finished bench measured {what}: there is no evidence{reasons}",
            "harness bench " + " ".join(f"--drafter {ref}" for ref in case.references),
        )
    run_id = measure(case.references)
    result = measurements.read_bench_result(case.store, run_id)
    return Search(case.store.get_run(run_id), result, search.passed_over)


def _pick(case: Candidacy, search: Search) -> tuple[Candidate, BenchRow]:
    rows = [(c, _row_of(case, search, c.checkpoint)) for c in case.candidates]
    return max(rows, key=lambda pair: rank(pair[1], case.policy.rank_by))


def _row_of(case: Candidacy, search: Search, checkpoint: Checkpoint) -> BenchRow:
    figure = case.policy.rank_by
    row = best_row(search.result, checkpoint.digest, figure) if search.result else None
    if row is None:
        raise ConfigError(
            f"expected a result for the weights of {checkpoint.name} (root digest "
            f"{checkpoint.digest}), found none in the bench",
            "an answer of one token has no speed: ask for longer ones, --remeasure",
        )
    return row


def _ask(case: Candidacy, search: Search, best: Candidate) -> Promotion:
    """Every gate of the policy, for the best candidate."""
    policy = case.policy
    evidence = read_evidence(search, best.checkpoint.digest, policy.rank_by)
    assert evidence is not None  # noqa: S101 - `_pick` saw its row
    asked = gates.check_measured(policy, evidence, best.run)
    rival = case.rival_of(best)
    if rival:
        asked += check_against(policy, evidence, _row_of(case, search, rival))
    asked += case.ask_files(best, evidence)
    action = "would wait for approval" if policy.require_approval else "would promote"
    if not all(gate.is_passed for gate in asked):
        action = "would refuse"
    found = _promotion(case, best, action, asked, search)
    figures = {
        c.reference: figure_of(_row_of(case, search, c.checkpoint), policy.rank_by)
        for c in case.candidates
    }
    return found.model_copy(update={"candidates": figures, "flags": evidence.row.flags})


def _promotion(
    case: Candidacy, candidate: Candidate, action: str, asked: Sequence[Gate], search: Search
) -> Promotion:
    return Promotion(
        model=case.model,
        reference=candidate.reference,
        action=action,
        from_version=case.expected,
        to_version=None,
        model_id=candidate.checkpoint.model_id,
        run_id=candidate.checkpoint.run_id,
        bench_run_id=search.bench.run_id if search.bench else None,
        weights_digest=candidate.checkpoint.digest,
        gates=tuple(asked),
        candidates={c.reference: None for c in case.candidates},
        passed_over=search.passed_over,
    )

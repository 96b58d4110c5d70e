"""A promotion whose gates were asked becomes a decision: refused, proposed, or carried out."""

from eval.result import BenchRow
from harness.config.load import Frozen
from harness.config.policy import Policy
from harness.digests import digest_json
from harness.drafter.provenance import package_versions
from harness.errors import PromotionError
from harness.settings import Settings
from harness.tracking import history, measurements, names, registry
from harness.tracking.decisions import Decision, DecisionLog, Gate, now_text, who
from harness.tracking.store import Store

_REFUSED = ("refused", "would refuse", "waits for approval", "would wait for approval")
_FEWEST_DIGITS = 12
_SHOWN_FIGURES = (
    names.METRIC_ACCEPTANCE_LENGTH,
    names.METRIC_DECODE_SPEEDUP,
    names.METRIC_NUM_SPECULATIVE_TOKENS,
)
"""As tags of a version, in the table of versions; the bench has them all."""


class Promotion(Frozen):
    """One decision and what it rests on."""

    model: str
    reference: str
    action: str
    """promoted, refused, waits for approval, champion already; in a dry run what would be done."""
    from_version: int | None
    to_version: int | None
    model_id: str
    run_id: str
    bench_run_id: str | None
    """None: nothing measured them together, and the files alone decided."""
    weights_digest: str
    gates: tuple[Gate, ...]
    candidates: dict[str, float | None]
    """Reference to the figure that ranked it."""
    to_measure: tuple[str, ...] = ()
    """References that would be measured together first."""
    passed_over: tuple[str, ...] = ()
    """Benches that measured them and are no evidence, and why."""
    flags: tuple[str, ...] = ()
    """What the bench says one must know before believing its figures."""

    @property
    def is_passed(self) -> bool:
        """Whether every gate passed."""
        return all(gate.is_passed for gate in self.gates)

    @property
    def is_refused(self) -> bool:
        """Whether the candidate is not, or would not be, let through."""
        return self.action in _REFUSED


def decide(
    promotion: Promotion, row: BenchRow | None, policy: Policy, settings: Settings, store: Store
) -> Promotion:
    """Carries out what the gates say, and writes it down.

    Args:
        promotion: The candidate and its gates.
        row: What the bench says of it; None where nothing measured it.
        policy: The gates, to be kept with the decision.
        settings: Where the log is.
        store: The open store.

    Raises:
        PromotionError: Another promoter was faster.
    """
    draft = _draft(promotion, policy)
    if not promotion.is_passed or row is None:
        registry.record(store, settings, draft.model_copy(update={"action": "refused"}))
        return promotion.model_copy(update={"action": "refused"})
    if policy.require_approval:
        proposal = history.open_proposal(DecisionLog(settings.mlruns_dir).read(), draft)
        if proposal is None:
            registry.record(store, settings, draft.model_copy(update={"action": "proposed"}))
        if proposal is None or proposal.action != "approved":
            return promotion.model_copy(update={"action": "waits for approval"})
        draft = draft.model_copy(update={"approved_by": proposal.who})
    checkpoint = store.get_checkpoint(promotion.model_id)
    tags = _version_tags(draft, row)
    done = registry.move_champion(store, settings, draft, checkpoint, tags)
    return promotion.model_copy(update={"action": done.action, "to_version": done.to_version})


def approve(model: str, digest: str, settings: Settings, store: Store) -> Decision:
    """Writes down that this user lets the proposed weights become champion.

    Args:
        model: The registered model.
        digest: Root digest of the weights, or its first 12 digits and more.
        settings: Where the log is.
        store: The open store.

    Raises:
        PromotionError: No such proposal is open.
    """
    decisions = DecisionLog(settings.mlruns_dir).read()
    proposed = [
        decision
        for decision in decisions
        if (decision.model, decision.action) == (model, "proposed")
        and decision.weights_digest.startswith(digest)
    ]
    latest = history.open_proposal(decisions, proposed[-1]) if proposed else None
    if latest is None or latest.action != "proposed" or len(digest) < _FEWEST_DIGITS:
        raise PromotionError(
            f"expected an open proposal of {model} with weights of digest {digest!r} "
            f"({_FEWEST_DIGITS} digits or more), found none",
            f"harness registry history {model} shows what was proposed",
        )
    changes = {"action": "approved", "who": who(), "made_at": now_text()}
    return registry.record(store, settings, latest.model_copy(update=changes))


def _draft(promotion: Promotion, policy: Policy) -> Decision:
    document = policy.model_dump(mode="json")
    return Decision(
        sequence=0,
        made_at=now_text(),
        who=who(),
        action="promoting",
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


def _version_tags(draft: Decision, row: BenchRow) -> dict[str, str]:
    figures = measurements.row_metrics(row)
    tags = {
        "weights.digest": draft.weights_digest,
        "bench.run_id": str(draft.bench_run_id),
        "policy.digest": draft.policy_digest,
        "promoted.by": draft.who,
        "approved.by": draft.approved_by or "",
        **{key: f"{figures[key]:.6g}" for key in _SHOWN_FIGURES if key in figures},
    }
    return {key: value for key, value in tags.items() if value}

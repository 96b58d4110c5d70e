"""A policy applied to one candidate: every gate with its number, none left out after a failure."""

import time
from collections.abc import Callable

from eval.result import BenchRow, Interval
from harness.config.policy import Policy
from harness.drafter.checks import check_drafter
from harness.drafter.verifier import Verifier
from harness.errors import HarnessError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.decisions import Gate
from harness.tracking.measurements import is_lossless
from harness.tracking.records import RunSummary
from harness.tracking.resolve import ResolvedDrafter, require_unchanged
from harness.tracking.store import Store

_DAY_S = 86_400
_REQUIRED_TAGS = (
    names.TAG_VERIFIER,
    names.TAG_VERIFIER_DIGEST,
    names.TAG_CORPUS_DIGEST,
    names.TAG_CODE_COMMIT,
)
_REQUIRED_PARAMS = (names.PARAM_HEAD_DIM, names.PARAM_HEAD_DIM_SOURCE)


def check_figures(policy: Policy, row: BenchRow, bench: RunSummary) -> list[Gate]:
    """The gates on what was measured."""
    gates = [_at_least("num_prompts", policy.min_prompts, row.num_prompts)]
    if policy.min_acceptance_length is not None:
        gates.append(
            _low_end(
                names.METRIC_ACCEPTANCE_LENGTH, policy.min_acceptance_length, row.acceptance_length
            )
        )
    if policy.min_decode_speedup is not None:
        gates.append(
            _low_end(names.METRIC_DECODE_SPEEDUP, policy.min_decode_speedup, row.decode_speedup)
        )
    if policy.require_lossless:
        gates.append(_lossless(row))
    if policy.max_evidence_age_days is not None:
        age = (time.time() - (bench.end_ms or bench.start_ms) / 1000) / _DAY_S
        limit = policy.max_evidence_age_days
        gates.append(_gate("evidence age", f"<= {limit:g} days", f"{age:.2f} days", age <= limit))
    return gates


def check_weights(
    drafter: ResolvedDrafter,
    measured_digest: str | None,
    store: Store,
    on_bytes: Callable[[int], None] | None = None,
) -> Gate:
    """Whether the files are, byte for byte, what was recorded and what was measured."""
    required = f"sha256 {str(measured_digest)[:12]} (as measured)"
    try:
        found = require_unchanged(drafter, store, on_bytes)
    except HarnessError as error:
        return _gate("weights", required, error.message, is_passed=False)
    return _gate("weights", required, f"sha256 {found[:12]}", found == measured_digest)


def check_files(drafter: ResolvedDrafter, reference: str | None, settings: Settings) -> Gate:
    """Whether `harness verify` finds the files sound, tensors read."""
    if reference is None:
        found = f"the bench run has no tag {names.TAG_VERIFIER}"
        return _gate("verify", "no error", found, is_passed=False)
    try:
        report = check_drafter(drafter.path, Verifier.load(reference, settings), deep=True)
    except HarnessError as error:
        return _gate("verify", "no error", error.message, is_passed=False)
    errors = report.of_severity("error")
    rules = ", ".join(sorted({finding.rule for finding in errors}))
    found = f"{len(errors)} error(s): {rules}" if errors else "no error"
    return _gate("verify", "no error", found, report.ok)


def check_provenance(run: RunSummary, store: Store) -> Gate:
    """Whether the training run says all that is needed to make this drafter again."""
    missing = [key for key in _REQUIRED_TAGS if not run.tags.get(key)]
    missing += [key for key in _REQUIRED_PARAMS if run.params.get(key, "none") == "none"]
    if store.read_text(run.run_id, names.ARTIFACT_PROVENANCE) is None:
        missing.append(names.ARTIFACT_PROVENANCE)
    found = f"missing: {', '.join(missing)}" if missing else "complete"
    return _gate("provenance", "complete", found, not missing)


def _low_end(name: str, bound: float, figure: Interval | None) -> Gate:
    """An interval against a bound: its low end must reach it, a figure without one does not."""
    if figure is None:
        return _gate(name, f"low end >= {bound:g}", "not measured", is_passed=False)
    if figure.low is None or figure.high is None:
        found = f"{figure.value:.3f} without an interval"
        return _gate(name, f"low end >= {bound:g}", found, is_passed=False)
    found = f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]"
    return _gate(name, f"low end >= {bound:g}", found, figure.low >= bound)


def _lossless(row: BenchRow) -> Gate:
    verdict = is_lossless(row)
    if row.lossless is None or verdict is None:
        return _gate("lossless", "equal to the baseline", "not compared", is_passed=False)
    found = f"{row.lossless.num_equal} of {row.lossless.num_compared} answers equal"
    if verdict and row.lossless.divergences:
        found += ", the others part at a near tie"
    return _gate("lossless", "equal to the baseline", found, verdict)


def _at_least(name: str, bound: int, found: int) -> Gate:
    return _gate(name, f">= {bound}", str(found), found >= bound)


def _gate(name: str, required: str, found: str, is_passed: bool) -> Gate:  # noqa: FBT001 - private
    return Gate(name=name, required=required, found=found, is_passed=is_passed)

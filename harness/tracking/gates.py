"""A policy applied to one candidate: every gate with its number, none left out after a failure.

Gates on what was measured take None for the evidence where nothing is measured yet, and then only
say what they will ask.
"""

import time
from collections.abc import Callable

from eval.conditions import bench_conditions
from eval.result import BenchRow, Interval
from harness.config.policy import Policy
from harness.drafter.checks import check_drafter
from harness.drafter.verifier import Verifier
from harness.errors import HarnessError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.decisions import Gate
from harness.tracking.evidence import Evidence
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
_SHORT = 12
_NOT_YET = "not measured yet"


def check_measured(policy: Policy, evidence: Evidence | None, run: RunSummary | None) -> list[Gate]:
    """The gates on a candidate's own figures and on how they were measured.

    Args:
        policy: What is asked.
        evidence: The bench and the candidate's row; None: only say what will be asked.
        run: The training that made the candidate.
    """
    gates = [_prompts(policy, evidence)]
    row = evidence.row if evidence else None
    for name, bound, figure in (
        (
            names.METRIC_ACCEPTANCE_LENGTH,
            policy.min_acceptance_length,
            row.acceptance_length if row else None,
        ),
        (
            names.METRIC_DECODE_SPEEDUP,
            policy.min_decode_speedup,
            row.decode_speedup if row else None,
        ),
    ):
        if bound is not None:
            gates.append(low_end(name, bound, figure, is_measured=evidence is not None))
    if policy.require_lossless:
        gates.append(_lossless(row))
    if policy.require_parity:
        gates.append(_parity(evidence))
    if policy.require_unflagged:
        found = "; ".join(row.flags) or "none" if row else _NOT_YET
        gates.append(gate("flags of the bench", "none", found, not row.flags if row else None))
    gates.append(_verifier(evidence, run))
    gates += _conditions(policy, evidence)
    if policy.max_evidence_age_days is not None:
        gates.append(_age(policy.max_evidence_age_days, evidence))
    return gates


def check_weights(
    drafter: ResolvedDrafter,
    measured_digest: str | None,
    store: Store,
    on_bytes: Callable[[int], None] | None = None,
) -> Gate:
    """Whether the files are, byte for byte, what was recorded and, if given, what was measured."""
    kind = "measured" if measured_digest else "recorded"
    wanted = measured_digest or str(drafter.digest)
    required = f"sha256 {wanted[:_SHORT]} (as {kind})"
    try:
        found = require_unchanged(drafter, store, on_bytes)
    except HarnessError as error:
        return gate("weights", required, error.message, is_passed=False)
    return gate("weights", required, f"sha256 {found[:_SHORT]}", found == wanted)


def check_files(drafter: ResolvedDrafter, reference: str | None, settings: Settings) -> Gate:
    """Whether `harness verify` finds the files sound, tensors read."""
    if reference is None:
        found = f"neither bench nor training have the tag {names.TAG_VERIFIER}"
        return gate("verify", "no error", found, is_passed=False)
    try:
        report = check_drafter(drafter.path, Verifier.load(reference, settings), deep=True)
    except HarnessError as error:
        return gate("verify", "no error", error.message, is_passed=False)
    errors = report.of_severity("error")
    rules = ", ".join(sorted({finding.rule for finding in errors}))
    found = f"{len(errors)} error(s): {rules}" if errors else "no error"
    return gate("verify", "no error", found, report.ok)


def check_provenance(run: RunSummary | None, store: Store) -> Gate:
    """Whether the training run says all that is needed to make this drafter again."""
    if run is None:
        found = "the store knows of no training that made it"
        return gate("provenance", "complete", found, is_passed=False)
    missing = [key for key in _REQUIRED_TAGS if not run.tags.get(key)]
    missing += [key for key in _REQUIRED_PARAMS if run.params.get(key, "none") == "none"]
    if store.read_text(run.run_id, names.ARTIFACT_PROVENANCE) is None:
        missing.append(names.ARTIFACT_PROVENANCE)
    found = f"missing: {', '.join(missing)}" if missing else "complete"
    return gate("provenance", "complete", found, not missing)


def low_end(name: str, bound: float, figure: Interval | None, *, is_measured: bool = True) -> Gate:
    """An interval against a bound: its low end must reach it, a figure without one does not."""
    required = f"low end >= {bound:g}"
    if not is_measured:
        return gate(name, required, _NOT_YET, None)
    if figure is None:
        return gate(name, required, "not measured", is_passed=False)
    if figure.low is None or figure.high is None:
        return gate(name, required, f"{figure.value:.3f} without an interval", is_passed=False)
    return gate(name, required, figure.text(3), figure.low >= bound)


def gate(name: str, required: str, found: str, is_passed: bool | None) -> Gate:  # noqa: FBT001 - the last of four plain facts
    """One gate with its answer."""
    return Gate(name=name, required=required, found=found, is_passed=is_passed)


def _prompts(policy: Policy, evidence: Evidence | None) -> Gate:
    name, bound = "num_prompts", policy.min_prompts
    if evidence is None:
        return gate(name, f">= {bound}", _NOT_YET, None)
    found = evidence.row.num_prompts
    return gate(name, f">= {bound}", str(found), found >= bound)


def _lossless(row: BenchRow | None) -> Gate:
    required = "equal to the baseline"
    if row is None:
        return gate("lossless", required, _NOT_YET, None)
    verdict = is_lossless(row)
    if row.lossless is None or verdict is None:
        return gate("lossless", required, "not compared", is_passed=False)
    found = f"{row.lossless.num_equal} of {row.lossless.num_compared} answers equal"
    if verdict and row.lossless.divergences:
        found += ", the others part at a near tie"
    return gate("lossless", required, found, verdict)


def _parity(evidence: Evidence | None) -> Gate:
    required = "a replay accepts the same tokens"
    if evidence is None:
        return gate("parity", required, _NOT_YET, None)
    report, drafter = evidence.result.parity, evidence.row.drafter
    rows = [row for row in report.rows if row.drafter == drafter] if report else []
    if not rows:
        found = "not checked: harness bench --parity"
        return gate("parity", required, found, is_passed=False)
    equal, asked = sum(r.num_equal for r in rows), sum(r.num_requests for r in rows)
    is_passed = all(row.is_passed for row in rows)
    return gate("parity", required, f"{equal} of {asked} requests equal", is_passed)


def _verifier(evidence: Evidence | None, run: RunSummary | None) -> Gate:
    trained = run.tags.get(names.TAG_VERIFIER_DIGEST) if run else None
    required = f"sha256 {str(trained)[:_SHORT]} (as trained for)"
    if evidence is None:
        return gate("verifier", required, _NOT_YET, None)
    measured = evidence.bench.tags.get(names.TAG_VERIFIER_DIGEST)
    found = f"sha256 {measured[:_SHORT]}" if measured else "the bench does not say"
    return gate("verifier", required, found, measured is not None and measured == trained)


def _conditions(policy: Policy, evidence: Evidence | None) -> list[Gate]:
    """One engine version and one machine for all arms, and those that the policy names."""
    asked_engine = policy.vllm_version or "one version for all"
    asked_hardware = policy.hardware or "one machine for all"
    if evidence is None:
        return [
            gate("vLLM", asked_engine, _NOT_YET, None),
            gate("hardware", asked_hardware, _NOT_YET, None),
        ]
    versions = {engine.vllm_version for engine in evidence.result.engines}
    is_engine = len(versions) == 1 and versions <= {policy.vllm_version or next(iter(versions))}
    hardware = bench_conditions(evidence.result)["hardware"]
    is_hardware = hardware != "unknown" and (policy.hardware or "").lower() in hardware.lower()
    return [
        gate("vLLM", asked_engine, ", ".join(sorted(versions)) or "unknown", is_engine),
        gate("hardware", asked_hardware, hardware, is_hardware),
    ]


def _age(limit: float, evidence: Evidence | None) -> Gate:
    required = f"<= {limit:g} days"
    if evidence is None:
        return gate("evidence age", required, _NOT_YET, None)
    bench = evidence.bench
    age = (time.time() - (bench.end_ms or bench.start_ms) / 1000) / _DAY_S
    return gate("evidence age", required, f"{age:.2f} days", age <= limit)

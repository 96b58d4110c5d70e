"""The gate: every rule that files can show, run before anything expensive starts.

Header rules read config and safetensors headers (below a second at any size); deep rules read the
tensors once. What only a run can show (replay, a launch) is listed in docs/checks.md.
"""

from pathlib import Path
from typing import Literal

from harness.drafter.check_facts import (
    check_against_parent,
    check_against_verifier,
    check_config,
)
from harness.drafter.check_layout import check_layout, check_names
from harness.drafter.drafter import Drafter
from harness.drafter.findings import Finding, Report, unreadable
from harness.drafter.tensors import UnreadableError
from harness.drafter.verifier import Verifier
from harness.errors import CheckError

Purpose = Literal["serve", "finetune"]

_ONLY_IN_DRAFTERS = ("fc.weight", "layers.0.hidden_norm.weight", "d2t")


def check_drafter(
    path: Path,
    verifier: Verifier | None,
    parent: Drafter | Path | None = None,
    *,
    deep: bool = False,
    purpose: Purpose = "serve",
) -> Report:
    """Runs every rule that applies and returns what they found.

    Args:
        path: The drafter's folder.
        verifier: Adds the rules that compare with it; None leaves them out.
        parent: The drafter it was finetuned from, or its folder; adds rules that compare.
        deep: Reads the tensors, too; a deep rule is skipped where a header rule already failed.
        purpose: `finetune` judges names after the key map that loading applies.

    Raises:
        ConfigError: The folder does not exist. Everything else is a finding.
    """
    try:
        drafter = Drafter.load(path)
        loaded = _load_parent(parent) if isinstance(parent, Path) else parent
        findings = _check_headers(drafter, verifier, loaded, purpose)
        if deep and all(finding.severity != "error" for finding in findings):
            # numpy makes commands slower to start that read headers only, or print their help.
            from harness.drafter.check_deep import check_tensors  # noqa: PLC0415

            findings += check_tensors(drafter, verifier, loaded)
    except UnreadableError as error:
        findings = [unreadable(error)]
    except OSError as error:
        fix = "check its permissions and its disk"
        wrong = UnreadableError(str(path), "files that can be read", str(error), fix)
        findings = [unreadable(wrong)]
    return Report.of(findings)


def require_sound(
    path: Path,
    verifier: Verifier | None,
    parent: Drafter | Path | None = None,
    *,
    deep: bool = False,
    purpose: Purpose = "serve",
) -> Report:
    """Like `check_drafter`, but an error-level finding stops the caller.

    Raises:
        CheckError: Lists every error-level finding with its consequence.
    """
    report = check_drafter(path, verifier, parent, deep=deep, purpose=purpose)
    errors = report.of_severity("error")
    if errors:
        raise CheckError(error_lines(path, errors), errors[0].fix)
    return report


def error_lines(path: Path, errors: tuple[Finding, ...]) -> str:
    """A refusal in words: how many errors, and one line for each."""
    lines = [f"{path} is not sound: {len(errors)} error(s)"]
    return "\n".join(lines + [_line(finding) for finding in errors])


def _load_parent(path: Path) -> Drafter:
    try:
        return Drafter.load(path)
    except UnreadableError as error:
        subject = f"parent {path}: {error.subject}"
        raise UnreadableError(subject, error.expected, error.found, error.fix) from error


def _check_headers(
    drafter: Drafter, verifier: Verifier | None, parent: Drafter | None, purpose: Purpose
) -> list[Finding]:
    if not _is_drafter(drafter):
        return [_no_drafter(drafter)]
    findings = check_names(drafter, purpose) + check_layout(drafter) + check_config(drafter)
    if verifier:
        findings += check_against_verifier(drafter, verifier)
    if parent:
        findings += check_against_parent(drafter, parent)
    return findings


def _is_drafter(drafter: Drafter) -> bool:
    """Whether anything says so: the format, the architecture or a tensor."""
    named = any("eagle" in name.lower() for name in drafter.architectures)
    is_meant = drafter.format == "speculators" or named or "draft_vocab_size" in drafter.config
    return is_meant or any(drafter.find(name) for name in _ONLY_IN_DRAFTERS)


def _no_drafter(drafter: Drafter) -> Finding:
    """One finding where every rule would find something: this is another kind of model."""
    return Finding(
        rule="no-drafter",
        severity="error",
        subject=str(drafter.path),
        expected=f"an EAGLE-3 drafter, with {', '.join(_ONLY_IN_DRAFTERS)}",
        found=f"none of them; architectures {', '.join(drafter.architectures) or 'none'}, "
        f"num_hidden_layers {drafter.num_layers}, {len(drafter.tensors)} tensors",
        consequence="This is a verifier or another model, not a drafter.",
        fix="give the drafter's folder with --drafter, and this one with --verifier",
    )


def _line(finding: Finding) -> str:
    return (
        f"  {finding.rule} {finding.subject}: expected {finding.expected}, "
        f"found {finding.found}. {finding.consequence}"
    )

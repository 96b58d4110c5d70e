"""What a check says: findings with a rule, both sides of the mismatch, what follows and the fix."""

from typing import Literal

from harness.config.load import Frozen
from harness.drafter.tensors import UnreadableError

Severity = Literal["error", "warning", "info"]


class Finding(Frozen):
    """One thing that is wrong, doubtful or worth knowing. Rules are listed in docs/checks.md."""

    rule: str
    severity: Severity
    subject: str
    expected: str
    found: str
    consequence: str
    fix: str


class Report(Frozen):
    """Everything a check found; `ok` means that no finding is an error."""

    ok: bool
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: list[Finding]) -> "Report":
        """A report with errors first; the order within a severity is kept."""
        rank = {"error": 0, "warning": 1, "info": 2}
        ordered = tuple(sorted(findings, key=lambda finding: rank[finding.severity]))
        return cls(ok=all(f.severity != "error" for f in ordered), findings=ordered)

    def of_severity(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of one severity."""
        return tuple(f for f in self.findings if f.severity == severity)


def unreadable(error: UnreadableError) -> Finding:
    """The finding for a file that cannot be taken for what it should be."""
    return Finding(
        rule="unreadable",
        severity="error",
        subject=error.subject,
        expected=error.expected,
        found=error.found,
        consequence="The drafter cannot be loaded, or not as what it claims to be.",
        fix=error.fix,
    )

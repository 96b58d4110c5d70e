"""Every rule that reads tensors, in the order in which one makes sense after the other."""

from harness.drafter.check_head import check_head_rows
from harness.drafter.check_parent import check_weights_against_parent
from harness.drafter.check_tables import check_tables
from harness.drafter.check_values import check_embedding, check_values
from harness.drafter.drafter import Drafter
from harness.drafter.findings import Finding
from harness.drafter.verifier import Verifier


def check_tensors(
    drafter: Drafter, verifier: Verifier | None, parent: Drafter | None
) -> list[Finding]:
    """What the values say, of a drafter in which the header rules found no error.

    Rules that follow d2t to the verifier's rows need tables that can be followed, and rows that
    are not quantised.
    """
    findings = check_values(drafter)
    tables = check_tables(drafter)
    if drafter.is_quantised:
        return findings + tables
    if verifier:
        findings += check_embedding(drafter, verifier)
    if tables:
        return findings + tables
    if verifier:
        findings += check_head_rows(drafter, verifier)
    if parent:
        findings += check_weights_against_parent(drafter, parent)
    return findings

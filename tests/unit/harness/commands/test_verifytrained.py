import pytest

from eval.agreement import Agreement, StepAgreement
from harness.commands.verifytrained import agreement_finding


@pytest.mark.parametrize(
    ("replayed", "share_of_one", "severity", "consequence", "fix"),
    [
        (0.10, 0.1, "info", "The file computes what was trained.", "none needed"),
        (0.02, 0.1, "error", "The file does not compute what was trained.", "compare with the tra"),
        (0.02, 0.4, "info", "Nothing can be concluded: the drafter has hardly", "judge a later"),
    ],
)  # fmt: skip
def test_a_checkpoint_agrees_or_does_not_or_is_not_judged(
    replayed: float, share_of_one: float, severity: str, consequence: str, fix: str
) -> None:
    step = StepAgreement(step=0, trained=0.1, replayed=replayed, total=1000, tolerance=0.02)
    found = agreement_finding(
        Agreement(
            steps=(step,), share_replayed=1.0, share_of_one=share_of_one, share_of_one_said=0.05
        ),
        "smol@1",
    )
    assert found.subject == "train agreement of smol@1"
    assert found.severity == severity
    assert found.consequence.startswith(consequence)
    assert found.fix.startswith(fix)
    assert ("they agree" in found.found) == (fix == "none needed")

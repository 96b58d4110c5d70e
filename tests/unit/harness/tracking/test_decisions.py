from pathlib import Path

import pytest

from harness.errors import CheckError
from harness.tracking.decisions import Decision, DecisionLog, Gate


def draft(model: str = "tiny") -> Decision:
    return Decision(
        sequence=0,
        made_at="2026-11-29T00:00:00+00:00",
        who="someone@somewhere",
        action="promoted",
        model=model,
        from_version=None,
        to_version=1,
        model_id="m-1",
        run_id=None,
        weights_digest="ab" * 32,
        bench_run_id=None,
        gates=(Gate(name="lossless", required="equal", found="24 of 24", is_passed=True),),
        policy={"min_acceptance_length": 1.3},
        policy_digest="cd" * 32,
        versions={"vllm": "0.32.0"},
        previous_hash="",
    )


@pytest.fixture
def log(tmp_path: Path) -> DecisionLog:
    log = DecisionLog(tmp_path)
    for _ in range(3):
        log.append(draft())
    return log


def lines(log: DecisionLog) -> list[str]:
    return log.path.read_text().splitlines()


def write(log: DecisionLog, text: list[str]) -> None:
    log.path.write_text("".join(f"{line}\n" for line in text))


def test_lines_are_numbered_and_chained(log: DecisionLog) -> None:
    first, second, third = log.read()
    assert [first.sequence, second.sequence, third.sequence] == [1, 2, 3]
    assert first.previous_hash == "0" * 64
    assert second.previous_hash == first.hash
    assert third.previous_hash == second.hash


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert DecisionLog(tmp_path).read() == ()


def test_the_log_is_private(log: DecisionLog) -> None:
    assert log.path.stat().st_mode & 0o077 == 0


def test_an_edited_line_is_named(log: DecisionLog) -> None:
    text = lines(log)
    text[1] = text[1].replace('"to_version": 1', '"to_version": 2')
    write(log, text)
    with pytest.raises(CheckError, match=r"line 2 .*was edited"):
        log.read()


def test_a_lost_line_is_named(log: DecisionLog) -> None:
    text = lines(log)
    write(log, [text[0], text[2]])
    with pytest.raises(CheckError, match=r"line 2 .*one is lost"):
        log.read()


def test_a_line_edited_and_sealed_again_breaks_the_next(log: DecisionLog) -> None:
    text = lines(log)
    forged = log.read()[1].model_copy(update={"to_version": 9}).sealed()
    write(log, [text[0], forged.model_dump_json(), text[2]])
    with pytest.raises(CheckError, match="line 3"):
        log.read()


def test_half_a_line_is_named(log: DecisionLog) -> None:
    text = lines(log)
    write(log, [*text, text[0][:40]])
    with pytest.raises(CheckError, match=r"line 4 .*no decision"):
        log.read()


def test_a_broken_log_takes_no_more_lines(log: DecisionLog) -> None:
    write(log, lines(log)[1:])
    with pytest.raises(CheckError):
        log.append(draft())

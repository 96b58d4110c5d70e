import io
import logging
from typing import Any

import pytest

from harness.training.messages import Estimate, Step, parse_message
from harness.training.worker.reporter import DivergedError, RefusedError, Reporter, finite_metrics


def record(step: int, loss: float, **metrics: float) -> dict[str, Any]:
    return {
        "train": {"loss": loss, "error_records": 0.0, **metrics},
        "profile": {"step_ms": 250.0 * (step + 1), "fetch_ms": 5.0, "tokens_per_s": 400.0},
        "epoch": 0,
        "lr": 1e-3,
        "global_step": step,
    }


def report(reporter: Reporter, message: object) -> None:
    reporter.emit(logging.LogRecord("x", logging.INFO, "", 0, message, None, None))


def test_a_training_record_becomes_a_step() -> None:
    stream = io.StringIO()
    report(Reporter(stream, None), record(0, 2.5, full_acc_0=0.5, odd=float("inf")))
    message = parse_message(stream.getvalue())
    assert isinstance(message, Step)
    assert message.metrics == {"loss": 2.5, "full_acc_0": 0.5}
    assert (message.step_s, message.fetch_s, message.num_tokens) == (0.25, 0.005, 100)


def test_a_rate_per_optimiser_counts_as_the_highest() -> None:
    stream = io.StringIO()
    report(Reporter(stream, None), {**record(0, 1.0), "lr": {"Muon": 2e-2, "AdamW": 1e-3}})
    message = parse_message(stream.getvalue())
    assert isinstance(message, Step)
    assert message.lr == 2e-2


def test_the_time_of_the_whole_is_estimated_without_the_first_step() -> None:
    stream = io.StringIO()
    reporter = Reporter(stream, probe_steps=4)
    reporter.total_steps = 100
    for step in range(6):
        report(reporter, record(step, 1.0))
    messages = [parse_message(line) for line in stream.getvalue().splitlines()]
    estimates = [message for message in messages if isinstance(message, Estimate)]
    assert [(e.step_s, e.total_s) for e in estimates] == [(0.75, 75.0)]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_the_training(loss: float) -> None:
    with pytest.raises(DivergedError, match="at step 3"):
        report(Reporter(io.StringIO(), None), record(3, loss))


def test_conversations_that_the_corpus_does_not_match_stop_the_training() -> None:
    with pytest.raises(RefusedError, match="hidden states"):
        report(Reporter(io.StringIO(), None), record(0, 1.0, error_records=2.0))


def test_other_records_are_none_of_its_business() -> None:
    stream = io.StringIO()
    reporter = Reporter(stream, None)
    report(reporter, "text")
    report(reporter, {"val": {"loss_epoch": 1.0}})
    assert stream.getvalue() == ""


def test_validation_figures_lose_their_suffix_and_what_is_not_finite() -> None:
    assert finite_metrics({"loss_epoch": 1.0, "x_epoch": float("nan")}) == {"loss": 1.0}

"""Inside the child: the trainer's own metric records, turned into messages for the parent.

Also where a training is stopped that cannot come to anything: a loss that is not finite, or
conversations that the corpus no longer matches.
"""

import logging
import math
import statistics
from typing import Any, TextIO

from harness.training.messages import Estimate, Message, Step


class DivergedError(Exception):
    """A loss that is not finite: nothing after it can be of use."""


class RefusedError(Exception):
    """The job cannot be done as it stands."""


class Reporter(logging.Handler):
    """A handler for the logger `speculators.metrics`, whose records are mappings."""

    def __init__(self, stream: TextIO, probe_steps: int | None, *, is_heard: bool = True) -> None:
        super().__init__(logging.INFO)
        self.stream = stream
        self.is_heard = is_heard
        """Whether this process speaks for its gang."""
        self.is_gathering = False
        """Whether a step is kept until all of the gang have told of theirs."""
        self.kept: Step | None = None
        self.probe_steps = probe_steps
        self.total_steps = 0
        self.step_times: list[float] = []

    def say(self, message: Message) -> None:
        """Writes one line, whole."""
        if self.is_heard:
            self.stream.write(message.model_dump_json() + "\n")
            self.stream.flush()

    def emit(self, record: logging.LogRecord) -> None:
        """Receives {"train": ..., "profile": ...}; validation is reported by the trainer."""
        document = record.msg
        if isinstance(document, dict) and "train" in document:
            self._say_step(document)

    def _say_step(self, document: dict[str, Any]) -> None:
        step, metrics = int(document["global_step"]), dict(document["train"])
        if not math.isfinite(metrics["loss"]):
            raise DivergedError(f"the loss is {metrics['loss']} at step {step}")
        if metrics.pop("error_records", 0):
            raise RefusedError(f"conversations of step {step} do not match their hidden states")
        profile, rate = document["profile"], document["lr"]
        step_s = profile["step_ms"] / 1000
        message = Step(
            step=step,
            epoch=int(document["epoch"]),
            lr=max(rate.values()) if isinstance(rate, dict) else rate,
            metrics=finite_metrics(metrics),
            step_s=step_s,
            num_tokens=round(profile["tokens_per_s"] * step_s),
            fetch_s=profile["fetch_ms"] / 1000,
        )
        if self.is_gathering:
            self.kept = message
        else:
            self.say(message)
        self.step_times.append(step_s)
        if len(self.step_times) == self.probe_steps:
            typical = statistics.median(self.step_times[1:] or self.step_times)
            self.say(Estimate(step_s=typical, total_s=typical * self.total_steps))


def finite_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """Figures without the suffix of validation's, and without those that are not finite."""
    named = {key.removesuffix("_epoch"): value for key, value in metrics.items()}
    return {key: value for key, value in named.items() if math.isfinite(value)}

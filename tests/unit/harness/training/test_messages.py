from pathlib import Path

import pytest
from pydantic import ValidationError

from harness.training.messages import Ended, Message, Saved, Step, Validation, parse_message


@pytest.mark.parametrize(
    "message",
    [
        Step(step=0, epoch=0, lr=1e-3, metrics={"loss": 2.0}, step_s=0.5, num_tokens=100),
        Validation(step=10, epoch=-1, metrics={}),
        Saved(epoch=0, step=10, path=Path("/x/0"), metrics={"loss": 1.0}),
        Ended(outcome="stopped", step=3, peak_memory_bytes=None),
    ],
)
def test_a_line_reads_back_to_the_message_it_was(message: Message) -> None:
    assert parse_message(message.model_dump_json()) == message


@pytest.mark.parametrize("line", [b"", b"{}", b'{"event": "party"}', b"not json"])
def test_a_line_that_is_no_message_is_not_taken_for_one(line: bytes) -> None:
    with pytest.raises(ValidationError):
        parse_message(line)

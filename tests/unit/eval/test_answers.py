import json

import pytest

from eval.answers import Reading
from eval.spec import Prompt

PROMPT = Prompt(id="p", category="c", turns=("2 + 2?",))
USAGE = {"prompt_tokens": 5, "completion_tokens": 3}


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_what_was_thought_is_kept_apart_whole_or_streamed(key: str) -> None:
    whole, streamed = Reading(), Reading()
    message = {"content": "4", key: "two and two"}
    choice = {"message": message, "finish_reason": "stop", "token_ids": [7, 8, 9]}
    whole.take_whole({"choices": [choice], "usage": USAGE}, 1.0)
    deltas = [{key: "two "}, {key: "and two"}, {"content": "4"}]
    for at, delta in enumerate(deltas):
        finish = "stop" if at == 2 else None
        event = {"choices": [{"delta": delta, "finish_reason": finish, "token_ids": [7 + at]}]}
        streamed.take_line(b"data: " + json.dumps(event).encode(), float(at + 1))
    streamed.take_line(b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode(), 4.0)
    for reading in (whole, streamed):
        answer = reading.to_answer(PROMPT, 0, 0.0)
        assert (answer.text, answer.reasoning) == ("4", "two and two")
        assert answer.token_ids == (7, 8, 9)
    assert streamed.to_answer(PROMPT, 0, 0.0).ttft_s == 1.0

import pytest
from fakes.fake_vllm import FakeVllm

from eval.client import ask
from eval.errors import RequestError
from eval.spec import Prompt, Sampling

PROMPTS = tuple(Prompt(id=f"p{i}", category="chat", turns=("hello",)) for i in range(6))
SAMPLING = Sampling(max_tokens=16)


def test_time_per_token_leaves_the_first_token_out() -> None:
    with FakeVllm(num_tokens=9, step_s=0.02, prefill_s=0.1) as fake:
        (answer,) = ask(fake.base_url, "verifier", PROMPTS[:1], SAMPLING).answers
    assert answer.num_tokens == 9
    assert answer.token_ids == tuple(range(100, 109))
    assert answer.ttft_s is not None
    assert 0.1 <= answer.ttft_s < answer.latency_s
    assert answer.tpot_s == pytest.approx((answer.latency_s - answer.ttft_s) / 8)


def test_a_chunk_with_several_accepted_tokens_makes_tokens_cheaper_not_chunks() -> None:
    with FakeVllm(accepted=(3,), num_tokens=13, step_s=0.04) as fake:
        (answer,) = ask(fake.base_url, "verifier", PROMPTS[:1], SAMPLING).answers
    assert answer.num_chunks == 4
    assert answer.ttft_s is not None
    assert answer.tpot_s == pytest.approx((answer.latency_s - answer.ttft_s) / 12)


def test_the_servers_histogram_of_each_request_is_kept() -> None:
    with FakeVllm(accepted=(0, 2), num_tokens=9) as fake:
        (answer,) = ask(fake.base_url, "verifier", PROMPTS[:1], SAMPLING).answers
    assert answer.speculation is not None
    assert answer.speculation.acceptance_histogram == (2, 0, 2, 0)


def test_concurrency_is_reached_and_never_exceeded() -> None:
    with FakeVllm(num_tokens=8, step_s=0.02) as fake:
        batch = ask(fake.base_url, "verifier", PROMPTS, SAMPLING, concurrency=3)
    assert fake.most_at_once == 3
    assert [answer.prompt_id for answer in batch.answers] == [prompt.id for prompt in PROMPTS]


def test_every_turn_is_asked_with_the_answers_before_it() -> None:
    prompt = Prompt(id="p", category="chat", turns=("one", "two"))
    with FakeVllm(num_tokens=2) as fake:
        batch = ask(fake.base_url, "verifier", [prompt], SAMPLING)
    assert [answer.turn for answer in batch.answers] == [0, 1]
    roles = [message["role"] for message in fake.requests[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert fake.requests[1]["messages"][1]["content"] == batch.answers[0].text


def test_a_system_message_comes_before_every_turn() -> None:
    prompt = Prompt(id="p", category="chat", turns=("one", "two"), system="Be brief.")
    with FakeVllm(num_tokens=2) as fake:
        ask(fake.base_url, "verifier", [prompt], SAMPLING)
    told = {"role": "system", "content": "Be brief."}
    assert [request["messages"][0] for request in fake.requests] == [told, told]


def test_prompts_without_a_system_message_are_written_as_before() -> None:
    assert PROMPTS[0].model_dump() == {"id": "p0", "category": "chat", "turns": ("hello",)}
    told = PROMPTS[0].model_copy(update={"system": "Be brief."})
    assert Prompt.model_validate_json(told.model_dump_json()) == told


def test_sampling_is_always_sent() -> None:
    with FakeVllm(num_tokens=2) as fake:
        ask(fake.base_url, "verifier", PROMPTS[:1], SAMPLING)
    sent = fake.requests[0]
    assert (sent["temperature"], sent["max_tokens"], sent["seed"]) == (0.0, 16, 0)


def test_without_streaming_there_is_an_answer_but_no_time_per_token() -> None:
    with FakeVllm(num_tokens=5) as fake:
        batch = ask(fake.base_url, "verifier", PROMPTS[:1], SAMPLING, is_streaming=False)
    assert batch.answers[0].num_tokens == 5
    assert batch.answers[0].tpot_s is None


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("hang", "no end after 0.5 s"), ("cut", ""), ("error", "HTTP 500"), ("no_usage", "usage")],
)
def test_a_request_that_goes_wrong_is_listed_with_its_reason(fault: str, reason: str) -> None:
    with FakeVllm(num_tokens=8, fault=fault) as fake:
        batch = ask(fake.base_url, "verifier", PROMPTS[:2], SAMPLING, concurrency=2, timeout_s=0.5)
    assert [failure.prompt_id for failure in batch.failures] == ["p0", "p1"]
    assert reason in batch.failures[0].reason
    with pytest.raises(RequestError, match="2 of 2 requests failed"):
        batch.require_complete()

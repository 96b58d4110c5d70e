"""Everything that can happen between a prompts file and its conversations, with a fake engine."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eval import client
from eval.errors import ServerStartError
from eval.loopback import find_free_port, is_healthy
from eval.spec import ServerSpec
from harness.config.regenerate import RegenerateConfig
from harness.corpus import regeneration
from harness.corpus.conversations import load_conversations
from harness.corpus.endpoint import Endpoint
from harness.corpus.regeneration import Regenerated, regenerate
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError, PrerequisiteError, WorkError

CONFIG = RegenerateConfig(max_tokens=6, concurrency=4)
SERVER = Path(__file__).parents[3] / "fakes" / "serve_answers.py"
Answering = Callable[..., ServerSpec]
Regenerate = Callable[..., Regenerated]


def silent(text: str, done: int, total: int) -> None:
    """Nobody watches."""


@pytest.fixture
def run(
    verifier: Verifier,
    prompts_path: Path,
    answering: Answering,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Regenerate:
    monkeypatch.setattr(regeneration, "_PAUSE_S", 0.0)
    monkeypatch.setattr(client, "_LEAST_WAIT_S", 0.01)
    monkeypatch.setattr(client, "_MOST_WAIT_S", 0.02)

    def call(
        out: str = "out",
        config: RegenerateConfig = CONFIG,
        overwrite: bool = False,
        reuse: Path | None = None,
        **faults: object,
    ) -> Regenerated:
        return regenerate(
            prompts_path,
            verifier,
            tmp_path / out,
            config,
            server=answering(**faults),
            overwrite=overwrite,
            reuse=reuse,
            progress=silent,
        )

    return call


def test_conversations_come_in_prompt_order_with_exact_tokens(
    run: Regenerate, tmp_path: Path
) -> None:
    result = run()
    manifest, conversations = load_conversations(tmp_path / "out")
    rows = list(conversations)
    assert manifest == result.manifest
    assert [row.id for row in rows] == [*(f"p{i}" for i in range(20)), "long"]
    assert len(rows[-1].turns) == 3
    for turn in (turn for row in rows for turn in row.turns):
        asked = json.loads(bytes(turn.prompt_token_ids))
        assert asked[-1] == {"role": "user", "content": turn.question}
        assert turn.is_truncated == (turn.token_ids[-1] != 2)
        assert len(turn.token_ids) == 6 or not turn.is_truncated
    assert json.loads(bytes(rows[-1].turns[2].prompt_token_ids))[1]["content"] == (
        rows[-1].turns[0].answer
    )
    counts = manifest.counts
    assert (counts["conversations"], counts["turns"], counts["refused"]) == (21, 23, 0)
    assert 0 < counts["truncated_answers"] < 23
    assert result.tokens_per_s
    assert result.tokens_per_s > 0


def test_finished_work_starts_no_server(run: Regenerate) -> None:
    first = run()
    again = run(die_after=0)
    assert again.manifest == first.manifest
    assert again.tokens_per_s is None


def test_failed_requests_are_tried_again(run: Regenerate) -> None:
    assert run("a", fail_first=9).manifest == run("b").manifest


def test_what_never_answers_is_listed_and_the_rest_is_kept(run: Regenerate, tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"(?s)of 21 prompts got no answer in 3 tries:.*HTTP 500"):
        run(fail_first=60)
    log = tmp_path / "asked.txt"
    assert run(log=log).manifest == run("b").manifest
    assert len(log.read_text().splitlines()) < 23


def test_refused_prompts_are_counted_and_not_asked_again(
    run: Regenerate, prompts_path: Path, tmp_path: Path
) -> None:
    with prompts_path.open("a") as stream:
        stream.write('{"id": "huge", "category": "qa", "prompt": "REFUSE me"}\n')
    log = tmp_path / "asked.txt"
    manifest = run(log=log).manifest
    assert (manifest.counts["refused"], manifest.counts["conversations"]) == (1, 21)
    refused = json.loads((tmp_path / "out" / "refused.jsonl").read_text())
    assert refused["prompt_id"] == "huge"
    assert "HTTP 400" in refused["reason"]
    assert log.read_text().count("REFUSE") == 1


def test_a_server_with_too_much_to_do_is_asked_for_as_long_as_it_answers_some(
    run: Regenerate, tmp_path: Path
) -> None:
    log = tmp_path / "asked.txt"
    assert run("a", busy=6, log=log).manifest == run("b").manifest
    assert len(log.read_text().splitlines()) > 100  # and far more than three tries of 23
    never = CONFIG.model_copy(update={"request_timeout_s": 0.2})
    with pytest.raises(WorkError, match=r"21 of 21 prompts got no answer in 3 tries:\n.*0\.2 s"):
        run("c", config=never, busy=10_000)


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("HANG", "no end after 1 s"),
        ("EMPTY", "the answer has no token"),
        ("ABORT", "the server broke the answer off: abort"),
        ("FOREIGN", "expected an answer as vLLM gives it, found KeyError: 'choices'"),
    ],
)
def test_what_is_no_answer_is_a_failure_of_that_prompt_alone(
    run: Regenerate, prompts_path: Path, tmp_path: Path, question: str, reason: str
) -> None:
    lines = prompts_path.read_text().splitlines()[:2]
    last = json.dumps({"id": "odd", "category": "qa", "prompt": question})
    prompts_path.write_text("\n".join([*lines, last]) + "\n")
    config = CONFIG.model_copy(update={"request_timeout_s": 1.0, "max_failed": 1})
    assert run(config=config).manifest.counts["conversations"] == 2
    refused = json.loads((tmp_path / "out" / "refused.jsonl").read_text())
    assert reason in refused["reason"]


def test_a_server_that_dies_keeps_the_answers_so_far(run: Regenerate, tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match="went away"):
        run(die_after=7)
    log = tmp_path / "asked.txt"
    assert run(log=log).manifest == run("b").manifest
    assert len(log.read_text().splitlines()) < 23


def test_other_settings_in_the_same_folder_are_refused(run: Regenerate) -> None:
    run()
    other = RegenerateConfig(max_tokens=5, concurrency=4)
    with pytest.raises(ConfigError, match=r"config\.max_tokens: there 6, asked 5"):
        run(config=other)
    assert run(config=other, overwrite=True).manifest.config["max_tokens"] == 5


def test_up_to_so_many_failures_are_listed_and_the_work_is_finished(
    run: Regenerate, prompts_path: Path, tmp_path: Path
) -> None:
    with prompts_path.open("a") as stream:
        stream.write('{"id": "bad", "category": "qa", "prompt": "NEVER mind"}\n')
    with pytest.raises(WorkError, match=r"1 of 22 prompts got no answer in 3 tries:\n  bad turn 0"):
        run()
    failed = json.loads((tmp_path / "out" / "failed.jsonl").read_text())
    assert failed["prompt_id"] == "bad"
    manifest = run(config=CONFIG.model_copy(update={"max_failed": 1})).manifest
    assert (manifest.counts["refused"], manifest.counts["conversations"]) == (1, 21)
    assert "bad" in (tmp_path / "out" / "refused.jsonl").read_text()
    assert not (tmp_path / "out" / "failed.jsonl").exists()


def test_answers_of_an_earlier_folder_are_taken_for_equal_prompts(
    run: Regenerate, prompts_path: Path, tmp_path: Path
) -> None:
    lines = prompts_path.read_text().splitlines()
    run("first")
    changed = lines[3].replace("question 3", "another question")
    more = '{"id": "new", "category": "qa", "prompt": "one more"}'
    prompts_path.write_text("\n".join([*lines[:3], changed, *lines[4:], more]) + "\n")
    log = tmp_path / "asked.txt"
    manifest = run("second", reuse=tmp_path / "first", log=log).manifest
    assert sorted(log.read_text().split("\n")) == ["", '"another question"', '"one more"']
    assert manifest == run("third").manifest
    other = CONFIG.model_copy(update={"max_tokens": 5})
    with pytest.raises(ConfigError, match="max_tokens: there 6, asked 5"):
        run("fourth", config=other, reuse=tmp_path / "first")


def test_thoughts_are_kept_and_come_before_the_next_question(
    run: Regenerate, prompts_path: Path, tmp_path: Path
) -> None:
    line = {"id": "t", "category": "c", "turns": ["THINK", "so?"]}
    prompts_path.write_text(json.dumps(line) + "\n")
    run()
    first, second = next(load_conversations(tmp_path / "out")[1]).turns
    assert first.reasoning
    assert first.reasoning.startswith("hm ")
    assert second.reasoning is None
    asked = json.loads(bytes(second.prompt_token_ids))
    assert asked[1]["reasoning_content"] == first.reasoning


def test_sampling_is_pinned_in_every_request_and_no_tools_are_offered(
    run: Regenerate, tmp_path: Path
) -> None:
    fields = tmp_path / "fields.json"
    sampled = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "seed": 7}
    kwargs = {"chat_template_kwargs": {"thinking": True}}
    config = RegenerateConfig.model_validate({**CONFIG.model_dump(), **sampled, **kwargs})
    manifest = run(config=config, fields=fields).manifest
    sent = json.loads(fields.read_text())
    pinned = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
    assert sent.items() >= {**sampled, **pinned, **kwargs, "max_tokens": 6}.items()
    assert "tools" not in sent
    assert manifest.config.items() >= {**sampled, **kwargs}.items()


KEY = "a-key-of-somebody"


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that is not ours; its parameter is the key that it asks for."""
    port = find_free_port()
    command = [sys.executable, str(SERVER), "--port", str(port)]
    variables = {"ANSWERS_NAMES": "smol", "ANSWERS_PASS": getattr(request, "param", "")}
    with subprocess.Popen(command, env=variables) as process:
        deadline = time.monotonic() + 20
        while not is_healthy(port):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        process.kill()


def test_a_server_that_runs_already_is_asked_and_left_alone(
    run: Regenerate, endpoint: str, verifier: Verifier, prompts_path: Path, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"endpoint": endpoint})
    manifest = run(config=config).manifest
    assert manifest.origins["endpoint"] == endpoint
    assert manifest.config["is_endpoint"] is True
    ours = run("b").manifest
    assert manifest.files == ours.files
    assert is_healthy(int(endpoint.rpartition(":")[2]))
    with pytest.raises(PrerequisiteError, match="expected the model llama, found smol"):
        run("c", config=config.model_copy(update={"served_model": "llama"}))
    small = verifier.model_copy(update={"vocab_size": 100})
    with pytest.raises(WorkError, match="token ids below the verifier's 100, found"):
        regenerate(prompts_path, small, tmp_path / "d", config, progress=silent)


@pytest.mark.parametrize("endpoint", [KEY], indirect=True)
def test_the_key_of_an_endpoint_is_sent_and_never_kept(
    run: Regenerate, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIG.model_copy(update={"endpoint": endpoint})
    monkeypatch.delenv("HARNESS_API_KEY", raising=False)
    with pytest.raises(PrerequisiteError, match="401") as found:
        run(config=config)
    assert "HARNESS_API_KEY_FILE" in str(found.value.hint)
    monkeypatch.setenv("HARNESS_API_KEY", "another-key")
    with pytest.raises(PrerequisiteError, match="401"):
        run(config=config)
    monkeypatch.delenv("HARNESS_API_KEY")
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    monkeypatch.setenv("HARNESS_API_KEY_FILE", str(path))
    assert run(config=config).manifest.files == run("ours").manifest.files
    written = b"".join(p.read_bytes() for p in (tmp_path / "out").iterdir())
    assert KEY.encode() not in written


@pytest.mark.parametrize("endpoint", [KEY], indirect=True)
def test_a_key_that_is_refused_on_the_way_blames_no_prompt(
    run: Regenerate, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIG.model_copy(update={"endpoint": endpoint})
    monkeypatch.setenv("HARNESS_API_KEY", "another-key")
    monkeypatch.setattr(Endpoint, "_fetch_models", lambda _: ["smol"])
    with pytest.raises(WorkError, match=r"refuses every prompt: .*HTTP 401") as found:
        run(config=config)
    assert "another-key" not in found.value.message
    monkeypatch.setenv("HARNESS_API_KEY", KEY)
    assert run(config=config).manifest.counts["refused"] == 0


def test_a_system_message_is_sent_before_every_turn(
    run: Regenerate, prompts_path: Path, tmp_path: Path
) -> None:
    line = {"id": "s", "category": "c", "turns": ["one", "two"], "system": "Be short."}
    plain = {"id": "p", "category": "c", "prompt": "one"}
    prompts_path.write_text(json.dumps(line) + "\n" + json.dumps(plain) + "\n")
    run()
    said, other = load_conversations(tmp_path / "out")[1]
    assert (said.system, other.system) == ("Be short.", None)
    for turn in said.turns:
        asked = json.loads(bytes(turn.prompt_token_ids))
        assert asked[0] == {"role": "system", "content": "Be short."}
    prompts_path.write_text(json.dumps(line | {"system": "Be long."}) + "\n")
    log = tmp_path / "asked.txt"
    run("again", reuse=tmp_path / "out", log=log)
    assert len(log.read_text().splitlines()) == 2


def test_an_endpoint_where_nothing_answers_is_named(run: Regenerate) -> None:
    address = f"http://127.0.0.1:{find_free_port()}"
    config = CONFIG.model_copy(update={"endpoint": address})
    with pytest.raises(PrerequisiteError, match=f"{address}/v1/models: expected a vLLM server"):
        run(config=config)


def test_changed_conversations_are_refused(run: Regenerate, tmp_path: Path) -> None:
    run()
    path = tmp_path / "out" / "conversations.jsonl"
    path.write_text(path.read_text().replace("question 3", "question 4", 1))
    with pytest.raises(CheckError, match=r"regenerate: .*conversations\.jsonl was changed"):
        load_conversations(tmp_path / "out")


def test_a_taken_port_is_named(
    verifier: Verifier, prompts_path: Path, answering: Answering, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = answering().model_copy(update={"port": port})
        with pytest.raises(ServerStartError, match=f"port {port} .*taken"):
            regenerate(
                prompts_path, verifier, tmp_path / "out", CONFIG, server=server, progress=silent
            )


CHILD = """
import sys
from pathlib import Path
from eval.spec import ServerSpec
from harness.config.regenerate import RegenerateConfig
from harness.corpus.regeneration import regenerate
from harness.drafter.verifier import Verifier
from harness.settings import load_settings
prompts, verifier, out, server = sys.argv[1:]
regenerate(Path(prompts), Verifier.load(verifier, load_settings()), Path(out),
           RegenerateConfig(max_tokens=6, concurrency=2),
           server=ServerSpec.model_validate_json(server), progress=lambda *a: None)
"""


@pytest.fixture
def child(
    verifier: Verifier, prompts_path: Path, answering: Answering, tmp_path: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """A regeneration into `out`, slow enough to be killed in the middle."""
    spec = answering(delay_s=0.05).model_dump_json()
    arguments = [str(prompts_path), str(verifier.path), str(tmp_path / "out"), spec]
    with subprocess.Popen([sys.executable, "-c", CHILD, *arguments]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("num_answers", [1, 5, 15])
def test_killed_at_any_point_it_goes_on_to_an_equal_manifest(
    run: Regenerate, child: "subprocess.Popen[bytes]", tmp_path: Path, num_answers: int
) -> None:
    journal = tmp_path / "out" / "journal.jsonl"
    deadline = time.monotonic() + 30
    while not (journal.exists() and journal.read_bytes().count(b"\n") >= num_answers):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.kill()
    child.wait()
    log = tmp_path / "asked.txt"
    assert run(log=log).manifest == run("undisturbed").manifest
    assert len(log.read_text().splitlines()) <= 23 - num_answers

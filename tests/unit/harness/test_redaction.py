"""Planted secrets reach neither a store, nor the screen, nor a record of the command line."""

import json
from pathlib import Path

import pytest
from fakes.memory_store import MemoryStore

from eval.errors import SpecError
from eval.spec import ServerOptions
from harness import cli, render
from harness.redaction import redacted, redacted_bytes, redacted_words
from harness.settings import endpoint_key
from harness.tracking import names

PLANTED = {
    "HF_TOKEN": "hf_PlantedHubToken",
    "MLFLOW_TRACKING_PASSWORD": "planted-tracking-password",
    "AWS_SECRET_ACCESS_KEY": "Planted/Aws+Key",
    "MLFLOW_TRACKING_URI": "http://someone:planted%40uri-word@127.0.0.1:9",
}
WORDS = (*(PLANTED[name] for name in list(PLANTED)[:3]), "planted@uri-word", "planted%40uri-word")


@pytest.fixture(autouse=True)
def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)


def require_clean(text: str) -> None:
    assert [word for word in WORDS if word in text] == []


def test_a_run_keeps_no_secret_wherever_it_comes_from(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    noise = " and ".join(WORDS)
    log = tmp_path / "train.log"
    log.write_text(f"vLLM says: {noise}\n")
    run = store.start_run(names.KIND_TRAIN, "train", experiment="e", tags={"from": noise})
    run.log_params({"storage": "postgresql://me:in-the-yaml@host/db", "env": [noise]})
    run.log_params({"long": noise * 900})
    run.set_tags({"note": noise})
    run.set_description(noise)
    run.log_text("config/sweep.yaml", f"storage: {noise}\n")
    run.log_file(log, "logs")
    run.log_dataset("corpus", PLANTED["MLFLOW_TRACKING_URI"], "ab" * 32, "training")
    with pytest.raises(ValueError, match="planted"), run:
        raise ValueError(noise)
    found = store.get_run(run.run_id)
    everything = json.dumps([found.model_dump(mode="json"), list(store.artifacts.values())])
    require_clean(everything)
    assert "in-the-yaml" not in everything
    assert found.params["storage"] == "postgresql://me:***@host/db"
    assert "vLLM says: ***" in store.artifacts[run.run_id, "logs/train.log"]
    assert log.read_text() == f"vLLM says: {noise}\n", "the file itself is left as it is"


def test_the_screen_and_its_errors_show_none(capsys: pytest.CaptureFixture[str]) -> None:
    render.log(f"connecting to {PLANTED['MLFLOW_TRACKING_URI']}")
    render.show_error(f"refused {WORDS[0]}", f"try {WORDS[1]}")
    assert cli.run(["registry", "check"]) == 1
    shown = capsys.readouterr()
    require_clean(shown.out + shown.err)
    assert "someone:***@127.0.0.1" in shown.err


def test_a_command_line_is_kept_without_them() -> None:
    given = ("env", f"HF_TOKEN={WORDS[0]}", "vllm", "--api-key", "short", "--tokenizer", "gpt")
    assert redacted_words(given) == (
        "env", "HF_TOKEN=***", "vllm", "--api-key", "***", "--tokenizer", "gpt",
    )  # fmt: skip


def test_addresses_lose_the_password_alone() -> None:
    assert redacted("sqlite:////a/b.db") == "sqlite:////a/b.db"
    assert redacted("http://host:5000/x@y") == "http://host:5000/x@y"
    assert redacted("see s3://b/k?X-Amz-Security-Token=abc&v=1") == (
        "see s3://b/k?X-Amz-Security-Token=***&v=1"
    )


def test_what_is_no_text_is_left_as_it_is() -> None:
    raw = b"\x89PNG\0" + WORDS[0].encode()
    assert redacted_bytes(raw) == raw
    assert redacted_bytes(b"\xff" + WORDS[0].encode()) == b"\xff***"


@pytest.mark.parametrize(
    "options",
    [
        {"env": {"HF_TOKEN": "hf_abc123"}},
        {"command": ("env", "AWS_SECRET_ACCESS_KEY=abc123", "python")},
        {"extra_args": ("--api-key", "abc123")},
    ],
)
def test_a_server_is_not_given_secrets_where_they_would_be_recorded(
    options: dict[str, object],
) -> None:
    with pytest.raises(SpecError) as caught:
        ServerOptions.model_validate(options)
    assert "abc123" not in f"{caught.value.message} {caught.value.hint}"
    assert "in the environment" in str(caught.value.hint)


def test_a_server_takes_flags_that_only_sound_like_one() -> None:
    extra = ("--tokenizer", "x", "--max-num-batched-tokens", "512", "--tokenizer-mode=auto")
    assert ServerOptions(extra_args=extra).extra_args == extra


def test_a_key_that_lies_in_a_file_is_struck_out_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text("planted-in-a-file\n")
    monkeypatch.setenv("HARNESS_API_KEY_FILE", str(path))
    monkeypatch.delenv("HARNESS_API_KEY", raising=False)
    assert endpoint_key() == "planted-in-a-file"
    assert redacted("HTTP 401: not planted-in-a-file") == "HTTP 401: not ***"
    monkeypatch.setenv("HARNESS_API_KEY_FILE", str(tmp_path / "nowhere"))
    assert redacted("as it is") == "as it is"
    with pytest.raises(FileNotFoundError):
        endpoint_key()

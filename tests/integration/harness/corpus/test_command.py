"""`harness data` as a user meets it: exit codes, one-screen messages, nothing left behind."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from fakes.words_template import build_tokenizer

from eval.prompts import load_prompts
from harness.cli import run

HARNESS = (sys.executable, "-m", "harness", "data")


def call(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [*HARNESS, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def require_refusal(done: "subprocess.CompletedProcess[str]", code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_missing_prompts_file_is_named(tiny_model_dir: Path, out: Path) -> None:
    done = call("regenerate", "--prompts", "no.jsonl", "--verifier", tiny_model_dir, "--out", out)
    require_refusal(done, 2, "no.jsonl", "->")
    assert not out.exists()


def test_empty_prompts_are_refused(tiny_model_dir: Path, out: Path, tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    done = call("regenerate", "--prompts", path, "--verifier", tiny_model_dir, "--out", out)
    require_refusal(done, 2, "empty.jsonl", "found none")


def test_a_verifier_without_tokenizer_is_refused(
    prompts_path: Path, tiny_model_dir: Path, out: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((tiny_model_dir / "config.json").read_bytes())
    done = call("regenerate", "--prompts", prompts_path, "--verifier", bare, "--out", out)
    require_refusal(done, 2, "tokenizer")


def test_prompts_of_the_evaluation_are_refused(
    prompts_path: Path, tiny_model_dir: Path, out: Path, tmp_path: Path
) -> None:
    evaluation = tmp_path / "eval.jsonl"
    shared = load_prompts(prompts_path)[4].turns[0].upper()
    evaluation.write_text(json.dumps({"id": "e1", "category": "qa", "prompt": shared}) + "\n")
    done = call(
        "regenerate", "--prompts", prompts_path, "--exclude", evaluation,
        "--verifier", tiny_model_dir, "--out", out,
    )  # fmt: skip
    require_refusal(done, 2, "p4 = e1")


def test_a_value_that_makes_no_sense_is_named(
    prompts_path: Path, tiny_model_dir: Path, out: Path
) -> None:
    done = call(
        "regenerate", "--prompts", prompts_path, "--verifier", tiny_model_dir, "--out", out,
        "--concurrency", 0,
    )  # fmt: skip
    require_refusal(done, 2, "concurrency", "0")


@pytest.mark.parametrize(
    ("stage", "flag"), [("prepare", "--conversations"), ("extract", "--tokens")]
)
def test_a_stage_without_its_input_says_how_to_make_it(
    tiny_model_dir: Path, out: Path, tmp_path: Path, stage: str, flag: str
) -> None:
    done = call(stage, flag, tmp_path / "nothing", "--verifier", tiny_model_dir, "--out", out)
    require_refusal(done, 2, "nothing", "make one with: harness data")


def test_a_vllm_that_dies_at_start_leaves_its_cause_and_no_process(
    prompts_path: Path, tiny_model_dir: Path, out: Path
) -> None:
    done = call("regenerate", "--prompts", prompts_path, "--verifier", tiny_model_dir, "--out", out)
    require_refusal(done, 1, "exited", "cause:", "server.log")
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if str(tiny_model_dir) in str(p.info)]
    assert not left
    assert not (out / "manifest.json").exists()


def test_a_malformed_line_of_a_set_is_named(
    tiny_model_dir: Path, out: Path, tmp_path: Path
) -> None:
    (tmp_path / "set.jsonl").write_text('{"prompt": "ok"}\n{"prompt": \n')
    config = {
        "verifier": str(tiny_model_dir),
        "exclude": [],
        "sources": [{"source": str(tmp_path / "set.jsonl")}],
    }
    (tmp_path / "prompts.yaml").write_text(json.dumps(config))
    done = call("prompts", tmp_path / "prompts.yaml", "--out", out)
    require_refusal(done, 2, "set.jsonl:2: not a JSON object")


def test_a_tokenizer_without_a_chat_template_cannot_prepare_text(
    tiny_model_dir: Path, out: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny_model_dir, bare)
    build_tokenizer(None).save_pretrained(bare)
    (tmp_path / "said.jsonl").write_text('{"prompt": "hi", "response": "yo"}\n')
    done = call(
        "prepare", "--conversations", tmp_path / "said.jsonl", "--verifier", bare, "--out", out
    )
    require_refusal(done, 2, "expected a tokenizer with a chat template, found none")


def test_text_becomes_rows_that_can_be_looked_into_and_a_vocabulary(
    tiny_model_dir: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: four starts of Python would take most of a minute."""
    verifier = tmp_path / "verifier"
    shutil.copytree(tiny_model_dir, verifier)
    build_tokenizer().save_pretrained(verifier)
    said = [{"id": "a", "prompt": "hi", "response": "yo!"}, {"id": "b", "prompt": "no answer"}]
    path = tmp_path / "said.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in said))

    def data(*arguments: object) -> tuple[int, str, str]:
        words = ["data", *map(str, arguments), "--verifier", str(verifier)]
        code = run(words)
        return code, *capsys.readouterr()

    code, _, log = data("prepare", "--conversations", path, "--out", out)
    assert (code, "1 conversations give no row" in log) == (0, True)
    assert (out / "statistics.html").is_file()
    code, shown, _ = data("inspect", out)
    assert code == 0
    assert "loss_tokens" in shown
    assert "[[y o ! <|end|>]]" in shown
    code, _, log = data("vocab", "--tokens", out, "--out", tmp_path / "vocab")
    assert (code, "give --size, --coverage or --from" in log) == (2, True)
    asked = ("--coverage", "1", "--json")
    code, shown, _ = data("vocab", "--tokens", out, "--out", tmp_path / "vocab", *asked)
    assert code == 0
    assert json.loads(shown)["counts"]["covered_tokens"] == 4

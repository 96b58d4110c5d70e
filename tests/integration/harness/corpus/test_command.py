"""`harness data` as a user meets it: exit codes, one-screen messages, nothing left behind."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from eval.prompts import load_prompts

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

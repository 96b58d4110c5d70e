import json
import sys
from pathlib import Path

import pytest

from eval.answers import Answer, Batch
from eval.compat import (
    COUNTS_VARIABLE,
    RequestCounts,
    VllmFacts,
    build_counting,
    read_facts,
)
from eval.errors import MeasurementError, ServerStartError, SpecError
from eval.server import VllmServer
from eval.spec import DrafterSpec, ServerSpec

NEW = VllmFacts(version="0.32.0", is_counting_requests=True)
OLD = VllmFacts(version="0.26.0", is_counting_requests=False)


def write_vllm(folder: Path, version: str, source: str) -> Path:
    (folder / "vllm" / "config").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("raise ImportError('must not be imported')")
    (folder / "vllm" / "config" / "observability.py").write_text(source)
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return folder


def answer(response_id: str) -> Answer:
    return Answer(
        prompt_id=response_id,
        category="c",
        turn=0,
        text="",
        token_ids=(),
        num_prompt_tokens=1,
        num_tokens=2,
        finish_reason="stop",
        sent_s=0.0,
        ttft_s=None,
        latency_s=1.0,
        response_id=response_id,
    )


@pytest.mark.parametrize(
    ("source", "is_counting"), [("per_request_spec_decode_metrics: str", True), ("", False)]
)
def test_what_a_vllm_can_is_read_from_its_files_by_the_interpreter_that_will_run_it(
    tmp_path: Path, source: str, is_counting: bool
) -> None:
    path = write_vllm(tmp_path, "9.9.9", source)
    facts = read_facts((sys.executable, "-m", "x"), {"PYTHONPATH": str(path)})
    assert facts == VllmFacts(version="9.9.9", is_counting_requests=is_counting)


@pytest.mark.parametrize("line", [f"#!{sys.executable}", "#!/usr/bin/env python3"])
def test_a_script_is_asked_in_the_interpreter_that_its_first_line_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    path = write_vllm(tmp_path, "9.9.9", "")
    programs = {"vllm-serve": line, "python3": f'#!/bin/sh\nexec {sys.executable} "$@"'}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    facts = read_facts(("vllm-serve", "serve"), {"PYTHONPATH": str(path)})
    assert facts == VllmFacts(version="9.9.9", is_counting_requests=False)


def test_a_vllm_that_counts_is_told_to_and_an_older_one_gets_our_scheduler(tmp_path: Path) -> None:
    assert build_counting(NEW, tmp_path) == (("--per-request-spec-decode-metrics", "summary"), ())
    args, prefix = build_counting(OLD, tmp_path / "counts")
    assert args == ("--scheduler-cls", "eval.requestcounts.make_scheduler")
    assert prefix == ("env", f"HARNESS_COUNTS_FILE={tmp_path / 'counts'}")


def test_a_server_is_started_with_what_our_schedulers_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eval.server.read_facts", lambda *_: OLD)
    spec = ServerSpec(verifier=tmp_path)
    drafter = DrafterSpec(name="d", path=tmp_path, digest="0")
    command = VllmServer(spec, tmp_path / "k3.log", drafter, 3).build_command()
    assert command[:2] == ["env", f"{COUNTS_VARIABLE}={tmp_path / 'k3.counts.jsonl'}"]
    assert VllmServer(spec, tmp_path / "plain.log").build_command()[0] != "env"


def test_a_smaller_k_at_run_time_is_refused_where_vllm_would_not_heed_it(tmp_path: Path) -> None:
    args, prefix = build_counting(NEW, tmp_path, tmp_path / "k")
    assert args[-1] == "eval.kscheduler.RunTimeK"
    assert prefix == ("env", f"HARNESS_K_FILE={tmp_path / 'k'}")
    with pytest.raises(SpecError, match=r"0\.29 or newer, found 0\.26\.0"):
        build_counting(OLD, tmp_path, tmp_path / "k")


def test_counts_find_their_answers_whenever_their_lines_arrive(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_text("of an earlier server")
    counts = RequestCounts(path)
    line = {"request_id": "chatcmpl-ab-01234567", "histogram": [2, 1, 0, 3], "num_draft_tokens": 18}
    whole = json.dumps(line) + "\n"
    path.write_text(whole[:20])
    batch = Batch(answers=(answer("chatcmpl-ab"), answer("chatcmpl-cd")), failures=(), wall_s=1.0)
    assert all(found.speculation is None for found in counts.add_to(batch).answers)
    path.write_text(whole)
    first, second = counts.add_to(batch).answers
    assert first.speculation is not None
    assert first.speculation.acceptance_histogram == (2, 1, 0, 3)
    assert first.speculation.num_accepted_draft_tokens == 10
    assert (first.speculation.num_spec_steps, first.speculation.num_draft_tokens) == (6, 18)
    assert second.speculation is None


def test_lines_that_no_scheduler_of_ours_wrote_stop_the_measurement(tmp_path: Path) -> None:
    counts = RequestCounts(tmp_path / "counts")
    (tmp_path / "counts").write_text("{}\n")
    with pytest.raises(MeasurementError, match="expected counts by request"):
        counts.add_to(Batch(answers=(), failures=(), wall_s=1.0))


def test_an_error_is_told_in_one_line() -> None:
    named = ServerStartError("it exited\ncause: OutOfMemoryError\nlast lines of the log:")
    assert named.cause == "cause: OutOfMemoryError"
    assert ServerStartError("it exited\nlast lines of the log:").cause == "it exited"

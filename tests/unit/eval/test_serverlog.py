from pathlib import Path

from eval.serverlog import explain_failure, find_root_cause, read_tail

LOG = """\
(APIServer pid=1) INFO 11-29 21:39:01 [api.py:1] starting
(Worker pid=3) ERROR 11-29 21:39:02 [w.py:8] AssertionError: num_heads (8) is not divisible
(EngineCore pid=2) ERROR 11-29 21:39:03 [core.py:9] RuntimeError: worker failed
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_the_workers_error_comes_before_the_engines_and_the_servers() -> None:
    assert find_root_cause(LOG) == "AssertionError: num_heads (8) is not divisible"


def test_an_error_of_the_parent_is_found_when_there_is_no_other() -> None:
    log = "Traceback (most recent call last):\nOSError: [Errno 98] Address already in use\n"
    assert find_root_cause(log) == "OSError: [Errno 98] Address already in use"


def test_a_flag_that_vllm_does_not_know_is_a_cause() -> None:
    log = "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --no\n"
    assert find_root_cause(log) == "api_server.py: error: unrecognized arguments: --no"


def test_a_log_without_errors_has_no_cause() -> None:
    assert find_root_cause("(APIServer pid=1) INFO 11-29 21:39:01 [api.py:1] ok\n") is None


def test_a_cause_that_we_have_met_is_explained_and_another_is_not() -> None:
    log = (
        "(EngineCore pid=2) ERROR 12-01 05:18:57 [core.py:1330] RuntimeError: scheduler_metadata "
        "must have shape (metadata_size)\n"
    )
    lines, remedy = explain_failure(log)
    assert lines[0] == "cause: RuntimeError: scheduler_metadata must have shape (metadata_size)"
    assert "head_dim: vLLM 0.26 plans" in (remedy or "")
    assert explain_failure(LOG)[1] is None
    assert explain_failure("") == (["last lines of the log:"], None)


def test_the_tail_has_no_colours_and_starts_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n\x1b[31mnew\x1b[0m\n")
    assert read_tail(path, offset=4) == "new\n"
    assert read_tail(tmp_path / "none") == ""

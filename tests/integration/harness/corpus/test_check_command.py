"""`harness data check` as a user meets it: exit codes, and a repair of just what is wrong."""

import json
from pathlib import Path

from fakes.command_line import run_harness
from fakes.tiny_corpus import write_running_verifier, write_tiny_corpus, write_words


def test_a_damaged_corpus_is_named_repaired_and_then_right(tmp_path: Path) -> None:
    verifier = write_running_verifier(tmp_path / "verifier")
    write_words(verifier)
    corpus = write_tiny_corpus(tmp_path / "corpus", verifier)
    path = corpus / "hidden_states" / "hs_3.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    found = run_harness(tmp_path, "data", "check", str(corpus), "--json")
    assert found.returncode == 4, found.stderr
    (finding,) = json.loads(found.stdout)["findings"]
    assert (finding["row"], finding["kind"]) == (3, "truncated")
    options = ("--repair", "--verifier", str(verifier))
    mended = run_harness(tmp_path, "data", "check", str(corpus), *options)
    assert mended.returncode == 0, mended.stderr
    assert "made again: 1 files" in mended.stderr
    assert "all 28 files are right" in mended.stderr
    missing = run_harness(tmp_path, "data", "check", str(tmp_path / "none"))
    assert missing.returncode == 2

"""verify as a user types it: wrong references, a verifier in the drafter's place, narrow lines."""

from pathlib import Path

import pytest
from fakes.drafters import build_drafter, build_verifier, decoder, edit_config
from fakes.memory_store import MemoryStore
from fakes.tiny_models import write_tiny_verifier
from fakes.trained import train

from harness.cli import run
from harness.commands import verify as command
from harness.settings import load_settings
from harness.tracking import resolve

Screen = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_ROOT", str(tmp_path))


@pytest.mark.parametrize("option", ["--drafter", "--verifier", "--parent"])
def test_an_empty_reference_is_two_and_says_which(
    option: str, tmp_path: Path, capsys: Screen
) -> None:
    given = {"--drafter": str(tmp_path), option: ""}
    assert run(["verify", *(word for pair in given.items() for word in pair)]) == 2
    assert "found an empty one" in capsys.readouterr().err


def test_a_verifier_in_the_drafters_place_is_one_finding(tmp_path: Path, capsys: Screen) -> None:
    verifier = str(write_tiny_verifier(tmp_path / "verifier"))
    assert run(["verify", "--drafter", verifier, "--verifier", verifier, "--deep"]) == 4
    out = capsys.readouterr().out
    assert "NOT OK: 1 error, 0 warning, 0 info" in out
    assert "This is a verifier or another model, not a drafter." in out
    assert "architectures LlamaForCausalLM, num_hidden_layers 8, 2 tensors" in out


@pytest.mark.parametrize("command", [["verify", "--drafter"], ["inspect"]])
def test_no_line_is_wider_than_a_screen(command: list[str], tmp_path: Path, capsys: Screen) -> None:
    drafter = build_drafter(tmp_path / "drafter", build_verifier(tmp_path / "verifier"))
    edit_config(drafter, lambda c: decoder(c).update(head_dim=8))
    run([*command, str(drafter)])
    out = capsys.readouterr().out
    assert "head_dim" in out
    too_wide = [line for line in out.splitlines() if len(line) > 100]
    assert [line for line in too_wide if len(line.split()) > 2] == [], "a path alone may be longer"


def test_a_drafter_of_a_run_is_compared_with_the_verifier_of_that_run(
    tmp_path: Path, capsys: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, store = load_settings(tmp_path), MemoryStore(tmp_path)
    run_id, _ = train(store, settings)
    for module in (command, resolve):
        monkeypatch.setattr(module, "open_store", lambda _: store)
    assert run(["verify", "--drafter", f"run:{run_id}"]) == 0
    assert f"verifier of its run: {tmp_path / 'verifier'}" in capsys.readouterr().err


def test_a_replay_without_any_verifier_is_two(
    tmp_path: Path, capsys: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "open_store", lambda _: MemoryStore(tmp_path))
    drafter = build_drafter(tmp_path / "drafter", build_verifier(tmp_path / "verifier"))
    assert run(["verify", "--drafter", str(drafter), "--replay"]) == 2
    assert "say --verifier" in capsys.readouterr().err


def test_what_the_files_show_is_corrected_before_a_replay(tmp_path: Path, capsys: Screen) -> None:
    drafter = build_drafter(tmp_path / "drafter", build_verifier(tmp_path / "verifier"))
    edit_config(drafter, lambda c: decoder(c).update(head_dim=8))
    verifier = str(tmp_path / "verifier")
    assert run(["verify", "--drafter", str(drafter), "--verifier", verifier, "--replay"]) == 4
    assert "not replayed" in capsys.readouterr().err

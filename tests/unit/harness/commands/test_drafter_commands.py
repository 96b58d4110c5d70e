"""inspect, verify and convert as a user types them: the result on stdout, the verdict as code."""

import json
from pathlib import Path

import pytest
from fakes.drafters import build_drafter, build_verifier, decoder, edit_config

from harness.cli import run


@pytest.fixture
def drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_ROOT", str(tmp_path))
    return build_drafter(tmp_path / "drafter", build_verifier(tmp_path / "verifier"))


def test_verify_of_a_sound_drafter_is_zero(
    drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verifier = str(tmp_path / "verifier")
    assert run(["verify", "--drafter", str(drafter), "--verifier", verifier, "--deep"]) == 0
    assert "ok: 0 error, 0 warning, 0 info" in capsys.readouterr().out


def test_verify_of_a_changed_head_dim_is_four_and_says_why(
    drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_config(drafter, lambda c: decoder(c).update(head_dim=8))
    assert run(["verify", "--drafter", str(drafter), "--json"]) == 4
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["ok"] is False
    assert {f["rule"] for f in document["findings"]} == {"S1"}
    keys = {"rule", "severity", "subject", "expected", "found", "consequence", "fix"}
    assert set(document["findings"][0]) == keys


def test_an_unreadable_drafter_is_json_and_four(
    drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (drafter / "model.safetensors").write_bytes(b"no")
    assert run(["verify", "--drafter", str(drafter), "--json"]) == 4
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["rule"] == "unreadable"


def test_an_unreadable_parent_is_json_and_four(
    drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "parent").mkdir()
    arguments = ["verify", "--drafter", str(drafter), "--parent", str(tmp_path / "parent")]
    assert run([*arguments, "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["findings"][0]["rule"] == "unreadable"


@pytest.mark.parametrize("command", ["verify --drafter", "inspect"])
def test_a_reference_to_nothing_is_two(
    drafter: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), str(drafter) + "-not"]) == 2
    assert "found no folder" in capsys.readouterr().err


def test_inspect_shows_head_dim_as_configured_and_as_stored(
    drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_config(drafter, lambda c: decoder(c).update(head_dim=8))
    assert run(["inspect", str(drafter), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["facts"]["head_dim_configured"] == 8
    assert document["facts"]["head_dim_tensors"] == 16
    assert len(document["digest"]) == 64
    assert {"name": "d2t", "shape": [128], "dtype": "I64"} in document["tensors"]


def test_inspect_of_two_shows_what_differs(
    drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", "--drafter", str(drafter), "--to", "flat", "--out",
                str(tmp_path / "flat")]) == 0  # fmt: skip
    edit_config(tmp_path / "flat", lambda c: c.update(norm_output=True))
    capsys.readouterr()
    assert run(["inspect", str(drafter), str(tmp_path / "flat"), "--json"]) == 0
    differences = {
        d["name"]: (d["left"], d["right"])
        for d in json.loads(capsys.readouterr().out)["differences"]
    }
    assert differences.pop("norm_output") == (False, True)
    assert set(differences) == {"digest", "format", "architectures", "key_prefix"}


def test_convert_into_a_full_folder_is_two(drafter: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "verifier")
    assert run(["convert", "--drafter", str(drafter), "--to", "flat", "--out", out]) == 2


def test_convert_of_a_broken_drafter_is_four(drafter: Path, tmp_path: Path) -> None:
    edit_config(drafter, lambda c: decoder(c).update(head_dim=8))
    out = tmp_path / "out"
    assert run(["convert", "--drafter", str(drafter), "--to", "flat", "--out", str(out)]) == 4
    assert not out.exists()

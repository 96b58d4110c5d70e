"""`harness push` against a hub on loopback, and where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest
from fakes.command_line import environment_of
from fakes.fake_hub import FakeHub
from fakes.trained import bench, train

from harness.settings import Settings
from harness.tracking.store import Store

TARGET = "hf:org/name"


@pytest.fixture
def run_id(store: Store, settings: Settings) -> str:
    run_id, models = train(store, settings)
    bench(store, models, settings.root_dir / "verifier")
    return run_id


def push(
    root: Path, reference: str, target: str = TARGET, *, hub: str, **env: str
) -> "subprocess.CompletedProcess[str]":
    """The command with this hub; no login but what `env` brings."""
    environment = environment_of(root) | {"HF_ENDPOINT": hub, "HF_HOME": str(root / "hf")}
    for key in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy"):
        environment.pop(key, None)
    return subprocess.run(
        [sys.executable, "-m", "harness", "push", reference, target, "--no-load"],
        env=environment | env,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_export_becomes_one_commit_and_old_weights_go(
    store: Store, settings: Settings, run_id: str
) -> None:
    with FakeHub("model-00001-of-00002.safetensors", "notes.md") as hub:
        done = push(settings.root_dir, f"run:{run_id}@1", hub=hub.url, HF_TOKEN="hf_x")
    assert done.returncode == 0, done.stderr
    checkpoint = store.checkpoints(run_id)[1]
    weights = (checkpoint.path / "model.safetensors").read_bytes()
    assert hub.files["model.safetensors"] == weights
    assert b"eagle3" in hub.files["README.md"]
    assert set(hub.files) == {
        "config.json", "manifest.json", "model.safetensors", "README.md", "notes.md",
    }  # fmt: skip
    assert hub.deleted == ["model-00001-of-00002.safetensors"]
    assert checkpoint.digest in hub.messages[0]


def test_where_no_hub_is_nothing_is_exported(settings: Settings, run_id: str) -> None:
    done = push(settings.root_dir, f"run:{run_id}@1", hub="http://127.0.0.1:9", HF_TOKEN="hf_x")
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert "no hub is reachable at http://127.0.0.1:9" in done.stderr


@pytest.mark.parametrize("token", [{}, {"HF_TOKEN": "hf_x"}])
def test_a_hub_that_does_not_know_us_is_told(
    settings: Settings, run_id: str, token: dict[str, str]
) -> None:
    with FakeHub(is_refusing=True) as hub:
        done = push(settings.root_dir, f"run:{run_id}@1", hub=hub.url, **token)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert "does not know us" in done.stderr
    assert "HF_TOKEN" in done.stderr


@pytest.mark.parametrize("target", ["org/name", "hf:name", "hf:org/../x", "hf:org/a/b", "hf:/x"])
def test_what_is_no_repository_is_refused(settings: Settings, target: str) -> None:
    done = push(settings.root_dir, "x", target, hub="http://127.0.0.1:9")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr


def test_changed_weights_are_not_pushed(store: Store, settings: Settings, run_id: str) -> None:
    weights = store.checkpoints(run_id)[1].path / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-9] ^= 1
    weights.write_bytes(raw)
    with FakeHub() as hub:
        done = push(settings.root_dir, f"run:{run_id}@1", hub=hub.url, HF_TOKEN="hf_x")
    assert done.returncode == 4, done.stderr
    assert "model.safetensors" in done.stderr
    assert hub.files == {}

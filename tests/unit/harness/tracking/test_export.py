"""Exports of real files from a store in memory."""

import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from fakes.memory_store import MemoryStore
from fakes.tiny_models import write_tiny_drafter, write_tiny_verifier
from fakes.trained import bench, train

from harness.digests import FolderDigest
from harness.drafter.drafter import drafter_digest
from harness.errors import CheckError, ConfigError, PrerequisiteError
from harness.settings import Settings
from harness.tracking.export import export_drafter
from harness.tracking.serving import serve_commands


@pytest.fixture
def run_id(store: MemoryStore, settings: Settings) -> str:
    run_id, models = train(store, settings)
    bench(store, models, settings.root_dir / "verifier")
    return run_id


def test_an_export_is_the_checkpoint_and_says_where_it_is_from(
    store: MemoryStore, settings: Settings, run_id: str, tmp_path: Path
) -> None:
    out = tmp_path / "out" / "champion"
    done = export_drafter(f"run:{run_id}@1", out, settings, store)
    checkpoint = store.checkpoints(run_id)[1]
    assert drafter_digest(out).root == checkpoint.digest == done.digest.root
    assert {p.name for p in out.iterdir()} == {
        "config.json",
        "model.safetensors",
        "manifest.json",
        "README.md",
    }
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["run_id"], manifest["model_id"]) == (run_id, checkpoint.model_id)
    assert FolderDigest.model_validate(manifest["files"]) == done.digest
    assert list(out.parent.iterdir()) == [out]
    assert str(settings.root_dir / "verifier") in done.serve.vllm
    assert str(out) in done.serve.vllm


def test_the_card_shows_what_was_measured_and_under_what_conditions(
    store: MemoryStore, settings: Settings, run_id: str, tmp_path: Path
) -> None:
    export_drafter(f"run:{run_id}@1", tmp_path / "out", settings, store)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| 3 | 1 | 1.800 [1.750, 1.850] | 1.200 [1.150, 1.250] | yes |" in card
    assert "| cpu | a CPU \\| with a pipe in its name |" in card
    assert "| code commit | c0ffee |" in card
    assert "| head_dim_source | given |" in card
    assert "VERIFIER_DIR" in card


def test_a_folder_is_exported_without_a_store(settings: Settings, tmp_path: Path) -> None:
    drafter = write_tiny_drafter(tmp_path / "drafter")
    verifier = write_tiny_verifier(tmp_path / "verifier")
    done = export_drafter(str(drafter), tmp_path / "out", settings, None, verifier=str(verifier))
    assert done.digest.root == drafter_digest(drafter).root
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Not measured by a bench." in card
    assert "unknown: exported from a folder" in card


def test_a_folder_with_files_of_someone_else_is_never_replaced(
    store: MemoryStore, settings: Settings, run_id: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("x")
    for is_overwrite in (False, True):
        with pytest.raises(ConfigError, match="that no export wrote"):
            export_drafter(f"run:{run_id}", out, settings, store, is_overwrite=is_overwrite)
    assert (out / "precious").read_text() == "x"


def test_an_earlier_export_is_replaced_only_when_asked(
    store: MemoryStore, settings: Settings, run_id: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    export_drafter(f"run:{run_id}@0", out, settings, store)
    with pytest.raises(ConfigError) as caught:
        export_drafter(f"run:{run_id}@1", out, settings, store)
    assert caught.value.hint == "replace it with --overwrite"
    export_drafter(f"run:{run_id}@1", out, settings, store, is_overwrite=True)
    assert drafter_digest(out).root == store.checkpoints(run_id)[1].digest


def test_changed_weights_are_not_exported(
    store: MemoryStore, settings: Settings, run_id: str, tmp_path: Path
) -> None:
    weights = store.checkpoints(run_id)[1].path / "model.safetensors"
    other = write_tiny_drafter(tmp_path / "other", seed=7) / "model.safetensors"
    shutil.copyfile(other, weights)
    with pytest.raises(CheckError, match="was changed after it was recorded"):
        export_drafter(f"run:{run_id}@1", tmp_path / "out", settings, store)
    assert not (tmp_path / "out").exists()


def test_a_copy_that_went_wrong_leaves_nothing(
    store: MemoryStore,
    settings: Settings,
    run_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:-1])

    monkeypatch.setattr("shutil.copyfile", cut)
    with pytest.raises(CheckError, match="the copy in"):
        export_drafter(f"run:{run_id}@1", tmp_path / "out", settings, store)
    assert not list(tmp_path.glob("*out*"))


def test_an_unsound_drafter_is_not_exported(settings: Settings, tmp_path: Path) -> None:
    drafter = write_tiny_drafter(tmp_path / "drafter", draft_vocab_size=17)
    with pytest.raises(CheckError, match="is not sound"):
        export_drafter(str(drafter), tmp_path / "out", settings, None)


def test_a_full_disk_is_seen_before_copying(
    store: MemoryStore,
    settings: Settings,
    run_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(100, 90, 10))
    with pytest.raises(PrerequisiteError, match="MB free"):
        export_drafter(f"run:{run_id}", tmp_path / "out", settings, store)


@pytest.mark.parametrize(
    ("is_cpu", "start"),
    [(True, "python -m vllm.entrypoints.openai.api_server --model "), (False, "vllm serve ")],
)
def test_the_serve_line_fits_the_distribution(
    monkeypatch: pytest.MonkeyPatch, is_cpu: bool, start: str
) -> None:
    monkeypatch.setattr("harness.tracking.serving.is_cpu_distribution", lambda: is_cpu)
    line = serve_commands("/a b/verifier", "/out", 3).here
    assert line.startswith(f"{start}'/a b/verifier' --speculative-config '{{")
    assert '"num_speculative_tokens": 3' in line

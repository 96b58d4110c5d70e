from pathlib import Path

import pytest

from eval.prompts import load_prompts
from harness.config.load import load_config
from harness.config.prompts import PromptsConfig, SourceConfig
from harness.config.regenerate import RegenerateConfig

EXPERIMENTS = Path(__file__).parents[4] / "experiments"


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*/prompts.yaml")), ids=str)
def test_every_experiments_prompts_load(path: Path) -> None:
    config = load_config(PromptsConfig, path).below(EXPERIMENTS.parent)
    assert config.exclude
    for source in (*config.exclude, *(one.source for one in config.sources)):
        if not source.startswith(("hf:", "package:")):
            assert load_prompts(Path(source))


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*/regenerate.yaml")), ids=str)
def test_every_experiments_regeneration_loads(path: Path) -> None:
    assert load_config(RegenerateConfig, path).max_tokens >= 64


def test_paths_are_of_the_project_unless_they_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, here = tmp_path / "project", tmp_path / "here"
    for folder, name in ((project, "a.jsonl"), (project, "b.jsonl"), (here, "b.jsonl")):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("")
    monkeypatch.chdir(here)
    sources = tuple(SourceConfig(source=name) for name in ("a.jsonl", "b.jsonl", "hf:x/y"))
    config = PromptsConfig(verifier="v", sources=sources, exclude=("no.jsonl",)).below(project)
    found = [source.source for source in config.sources]
    assert found == [str(project / "a.jsonl"), "b.jsonl", "hf:x/y"]
    assert [source.label for source in config.sources] == ["a", "b", "y"]
    assert config.exclude == ("no.jsonl",)

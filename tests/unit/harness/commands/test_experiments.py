"""Every folder of experiments/ resolves and dry-runs without weights, corpus or hub."""

from pathlib import Path

import pytest

from harness.commands.benchplan import describe_bench
from harness.config.bench import BenchConfig
from harness.config.load import load_config
from harness.config.policy import Policy
from harness.config.sweep import SweepConfig
from harness.config.train import TrainConfig
from harness.errors import ConfigError
from harness.settings import Settings, load_settings
from harness.sweep.session import prepare
from harness.training.dryrun import describe_training, find_stand_in, load_verifier

ROOT = Path(__file__).parents[4] / "experiments"
WITHOUT_WEIGHTS = ("kimi-k2.5", "llama-3.1-8b", "qwen3-8b", "gpt-oss-20b")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    found = load_settings(ROOT.parent)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return found.model_copy(update={"cache_dir": tmp_path, "tracking_uri": uri})


def sections(config: TrainConfig, settings: Settings, path: Path) -> dict[str, dict[str, object]]:
    return dict(describe_training(config, settings, find_stand_in(path)))


@pytest.mark.parametrize("name", WITHOUT_WEIGHTS)
def test_each_experiment_resolves_without_weights(name: str, settings: Settings) -> None:
    folder = ROOT / name
    train = load_config(TrainConfig, folder / "train.yaml")
    found = sections(train, settings, folder / "train.yaml")
    assert str(found["training"]["its weights"]).startswith("not here: hf:")
    assert found["drafter"]["head_dim"] == f"{train.head_dim} (from the config)"
    bench = load_config(BenchConfig, folder / "bench.yaml")
    told = dict(describe_bench(bench, settings, find_stand_in(folder / "bench.yaml")))
    assert "--model" in str(told["server"]["each engine"])
    sweep = load_config(SweepConfig, folder / "sweep.yaml")
    assert prepare(sweep, settings).base.verifier == train.verifier == bench.verifier
    policy = load_config(Policy, folder / "policy.yaml")
    assert policy.model == sweep.name == name
    assert (folder / str(policy.bench)).is_file()


def test_kimi_has_the_numbers_of_the_campaign(settings: Settings) -> None:
    path = ROOT / "kimi-k2.5" / "train.yaml"
    train = load_config(TrainConfig, path)
    verifier, _ = load_verifier(train.verifier, settings, find_stand_in(path))
    assert (verifier.hidden_size, verifier.num_layers, verifier.vocab_size) == (7168, 61, 163840)
    assert verifier.head_dim is None
    assert verifier.hidden_size // verifier.num_attention_heads == 112
    found = sections(train, settings, path)
    assert found["drafter"]["q_proj"] == "[8192, 14336]"
    assert found["drafter"]["aux_layer_ids"] == "2, 30, 58"
    # A checkpoint of the campaign was 8.9 GiB: weights and optimiser state in bfloat16.
    sizes = [found["estimate"][key] for key in ("a checkpoint", "its optimiser state")]
    gigabytes = sum(float(str(size).split(" ")[0]) for size in sizes)
    assert gigabytes * 1e9 / 2**30 == pytest.approx(8.9, rel=0.02)


def test_a_missing_head_dim_is_refused_before_anything_is_there(settings: Settings) -> None:
    path = ROOT / "kimi-k2.5" / "train.yaml"
    train = load_config(TrainConfig, path, ["head_dim=null"])
    with pytest.raises(ConfigError, match="head_dim: required when training from scratch"):
        sections(train, settings, path)

"""What smaller hidden states cost in acceptance: one training, the same rows, stored otherwise.

    python benchmarks/storage_cost.py --kind float32|bfloat16|fp8|top --out FOLDER
        [--corpus mlruns/demo/hidden_states] [--epochs 1]

Makes the corpus of that kind from a float32 one (`top` keeps the last aux layer and the final state
alone), trains experiments/smollm2-135m/train.yaml on it in a store of its own, and prints bytes a
token and the acceptance length of the checkpoint, replayed on its own validation rows. `harness
replay` of two such checkpoints on prompts tells the difference with intervals.
"""

import argparse
import shutil
from pathlib import Path

from safetensors.torch import load_file

from harness.config.load import load_config
from harness.config.train import TrainConfig
from harness.corpus.hidden_states import Corpus, state_name
from harness.corpus.manifest import Plan, finish_stage, load_manifest
from harness.corpus.storage import decode, encode
from harness.digests import digest_files
from harness.settings import load_settings, share_cores
from harness.tracking.store import open_store
from harness.training.run import run_training

TRAIN = Path("experiments/smollm2-135m/train.yaml")


def write_variant(source: Corpus, kind: str, folder: Path) -> tuple[int, ...]:
    """A finished corpus of the same rows; returns its aux layers."""
    is_top = kind == "top"
    dtype = "float32" if is_top else kind
    layers = source.aux_layer_ids[-1:] if is_top else source.aux_layer_ids
    if not (folder / "manifest.json").is_file():
        shutil.copytree(source.tokens_dir, folder / "tokens")
        (folder / "hidden_states").mkdir()
        for row in range(source.num_rows):
            found = load_file(source.hidden_states_dir / state_name(row))
            states = decode(found)[:, -2:] if is_top else decode(found)
            raw = encode(states, found["token_ids"].tolist(), dtype)
            (folder / "hidden_states" / state_name(row)).write_bytes(raw)
        manifest = load_manifest(source.dir, "extract")
        names = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()]
        config = {"aux_layer_ids": list(layers), "dtype": dtype}
        plan = Plan(stage="extract", inputs=manifest.inputs, config=config)
        files = digest_files(folder, names)
        finish_stage(folder, plan, manifest.counts, files, dict(manifest.origins))
    return layers


def main() -> None:
    """Prints one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("float32", "bfloat16", "fp8", "top"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, default=Path("mlruns/demo/hidden_states"))
    parser.add_argument("--epochs", type=int, default=1)
    flags = parser.parse_args()
    share_cores()
    source = Corpus.load(flags.corpus, deep=False)
    folder = flags.out.resolve() / flags.kind
    write_variant(source, flags.kind, folder / "corpus")
    config = load_config(
        TrainConfig, TRAIN, corpus=str(folder / "corpus"), epochs=flags.epochs, eval_prompts=None,
        name=flags.kind, smoke="never",
    ).model_copy(update={"eval_prompts": None})  # fmt: skip
    settings = load_settings(folder)
    settings = settings.model_copy(
        update={"tracking_uri": f"sqlite:///{folder / 'mlruns' / 'mlflow.db'}"}
    )
    store = open_store(settings)
    run = run_training(config, settings, store, lambda *_: None, is_reusing=True)
    sizes = [p.stat().st_size for p in (folder / "corpus" / "hidden_states").iterdir()]
    figures = {key: round(value, 4) for key, value in run.best.metrics.items() if "length" in key}
    print(
        f"{flags.kind}: {sum(sizes) / source.num_tokens / 1000:.2f} kB a token, "
        f"{run.metrics['steps_per_s']:.2f} steps/s, "
        f"{run.metrics.get('data_wait_share', 0):.1%} of steps waiting for data, {figures}"
    )


if __name__ == "__main__":
    main()

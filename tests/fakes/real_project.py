"""A project with a small verifier that vLLM serves, its corpus, and all that the commands need.

The verifier is random and answers in short cycles, which a drafter learns in seconds: figures are
real ones, of a real engine, and drafters are accepted.
"""

import json
from pathlib import Path

import yaml
from fakes.command_line import run_harness
from fakes.learned import HEAD_DIM, HEADS, HIDDEN
from fakes.tiny_corpus import prompt_words, write_running_verifier, write_tiny_corpus, write_words

from harness.settings import Settings, load_settings
from harness.tracking.embedded import DATABASE

NUM_PROMPTS = 12
VERIFIER = "tiny-llama"
"""Its folder, and so its name."""
MODEL = "tiny"
_TRAIN = {
    "head_dim": HEAD_DIM,
    "draft_vocab_size": 64,
    "total_seq_len": 128,
    "epochs": 4,
    "lr": 2e-3,
    "device": "cpu",
    "smoke": "never",
    "keep_best": 1,
}
_FINETUNE = {key: _TRAIN[key] for key in ("total_seq_len", "device", "smoke", "keep_best")}
_BENCH = {
    "prompts": "prompts.jsonl",
    "concurrency": [1, 4],
    "max_tokens": 16,
    "ignore_eos": True,
    "num_warmup": 1,
}
_POLICY = {
    "model": MODEL,
    "bench": "bench.yaml",
    "min_acceptance_length": 1.05,
    "min_acceptance_gain": -0.5,
    "min_prompts": NUM_PROMPTS,
}


def write_project(root: Path) -> None:
    """Verifier, corpus, prompts and the YAML of each command, all below `root`."""
    verifier = write_running_verifier(
        root / VERIFIER, hidden=HIDDEN, heads=HEADS, kv_heads=HEADS, initializer_range=0.12
    )
    write_words(verifier)
    write_tiny_corpus(root / "corpus", verifier, num_distinct=NUM_PROMPTS)
    prompts = [
        {"id": f"p{n}", "category": ("chat", "code")[n % 2], "turns": [prompt_words(n)]}
        for n in range(NUM_PROMPTS)
    ]
    (root / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    of_both = {"verifier": str(verifier), "corpus": str(root / "corpus")}
    documents = {
        "train": {**_TRAIN, **of_both},
        "finetune": {**_FINETUNE, **of_both, "epochs": 10, "lr": 2e-3},
        "bench": {**_BENCH, "verifier": str(verifier)},
        "policy": _POLICY,
    }
    for name, document in documents.items():
        (root / f"{name}.yaml").write_text(yaml.safe_dump(document))


def settings_of(root: Path) -> Settings:
    """The project's, whatever store this process is told to use."""
    uri = f"sqlite:///{root / 'mlruns' / DATABASE}"
    return load_settings(root).model_copy(update={"tracking_uri": uri})


def done(root: Path, *arguments: str, timeout_s: float = 900) -> str:
    """What a command says on stdout that must end well."""
    found = run_harness(root, *arguments, timeout_s=timeout_s)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def train(root: Path, config: str, *arguments: str) -> str:
    """Trains through the command line; returns the id of the run."""
    found = json.loads(done(root, "train", f"{config}.yaml", "--json", *arguments))
    return str(found["run_id"])

"""Where this project comes from: head_dim 128 on a verifier of width 576 with 9 heads.

It trains, verifies, converts, serves and finetunes with the right shapes; the same file with
head_dim 64 in its config, which vLLM would cut without a word, is refused everywhere.
"""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from fakes.command_line import run_harness
from fakes.drafters import decoder, edit_config, edit_tensors
from fakes.tiny_corpus import prompt_words, write_running_verifier, write_tiny_corpus, write_words
from fakes.trained import bench
from safetensors.torch import load_file

from eval.client import ask
from eval.counters import AcceptanceCounts, parse_counters
from eval.server import VllmServer
from eval.spec import DrafterSpec, Prompt, Sampling, ServerSpec
from harness.drafter.drafter import Drafter
from harness.settings import Settings
from harness.tracking.records import RunStatus
from harness.tracking.store import Store

pytestmark = pytest.mark.timeout(600)

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INFERRED = 576, 9, 3, 128, 64
QUERY, KEY, OUT = (f"layers.0.self_attn.{name}_proj.weight" for name in "qko")
POLICY = "min_acceptance_length: 1.3\nrequire_provenance: false\n"


class Wide(NamedTuple):
    """The verifier, its corpus, and the drafter that was trained on it."""

    root: Path
    verifier: Path
    corpus: Path
    run_id: str
    drafter: Path
    model_id: str


def harness(root: Path, *arguments: str, expected: int = 0) -> str:
    """Output of a command that ends as expected; stderr where it was refused."""
    done = run_harness(root, *arguments, timeout_s=300)
    assert done.returncode == expected, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr + done.stdout if expected else done.stdout


def train(wide_root: Path, verifier: Path, corpus: Path, *more: str) -> dict[str, Any]:
    options = ("--verifier", str(verifier), "--corpus", str(corpus), "--json")
    sets = {"total_seq_len": 128, "device": "cpu", "smoke": "never", "keep_best": 1}
    settings = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    document: dict[str, Any] = json.loads(harness(wide_root, "train", *options, *settings, *more))
    return document


@pytest.fixture(scope="module")
def wide(project: Path, store: Store) -> Wide:
    verifier = write_running_verifier(
        project / "wide", hidden=HIDDEN, heads=HEADS, kv_heads=KV_HEADS, initializer_range=0.06
    )
    write_words(verifier)
    corpus = write_tiny_corpus(project / "wide-corpus", verifier, num_distinct=6)
    sets = (f"head_dim={HEAD_DIM}", "draft_vocab_size=64", "epochs=12", "lr=1e-3")
    more = [word for text in sets for word in ("--set", text)]
    best = train(project, verifier, corpus, *more)["best"]
    path = Path(best["path"])
    return Wide(project, verifier, corpus, best["run_id"], path, best["model_id"])


@pytest.fixture(scope="module")
def flat(wide: Wide) -> Path:
    out = wide.root / "wide-flat"
    harness(wide.root, "convert", "--drafter", str(wide.drafter), "--to", "flat", "--out", str(out))
    return out


def test_it_trains_and_verifies_with_the_right_shapes(wide: Wide, store: Store) -> None:
    drafter = Drafter.load(wide.drafter)
    assert drafter.head_dim_configured == drafter.head_dim_tensors == HEAD_DIM
    shapes = [drafter.tensors[name].shape for name in (QUERY, KEY, OUT)]
    width = HEADS * HEAD_DIM
    assert shapes == [(width, 2 * HIDDEN), (KV_HEADS * HEAD_DIM, 2 * HIDDEN), (HIDDEN, width)]
    assert store.get_run(wide.run_id).params["head_dim"] == str(HEAD_DIM)
    options = ("--drafter", str(wide.drafter), "--verifier", str(wide.verifier), "--deep", "--json")
    assert json.loads(harness(wide.root, "verify", *options))["ok"] is True


def test_it_converts_both_ways_without_a_bit_of_loss(wide: Wide, flat: Path) -> None:
    back = wide.root / "wide-back"
    options = ("--to", "speculators", "--out", str(back))
    harness(wide.root, "convert", "--drafter", str(flat), *options)
    before, between, after = (
        load_file(path / "model.safetensors") for path in (wide.drafter, flat, back)
    )
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.equal(after[name])
        assert value.equal(between[name.replace("layers.0.", "midlayer.")])
    for path in (flat, back):
        assert Drafter.load(path).head_dim_configured == HEAD_DIM


def serve(wide: Wide, drafter: Path, log: Path) -> tuple[AcceptanceCounts, list[str | None]]:
    spec = ServerSpec(verifier=wide.verifier, max_model_len=96, max_num_seqs=1, dtype="float32")
    prompts = [Prompt(id=str(n), category="a", turns=(prompt_words(n),)) for n in range(6)]
    with VllmServer(spec, log, DrafterSpec(name="d", path=drafter), 3) as server:
        sampling = Sampling(max_tokens=20, ignore_eos=True)
        batch = ask(server.base_url, server.model, prompts, sampling)
        batch.require_complete()
        counters = parse_counters(server.fetch("/metrics"), server.model)
    answers = sorted(batch.answers, key=lambda answer: answer.prompt_id)
    return counters.acceptance, [answer.text for answer in answers]


def test_both_forms_are_served_and_accept_the_same(wide: Wide, flat: Path, tmp_path: Path) -> None:
    nested = serve(wide, wide.drafter, tmp_path / "nested.log")
    assert nested[0].num_accepted > 0
    assert serve(wide, flat, tmp_path / "flat.log") == nested


def test_a_qwen3_drafter_is_served_in_both_forms(wide: Wide, tmp_path: Path) -> None:
    """vLLM takes its own code for it, found by model_type or, flat, by the architecture."""
    nested = Path(shutil.copytree(wide.drafter, tmp_path / "qwen3"))
    norms = {f"layers.0.self_attn.{n}_norm.weight": np.full(HEAD_DIM, 0.75, "f4") for n in "qk"}
    edit_tensors(nested, lambda tensors: tensors.update(norms))
    edit_config(nested, lambda config: decoder(config).update(model_type="qwen3"))
    flat = tmp_path / "qwen3-flat"
    options = ("--to", "flat", "--out", str(flat))
    harness(wide.root, "convert", "--drafter", str(nested), *options)
    assert Drafter.load(flat).architectures == ("Eagle3Qwen3ForCausalLM",)
    found = serve(wide, nested, tmp_path / "nested.log")
    assert found[0].num_drafts > 0
    assert serve(wide, flat, tmp_path / "flat.log") == found


def test_a_finetune_takes_head_dim_from_the_tensors(wide: Wide, flat: Path, store: Store) -> None:
    more = ("--finetune-from", str(flat), "--set", "epochs=1", "--set", "lr=1e-4")
    best = train(wide.root, wide.verifier, wide.corpus, *more)["best"]
    child = Drafter.load(Path(best["path"]))
    assert child.tensors[QUERY].shape == (HEADS * HEAD_DIM, 2 * HIDDEN)
    params = store.get_run(best["run_id"]).params
    assert (params["head_dim"], params["head_dim_source"]) == (str(HEAD_DIM), "parent tensors")


@pytest.fixture(scope="module")
def cut(wide: Wide) -> Path:
    """The same weights; the config says 64, which is what hidden / heads would be."""
    path = Path(shutil.copytree(wide.drafter, wide.root / "wide-cut"))
    edit_config(path, lambda config: decoder(config).update(head_dim=INFERRED))
    return path


COMMANDS = {
    "verify": "verify --drafter {cut} --verifier {verifier}",
    "bench": "bench --drafter {cut} --verifier {verifier} --prompts {prompts}",
    "finetune": "train --finetune-from {cut} --verifier {verifier} --corpus {corpus}",
    "export": "export {cut} --verifier {verifier} --out {out}",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_same_file_with_another_head_dim_is_refused(
    wide: Wide, cut: Path, store: Store, tmp_path: Path, command: str
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    prompts.write_text(json.dumps({"id": "a", "category": "a", "prompt": prompt_words(0)}) + "\n")
    before = {run.run_id for run in store.find_runs()}
    places = {"cut": cut, "verifier": wide.verifier, "corpus": wide.corpus}
    words = COMMANDS[command].format(prompts=prompts, out=out, **places).split()
    text = harness(wide.root, *words, expected=4)
    assert "S1" in text
    assert "vLLM would cut q_proj from [1152, 1152] to [576, 1152]" in text
    assert not out.exists()
    assert {run.run_id for run in store.find_runs()} == before
    assert store.find_runs(status=RunStatus.RUNNING) == ()


def test_promote_refuses_it_too(
    wide: Wide, cut: Path, store: Store, settings: Settings, tmp_path: Path
) -> None:
    """The checkpoint's own config is changed after it was measured."""
    bench(store, [wide.model_id], wide.verifier)
    kept = (wide.drafter / "config.json").read_bytes()
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    words = ("promote", f"run:{wide.run_id}", "--name", "wide", "--policy", str(policy), "--json")
    try:
        shutil.copy(cut / "config.json", wide.drafter)
        done = run_harness(wide.root, *words)
    finally:
        (wide.drafter / "config.json").write_bytes(kept)
    assert done.returncode == 4, done.stderr
    gates = {gate["name"]: gate for gate in json.loads(done.stdout)["gates"]}
    refused = [gate for gate in gates.values() if not gate["is_passed"]]
    assert any("S1" in str(gate) for gate in refused), gates
    assert store.registry.aliases("wide") == {}
    assert store.find_runs(status=RunStatus.RUNNING) == ()

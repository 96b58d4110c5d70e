"""The broken drafters that vLLM was seen to load, or to refuse only after the verifier was loaded.

Each is a healthy drafter with one thing broken. What files can show is refused before a server is
started; the rest is what `docs/checks.md` leaves to the parent's config or to a replay.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from fakes.drafters import (
    DRAFT_VOCAB,
    HEADS,
    VOCAB,
    build_drafter,
    build_verifier,
    decoder,
    edit_config,
    edit_tensors,
    settings_for,
)
from fakes.memory_store import MemoryStore

from eval.errors import ServerStartError
from eval.proposers import write_untrained_drafter
from eval.spec import ServerOptions
from harness.commands.benching import bench_drafters
from harness.config.bench import BenchConfig
from harness.drafter.checks import check_drafter
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError

Break = Callable[[Path], object]
REFUSING = ServerOptions(command=(sys.executable, "-c", "import sys; sys.exit('started')"))


def config(**values: object) -> Break:
    return lambda path: edit_config(path, lambda document: document.update(values))


def layer(**values: object) -> Break:
    return lambda path: edit_config(path, lambda document: decoder(document).update(values))


def tensors(change: Callable[[dict[str, Any]], object]) -> Break:
    return lambda path: edit_tensors(path, change)


def truncate(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def take_three_kv_heads(path: Path) -> None:
    """Tensors and config agree with one another; four query heads do not divide by three."""

    def narrow(found: dict[str, Any]) -> None:
        head_dim = len(found["layers.0.self_attn.q_proj.weight"]) // HEADS
        for name in "kv":
            held = found[f"layers.0.self_attn.{name}_proj.weight"]
            rows = np.resize(held, (3 * head_dim, held.shape[1]))
            found[f"layers.0.self_attn.{name}_proj.weight"] = rows

    edit_tensors(path, narrow)
    layer(num_key_value_heads=3)(path)


def lose_fc_and_down_proj(found: dict[str, Any]) -> None:
    del found["fc.weight"], found["layers.0.mlp.down_proj.weight"]


def roll_d2t(found: dict[str, Any]) -> None:
    found["d2t"] = np.roll(found["d2t"], 1)


def name_other_ids(found: dict[str, Any]) -> None:
    """Every draft id moved to the next verifier id; d2t and t2d agree, the head's rows do not."""
    ids = np.sort((found["d2t"] + np.arange(DRAFT_VOCAB) + 1) % VOCAB)
    found["d2t"] = ids - np.arange(DRAFT_VOCAB)
    found["t2d"] = np.isin(np.arange(VOCAB), ids)


def spoil_norm(found: dict[str, Any]) -> None:
    found["norm.weight"] = found["norm.weight"].copy()
    found["norm.weight"][0] = np.nan


REFUSED: dict[str, tuple[Break, str]] = {
    "truncated file": (truncate, "unreadable"),
    "draft_vocab_size of the config too large": (config(draft_vocab_size=192), "shape|S4|S6"),
    "kv heads that do not divide the heads": (
        take_three_kv_heads,
        "num_key_value_heads: expected a divisor",
    ),
    "fc and down_proj missing": (tensors(lose_fc_and_down_proj), "S3"),
    "d2t missing": (tensors(lambda found: found.pop("d2t")), "S4"),
    "head_dim of the config too small": (layer(head_dim=8), "S1"),
    "d2t rolled by one": (tensors(roll_d2t), "S6"),
    "d2t and t2d of other ids": (tensors(name_other_ids), "S7"),
    "NaN in norm.weight": (tensors(spoil_norm), "non-finite"),
}

UNSEEN: dict[str, tuple[Break, str]] = {
    "other aux layers": (config(eagle_aux_hidden_state_layer_ids=[5, 10, 20]), "S14"),
    "norm_before_residual flipped": (config(norm_before_residual=False), "S10"),
    "rope theta": (
        layer(rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
        "S18",
    ),
}


class Healthy(NamedTuple):
    """A verifier and a sound drafter of it."""

    verifier: Verifier
    drafter: Path


@pytest.fixture
def healthy(tmp_path: Path) -> Healthy:
    verifier = build_verifier(tmp_path / "verifier")
    return Healthy(verifier, build_drafter(tmp_path / "drafter", verifier))


def bench(healthy: Healthy, drafter: Path, root: Path) -> MemoryStore:
    """Tries to measure; the server's command does nothing but fail."""
    prompts = root / "prompts.jsonl"
    prompts.write_text('{"id": "a", "category": "a", "prompt": "x"}\n')
    asked = BenchConfig(
        drafters=(str(drafter),),
        verifier=str(healthy.verifier.path),
        prompts=str(prompts),
        server=REFUSING,
    )
    store = MemoryStore(root)
    try:
        bench_drafters(asked, settings_for(root), store, lambda *_: None)
    finally:
        was_started = bool(list(root.glob("mlruns/bench/*/logs/*.log")))
        assert was_started == bool(store.runs)
    return store


def test_a_healthy_drafter_gets_as_far_as_the_server(healthy: Healthy, tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match="started"):
        bench(healthy, healthy.drafter, tmp_path)
    assert list(tmp_path.glob("mlruns/bench/*/logs/*.log"))


def test_a_folder_that_does_not_exist_is_named(healthy: Healthy, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-drafter"):
        bench(healthy, tmp_path / "no-such-drafter", tmp_path)
    assert not list(tmp_path.glob("mlruns/bench/*/logs/*.log"))


@pytest.mark.parametrize("defect", REFUSED)
def test_it_is_refused_before_a_server_is_started(
    healthy: Healthy, tmp_path: Path, defect: str
) -> None:
    break_it, told_by = REFUSED[defect]
    break_it(healthy.drafter)
    with pytest.raises(CheckError, match=told_by) as caught:
        bench(healthy, healthy.drafter, tmp_path)
    assert caught.value.exit_code == 4
    assert not list(tmp_path.glob("mlruns/bench/*/logs/*.log"))


@pytest.mark.parametrize("defect", UNSEEN)
def test_what_no_file_shows_is_told_by_the_parent(
    healthy: Healthy, tmp_path: Path, defect: str
) -> None:
    break_it, rule = UNSEEN[defect]
    child = build_drafter(tmp_path / "child", healthy.verifier)
    break_it(child)
    assert check_drafter(child, healthy.verifier, deep=True).ok
    report = check_drafter(child, healthy.verifier, parent=healthy.drafter, deep=True)
    assert [f.rule for f in report.findings if f.severity != "info"] == [rule]
    (line,) = [text for text in checks_page().splitlines() if text.startswith(f"| {rule} |")]
    assert "replay" in line


def test_an_untrained_drafter_is_flagged(healthy: Healthy, tmp_path: Path) -> None:
    """It is no error: it is served, proposes noise, and the ceiling is measured with such a one."""
    fresh = write_untrained_drafter(healthy.verifier.path, tmp_path / "fresh")
    report = check_drafter(fresh, healthy.verifier, deep=True)
    assert "fresh" in {finding.rule for finding in report.findings if finding.severity == "warning"}


def checks_page() -> str:
    return (Path(__file__).parents[4] / "docs" / "checks.md").read_text()

"""What an extraction and a regeneration are held against before they begin."""

from pathlib import Path

import pytest
from fakes.drafters import build_verifier

from harness.commands import preflight as before
from harness.commands.preflight import check_extract, check_regenerate
from harness.config.regenerate import RegenerateConfig
from harness.corpus.extractplan import ExtractConfig
from harness.corpus.manifest import Plan, finish_stage
from harness.corpus.storage import space_for
from harness.digests import digest_files
from harness.drafter.verifier import Verifier

COUNTS = {"rows": 1000, "tokens": 500_000, "loss_tokens": 1, "conversations": 1000}


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    return build_verifier(tmp_path / "verifier")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "x").write_text("x")
    plan = Plan(stage="prepare", inputs={}, config={})
    finish_stage(folder, plan, COUNTS, digest_files(folder, ["x"]), {})
    return folder


def needed_gb(tokens: Path, verifier: Verifier, name: str, **settings: object) -> float:
    config = ExtractConfig.model_validate(settings)
    checks = check_extract(tokens, verifier, tokens.parent / "out", config)
    (found,) = [check.found for check in checks if check.name.startswith(name)]
    return float(found.split()[0])


def test_an_online_corpus_needs_the_disk_for_its_last_rows_alone(
    tokens: Path, verifier: Verifier
) -> None:
    whole = needed_gb(tokens, verifier, "disk")
    needed = space_for(500_000 * 4 * verifier.hidden_size * 4)
    assert whole == pytest.approx(needed / 1e9, rel=0.02)
    spare = space_for(0) / 1e9
    tenth = needed_gb(tokens, verifier, "disk", is_online=True)
    assert tenth - spare == pytest.approx((whole - spare) / 10, abs=0.01)


def test_the_memory_of_an_extraction_grows_with_its_passes(
    tokens: Path, verifier: Verifier
) -> None:
    small = needed_gb(tokens, verifier, "memory")
    large = needed_gb(tokens, verifier, "memory", batch_tokens=100_000)
    per_token = (2 * 4 + 16) * verifier.hidden_size + 4 * (verifier.intermediate_size or 0)
    assert large - small == pytest.approx((100_000 - 512) * 4 * per_token / 1e9, abs=0.02)


def test_a_regeneration_is_held_against_the_engine_that_it_starts(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before, "detect_device", lambda: "cpu")
    monkeypatch.setattr("psutil.virtual_memory", lambda: Memory(available=10**6))
    checks = check_regenerate(verifier, tmp_path, RegenerateConfig(max_model_len=64))
    assert [check.name for check in checks if check.state == "failed"] == ["memory for it"]
    elsewhere = RegenerateConfig(endpoint="http://127.0.0.1:1")
    assert all(check.state == "ok" for check in check_regenerate(verifier, tmp_path, elsewhere))


class Memory:
    """A machine with so much of it left."""

    def __init__(self, available: int) -> None:
        self.available = available

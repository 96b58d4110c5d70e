"""Tasks on a real Ray cluster on loopback: leases, output, cancelling, hosts and heads that die."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fakes.ray_cluster import RayCluster

from harness.errors import PrerequisiteError
from harness.launch.ports import Job, Task
from harness.launch.ray import RayLauncher
from harness.launch.tasks import build_task
from harness.settings import TASK_ID, Settings, load_settings

pytestmark = pytest.mark.timeout(240)
_WAIT_S = 60.0
FAMILY = """
import os, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], process_group=0)
Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
print("they run", flush=True)
time.sleep(300)
"""
"""A task whose child is in a process group of its own."""
SPEAK = f"""
import os, sys, time
from pathlib import Path
import harness
from harness.drafter.provenance import code_digest
print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HF_TOKEN"], os.environ["{TASK_ID}"])
is_shipped = "working_dir_files" in harness.__file__
print(os.getcwd(), code_digest(), is_shipped, "RAY_AUTH_TOKEN" in os.environ)
print("to the log", file=sys.stderr)
(Path(sys.argv[1]) / os.environ["{TASK_ID}"]).touch()
while len(list(Path(sys.argv[1]).iterdir())) < 4:
    time.sleep(0.05)
sys.exit(7)
"""
"""A task that ends when four of its kind have come as far."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(tmp_path_factory.mktemp("launch"))


@pytest.fixture(scope="module")
def shared(ray_cluster: RayCluster, settings: Settings) -> Iterator[RayLauncher]:
    with RayLauncher(ray_cluster.restore().address, settings) as launcher:
        yield launcher


class Tasks:
    """Builds tasks that run Python text."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._folder, self._count = settings, folder, 0

    def __call__(
        self, text: str, *arguments: str, num_gpus: int = 0, is_alone: bool = False
    ) -> Task:
        self._count += 1
        return build_task(
            f"task {self._count}",
            ("-c", text, *arguments),
            self._settings,
            self._folder / f"{self._count}.log",
            result_path=self._folder / f"{self._count}.out",
            num_gpus=num_gpus,
            is_alone=is_alone,
        )


@pytest.fixture
def make(settings: Settings, tmp_path: Path) -> Tasks:
    return Tasks(settings, tmp_path)


def wait_for(look: Callable[[], object], what: str, *jobs: Job) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not look():
        assert time.monotonic() < deadline, f"{what} did not happen"
        for job in jobs:
            job.poll()
        time.sleep(0.05)


def finish(*jobs: Job) -> list[int]:
    wait_for(lambda: all(job.poll() is not None for job in jobs), "the end of all")
    return [code for job in jobs if (code := job.poll()) is not None]


def result_of(task: Task) -> str:
    assert task.result_path is not None
    return task.result_path.read_text().strip()


def test_tasks_run_on_both_hosts_on_gpus_of_their_own_and_what_they_print_comes_back(
    shared: RayLauncher, make: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "PlantedForTheTask")
    assert shared.count_places(1) == 4
    (tmp_path / "together").mkdir()
    tasks = [make(SPEAK, str(tmp_path / "together"), num_gpus=1) for _ in range(4)]
    assert finish(*[shared.launch(task) for task in tasks]) == [7] * 4
    said = [result_of(task).split() for task in tasks]
    assert sorted(words[0] for words in said) == ["0", "0", "1", "1"]
    for task, words in zip(tasks, said, strict=True):
        assert words[1:] == [
            "PlantedForTheTask",
            task.id,
            str(task.folder),
            task.code,
            "True",
            "False",
        ]
        assert task.log_path.read_text() == "to the log\n"


def test_a_gang_gets_its_gpus_on_one_host_and_a_bench_a_host_without_neighbours(
    shared: RayLauncher, make: Tasks
) -> None:
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['OMP_NUM_THREADS'])"
    gang, bench = make(show, num_gpus=2), make(show, is_alone=True)
    neighbour = make("import time; time.sleep(3)", num_gpus=1)
    others = [make("import time; time.sleep(3)", num_gpus=1) for _ in range(2)]
    first = [shared.launch(task) for task in (neighbour, *others)]
    last = [shared.launch(task) for task in (gang, bench)]
    assert finish(*first, *last) == [0] * 5
    assert result_of(gang).split()[0] == "0,1"
    assert result_of(bench).split()[0] == "0,1"
    with pytest.raises(PrerequisiteError, match="a host with 3 GPUs"):
        shared.count_places(3) or finish(shared.launch(make(show, num_gpus=3)))


def test_cancelling_asks_first_and_reaches_grandchildren(
    ray_cluster: RayCluster, settings: Settings, make: Tasks, tmp_path: Path
) -> None:
    gentle = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(130)))\n"
        "print('ready', file=sys.stderr, flush=True); time.sleep(300)"
    )
    with RayLauncher(ray_cluster.address, settings) as launcher:
        polite = make(gentle)
        job = launcher.launch(polite)
        wait_for(polite.log_path.exists, "its first word", job)
        job.interrupt()
        assert finish(job) == [130]
        assert result_of(polite) == "saved"
        pids = tmp_path / "pids"
        rude = launcher.launch(make(FAMILY, str(pids)))
        wait_for(lambda: pids.exists() and pids.read_text(), "its family", rude)
        family = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        rude.kill()
        finish(rude)
        assert not psutil.wait_procs(family, timeout=10)[1]
        pids.unlink()
        left = launcher.launch(make(FAMILY, str(pids)))
        wait_for(lambda: pids.exists() and pids.read_text(), "its family", left)
        family = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        assert launcher.driver_pid is not None
        os.kill(launcher.driver_pid, signal.SIGKILL)
        wait_for(lambda: left.poll() is not None, "its loss")
        assert left.is_lost
        assert not psutil.wait_procs(family, timeout=20)[1], "nothing outlives its launcher"


def test_other_code_or_a_wrong_token_is_refused_before_anything_runs(
    ray_cluster: RayCluster, settings: Settings, make: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make("print('it ran')")
    with RayLauncher(ray_cluster.address, settings, code="d" * 64) as launcher:
        job = launcher.launch(task)
        with pytest.raises(
            PrerequisiteError, match=f"has code [0-9a-f]{{64}}, expected {'d' * 64}"
        ):
            finish(job)
        assert job.poll() is not None
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 32)
    with (
        RayLauncher(ray_cluster.address, settings) as launcher,
        pytest.raises(PrerequisiteError, match="does not take our token") as caught,
    ):
        launcher.count_places(0)
    assert "ray get-auth-token" in str(caught.value.hint)
    assert not task.result_path or not task.result_path.exists()


def test_a_cluster_that_is_not_there_is_said_to_be_missing(settings: Settings) -> None:
    with (
        RayLauncher("127.0.0.1:1", settings, patience_s=1.0) as launcher,
        pytest.raises(PrerequisiteError, match=r"a Ray cluster at 127\.0\.0\.1:1, none answered"),
    ):
        launcher.count_places(0)


def test_no_process_of_a_launcher_is_left(shared: RayLauncher, settings: Settings) -> None:
    shared.close()
    assert not list((settings.mlruns_dir / "launch").glob("tmp*"))
    own = [p for p in psutil.Process(os.getpid()).children() if p.status() != "zombie"]
    assert not [p for p in own if "harness.launch.ray_driver" in p.cmdline()]

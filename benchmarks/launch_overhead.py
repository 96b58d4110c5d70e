"""What a launcher adds to a trial: tasks that do nothing, on two Ray hosts of this machine.

    python benchmarks/launch_overhead.py [--tasks 32]

Four slots. A task is a Python that ends at once, so all of its time is overhead: the order, the
lease, the process under its supervisor, its output, its end. The first tasks also pay for the
actors; they are counted.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from harness.drafter.provenance import hardware
from harness.launch.ray import RayLauncher
from harness.launch.tasks import build_task
from harness.settings import load_settings

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from fakes.ray_cluster import RayCluster


def main() -> None:
    """Starts the cluster, measures, ends it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=32)
    num_tasks = parser.parse_args().tasks
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        cluster = RayCluster(patch)
        try:
            measure(cluster, Path(folder), num_tasks)
        finally:
            cluster.stop()


def measure(cluster: RayCluster, folder: Path, num_tasks: int) -> None:
    """Runs the tasks and prints what they took."""
    settings = load_settings(folder)
    bare_s = min(timed_python() for _ in range(5))
    began = time.perf_counter()
    with RayLauncher(cluster.address, settings) as launcher:
        num_slots = launcher.count_places(0)
        connected_s = time.perf_counter() - began
        began = time.perf_counter()
        times = run_all(launcher, settings, folder, num_tasks, num_slots)
        wall_s = time.perf_counter() - began
    times.sort()
    load = os.getloadavg()[0]
    cpu, cores = hardware()["cpu"], os.cpu_count()
    print(f"{cpu}, {cores} cores, load {load:.1f}; {num_slots} slots")
    print(f"connecting {connected_s:.2f} s; a bare Python {bare_s:.3f} s")
    print(
        f"{num_tasks} tasks in {wall_s:.2f} s: {wall_s / num_tasks:.3f} s a task, "
        f"{wall_s * num_slots / num_tasks:.3f} s of its slot"
    )
    print(f"from order to end: median {times[len(times) // 2]:.3f} s, longest {times[-1]:.3f} s")


def run_all(launcher, settings, folder, num_tasks, num_slots) -> list[float]:
    """Seconds from order to end of tasks that are handed out as slots are free, as in a sweep."""
    running, times, number = {}, [], 0
    while number < num_tasks or running:
        while number < num_tasks and len(running) < num_slots:
            task = build_task(f"{number}", ("-c", ""), settings, folder / f"{number}.log")
            running[launcher.launch(task)] = time.perf_counter()
            number += 1
        for job, began in list(running.items()):
            code = job.poll()
            if code is not None:
                assert code == 0, (code, job.task.log_path.read_text())
                times.append(time.perf_counter() - began)
                del running[job]
        time.sleep(0.01)
    return times


def timed_python() -> float:
    """Seconds of a Python that does nothing."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", ""], check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

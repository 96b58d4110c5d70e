"""Tasks in Slurm's queue, submitted through submitit, which is imported here alone.

Hosts see the project folder at the same path, and the same Python. What a job of Slurm needs
besides (account, time, constraints) is said as sbatch takes it: SBATCH_ACCOUNT, SBATCH_TIMELIMIT.
"""

import contextlib
import re
import shutil
import subprocess
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Literal, Self

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from harness.digests import write_atomic
from harness.errors import PrerequisiteError
from harness.launch.ports import Task
from harness.launch.slurm_task import Ended, run_task, stop_path
from harness.settings import Settings, added_environment, child_environment, set_variables

Cluster = Literal["slurm", "local"]
AUTO, LOCAL = "auto", "local"
_FOLDER = "slurm"
_SIGN_S = 10.0
_POLL_S = 0.2
_DEFAULT_MINUTES = 24 * 60
_NUM_LOCAL = 2
_CPUS_PER_GPU = 8
"""For a process that trains and the workers that read its rows; Slurm gives a task one CPU."""
_OWN_CPUS = ("SBATCH_CPUS_PER_GPU", "SBATCH_CPUS_PER_TASK", "SBATCH_TRES_PER_TASK")
"""By which a user says it otherwise; sbatch refuses two of them together."""
_KILLED, _REFUSED = -9, 1
_GPUS = re.compile(r"gpu(?::[\w.\-]+)?:(\d+)")
_PREEMPTED, _CANCELLED = "PREEMPTED", "CANCELLED"
_LOST = {"NODE_FAIL", _PREEMPTED, "BOOT_FAIL", "TIMEOUT", "REVOKED"}
"""States of a job (sacct(1)) that are no fault of its task."""
_BY_ITSELF = {"COMPLETED", "FAILED"}
_LATE_S = 60.0
"""In which a shared folder shows what a job wrote that has ended (acdirmax of nfs(5))."""


class SlurmJob:
    """A task in the queue, or on the host that it was given."""

    def __init__(self, launcher: "SlurmLauncher", task: Task, job: Any) -> None:
        self.task = task
        self.is_lost = False
        self._launcher, self._job = launcher, job
        self._code: int | None = None
        self._ended_at: float | None = None

    def poll(self) -> int | None:
        """See `Job.poll`."""
        if self._code is None and self._has_ended():
            self._code = _REFUSED
            self._code = self._read_end()
        return self._code

    def interrupt(self) -> None:
        """See `Job.interrupt`; a task that still waits is taken out of the queue."""
        if self._code is not None:
            return
        stop_path(self._launcher.folder, self.task.id).touch()
        self._job.get_info()  # asks Slurm: what is known may be minutes old
        if self._state == "PENDING":
            self.kill()

    def kill(self) -> None:
        """See `Job.kill`."""
        if self._code is None:
            self._job.cancel(check=False)
            self._code = _KILLED

    def wait(self) -> None:
        """Returns when it has ended; kills it when it takes longer than it may."""
        deadline = time.monotonic() + self.task.patience_s
        while self.poll() is None:
            if time.monotonic() >= deadline:
                self.kill()
            time.sleep(_POLL_S)
        self.close()

    def close(self) -> None:
        """Forgets the wish to stop."""
        stop_path(self._launcher.folder, self.task.id).unlink(missing_ok=True)

    @property
    def _state(self) -> str:
        """What Slurm last said of it, in a word: of `CANCELLED by 1000` the first."""
        return str(self._job.state).split(" ")[0]

    def _has_ended(self) -> bool:
        """Whether it has, and what it left is seen here.

        submitit takes PREEMPTED for a job that Slurm begins again, which we forbid it to.
        """
        if not (self._job.done() or self._state == _PREEMPTED):
            return False
        if self._job.paths.result_pickle.exists() or self._state not in _BY_ITSELF:
            return True
        now = time.monotonic()
        self._ended_at = now if self._ended_at is None else self._ended_at
        return now - self._ended_at >= _LATE_S

    def _read_end(self) -> int:
        """The exit code; of a job that left none, what Slurm says of it.

        Raises:
            PrerequisiteError: The host has other code; said of the first, whoever ends the others
                knows it.
        """
        if not self._job.paths.result_pickle.exists():
            self.is_lost = self._state in _LOST
            return _KILLED
        error = self._job.exception()
        if error is not None:
            with self.task.log_path.open("a", encoding="utf-8") as log:
                log.write(f"{error}\n")
            return 1
        ended = Ended.model_validate_json(self._job.result())
        if ended.refusal and not self._launcher.has_refused:
            self._launcher.has_refused = True
            raise PrerequisiteError(
                f"{self.task.name} in job {self._job.job_id}: {ended.refusal}",
                "every host must see this installation of harness, at the same path",
            )
        if ended.is_lost:
            self._job.get_info()  # asks Slurm, as above
            self.is_lost = self._state != _CANCELLED  # by a person: no host is to blame
        return ended.code


class SlurmLauncher:
    """Submits tasks; use as a context manager.

    Args:
        address: Partition; `auto`: the default one; `local`: processes of this machine, without
            Slurm, for trying it out.
        settings: Of the project, whose folder every host sees.
        minutes: Longest time of a job, where SBATCH_TIMELIMIT says no other.
    """

    def __init__(self, address: str, settings: Settings, minutes: int = _DEFAULT_MINUTES) -> None:
        self._cluster: Cluster = "local" if address == LOCAL else "slurm"
        if self._cluster == "slurm" and shutil.which("sbatch") is None:
            raise PrerequisiteError(
                "--launcher slurm: expected Slurm's sbatch on this machine, found none",
                "call it on a login node; --address local tries it out without Slurm",
            )
        if self._cluster == "slurm" and settings.tracking_uri.startswith("sqlite:"):
            raise PrerequisiteError(
                "the store is an SQLite file, which the hosts of the queue would write over the "
                "network, where SQLite loses data",
                "start the server of deploy/up.sh and name it in MLFLOW_TRACKING_URI",
            )
        # Its own: submitit names files by job, which for a local one is the number of a process,
        # and takes the result of an earlier process of that number for that of a new one.
        self.folder = settings.mlruns_dir / "launch" / _FOLDER / uuid.uuid4().hex[:12]
        self.folder.mkdir(parents=True)
        self._partition = None if address in {AUTO, LOCAL} else address
        self._minutes = minutes
        self.has_refused = False
        """Whether a host was not what it must be."""
        self._jobs: list[SlurmJob] = []
        self._signs = _Signs(self.folder / "alive")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is None:  # else what submitit logged may say why
            shutil.rmtree(self.folder, ignore_errors=True)

    def count_places(self, num_gpus: int) -> int:
        """See `Launcher.count_places`: of the whole partition, whoever else waits for it."""
        if self._cluster == "local":
            return 0 if num_gpus else _NUM_LOCAL
        words = ["sinfo", "--noheader", "--Node", "--format=%N|%G"]
        words += [f"--partition={self._partition}"] if self._partition else []
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env=child_environment()
        )
        if done.returncode:
            raise PrerequisiteError(f"sinfo exited with {done.returncode}: {done.stderr.strip()}")
        return count_in(done.stdout, num_gpus)

    def launch(self, task: Task) -> SlurmJob:
        """See `Launcher.launch`.

        Raises:
            PrerequisiteError: Slurm does not take the job.
        """
        executor = submitit.AutoExecutor(folder=self.folder, cluster=self._cluster)
        executor.update_parameters(**self._parameters(task))
        # Logins go through the environment, as sbatch takes it: what is pickled lies on a disk.
        with added_environment(task.environment):
            text = task.model_copy(update={"environment": {}}).model_dump_json()
            try:
                job = SlurmJob(self, task, self._submit(executor, text))
            except (FailedJobError, FailedSubmissionError) as error:
                raise PrerequisiteError(
                    f"sbatch did not take {task.name}: {str(error).strip()}",
                    "name a partition by --address, account, time and CPUs by SBATCH_ACCOUNT, "
                    "SBATCH_TIMELIMIT and SBATCH_CPUS_PER_GPU; the same command goes on",
                ) from error
        self._jobs.append(job)
        return job

    def close(self) -> None:
        """Asks what still runs to save and stop, and waits for it; then lets go."""
        self.has_refused = True  # nobody listens any more
        try:
            left = [job for job in self._jobs if job.poll() is None]
            for job in left:
                job.interrupt()
            for job in left:
                job.wait()
        finally:
            self._signs.close()

    def _submit(self, executor: Any, text: str) -> Any:
        return executor.submit(run_task, text, self.folder, self._signs.path)

    def _parameters(self, task: Task) -> dict[str, Any]:
        values: dict[str, Any] = {
            "name": re.sub(r"\W+", "-", task.name),
            "nodes": 1,
            "tasks_per_node": 1,
            "timeout_min": self._minutes,
            "stderr_to_stdout": True,
        }
        if task.num_gpus:
            values["gpus_per_node"] = task.num_gpus
        if self._cluster == "slurm":
            values |= {"slurm_signal_delay_s": int(task.patience_s)}
            # Begun again by Slurm, it would not know which run it left open.
            values |= {"slurm_additional_parameters": {"no-requeue": True}}
            values |= {"slurm_partition": self._partition} if self._partition else {}
            if task.is_alone:  # has all CPUs of the node
                values |= {"slurm_exclusive": True}
            elif task.num_gpus and not set_variables(_OWN_CPUS):
                num_cpus = _CPUS_PER_GPU * task.num_gpus
                # Since Slurm 22.05 srun does not take the number over from sbatch.
                srun = [f"--cpus-per-task={num_cpus}"]
                values |= {"cpus_per_task": num_cpus, "slurm_srun_args": srun}
        return values


def count_in(lines: str, num_gpus: int) -> int:
    """Tasks that the nodes of a partition have room for, all else idle.

    Args:
        lines: `NODE|GRES` each, as sinfo prints them; a node may be there more than once.
        num_gpus: Of a task; 0: one task a node.
    """
    nodes = dict(line.split("|", 1) for line in lines.splitlines() if "|" in line)
    if not num_gpus:
        return len(nodes)
    counts = (sum(map(int, _GPUS.findall(gres))) for gres in nodes.values())
    return sum(count // num_gpus for count in counts)


class _Signs:
    """Changes a file again and again, for as long as this process lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self.path.unlink(missing_ok=True)

    def _work(self) -> None:
        number = 0
        while number == 0 or not self._is_over.wait(_SIGN_S):
            number += 1
            with contextlib.suppress(OSError):  # a disk that stays full ends the tasks, as it must
                write_atomic(self.path, str(number))

"""What is kept of work on another host: one document here and there, and how it stands."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.config.load import Frozen
from harness.tracking.owner import Owner

JOB_NAME = "job.json"
LOG_NAME = "output.log"
OWNER_NAME = "owner.json"
ENDED_NAME = "ended.json"
SNAPSHOT_DIR = "snapshot"
"""Below a job's folder: a copy of its database at one moment."""
REFUSED = 4
"""Exit code of a host whose code is not what was sent."""
JOB_ID = r"^[A-Za-z0-9][A-Za-z0-9.\-]*$"


class RemoteJob(Frozen):
    """One command of harness on another host. Without secrets: it lies on both disks."""

    id: str = Field(pattern=JOB_ID)
    host: str
    """As ssh takes it: a name of ssh_config, or user@address."""
    ssh_config: Path | None = None
    root: str
    """Folder on the host that holds code, inputs and jobs; relative to the home there."""
    python: str
    """Interpreter on the host, with the packages of the lock."""
    code: str
    """Digest of the code that runs."""
    arguments: tuple[str, ...]
    """After `harness`, as they run there."""
    num_gpus: int = 0
    """Free GPUs that it is shown, chosen when it starts; 0: all."""
    inputs: tuple[str, ...] = ()
    """What was sent beside the code, each with its digest."""
    passed: tuple[str, ...] = ()
    """Names of the variables whose values the host is told, and keeps in memory only."""
    created_at: str

    @property
    def dir(self) -> str:
        """Folder of the job on the host; the project folder of its command."""
        return f"{self.root}/jobs/{self.id}"

    @property
    def code_dir(self) -> str:
        """Folder of the code on the host."""
        return f"{self.root}/code/{self.code}"


class JobState(Frozen):
    """How a job stands."""

    state: Literal["new", "running", "ended", "lost"]
    """lost: its process is gone and left no exit code, as after a restart of the host."""
    code: int | None = None
    """Exit code of the command, negative for the signal that ended it."""
    num_log_bytes: int = 0
    num_attempts: int = 0
    """How often it was started."""
    started_at: str | None = None


class Started(Frozen):
    """Left by a job that was begun: whose process it is."""

    owner: Owner
    at: str


class Ended(Frozen):
    """Left by a job that came to an end."""

    code: int
    at: str

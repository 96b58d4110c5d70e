"""A sweep whose trials are jobs of submitit, on its local executor."""

import pytest

from harness.drafter.provenance import code_digest
from harness.settings import Settings
from harness.sweep.records import LOG_NAME, TrialState
from harness.tracking import names
from harness.tracking.store import open_store

from .conftest import Sweep
from .test_sweep import finish, require_accounted

pytestmark = pytest.mark.timeout(200)


def test_trials_run_as_jobs_of_a_queue(settings: Settings, start: Sweep) -> None:
    place = ("--launcher", "slurm", "--address", "local")
    finish(start("queued", *place, fixed={"epochs": 1}, n_trials=2))
    trials = require_accounted(settings, "queued", 2)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    assert [trial.num_attempts for trial in trials] == [1, 1]
    store = open_store(settings)
    for trial in trials:
        run = store.get_run(trial.facts["run_id"])
        assert run.tags[names.TAG_CODE_DIGEST] == code_digest()
        assert run.tags[names.TAG_TASK], "a job of the queue made it"
        folder = settings.sweeps_dir / "queued" / "trials" / f"{trial.number:04d}"
        assert (folder / LOG_NAME).exists()
    jobs = settings.mlruns_dir / "launch" / "slurm"
    assert not list(jobs.iterdir()), "nothing of the launcher is left"

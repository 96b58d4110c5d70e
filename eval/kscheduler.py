"""Runs inside vLLM's engine: proposes fewer tokens than the engine was started for, when told to.

Given to the server as `--scheduler-cls eval.kscheduler.RunTimeK`, with the path of a control file
in the environment. For acceptance only: on a GPU a smaller K may run outside the captured
graphs, so its speed is not that of an engine started with it.
"""

import os
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from eval.compat import K_VARIABLE


class RunTimeK(AsyncScheduler):  # type: ignore[misc]  # vLLM is untyped here
    """Schedules as vLLM does, but for the number of tokens that is drafted.

    A subclass of the asynchronous scheduler: with the plain one vLLM would give that mode up.
    """

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Reads the control file, then schedules; without a file the engine's own K holds."""
        path = Path(os.environ[K_VARIABLE])
        text = path.read_text() if path.exists() else ""
        lookup: list[int] | None = None
        if text.isdecimal():
            # Source: v1/core/sched/scheduler.py, 0.32: drafted tokens by number of requests.
            k = min(int(text), self.num_spec_tokens)
            lookup = [k] * (self.scheduler_config.max_num_seqs + 1)
        self.dynamic_sd_lookup = lookup
        return super().schedule(*args, **kwargs)

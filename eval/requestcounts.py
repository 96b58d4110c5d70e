"""Runs inside vLLM's engine before 0.29: writes down what each request's drafts came to.

Given to the server as `--scheduler-cls eval.requestcounts.make_scheduler`, with the file's path in
the environment. A count is taken where vLLM takes its own (`make_spec_decoding_stats`, which
is told the request; v1/core/sched/scheduler.py, 0.26 to 0.28), so the two sums must be equal, and
the harness asserts that they are. A request's line is in the file before its last token is sent.
"""

import json
import os
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from eval.compat import COUNTS_VARIABLE


def make_scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> Any:
    """A counting scheduler of the kind that vLLM would have taken: plain or asynchronous."""
    is_async = vllm_config.scheduler_config.async_scheduling
    kind = _AsyncCounting if is_async else _Counting
    return kind(*args, vllm_config=vllm_config, **kwargs)


class _Counts:
    """Before a scheduler class among the bases: histograms of requests under way."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        path = Path(os.environ[COUNTS_VARIABLE])
        self._stream = path.open("a", encoding="utf-8", buffering=1)
        self._histograms: dict[str, list[int]] = {}
        self._num_drafted: dict[str, int] = {}

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> Any:
        """Takes the draft down for its request, then does as vLLM does."""
        scheduler: Any = self
        if scheduler.log_stats and num_draft_tokens:
            size = scheduler.num_spec_tokens + 1
            self._histograms.setdefault(request_id, [0] * size)[num_accepted_tokens] += 1
            num_valid = num_draft_tokens - (num_invalid_spec_tokens or {}).get(request_id, 0)
            self._num_drafted[request_id] = self._num_drafted.get(request_id, 0) + num_valid
        parent: Any = super()
        return parent.make_spec_decoding_stats(
            spec_decoding_stats,
            num_draft_tokens=num_draft_tokens,
            num_accepted_tokens=num_accepted_tokens,
            num_invalid_spec_tokens=num_invalid_spec_tokens,
            request_id=request_id,
        )

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        histogram = self._histograms.pop(request.request_id, None)
        if histogram is not None:
            line = {
                "request_id": request.request_id,
                "histogram": histogram,
                "num_draft_tokens": self._num_drafted.pop(request.request_id),
            }
            self._stream.write(json.dumps(line) + "\n")
        parent: Any = super()
        return parent._free_request(request, *args, **kwargs)  # noqa: SLF001 - vLLM's own hook


class _Counting(_Counts, Scheduler):  # type: ignore[misc]  # vLLM is untyped here
    """The plain scheduler."""


class _AsyncCounting(_Counts, AsyncScheduler):  # type: ignore[misc]  # as above
    """The asynchronous one."""

"""A vLLM server as an instrument: started when needed, warmed up, cross-checked at each use."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.answers import Batch
from eval.cells import Cell, CellKey
from eval.client import ask
from eval.counters import count_answers, parse_counters, require_agreement
from eval.errors import RequestError
from eval.result import EngineRecord
from eval.server import VllmServer
from eval.spec import BenchSpec, Prompt

_SETTLE_S = 3.0
"""Counters are written when a step's output is processed, which may be after the last answer."""


class Engine:
    """One server of a measurement.

    Args:
        name: Of its log file and record.
        spec: The measurement.
        out_dir: Where its log goes.
        speculative_config: vLLM's; None for the verifier alone.
        env: Variables for this server, beside those of the spec.
        extra_args: Flags for this server, beside those of the spec.
        on_wait: Told the seconds waited while it starts.
    """

    def __init__(
        self,
        name: str,
        spec: BenchSpec,
        out_dir: Path,
        *,
        speculative_config: Mapping[str, Any] | None,
        env: Mapping[str, str] | None = None,
        extra_args: Sequence[str] = (),
        on_wait: Callable[[float], None] | None = None,
    ) -> None:
        self.name = name
        self._spec = spec
        self._server = VllmServer(
            spec.server.model_copy(
                update={
                    "env": {**spec.server.env, **(env or {})},
                    "extra_args": (*spec.server.extra_args, *extra_args),
                }
            ),
            out_dir / "logs" / f"{name}.log",
            speculative_config=speculative_config,
            on_wait=on_wait,
        )
        self._is_running = False
        self._version = "unknown"

    @property
    def server(self) -> VllmServer:
        """The running server; started and warmed up by the first use."""
        if not self._is_running:
            self._server.start()
            self._is_running = True
            self._version = json.loads(self._server.fetch("/version"))["version"]
            self._warm_up()
        return self._server

    def record(self) -> EngineRecord | None:
        """How it was started; None when it was never needed."""
        if self._server.start_s is None:
            return None
        return EngineRecord(
            name=self.name,
            command=tuple(self._server.build_command()),
            start_s=self._server.start_s,
            vllm_version=self._version,
        )

    def measure(self, key: CellKey, prompts: Sequence[Prompt]) -> Cell:
        """Asks the prompts and returns what came back, with the server's counts over that time.

        Raises:
            ServerStartError: The server went away.
            RequestError: A request failed or never ended.
            MeasurementError: The server's counts and ours disagree.
        """
        server = self.server
        before = parse_counters(server.fetch("/metrics"), server.model)
        started = time.time()
        batch = self.ask(prompts, key.concurrency)
        own = count_answers(batch.answers)
        deadline = time.monotonic() + _SETTLE_S
        while True:
            counted = parse_counters(server.fetch("/metrics"), server.model) - before
            if counted == own or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        require_agreement(own, counted)
        return Cell(
            key=key,
            answers=batch.answers,
            counters=counted,
            wall_s=batch.wall_s,
            started_unix_s=started,
            load_average=os.getloadavg()[0],
        )

    def ask(
        self,
        prompts: Sequence[Prompt],
        concurrency: int,
        extra_body: dict[str, Any] | None = None,
    ) -> Batch:
        """Asks without keeping count; a server that died is reported as such."""
        try:
            return ask(
                self.server.base_url,
                self.server.model,
                prompts,
                self._spec.sampling,
                concurrency=concurrency,
                timeout_s=self._spec.request_timeout_s,
                extra_body=extra_body,
            ).require_complete()
        except RequestError:
            time.sleep(1.0)  # a dying server refuses requests before its process is gone
            self._server.require_alive()
            raise

    def close(self) -> None:
        """Stops the server, if it was started."""
        self._server.stop()
        self._is_running = False

    def _warm_up(self) -> None:
        if count := self._spec.num_warmup:
            self.ask(self._spec.prompts[:count], max(self._spec.concurrency))

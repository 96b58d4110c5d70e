"""A vLLM server as an instrument: started when needed, warmed up, cross-checked at each use."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from eval.answers import Batch
from eval.cells import Cell, CellKey
from eval.client import ask
from eval.counters import count_answers, parse_counters, require_agreement
from eval.environment import ForeignLoad
from eval.errors import MeasurementError, RequestError, SwapRefusedError
from eval.files import write_atomic
from eval.hotswap import DEV_MODE, SWAP_ARGS, swap_drafter
from eval.plan import BASELINE_ARM, Arm
from eval.records import EngineRecord, SwapRecord
from eval.server import DYING_S, VllmServer
from eval.spec import BenchSpec, DrafterSpec, Prompt

_WARMUP_TOKENS = 16
_SETTLE_S = 3.0
"""Counters are written when a step's output is processed, which may be after the last answer."""


class Engine:
    """One server of a measurement, whose drafter may be changed in place.

    Args:
        name: Of its log file and record.
        spec: The measurement.
        out_dir: Where its log goes.
        is_swapping: Whether arms are to be changed in place; else a change starts it anew.
        on_wait: Told the arm's name and the seconds waited while it starts.
    """

    def __init__(
        self,
        name: str,
        spec: BenchSpec,
        out_dir: Path,
        *,
        is_swapping: bool = False,
        on_wait: Callable[[str, float], None] | None = None,
    ) -> None:
        self.name = name
        self.records: list[EngineRecord] = []
        """Each start of a server, in order."""
        self.swaps: list[SwapRecord] = []
        self.lifecycle_s = 0.0
        """Seconds spent in starting, warming up and stopping servers."""
        self.last_used_s = 0.0
        """Monotonic clock when it had last been asked something."""
        self._spec = spec
        self._out_dir = out_dir
        self._is_swapping = is_swapping
        self._k_path = out_dir.resolve() / f"{name}.k"
        self._on_wait = on_wait
        self._server: VllmServer | None = None
        self._begun: tuple[Arm, VllmServer] | None = None
        """What starts, and nobody has waited for."""
        self._arm = BASELINE_ARM
        self._started_with: DrafterSpec | None = None

    @property
    def is_running(self) -> bool:
        """Whether a server is up."""
        return self._server is not None

    @property
    def pid(self) -> int | None:
        """Process id of the server's supervisor."""
        return self._server.pid if self._server else None

    def begin(self, arm: Arm) -> None:
        """Starts a server for this arm, if there is none; `serve` waits for it."""
        if self._server is None and self._begun is None:
            self._begun = arm, self._build(arm)
            self._begun[1].launch()

    def serve(self, arm: Arm) -> VllmServer:
        """A server that serves this arm: the one that runs, changed in place, or a new one."""
        if self._server is not None and arm != self._arm:
            self._change(arm)
        if self._server is None:
            began = time.monotonic()
            self._start(arm)
            self.lifecycle_s += time.monotonic() - began
        if self._server is None:
            raise AssertionError("a start that returns leaves a server")
        return self._server

    def measure(self, key: CellKey, arm: Arm, prompts: Sequence[Prompt]) -> Cell:
        """Asks the prompts and returns what came back, with the server's counts over that time.

        Raises:
            ServerStartError: The server went away.
            RequestError: A request failed or never ended.
            MeasurementError: The server's counts and ours disagree.
        """
        server = self.serve(arm)
        before = parse_counters(server.fetch("/metrics"), server.model)
        others = ForeignLoad(server.pid)
        started = time.time()
        batch = self.ask(arm, prompts, key.concurrency)
        foreign_cpu_share = others.share()
        own = count_answers(batch.answers)
        deadline = time.monotonic() + _SETTLE_S
        while True:
            counted = parse_counters(server.fetch("/metrics"), server.model) - before
            if counted.agrees_with(own) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        require_agreement(own, counted)
        return Cell(
            key=key,
            answers=batch.answers,
            counters=counted,
            wall_s=batch.wall_s,
            started_unix_s=started,
            foreign_cpu_share=foreign_cpu_share,
        )

    def ask(
        self,
        arm: Arm,
        prompts: Sequence[Prompt],
        concurrency: int,
        max_tokens: int | None = None,
    ) -> Batch:
        """Asks without keeping count; a server that died is reported as such."""
        server, sampling = self.serve(arm), self._spec.sampling
        if max_tokens is not None:
            sampling = sampling.model_copy(update={"max_tokens": max_tokens})
        try:
            batch = ask(
                server.base_url,
                server.model,
                prompts,
                sampling,
                concurrency=concurrency,
                timeout_s=self._spec.request_timeout_s,
            ).require_complete()
            return server.add_counts(batch)
        except RequestError:
            server.require_alive(patience_s=DYING_S)
            raise
        finally:
            self.last_used_s = time.monotonic()

    def propose(self, k: int | None) -> None:
        """From now on proposes k tokens a step, at most what the server was started for.

        None: all of them. Only for a measurement with `acceptance_k`.
        """
        if k is None:
            self._k_path.unlink(missing_ok=True)
        else:
            write_atomic(self._k_path, str(k))

    def close(self) -> None:
        """Stops the server, if one runs or starts."""
        began = time.monotonic()
        server, self._server = self._server, None
        begun, self._begun = self._begun, None
        for each in (server, begun[1] if begun else None):
            if each is not None:
                each.stop()
        self.lifecycle_s += time.monotonic() - began

    def _change(self, arm: Arm) -> None:
        if self._server is None or self._started_with is None or arm.drafter is None:
            self.close()
            return
        if not self._is_swapping:
            self.close()
            return
        try:
            replies = swap_drafter(self._server, self._started_with, arm.drafter)
        except SwapRefusedError as error:
            self.swaps.append(SwapRecord(drafter=arm.name, refused=error.message))
            self.close()
            return
        self._arm = arm
        self.swaps.append(
            SwapRecord(
                drafter=arm.name,
                seconds=max(reply.seconds for reply in replies),
                tensors_sha256=replies[0].tensors_sha256,
                read_back=replies[0].read_back,
            )
        )

    def _build(self, arm: Arm) -> VllmServer:
        self.propose(None)
        spec = self._spec.server
        env, extra = dict(spec.env), [*spec.extra_args]
        if self._is_swapping:
            env |= DEV_MODE
            extra += SWAP_ARGS
        spec = spec.model_copy(update={"env": env, "extra_args": tuple(extra)})
        report = self._on_wait
        return VllmServer(
            spec,
            self._out_dir / "logs" / f"{self.name}.log",
            speculative_config=arm.speculative_config,
            k_path=self._k_path if self._spec.acceptance_k and arm.drafter else None,
            on_wait=(lambda seconds: report(arm.name, seconds)) if report else None,
        )

    def _start(self, arm: Arm) -> None:
        if self._begun is not None and self._begun[0] != arm:
            self.close()
        begun, self._begun = self._begun, None
        server = begun[1] if begun else self._build(arm)
        server.start()
        self._server, self._arm, self._started_with = server, arm, arm.drafter
        if server.start_s is None:
            raise MeasurementError("a server that is up has a start time")
        self.records.append(
            EngineRecord(
                name=self.name,
                arm=arm.name,
                command=tuple(server.build_command()),
                start_s=server.start_s,
                vllm_version=json.loads(server.fetch("/version"))["version"],
            )
        )
        self._warm_up(arm)

    def _warm_up(self, arm: Arm) -> None:
        """The first requests pay for lazy initialisation; a few tokens of each are enough."""
        if count := self._spec.num_warmup:
            concurrency = min(count, max(self._spec.concurrency))
            self.ask(arm, self._spec.prompts[:count], concurrency, max_tokens=_WARMUP_TOKENS)

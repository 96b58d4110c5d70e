"""The whole measurement: engines, blocks and arms in their order, then the result document.

What is measured is kept cell by cell; started again with the same spec and folder, it goes on.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from eval.assembly import Measured, build_result, is_precise
from eval.cells import Cell, CellKey, CellStore
from eval.device import resolve_server
from eval.engine import Engine
from eval.environment import describe_environment
from eval.fleet import Fleet
from eval.lossless import judge_divergences, require_equal_counts
from eval.pairing import recall_pairing
from eval.plan import BASELINE_ARM, Arm, Session, in_turns, split_blocks
from eval.progress import ProgressFn
from eval.result import BenchResult
from eval.sessions import build_sessions
from eval.spec import BenchSpec

RESULT_NAME = "result.json"


def run_bench(spec: BenchSpec, out_dir: Path, progress: ProgressFn) -> BenchResult:
    """Measures every drafter at every K and concurrency against the verifier alone.

    Args:
        spec: What to measure.
        out_dir: Folder of this measurement: cells, server logs and `result.json`. Started again
            with the same spec, finished cells are kept and a finished result is returned at once.
        progress: Told how far it is.

    Raises:
        SpecError: The folder holds another measurement.
        ServerStartError: A server did not start or went away.
        RequestError: A request failed or never ended.
        MeasurementError: Counts contradict each other.
    """
    spec = spec.model_copy(update={"server": resolve_server(spec.server)})
    store = CellStore(out_dir, spec)
    finished = out_dir / RESULT_NAME
    if finished.exists():
        result = BenchResult.load(finished)
        beside = {"max_engines": spec.max_engines, "queue_path": spec.queue_path}
        if result.spec.model_copy(update=beside) == spec:
            return result
    result = _Bench(spec, out_dir, store, progress).run()
    result.write(finished)
    return result


class _Bench:
    def __init__(
        self, spec: BenchSpec, out_dir: Path, store: CellStore, progress: ProgressFn
    ) -> None:
        self._spec = spec
        self._out_dir = out_dir
        self._store = store
        self._progress = progress
        self._cells: list[Cell] = []
        self._acceptance_cells: list[Cell] = []
        self._stops: list[str] = []
        self._num_done = 0
        self._num_expected = 0
        self._fleet = Fleet(spec, out_dir, progress)

    def run(self) -> BenchResult:
        started = time.monotonic()
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        sessions = build_sessions(self._spec)
        with ExitStack() as stack:
            stack.callback(self._fleet.queue.leave)
            baseline = self._fleet.open(stack, None)
            pairing = recall_pairing(self._spec, baseline, self._out_dir, self._fleet)
            self._num_expected = self._count_requests(sessions, pairing.order)
            if pairing.order == "interleaved":
                self._run_interleaved(sessions, baseline)
            else:
                self._run_bracketed(sessions, baseline)
            verdicts = judge_divergences(
                self._cells, lambda: self._fleet.serve(baseline, BASELINE_ARM), self._spec
            )
            baseline.close()
            checks = self._check_swaps(sessions)
            result = build_result(
                self._spec,
                Measured(
                    cells=tuple(self._cells),
                    acceptance_cells=tuple(self._acceptance_cells),
                    verdicts=verdicts,
                    pairing=pairing.order,
                    idle_cost=pairing.idle_cost,
                    stopped_because="; ".join(dict.fromkeys(self._stops)),
                    swap_checks=checks,
                    lifecycle_s=self._fleet.lifecycle_s,
                    environment=describe_environment(self._spec.server),
                    engines=tuple(r for engine in self._fleet.engines for r in engine.records),
                    swaps=tuple(s for engine in self._fleet.engines for s in engine.swaps),
                    started_at=started_at,
                    duration_s=time.monotonic() - started,
                ),
            )
            self._fleet.leave()
        return result.model_copy(update={"duration_s": time.monotonic() - started})

    def _run_interleaved(self, sessions: Sequence[Session], baseline: Engine) -> None:
        size = self._spec.max_engines - 1
        for first in range(0, len(sessions), size):
            with ExitStack() as stack:
                group = sessions[first : first + size]
                hosts = [_Host(each, self._fleet.open(stack, each)) for each in group]
                for index, (session, engine) in enumerate(hosts):
                    both = Session(name=session.name, arms=(BASELINE_ARM, *session.arms))
                    for concurrency in self._spec.concurrency:
                        later = hosts[index + 1 :]
                        self._run_blocks(_Host(both, engine), concurrency, baseline, later)
                    self._run_acceptance(session, engine)
                    engine.close()

    def _run_acceptance(self, session: Session, engine: Engine) -> None:
        """Smaller K in the engine of the largest one: counts, no times."""
        if session.arms[0].k != max(self._spec.k) or session.arms[0].drafter is None:
            return
        for k in self._spec.acceptance_k:
            for arm in session.arms:
                key = CellKey(
                    session=f"{session.name}-acceptance",
                    arm=arm.name,
                    k=k,
                    concurrency=max(self._spec.concurrency),
                    block=0,
                )
                cell = self._store.get(key)
                if cell is None:
                    self._fleet.serve(engine, arm)
                    engine.propose(k)
                    cell = engine.measure(key, arm, self._spec.prompts)
                    engine.propose(None)
                    self._store.put(cell)
                self._acceptance_cells.append(cell)

    def _run_bracketed(self, sessions: Iterable[Session], baseline: Engine) -> None:
        before, after = (
            _Host(Session(name=name, arms=(BASELINE_ARM,)), baseline)
            for name in ("before", "after")
        )
        for concurrency in self._spec.concurrency:
            self._run_blocks(before, concurrency, baseline)
        baseline.close()
        for session in sessions:
            with ExitStack() as inner:
                engine = self._fleet.open(inner, session)
                for concurrency in self._spec.concurrency:
                    self._run_blocks(_Host(session, engine), concurrency, baseline)
                self._run_acceptance(session, engine)
        for concurrency in self._spec.concurrency:
            self._run_blocks(after, concurrency, baseline)

    def _run_blocks(
        self, host: "_Host", concurrency: int, baseline: Engine, later: Sequence["_Host"] = ()
    ) -> None:
        blocks = split_blocks(self._spec.prompts, self._spec.block_size, concurrency)
        cells: list[Cell] = []
        for block, order in in_turns(host.session.arms, len(blocks)):
            keys = [host.key(arm, concurrency, block) for arm in order]
            kept = [self._store.get(key) for key in keys]
            missing = [arm for arm, cell in zip(order, kept, strict=True) if cell is None]
            self._start(missing, baseline, host.engine, later)
            for arm, key, found in zip(order, keys, kept, strict=True):
                cell = found
                if cell is None:
                    asked = baseline if arm == BASELINE_ARM else host.engine
                    self._fleet.serve(asked, arm)
                    cell = asked.measure(key, arm, blocks[block])
                    self._store.put(cell)
                cells.append(cell)
                self._report(len(blocks[block]))
            if is_precise(self._spec, cells):
                self._stops.append(f"precision reached after {block + 1} of {len(blocks)} blocks")
                break
        else:
            self._stops.append("all prompts were used")
        self._cells += cells

    def _start(
        self, arms: Sequence[Arm], baseline: Engine, engine: Engine, later: Sequence["_Host"]
    ) -> None:
        """Starts the engines that these arms need, before any of them is measured.

        At once, and with those whose turn comes later, where none would measure how much memory is
        free and find the others growing.
        """
        wanted: dict[Engine, Arm] = {}
        for arm in arms:
            wanted.setdefault(baseline if arm == BASELINE_ARM else engine, arm)
        is_sized = self._spec.server.kv_cache_bytes is not None and self._spec.server.port is None
        if wanted and is_sized:
            wanted |= {host.engine: host.session.arms[0] for host in later if self._is_new(host)}
        starting = {each: arm for each, arm in wanted.items() if not each.is_running}
        if not starting:
            return
        self._fleet.start(starting, at_once=is_sized)

    def _is_new(self, host: "_Host") -> bool:
        """Whether nothing of it was measured."""
        first = host.key(host.session.arms[0], self._spec.concurrency[0], 0)
        return self._store.get(first) is None

    def _check_swaps(self, sessions: Iterable[Session]) -> tuple[str, ...]:
        """Measures drafters that were changed in place again, in fresh engines; all must agree."""
        changed = [(session, arm) for session in sessions for arm in session.arms[1:]]
        checked = changed[: self._spec.num_swap_checks]
        for session, arm in checked:
            own = [cell for cell in self._cells if cell.key.arm == arm.name and cell.key.k == arm.k]
            first = min(own, key=lambda cell: cell.key.concurrency)
            key = first.key.model_copy(update={"session": f"check-{session.name}"})
            with ExitStack() as stack:
                check = Session(name=f"check-{arm.k}", arms=(arm,))
                engine = self._fleet.open(stack, check)
                asked = {answer.prompt_id for answer in first.answers}
                prompts = [prompt for prompt in self._spec.prompts if prompt.id in asked]
                self._fleet.serve(engine, arm)
                require_equal_counts(first, engine.measure(key, arm, prompts))
        return tuple(f"{arm.name} K={arm.k}" for _, arm in checked)

    def _count_requests(self, sessions: Iterable[Session], pairing: str) -> int:
        hosted = [len(session.arms) for session in sessions]
        passes = sum(hosted) + (len(hosted) if pairing == "interleaved" else 2)
        return passes * len(self._spec.prompts) * len(self._spec.concurrency)

    def _report(self, num_prompts: int) -> None:
        self._num_done += num_prompts
        self._progress("measuring", self._num_done, self._num_expected)


class _Host(NamedTuple):
    """A session and its engine."""

    session: Session
    engine: Engine

    def key(self, arm: Arm, concurrency: int, block: int) -> CellKey:
        """Of a block's cell."""
        name = self.session.name
        return CellKey(session=name, arm=arm.name, k=arm.k, concurrency=concurrency, block=block)

"""The engines of one measurement: started together, asked one at a time while the others rest."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from eval.engine import Engine
from eval.environment import rest_s, rest_until
from eval.machinequeue import MachineQueue
from eval.plan import Arm, Session
from eval.progress import ProgressFn
from eval.result import BASELINE
from eval.server import VllmServer
from eval.spec import BenchSpec
from eval.speedup import load_statistics


class Fleet:
    """All engines of a measurement, in the order in which they were opened.

    Args:
        spec: The measurement.
        out_dir: Where the servers' logs go.
        progress: Told what is waited for.
    """

    def __init__(self, spec: BenchSpec, out_dir: Path, progress: ProgressFn) -> None:
        self.engines: list[Engine] = []
        self.queue = MachineQueue(spec.queue_path, progress)
        self._spec, self._out_dir, self._progress = spec, out_dir, progress
        self._last: Engine | None = None
        """Used last."""

    @property
    def lifecycle_s(self) -> float:
        """Seconds of starting, warming up, stopping, and waiting for other measurements."""
        return self.queue.waited_s + sum(engine.lifecycle_s for engine in self.engines)

    def open(self, stack: ExitStack, session: Session | None) -> Engine:
        """An engine that nobody has started; None: the verifier's. The stack closes it."""
        engine = Engine(
            session.name if session else BASELINE,
            self._spec,
            self._out_dir,
            is_swapping=session is not None and len(session.arms) > 1,
            on_wait=lambda arm, seconds: self._progress(f"starting vLLM: {arm}", int(seconds), 0),
        )
        stack.callback(engine.close)
        self.engines.append(engine)
        return engine

    def start(self, wanted: Mapping[Engine, Arm], *, at_once: bool = False) -> None:
        """Starts engines while no other measurement is under way; if one fails, all are ended."""
        self.leave()
        with self.queue.starting():
            try:
                for engine, arm in wanted.items() if at_once else ():
                    engine.begin(arm)
                load_statistics()  # now, since there is nothing else to do
                for engine, arm in wanted.items():
                    engine.serve(arm)
                    self._last = engine
                if self.queue.is_shared:
                    self._rest()
            except BaseException:
                for engine in wanted:
                    engine.close()
                raise

    def serve(self, engine: Engine, arm: Arm) -> VllmServer:
        """A server of the arm, when it is our turn and the engine used before is idle."""
        if not engine.is_running:
            self.start({engine: arm})
        self.queue.enter()
        server = engine.serve(arm)
        if self._last is not engine:
            self._rest()
        self._last = engine
        return server

    def leave(self) -> None:
        """Lets other measurements go on, once ours disturbs them no more."""
        if self.queue.is_ours:
            self._rest()
        self.queue.leave()

    def _rest(self) -> None:
        """Waits until the engine that was used last is idle."""
        if self._last is not None and self._last.is_running:
            rest_until(self._last.last_used_s + rest_s(self._spec.server))

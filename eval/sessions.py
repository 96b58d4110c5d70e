"""Which arms share an engine, and how such an engine is started."""

from collections.abc import Callable
from pathlib import Path

from eval.engine import Engine
from eval.plan import Session, build_arms
from eval.spec import BenchSpec


def build_sessions(spec: BenchSpec) -> tuple[Session, ...]:
    """One session for each K and group of arms that one engine can host."""
    sessions: list[Session] = []
    for k in spec.k:
        for arm in build_arms(spec, k):
            sessions.append(Session(name=f"k{k}-{len(sessions)}", arms=(arm,)))
    return tuple(sessions)


def open_engine(
    spec: BenchSpec,
    out_dir: Path,
    session: Session | None,
    progress: Callable[[str, int, int], None],
) -> Engine:
    """An engine for a session, or for the verifier alone; it starts at its first use."""
    name = session.name if session else "baseline"
    label = session.arms[0].name if session else "verifier alone"
    return Engine(
        name,
        spec,
        out_dir,
        speculative_config=session.arms[0].speculative_config if session else None,
        on_wait=lambda seconds: progress(f"starting vLLM: {label}", int(seconds), 0),
    )

"""What the decision log says of a model: who was champion, what is open, what was approved.

Pure functions over the lines of the log; nothing here asks the store.
"""

from collections.abc import Sequence

from harness.tracking.decisions import Decision

_MOVES = ("promoted", "rolled_back", "settled")


def champions(decisions: Sequence[Decision], model: str) -> tuple[int, ...]:
    """The champions that a rollback can go back to, the present one last.

    A promotion adds one, a rollback takes off what came after the version it went back to.
    """
    stack: list[int] = []
    for decision in decisions:
        if decision.model != model or decision.action not in _MOVES:
            continue
        if decision.to_version is None:
            stack.clear()
        elif decision.action != "promoted" and decision.to_version in stack:
            del stack[len(stack) - stack[::-1].index(decision.to_version) :]
        elif stack[-1:] != [decision.to_version]:
            stack.append(decision.to_version)
    return tuple(stack)


def logged_champion(decisions: Sequence[Decision], model: str) -> int | None:
    """The version that the log says is champion."""
    return next(iter(champions(decisions, model)[::-1]), None)


def logged_models(decisions: Sequence[Decision]) -> tuple[str, ...]:
    """The models whose alias the log says was moved, sorted."""
    return tuple(sorted({d.model for d in decisions if d.action in _MOVES}))


def recorded_versions(decisions: Sequence[Decision], model: str) -> frozenset[int]:
    """Every version that ever was champion."""
    moved = [d.to_version for d in decisions if d.model == model and d.action in _MOVES]
    return frozenset(version for version in moved if version is not None)


def weights_of(decisions: Sequence[Decision], model: str, version: int) -> str | None:
    """Root digest of the weights with which a version was last made champion."""
    for decision in reversed(decisions):
        is_move = decision.model == model and decision.action in _MOVES
        if is_move and decision.to_version == version:
            return decision.weights_digest
    return None


def pending(decisions: Sequence[Decision]) -> Decision | None:
    """A move that was begun and not ended: its process died, or holds the lock now."""
    return decisions[-1] if decisions and decisions[-1].is_begun else None


def open_proposal(decisions: Sequence[Decision], draft: Decision) -> Decision | None:
    """The latest proposal or approval of the very weights under the very policy.

    One that the champion's move, or a refusal of these weights, came after counts no more.
    """
    for decision in reversed(decisions):
        if decision.model != draft.model:
            continue
        if decision.action in _MOVES:
            return None
        is_same = (decision.weights_digest, decision.policy_digest, decision.from_version) == (
            draft.weights_digest,
            draft.policy_digest,
            draft.from_version,
        )
        if is_same and decision.action == "refused":
            return None
        if is_same and decision.action in {"proposed", "approved"}:
            return decision
    return None

"""Rules on the draft vocabulary's tables: d2t as offsets, t2d as its mask (S4, S6).

R draft vocabulary, V verifier vocabulary.

Whether a table of rising numbers holds offsets or absolute ids is decided by t2d where there is
one. Else it is called absolute only if it cannot be offsets (ids beyond V), or if no two of its
ids would be neighbours where R random ones of V would have none with a chance below 1e-10.
"""

from math import exp

import numpy as np
import numpy.typing as npt

from harness.drafter.drafter import Drafter
from harness.drafter.findings import Finding
from harness.drafter.values import read_tensor

Ids = npt.NDArray[np.int64]

Mask = npt.NDArray[np.bool_]

_MOST_CHANCE = 1e-10


def check_tables(drafter: Drafter) -> list[Finding]:
    """d2t as int64 offsets to distinct, increasing verifier ids; t2d their mask."""
    d2t_header, t2d_header = drafter.find("d2t"), drafter.find("t2d")
    if d2t_header is None or d2t_header.dtype != "I64":
        return []
    d2t: Ids = read_tensor(drafter.path, d2t_header)
    if d2t.ndim != 1 or not len(d2t):
        return []
    t2d: Mask | None = None
    if t2d_header is not None and t2d_header.shape == (drafter.vocab_size,):
        t2d = read_tensor(drafter.path, t2d_header).astype(bool)
    if _is_absolute(d2t, t2d, drafter.vocab_size):
        return [_absolute(d2t)]
    findings = _check_offsets(d2t, drafter.vocab_size)
    if t2d is not None and not findings:
        findings = _check_mask(d2t, t2d)
    return findings


def target_ids(drafter: Drafter) -> Ids:
    """Verifier id of each draft id, shape [R]; the identity without a table."""
    base: Ids = np.arange(drafter.draft_vocab_size, dtype=np.int64)
    header = drafter.find("d2t")
    return base if header is None else base + read_tensor(drafter.path, header)


def _is_absolute(d2t: Ids, t2d: Mask | None, vocab_size: int) -> bool:
    """Whether the table holds verifier ids themselves; never true of a table of legal offsets.

    Offsets rise from row to row only where two ids are no neighbours. Of R ids drawn from V, none
    are with a chance of at most exp(-R (R - 1) / V); those of frequent tokens even less.
    """
    num_rows = len(d2t)
    is_inside = d2t.min() >= 0 and d2t.max() < vocab_size
    if num_rows < 2 or not is_inside or (np.diff(d2t) <= 0).any():  # noqa: PLR2004 - a first row is both
        return False
    if t2d is not None:
        as_ids = np.zeros(vocab_size, dtype=bool)
        as_ids[d2t] = True
        return bool((as_ids == t2d).all())
    is_beyond = int(d2t[-1]) + num_rows > vocab_size
    return is_beyond or exp(-num_rows * (num_rows - 1) / vocab_size) < _MOST_CHANCE


def _absolute(d2t: Ids) -> Finding:
    return _table(
        "S6", "d2t", "offsets: target = i + d2t[i]",
        f"absolute ids ({d2t[0]}, ... {d2t[-1]})",
        "vLLM adds i to each: every draft token is taken for another one.",
        "subtract arange(draft_vocab_size) from the table",
    )  # fmt: skip


def _check_offsets(d2t: Ids, vocab_size: int) -> list[Finding]:
    targets = np.arange(len(d2t)) + d2t
    outside = (targets < 0) | (targets >= vocab_size)
    is_increasing = bool((np.diff(targets) > 0).all())
    if outside.any():
        row = int(np.argmax(outside))
        return [
            _table("S6", "d2t", f"targets in 0..{vocab_size - 1}",
                   f"{int(targets[row])} at draft id {row} ({int(outside.sum())} in all)",
                   "vLLM indexes out of range.", "take d2t from the trainer's own checkpoint")
        ]  # fmt: skip
    if not is_increasing:
        row = int(np.argmax(np.diff(targets) <= 0))
        word = "ids twice" if len(np.unique(targets)) < len(targets) else "ids out of order"
        return [
            _table("S6", "d2t", "strictly increasing targets",
                   f"{word}: {int(targets[row])}, {int(targets[row + 1])} at draft id {row}",
                   "lm_head rows are taken for other tokens than they were trained for.",
                   "take d2t and lm_head from one checkpoint")
        ]  # fmt: skip
    if not d2t.any():
        return [
            _table("S4", "d2t", "offsets of the frequent ids", "zeros: the first ids",
                   "Draft id i is verifier id i, as if the table had never been filled.",
                   "take d2t from the trainer's own checkpoint")
        ]  # fmt: skip
    return []


def _check_mask(d2t: Ids, t2d: npt.NDArray[np.bool_]) -> list[Finding]:
    mask = np.zeros(len(t2d), dtype=bool)
    mask[np.arange(len(d2t)) + d2t] = True
    wrong = int(np.count_nonzero(mask != t2d.astype(bool)))
    if not wrong:
        return []
    return [
        _table("S6", "t2d", f"true at the {len(d2t)} targets of d2t",
               f"{int(t2d.sum())} true, {wrong} ids differ",
               "Training and SGLang read t2d: they mean other tokens than vLLM, which reads d2t.",
               "rebuild the one from the other, after finding out which belongs to lm_head")
    ]  # fmt: skip


def _table(  # noqa: PLR0917 - the columns of a finding, in the order of its document
    rule: str, subject: str, expected: str, found: str, consequence: str, fix: str
) -> Finding:
    return Finding(
        rule=rule, severity="error", subject=subject, expected=expected, found=found,
        consequence=consequence, fix=fix,
    )  # fmt: skip

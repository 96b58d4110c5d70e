"""Rules on values: finite, not constant, not fresh from an initialiser, an embedding that fits.

Tensors are streamed in pieces, whatever their size; statistics come from an even sample.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.drafter.drafter import Drafter
from harness.drafter.findings import Finding, Severity
from harness.drafter.keys import plain_name
from harness.drafter.tensors import TensorHeader
from harness.drafter.values import FLOATS, as_float32, iter_chunks, read_rows
from harness.drafter.verifier import Verifier

_SAMPLES_PER_CHUNK = 1 << 17
_MIN_FRESH_ELEMENTS = 4096
_INIT_STD = 0.02
"""transformers' default initializer_range, which Llama-type models draw their matrices with."""
_STD_TOLERANCE, _SHAPE_TOLERANCE = 0.02, 0.08
_NORMAL_KURTOSIS, _UNIFORM_KURTOSIS = 3.0, 1.8
_EMBED_ROWS = 512
_UNRELATED_COSINE, _SAME_COSINE = 0.2, 0.95


class _Values(NamedTuple):
    """What one pass over a tensor showed."""

    num_bad: int
    is_constant: bool
    sample: npt.NDArray[np.float32]


def check_values(drafter: Drafter) -> list[Finding]:
    """Non-finite and constant tensors (errors), tensors that look freshly initialised (warning)."""
    findings: list[Finding] = []
    fresh = []
    for key, header in drafter.tensors.items():
        name = plain_name(key)
        if header.dtype not in FLOATS or not header.num_elements:
            continue
        values = _scan(drafter, header)
        if values.num_bad:
            findings.append(_non_finite(name, values.num_bad))
        elif values.is_constant and _is_wrong_constant(name, header, values.sample):
            findings.append(_constant(name, float(values.sample[0])))
        elif len(header.shape) > 1 and _looks_fresh(header, values.sample):
            fresh.append(name)
    return findings + ([_fresh(fresh)] if fresh else [])


def check_embedding(drafter: Drafter, verifier: Verifier) -> list[Finding]:
    """The drafter's own copy of the embedding against the verifier's, row by row (S8)."""
    mine = drafter.find("embed_tokens.weight")
    if mine is None or verifier.embed_key is None:
        return []
    theirs = verifier.header(verifier.embed_key)
    if mine.shape != theirs.shape or not {mine.dtype, theirs.dtype} <= FLOATS:
        return []
    rows = np.linspace(0, mine.shape[0] - 1, min(_EMBED_ROWS, mine.shape[0])).astype(np.int64)
    left, right = read_rows(drafter.path, mine, rows), read_rows(verifier.path, theirs, rows)
    cosine = float(np.median(row_cosines(left, right)))
    if cosine >= _SAME_COSINE:
        return []
    severity: Severity = "error" if cosine < _UNRELATED_COSINE else "warning"
    return [
        Finding(
            rule="S8", severity=severity, subject="embed_tokens.weight",
            expected="rows close to the verifier's", found=f"median cosine {cosine:.2f}",
            consequence="vLLM uses this copy and not the verifier's embedding.",
            fix="leave embed_tokens out unless it was trained; then vLLM shares the verifier's",
        )
    ]  # fmt: skip


def row_cosines(
    left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Cosine of each pair of rows; a zero row has cosine 0 with everything."""
    dots = np.einsum("rh,rh->r", left, right)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines: npt.NDArray[np.float32] = np.divide(
        dots, norms, out=np.zeros_like(dots), where=norms > 0
    )
    return cosines


def _scan(drafter: Drafter, header: TensorHeader) -> _Values:
    num_bad, is_constant, first = 0, True, None
    samples = []
    for chunk in iter_chunks(drafter.path, header):
        num_bad += _count_bad(chunk, header.dtype)
        first = chunk[0] if first is None else first
        is_constant = is_constant and bool((chunk == first).all())
        step = max(1, len(chunk) // _SAMPLES_PER_CHUNK)
        samples.append(as_float32(chunk[::step], header.dtype))
    return _Values(num_bad, is_constant, np.concatenate(samples))


def _count_bad(chunk: npt.NDArray[Any], dtype: str) -> int:
    """NaN and infinities; BF16 has them where all eight exponent bits are set."""
    if dtype == "BF16":
        return int(np.count_nonzero((chunk & np.uint16(0x7F80)) == np.uint16(0x7F80)))
    return int(chunk.size - np.count_nonzero(np.isfinite(chunk)))


def _is_wrong_constant(name: str, header: TensorHeader, sample: npt.NDArray[np.float32]) -> bool:
    """A matrix is never constant; a norm may be all ones, a bias all zeros, as they start so."""
    if header.num_elements == 1 or name.endswith(".bias"):
        return False
    return len(header.shape) > 1 or float(sample[0]) == 0.0


def _looks_fresh(header: TensorHeader, sample: npt.NDArray[np.float32]) -> bool:
    """Whether the values have the moments of a usual initialiser: N(0, 0.02) or torch's uniform."""
    if sample.size < _MIN_FRESH_ELEMENTS:
        return False
    std = float(sample.std(dtype=np.float64))
    if std == 0 or abs(float(sample.mean(dtype=np.float64))) > 0.1 * std:
        return False
    squares = np.square(sample / np.float32(std))
    kurtosis = float(np.mean(np.square(squares), dtype=np.float64))
    uniform_std = header.shape[-1] ** -0.5 / 3**0.5
    is_normal = _is_near(std, _INIT_STD, _STD_TOLERANCE) and _is_near(
        kurtosis, _NORMAL_KURTOSIS, _SHAPE_TOLERANCE
    )
    is_uniform = _is_near(std, uniform_std, _STD_TOLERANCE) and _is_near(
        kurtosis, _UNIFORM_KURTOSIS, _SHAPE_TOLERANCE
    )
    return is_normal or is_uniform


def _is_near(value: float, target: float, tolerance: float) -> bool:
    return abs(value - target) <= tolerance * target


def _non_finite(name: str, count: int) -> Finding:
    return Finding(
        rule="non-finite", severity="error", subject=name, expected="finite values",
        found=f"{count} NaN or infinite",
        consequence="Drafts are garbage; in vLLM even the verifier's output was seen to change.",
        fix="take an earlier checkpoint; look for the step where the loss became NaN",
    )  # fmt: skip


def _constant(name: str, value: float) -> Finding:
    return Finding(
        rule="constant", severity="error", subject=name, expected="trained values",
        found=f"{value:g} throughout", consequence="The tensor was never filled.",
        fix="export the drafter again from its checkpoint",
    )  # fmt: skip


def _fresh(names: list[str]) -> Finding:
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")  # noqa: PLR2004 - four names fit a line
    return Finding(
        rule="fresh", severity="warning", subject=shown, expected="trained values",
        found="the moments of a fresh initialisation",
        consequence="The tensor was probably never trained, or lost and drawn anew by a converter.",
        fix="compare with --parent, or convert again from the original",
    )  # fmt: skip

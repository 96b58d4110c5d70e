"""The document of a comparison, which `harness compare --json` prints. Absent is None, not zero."""

from eval.conditions import Unlike
from eval.paired import PairedDifference
from eval.result import Interval
from harness.compare.differences import KeyDifference
from harness.config.load import Frozen

SCHEMA_VERSION = 1
_FLAGGED = "; its times are flagged, see the warnings"


class Compared(Frozen):
    """One drafter; what is not known is None."""

    label: str
    reference: str
    digest: str | None
    run_id: str | None
    """Of its training."""
    model_id: str | None
    measured_in: str | None
    """Name of the bench or replay run, or the path of the document."""
    measurement_run_id: str | None
    is_timed: bool
    """Whether a bench measured it; a replay tells acceptance alone."""
    validation: dict[str, float]
    """What its training found of this checkpoint."""
    cautions: tuple[str, ...]
    """What a reader must know before believing its figures."""


class Figures(Frozen):
    """What was measured of one drafter, in one category or over all prompts."""

    label: str
    k: int
    concurrency: int | None
    category: str
    num_prompts: int
    acceptance_length: Interval | None
    acceptance_rate_at: tuple[float, ...]
    decode_speedup: Interval | None
    baseline_tpot_ms: Interval | None = None
    """Time per token of the verifier alone; None where nothing was timed."""
    tpot_ms: Interval | None = None
    num_equal: int | None = None
    """Answers equal to the baseline's, of `num_compared`; None where that was not compared."""
    num_compared: int | None = None


class Pair(Frozen):
    """Two drafters, prompt by prompt: over all prompts, then by category."""

    first: str
    second: str
    k: int
    concurrency: int | None
    """Of the first; None: replayed."""
    second_k: int
    second_concurrency: int | None
    """Other than those of the first only when that was forced."""
    is_together: bool
    """Whether one bench measured both: the same engines, the same minutes."""
    is_flagged: bool
    """Whether a row of either has a flag: see the cautions of both."""
    speed: str | None
    """In words; None where it was not measured."""
    acceptance: str
    differences: tuple[PairedDifference, ...]

    @property
    def claim(self) -> str | None:
        """What is said of speed, with a caution where it rests on times that are flagged."""
        return f"{self.speed}{_FLAGGED}" if self.speed and self.is_flagged else self.speed


class Comparison(Frozen):
    """The document of `harness compare --json`."""

    schema_version: int = SCHEMA_VERSION
    subjects: tuple[Compared, ...]
    unlike: tuple[Unlike, ...]
    """Conditions in which the measurements differ; not empty only when that was forced."""
    conditions: dict[str, str]
    """Of the first one's measurement; of all where `unlike` is empty."""
    params: tuple[KeyDifference, ...]
    provenance: tuple[KeyDifference, ...]
    figures: tuple[Figures, ...]
    pairs: tuple[Pair, ...]

    def headline(self) -> tuple[Pair, ...]:
        """Each two drafters once: at the lowest concurrency, at the K where the first is best."""
        first: dict[tuple[str, str], Pair] = {}
        for pair in self.pairs:
            first.setdefault((pair.first, pair.second), pair)
        return tuple(first.values())

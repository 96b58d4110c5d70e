"""What a replay found: one typed JSON document. Absent is None, never zero."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, ValidationError

from eval.counters import AcceptanceCounts
from eval.errors import SpecError
from eval.files import write_atomic
from eval.result import ALL, Interval
from eval.spec import Frozen
from eval.walk import Walk

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
TokenKind = Literal["prefill", "accepted", "verifier"]
"""Where a token of an answer comes from: the prompt's pass, the drafter, the verifier's step."""


class PromptReplay(Frozen):
    """One prompt: sums over its answers. The unit of every interval."""

    id: str
    category: str
    num_tokens: int
    """Answer tokens."""
    walks: tuple[Walk, ...]
    """By K - 1, for each K up to the largest."""
    everywhere: AcceptanceCounts
    """As if every entry had drafted, at the largest K."""
    ceiling: Walk
    """The walk of a drafter that is right wherever its vocabulary has the token, at the largest
    K."""


class ReplayRow(Frozen):
    """One drafter at one K, in one category or over all prompts pooled."""

    k: int
    category: str
    num_prompts: int
    acceptance: AcceptanceCounts
    acceptance_length: Interval | None
    """1 + accepted / drafts of the walk: what a server counts. None when nothing was drafted."""
    acceptance_length_emitted: Interval | None
    """Tokens that drafts emitted / drafts: without what was accepted past the end."""
    acceptance_rate_at: tuple[float, ...]
    everywhere: AcceptanceCounts
    everywhere_length: Interval | None
    """1 + accepted / entries over all positions: what a trainer sees."""
    everywhere_rate_at: tuple[float, ...]
    ceiling: float | None
    """Acceptance length that the draft vocabulary allows at the largest K; None at smaller ones."""


class PositionRow(Frozen):
    """Entries of one kind, over all prompts: how far they get at the largest K."""

    label: str
    num_entries: int
    share: float
    """Of all entries."""
    length: float
    """1 + accepted steps / entries."""
    rate_at: tuple[float, ...]


class Piece(Frozen):
    """One token of an example as text."""

    text: str
    kind: TokenKind


class Example(Frozen):
    """One answer, token by token, as served at the largest K."""

    prompt_id: str
    category: str
    acceptance_length: float
    pieces: tuple[Piece, ...]


class GreedyCheck(Frozen):
    """Whether the answers are the verifier's own greedy ones, by its last hidden states."""

    num_checked: int
    num_equal: int

    @property
    def share_unequal(self) -> float | None:
        """Of the checked tokens, those that the verifier would not have said; None: of no token."""
        return 1 - self.num_equal / self.num_checked if self.num_checked else None


class DrafterReplay(Frozen):
    """All that was found of one drafter."""

    drafter: str
    digest: str | None
    rows: tuple[ReplayRow, ...]
    by_position: tuple[PositionRow, ...]
    """By place in the answer."""
    by_token: tuple[PositionRow, ...]
    """By whether the next token is in the draft vocabulary."""
    prompts: tuple[PromptReplay, ...]
    examples: tuple[Example, ...] = ()
    """The worst, then the best."""
    replay_s: float

    def pooled(self, k: int | None = None) -> ReplayRow:
        """The row over all prompts; None: at the largest K."""
        rows = [row for row in self.rows if row.category == ALL and k in (None, row.k)]
        return max(rows, key=lambda row: row.k)


class ReplayResult(Frozen):
    """Drafters replayed over the same answers of one verifier."""

    schema_version: int = SCHEMA_VERSION
    source: str
    """What was replayed: a corpus, a prompts file, a measurement."""
    source_digest: str
    verifier: str
    verifier_digest: str
    k: int
    dtype: str
    confidence: float = 0.95
    """Of the intervals."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Where it was computed, and from what: text by name."""
    num_sequences: int
    num_tokens: int
    num_answer_tokens: int
    is_past_end_known: bool
    """Whether what vLLM accepts past the end of an answer is counted, as vLLM does."""
    greedy: GreedyCheck
    drafters: tuple[DrafterReplay, ...]
    states_s: float | None
    """Seconds for the verifier's answers and states; None where they were there."""
    load_s: float

    def to_frame(self) -> "pd.DataFrame":
        """One row a drafter, prompt and K."""
        import pandas as pd  # noqa: PLC0415 - a second of import that few callers need

        return pd.DataFrame(
            {
                "drafter": drafter.drafter,
                "prompt_id": prompt.id,
                "category": prompt.category,
                "k": k,
                "num_tokens": prompt.num_tokens,
                "num_drafts": walk.acceptance.num_drafts,
                "num_accepted": walk.acceptance.num_accepted,
                "num_emitted": walk.num_emitted,
            }
            for drafter in self.drafters
            for prompt in drafter.prompts
            for k, walk in enumerate(prompt.walks, 1)
        )

    def save(self, path: Path) -> None:
        """Writes the document, whole or not at all."""
        write_atomic(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a document.

        Raises:
            SpecError: It is none of this schema.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise SpecError(f"{path}: no replay result of this version: {error}") from error

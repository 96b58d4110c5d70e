"""Which candidates a corpus may be made of: each filter in turn, each refusal with its reason."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from eval.progress import ProgressFn
from eval.spec import Prompt
from harness.config.prompts import FilterConfig
from harness.corpus.duplicates import NearIndex
from harness.corpus.prompts import normalise
from harness.corpus.sources import Candidate, Dropped
from harness.corpus.template import ChatTemplate

_BATCH_TEXTS = 1024
Judge = Callable[[Candidate], tuple[str, str] | None]
"""The reason and the detail of a refusal, or None."""


class Room(NamedTuple):
    """What the verifier's context leaves."""

    context_tokens: int | None
    answer_tokens: int
    """Kept free for each answer."""


class Selection:
    """Candidates that passed every filter so far, and those that did not.

    The order of the filters is the order of the methods' calls; each reads what the one before
    left. Reasons are words, to be counted by.
    """

    def __init__(self, progress: ProgressFn) -> None:
        self.kept: list[Candidate] = []
        self.dropped: list[Dropped] = []
        self._progress = progress

    def take(self, rows: Iterable[Candidate | Dropped]) -> None:
        """Rows as a source gives them."""
        for row in rows:
            if isinstance(row, Dropped):
                self.dropped.append(row)
            else:
                self.kept.append(row)

    def drop_repeated_ids(self) -> None:
        """Of two rows with one id the first is kept: answers are found again by id."""
        first: dict[str, Candidate] = {}

        def judge(candidate: Candidate) -> tuple[str, str] | None:
            is_first = first.setdefault(candidate.id, candidate) is candidate
            return None if is_first else ("same_id", "an earlier row has this id")

        self._keep(judge)

    def drop_languages(self, filters: FilterConfig) -> None:
        """What is, with `language_confidence`, in none of the languages."""
        if not filters.languages:
            return
        # Late: it loads a model that no other stage needs.
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415

        identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

        def judge(candidate: Candidate) -> tuple[str, str] | None:
            language, probability = identifier.classify("\n".join(candidate.turns))
            is_wanted = language in filters.languages
            if is_wanted or probability < filters.language_confidence:
                return None
            return "language", f"{language} with probability {probability:.2f}"

        self._keep(judge, "languages")

    def drop_lengths(self, filters: FilterConfig, template: ChatTemplate, room: Room) -> None:
        """What is shorter or longer than wanted, or leaves its answers no room in the context."""
        lengths: dict[str, int] = {}
        around = template.num_tokens_per_turn + room.answer_tokens
        for start in range(0, len(self.kept), _BATCH_TEXTS):
            batch = self.kept[start : start + _BATCH_TEXTS]
            counts = template.count_tokens([text for c in batch for text in _texts(c)])
            for candidate in batch:
                lengths[candidate.id] = sum(next(counts) for _ in _texts(candidate))
            self._progress("lengths", start + len(batch), len(self.kept))

        def judge(candidate: Candidate) -> tuple[str, str] | None:
            found, num_turns = lengths[candidate.id], len(candidate.turns)
            if found < filters.min_tokens:
                return "too_short", f"expected {filters.min_tokens} tokens, found {found}"
            if filters.max_tokens and found > filters.max_tokens:
                return "too_long", f"expected at most {filters.max_tokens} tokens, found {found}"
            whole = found + num_turns * around
            if room.context_tokens and whole > room.context_tokens:
                text = f"{found} tokens in {num_turns} turns and their answers need {whole}"
                return "context", f"{text}, the context has {room.context_tokens}"
            return None

        self._keep(judge)

    def drop_overlap(self, evaluation: Sequence[Prompt], filters: FilterConfig) -> list[Dropped]:
        """What an evaluation asks too, in equal, nearly equal or partly equal words."""
        judge = _Overlap(evaluation, filters)
        first = len(self.dropped)
        self._keep(judge.find, "overlap with evaluation")
        return self.dropped[first:]

    def drop_duplicates(self, threshold: float | None) -> None:
        """All but the first of equal prompts, and of near ones where a threshold is given."""
        equal: dict[str, str] = {}
        index = NearIndex(threshold) if threshold else None

        def judge(candidate: Candidate) -> tuple[str, str] | None:
            key = "\n".join(map(normalise, candidate.turns))
            first = equal.setdefault(key, candidate.id)
            if first != candidate.id:
                return "duplicate", first
            near = index.add(candidate.id, key) if index else None
            return ("near_duplicate", near) if near else None

        self._keep(judge, "duplicates")

    def _keep(self, judge: Judge, stage: str | None = None) -> None:
        candidates, self.kept = self.kept, []
        for done, candidate in enumerate(candidates, start=1):
            if refusal := judge(candidate):
                reason, detail = refusal
                self.dropped.append(Dropped(id=candidate.id, reason=reason, detail=detail))
            else:
                self.kept.append(candidate)
            if stage:
                self._progress(stage, done, len(candidates))


def _texts(candidate: Candidate) -> tuple[str, ...]:
    """All that is asked; the system message is no question, but it takes room."""
    return (candidate.system or "", *candidate.turns)


class _Overlap:
    """Finds the evaluation prompt that a candidate shares words with."""

    def __init__(self, evaluation: Sequence[Prompt], filters: FilterConfig) -> None:
        self._num_words = filters.shared_words
        self._equal: dict[str, str] = {}
        self._runs: dict[str, str] = {}
        self._near = NearIndex(filters.near_duplicates) if filters.near_duplicates else None
        for prompt in evaluation:
            for turn in prompt.turns:
                self._equal.setdefault(normalise(turn), prompt.id)
                for run in self._runs_of(turn):
                    self._runs.setdefault(run, prompt.id)
                if self._near:
                    self._near.add(prompt.id, turn)

    def find(self, candidate: Candidate) -> tuple[str, str] | None:
        """The reason, and how evaluation and candidate meet."""
        for turn in candidate.turns:
            if found := self._equal.get(normalise(turn)):
                return "in_evaluation", f"= {found}: {turn[:70]}"
            for run in self._runs_of(turn):
                if found := self._runs.get(run):
                    return "in_evaluation", f"shares with {found}: {run[:70]}"
            if self._near and (found := self._near.find(turn)):
                return "in_evaluation", f"near {found}: {turn[:70]}"
        return None

    def _runs_of(self, turn: str) -> Iterator[str]:
        if self._num_words is None:
            return
        words = normalise(turn).split()
        for start in range(len(words) - self._num_words + 1):
            yield " ".join(words[start : start + self._num_words])

"""How much of each source: shares of the tokens that the verifier will generate, not of prompts.

Short questions end early: a mixture by prompts would be one of long answers alone.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.config.load import Frozen
from harness.config.prompts import PromptsConfig, SourceConfig
from harness.corpus.conversations import load_conversations
from harness.corpus.sources import Candidate
from harness.corpus.template import ChatTemplate
from harness.errors import ConfigError


class Portion(Frozen):
    """What one source gives to the mixture."""

    source: str
    num_candidates: int
    """Prompts that passed every filter."""
    num_prompts: int
    """Of them, in the mixture."""
    answer_tokens: float | None
    """Generated tokens of a prompt on average, all its turns; None where it does not matter."""
    share: float | None
    """Of the generated tokens."""

    @property
    def num_tokens(self) -> int | None:
        """Generated tokens to expect."""
        return None if self.answer_tokens is None else round(self.num_prompts * self.answer_tokens)


def mix(
    config: PromptsConfig, candidates: Sequence[Candidate], template: ChatTemplate
) -> tuple[list[Candidate], list[Portion]]:
    """Chooses prompts so that generated tokens come from the sources as their weights say.

    The choice and the order are by a hash of seed and id: a larger `num_tokens` adds to a smaller
    one, and the first half of the mixture is a mixture, too.

    Raises:
        ConfigError: Nothing says how long the answers to a source are, or a source is empty.
    """
    by_source: dict[str, list[Candidate]] = {source.label: [] for source in config.sources}
    for candidate in _shuffled(candidates, config.seed):
        by_source[candidate.source].append(candidate)
    means = _mean_lengths(config, by_source, template) if config.is_mixed else {}
    wanted = _count(config, by_source, means)
    chosen = [c for label, group in by_source.items() for c in group[: wanted[label]]]
    total = sum(wanted[label] * mean for label, mean in means.items())
    portions = [
        Portion(
            source=label,
            num_candidates=len(group),
            num_prompts=wanted[label],
            answer_tokens=means.get(label),
            share=wanted[label] * means[label] / total if total else None,
        )
        for label, group in by_source.items()
    ]
    return _shuffled(chosen, config.seed), portions


def _shuffled(candidates: Iterable[Candidate], seed: int) -> list[Candidate]:
    return sorted(candidates, key=lambda c: hashlib.sha256(f"{seed}:{c.id}".encode()).digest())


def _count(
    config: PromptsConfig, by_source: dict[str, list[Candidate]], means: dict[str, float]
) -> dict[str, int]:
    """Prompts of each source; the source that has the least for its weight bounds all."""
    if not config.is_mixed:
        return {label: len(group) for label, group in by_source.items()}
    weights = {
        source.label: source.weight or len(by_source[source.label]) * means[source.label]
        for source in config.sources
    }
    whole = sum(weights.values())
    total = min(
        len(by_source[label]) * means[label] * whole / weight for label, weight in weights.items()
    )
    if config.num_tokens is not None:
        total = min(total, config.num_tokens)
    return {
        label: min(len(by_source[label]), round(total * weight / whole / means[label]))
        for label, weight in weights.items()
    }


def _mean_lengths(
    config: PromptsConfig, by_source: dict[str, list[Candidate]], template: ChatTemplate
) -> dict[str, float]:
    pilot = _read_pilot(Path(config.pilot)) if config.pilot else {}
    means: dict[str, float] = {}
    for source in config.sources:
        group = by_source[source.label]
        if not group:
            raise ConfigError(
                f"{source.label}: expected prompts to mix, found none that passed the filters",
                "look into dropped.jsonl of a run without weights, or leave the source out",
            )
        means[source.label] = _mean_length(source, group, pilot, template, config.max_answer_tokens)
    return means


def _mean_length(
    source: SourceConfig,
    group: Sequence[Candidate],
    pilot: dict[str, list[int]],
    template: ChatTemplate,
    most: int,
) -> float:
    """What was said in the configuration, else measured by the pilot, else the set's own."""
    if source.answer_tokens:
        return source.answer_tokens
    if found := pilot.get(source.label):
        return sum(found) / len(found)
    answered = [candidate for candidate in group if candidate.answers]
    if not answered:
        raise ConfigError(
            f"{source.label}: expected to know how long its answers are, found no answer_tokens, "
            "no conversation of it in `pilot` and no answers in the set itself",
            "regenerate some hundred of its prompts and name that folder as pilot, or give "
            "answer_tokens",
        )
    counts = template.count_tokens([answer for c in answered for answer in c.answers])
    return max(1.0, sum(min(count, most) for count in counts) / len(answered))


def _read_pilot(folder: Path) -> dict[str, list[int]]:
    """Generated tokens of each conversation, by the source that its id begins with."""
    lengths: dict[str, list[int]] = defaultdict(list)
    for conversation in load_conversations(folder)[1]:
        label = conversation.id.partition("/")[0]
        lengths[label].append(sum(len(turn.token_ids) for turn in conversation.turns))
    return lengths

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness.config.load import load_config
from harness.config.prompts import PromptsConfig, SourceConfig
from harness.corpus.conversations import Conversation, Turn
from harness.corpus.manifest import Plan, finish_stage
from harness.corpus.mixture import mix
from harness.corpus.sources import Candidate
from harness.digests import digest_files
from harness.errors import ConfigError


class WordCounts:
    def count_tokens(self, texts: Sequence[str]) -> Iterator[int]:
        return (len(text.split()) for text in texts)


def config(*sources: dict[str, object], **more: object) -> PromptsConfig:
    built = tuple(SourceConfig.model_validate(source) for source in sources)
    return PromptsConfig.model_validate({"verifier": "v", "sources": built, "exclude": (), **more})


def candidates(source: str, count: int, words: int = 0) -> list[Candidate]:
    answers = ("word " * words,) if words else ()
    return [Candidate(f"{source}/{i}", source, "c", (f"q{i}",), answers) for i in range(count)]


def test_without_weights_everything_is_taken() -> None:
    chosen, portions = mix(
        config({"source": "a.jsonl"}, {"source": "b.jsonl"}),
        [*candidates("a", 3), *candidates("b", 5)],
        WordCounts(),
    )
    assert len(chosen) == 8
    assert [(p.source, p.num_prompts, p.num_tokens, p.share) for p in portions] == [
        ("a", 3, None, None),
        ("b", 5, None, None),
    ]


def test_weights_are_of_generated_tokens() -> None:
    setup = config(
        {"source": "a.jsonl", "weight": 3, "answer_tokens": 30},
        {"source": "b.jsonl", "weight": 1, "answer_tokens": 10},
        num_tokens=1200,
    )
    chosen, (first, second) = mix(
        setup, [*candidates("a", 100), *candidates("b", 100)], WordCounts()
    )
    assert (first.num_prompts, second.num_prompts) == (30, 30)
    assert (first.num_tokens, second.num_tokens) == (900, 300)
    assert (first.share, second.share) == (0.75, 0.25)
    assert len(chosen) == 60


def test_the_scarcest_source_bounds_the_mixture() -> None:
    setup = config(
        {"source": "a.jsonl", "weight": 1, "answer_tokens": 10},
        {"source": "b.jsonl", "weight": 1, "answer_tokens": 10},
    )
    _, portions = mix(setup, [*candidates("a", 100), *candidates("b", 7)], WordCounts())
    assert [portion.num_prompts for portion in portions] == [7, 7]


def test_lengths_are_measured_on_the_answers_of_the_set_up_to_the_limit() -> None:
    setup = config(
        {"source": "a.jsonl", "weight": 1},
        {"source": "b.jsonl", "weight": 1},
        num_tokens=200,
        max_answer_tokens=20,
    )
    found = [*candidates("a", 50, words=10), *candidates("b", 50, words=90)]
    _, portions = mix(setup, found, WordCounts())
    assert [(p.answer_tokens, p.num_prompts) for p in portions] == [(10.0, 10), (20.0, 5)]


def test_a_pilot_tells_how_long_the_answers_to_a_source_are(tmp_path: Path) -> None:
    write_pilot(tmp_path, {"a/1": 10, "a/2": 30, "b/1": 5, "c/1": 900})
    setup = config(
        {"source": "a.jsonl", "weight": 1},
        {"source": "b.jsonl", "weight": 1, "answer_tokens": 40},
        num_tokens=80,
        pilot=str(tmp_path),
    )
    found = [*candidates("a", 50, words=7), *candidates("b", 50)]
    _, portions = mix(setup, found, WordCounts())
    # Measured before the set's own answers, and what is said before all.
    assert [(p.answer_tokens, p.num_prompts) for p in portions] == [(20.0, 2), (40.0, 1)]


def write_pilot(folder: Path, lengths: dict[str, int]) -> None:
    """A finished regeneration with answers of these lengths."""
    said = [
        Conversation(
            id=key,
            category="c",
            turns=(
                Turn(
                    question="q",
                    answer="a",
                    prompt_token_ids=(1,),
                    token_ids=(2,) * length,
                    finish_reason="stop",
                ),
            ),
        )
        for key, length in lengths.items()
    ]
    lines = "".join(one.model_dump_json() + "\n" for one in said)
    (folder / "conversations.jsonl").write_text(lines)
    plan = Plan(stage="regenerate", inputs={}, config={})
    finish_stage(folder, plan, {}, digest_files(folder, ("conversations.jsonl",)), {})


def test_a_total_alone_keeps_the_sources_own_shares() -> None:
    setup = config(
        {"source": "a.jsonl", "answer_tokens": 10},
        {"source": "b.jsonl", "answer_tokens": 10},
        num_tokens=400,
    )
    _, portions = mix(setup, [*candidates("a", 60), *candidates("b", 20)], WordCounts())
    assert [portion.num_prompts for portion in portions] == [30, 10]


def test_more_tokens_add_to_a_smaller_mixture() -> None:
    source = {"source": "a.jsonl", "weight": 1, "answer_tokens": 10}
    found = candidates("a", 100)
    small, _ = mix(config(source, num_tokens=100), found, WordCounts())
    large, _ = mix(config(source, num_tokens=500), found, WordCounts())
    other, _ = mix(config(source, num_tokens=100, seed=1), found, WordCounts())
    assert (len(small), len(large)) == (10, 50)
    assert set(small) < set(large)
    assert set(small) != set(other)


def test_unknown_lengths_and_empty_sources_are_refused() -> None:
    with pytest.raises(ConfigError, match="a: expected to know how long its answers are"):
        mix(config({"source": "a.jsonl", "weight": 1}), candidates("a", 3), WordCounts())
    with pytest.raises(ConfigError, match="a: expected prompts to mix, found none"):
        mix(config({"source": "a.jsonl", "weight": 1}), [], WordCounts())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("verifier: v\nsources: []\nexclude: []\n", "sources: expected 1 or more"),
        ("verifier: v\nsources: [{source: a}]\n", "exclude: required"),
        (
            "verifier: v\nexclude: []\nsources: [{source: a, weight: 1}, {source: b}]\n",
            "a weight for every source or for none",
        ),
        (
            "verifier: v\nexclude: []\nsources: [{source: x/a.jsonl}, {source: hf:y/a}]\n",
            "each source name once, found twice: a",
        ),
        (
            "verifier: v\nexclude: []\nsources: [{source: a, wieght: 1}]\n",
            "wieght: unknown key",
        ),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "prompts.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        load_config(PromptsConfig, path)

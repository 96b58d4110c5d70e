"""A measurement of an earlier version is found again."""

from pathlib import Path

from eval.cells import fingerprint_of
from eval.spec import BenchSpec, DrafterSpec, Prompt, ServerSpec

EARLIER = "e50da3c8f94a5e98f2742a0241c555e6ae4dbfd74bc08b1ea011eb3b05fe5a6a"
"""Of this spec, before the server had a data parallel size or a speculative config."""


def spec(**server: object) -> BenchSpec:
    return BenchSpec(
        server=ServerSpec.model_validate({"verifier": "/v", "device": "cpu", **server}),
        drafters=(DrafterSpec(name="d", path=Path("/d"), digest="0" * 64),),
        prompts=(Prompt(id="a", category="chat", turns=("Hello",)),),
        prompts_name="mine",
    )


def test_keys_that_came_later_change_no_fingerprint_while_they_say_nothing() -> None:
    """Where this fails after a new key: leave it out of the fingerprint at its default."""
    assert fingerprint_of(spec()) == EARLIER


def test_what_such_a_key_says_changes_it() -> None:
    changes: tuple[dict[str, object], ...] = (
        {"data_parallel_size": 2},
        {"speculative_config": {"draft_sample_method": "probabilistic"}},
    )
    found = {fingerprint_of(spec(**change)) for change in changes}
    assert len(found | {EARLIER}) == 3

"""A reading of the config that fits better is found and named; noise and the true one are not."""

from typing import Any

import pytest
import torch
from fakes.self_agreeing import (
    HIDDEN,
    NUM_LAYERS,
    NUM_PROMPTS,
    NUM_TOKENS,
    TRUE_FACTS,
    VOCAB,
    SelfAgreeing,
)

from eval.counterfactual import Counterfactuals, run_counterfactuals
from eval.errors import SpecError
from eval.facts import DraftFacts
from eval.variants import DEFAULT_ROPE, EMBED, Change, list_changes, needed_layers

TRUE_ROPE = TRUE_FACTS.rope_parameters


@pytest.fixture(scope="module")
def world() -> SelfAgreeing:
    return SelfAgreeing()


def find(world: SelfAgreeing, facts: DraftFacts, **known: Any) -> Counterfactuals:
    changes = list_changes(facts, NUM_LAYERS, **{"rope_parameters": [TRUE_ROPE], **known})
    return run_counterfactuals(world.subject(facts), changes, world.answers)


def test_the_true_reading_is_clean(world: SelfAgreeing) -> None:
    result = find(world, TRUE_FACTS)
    assert result.found == ()
    assert {tried.subject for tried in result.tried} == {
        "norm_before_residual", "norm_output", "aux_layer_ids", "rope_parameters", "hidden_act",
    }  # fmt: skip
    assert (result.num_prompts, result.num_entries) == (NUM_PROMPTS, NUM_PROMPTS * 38)


@pytest.mark.parametrize(
    ("corrupt", "value"),
    [
        ({"norm_before_residual": False}, "True"),
        ({"aux_layer_ids": (1, 3, 5)}, "(2, 4, 6)"),
        ({"aux_layer_ids": (3, 5, 7)}, "(2, 4, 6)"),
        ({"rope_parameters": dict(DEFAULT_ROPE)}, str({**DEFAULT_ROPE, **TRUE_ROPE})),
        ({"hidden_act": "gelu"}, "silu"),
    ],
    ids=str,
)
def test_a_corrupted_fact_is_found_with_its_true_value(
    world: SelfAgreeing, corrupt: dict[str, Any], value: str
) -> None:
    (found,) = find(world, TRUE_FACTS.model_copy(update=corrupt)).found
    assert (found.subject, found.value) == (next(iter(corrupt)), value)
    assert found.loss_gain.low is not None
    assert 0 < found.loss_gain.low < found.loss_gain.value


def test_two_corruptions_are_both_found_and_nothing_else(world: SelfAgreeing) -> None:
    facts = TRUE_FACTS.model_copy(
        update={"norm_before_residual": False, "aux_layer_ids": (3, 5, 7)}
    )
    found = {(tried.subject, tried.value) for tried in find(world, facts).found}
    assert found == {("norm_before_residual", "True"), ("aux_layer_ids", "(2, 4, 6)")}


@pytest.mark.parametrize(
    ("trained", "configured", "value"),
    [((8,), (None,), "8"), ((None,), (8,), "None"), ((8,), (16,), "8")],
    ids=["lost", "added", "another"],
)
def test_a_wrong_window_is_found(
    trained: tuple[int | None], configured: tuple[int | None], value: str
) -> None:
    world = SelfAgreeing(TRUE_FACTS.model_copy(update={"windows": trained}))
    facts = TRUE_FACTS.model_copy(update={"windows": configured})
    (found,) = find(world, facts, windows=[8]).found
    assert (found.subject, found.value) == ("windows", value)
    if configured != (None,):
        (left_out,) = find(world, facts, windows=[8]).not_judged
        assert (left_out.value, "not told apart" in left_out.reason) == ("2048", True)
    assert found.num_entries < NUM_PROMPTS * (NUM_TOKENS - 8), "shorter contexts do not count"


def test_a_window_longer_than_the_answers_is_not_judged_and_says_so(world: SelfAgreeing) -> None:
    (left_out,) = find(world, TRUE_FACTS).not_judged
    assert (left_out.subject, left_out.value) == ("windows", "2048")
    assert "0 of 12 prompts" in left_out.reason
    assert "the longest has 40" in left_out.reason


def test_a_wrong_copy_of_the_embedding_is_found(world: SelfAgreeing) -> None:
    wrong = torch.randn(VOCAB, HIDDEN)
    changes = list_changes(TRUE_FACTS, NUM_LAYERS, embeddings={"the verifier's": world.embed})
    subject = world.subject(TRUE_FACTS, **{EMBED: wrong})
    (found,) = run_counterfactuals(subject, changes, world.answers).found
    assert (found.subject, found.value) == (EMBED, "the verifier's")


def test_noise_is_not_taken_for_a_finding(world: SelfAgreeing) -> None:
    """Forty embeddings that are off by chance, against one that is off as much."""
    torch.manual_seed(1)
    noisy = [world.embed + 0.05 * torch.randn(VOCAB, HIDDEN) for _ in range(41)]
    changes = [Change(EMBED, n, tensors={EMBED: noisy[n]}) for n in range(40)]
    subject = world.subject(TRUE_FACTS, **{EMBED: noisy[40]})
    result = run_counterfactuals(subject, changes, world.answers)
    assert len(result.tried) == 40
    assert result.found == ()


def test_the_more_is_tried_the_more_a_change_must_show(world: SelfAgreeing) -> None:
    facts = TRUE_FACTS.model_copy(update={"hidden_act": "gelu"})
    true = Change("hidden_act", "silu", {"hidden_act": "silu"})
    other = [Change("norm_output", n, {"norm_output": False}) for n in range(30)]
    alone, among = (
        run_counterfactuals(world.subject(facts), changes, world.answers).tried[0].loss_gain
        for changes in ([true], [true, *other])
    )
    assert alone.value == among.value
    assert among.low < alone.low < alone.high < among.high


def test_layers_beyond_the_verifier_are_not_asked_for() -> None:
    first = TRUE_FACTS.model_copy(update={"aux_layer_ids": (0, 4, NUM_LAYERS)})
    assert needed_layers(list_changes(first, NUM_LAYERS), first) == (0, 4, NUM_LAYERS)
    assert needed_layers(list_changes(TRUE_FACTS, NUM_LAYERS), TRUE_FACTS) == (1, 2, 3, 4, 5, 6, 7)


def test_too_few_prompts_are_refused(world: SelfAgreeing) -> None:
    few = world.answers._replace(rows=world.answers.rows[:7])
    with pytest.raises(SpecError, match="at least 8 prompts, found 7"):
        run_counterfactuals(world.subject(TRUE_FACTS), [], few)

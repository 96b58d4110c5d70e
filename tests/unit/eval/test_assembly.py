"""A whole result from hand-made cells: every figure can be checked by hand."""

from pathlib import Path

import pytest
from fakes.measurements import DRAFTED, NUM_PROMPTS, make_cell, make_result, make_spec

from eval.assembly import is_precise
from eval.result import BenchResult, Divergence, Lossless


def test_figures_follow_from_the_counts_and_times() -> None:
    result = make_result([make_cell("baseline", "before", 0.06), DRAFTED])
    (row,) = result.pooled()
    assert row.acceptance_length is not None
    assert row.acceptance_length.value == 2.0
    assert row.acceptance_rate_at == pytest.approx((0.6, 0.3, 0.1))
    assert row.conditional_acceptance_rate_at == pytest.approx((0.6, 0.5, 1 / 3))
    assert row.acceptance_length_emitted is not None
    assert row.acceptance_length_emitted.value == 2.0
    assert row.decode_speedup.value == pytest.approx(1.5)
    assert row.tpot_ms.value == pytest.approx(40)
    assert row.baseline_tpot_ms.value == pytest.approx(60)
    assert row.step_cost == pytest.approx(2.0 / 1.5)
    assert row.digest == "d" * 64
    assert row.flags == ()
    assert {r.category for r in result.results} == {"all", "chat", "code"}


def test_the_baseline_before_and_after_is_averaged_and_its_drift_told() -> None:
    cells = [make_cell("baseline", "before", 0.05), DRAFTED, make_cell("baseline", "after", 0.07)]
    result = make_result(cells)
    (row,) = result.pooled()
    assert row.decode_speedup.value == pytest.approx(1.5)
    assert result.baseline[0].drift == pytest.approx(0.4)
    assert row.flags == ("the baseline drifted by +40% during the measurement",)


def test_a_session_with_its_own_baseline_is_paired_with_that_one() -> None:
    cells = [make_cell("baseline", "k3-0", 0.08), make_cell("baseline", "k2-0", 0.06), DRAFTED]
    (row,) = make_result(cells).pooled()
    assert row.decode_speedup.value == pytest.approx(2.0)


def test_text_that_differs_without_a_near_tie_is_flagged() -> None:
    far = Divergence(prompt_id="p0", turn=0, position=3, expected=1, found=2, gap=2.0)
    near = far.model_copy(update={"gap": 0.001, "is_near_tie": True})
    cells = [make_cell("baseline", "before", 0.06), DRAFTED]
    for divergence, is_broken in ((far, True), (near, False)):
        verdict = Lossless(num_compared=10, num_equal=9, divergences=(divergence,))
        (row,) = make_result(cells, verdict).pooled()
        assert row.lossless == verdict
        assert bool(row.flags) is is_broken


def test_a_busy_machine_is_flagged() -> None:
    busy = make_cell("baseline", "before", 0.06, foreign=0.3)
    (row,) = make_result([busy, DRAFTED]).pooled()
    assert row.foreign_cpu_share == pytest.approx(0.3)
    assert "other processes took 30% of the CPU" in row.flags[0]


def test_what_a_step_costs_is_told_and_with_several_k_fitted() -> None:
    cells = [make_cell("baseline", "before", 0.06), DRAFTED]
    (cost,) = make_result(cells).step_costs
    assert cost.step_ms == {3: pytest.approx(80)}
    assert (cost.plain_step_ms, cost.fixed_ms) == (pytest.approx(60), pytest.approx(60))
    assert cost.per_token_ms == pytest.approx(20 / 3)
    one = make_cell("a", "k1-0", tpot_s=0.04, histogram=(0, 10))
    one = one.model_copy(update={"key": one.key.model_copy(update={"k": 1})})
    (cost,) = make_result([*cells, one]).step_costs
    assert cost.step_ms[1] == pytest.approx(80)
    assert (cost.fixed_ms, cost.per_token_ms) == (pytest.approx(80), pytest.approx(0))


def test_times_that_lie_on_no_possible_line_are_told_without_one() -> None:
    slower = make_cell("a", "k1-0", tpot_s=0.3, histogram=(0, 10))
    slower = slower.model_copy(update={"key": slower.key.model_copy(update={"k": 1})})
    cells = [make_cell("baseline", "before", 0.06), DRAFTED, slower]
    (cost,) = make_result(cells).step_costs
    assert cost.step_ms.keys() == {1, 3}
    assert (cost.fixed_ms, cost.per_token_ms) == (None, None)


def test_steps_without_a_draft_are_no_drafts_but_cost_a_step() -> None:
    # 20 tokens after the first: 4 drafts gave 4 + 6, the other 10 came one by one.
    sparse = make_cell("a", "k3-0", 0.05, histogram=(1, 1, 1, 1))
    (row,) = make_result([make_cell("baseline", "before", 0.06), sparse]).pooled()
    assert row.acceptance_length is not None
    assert row.acceptance_length_emitted is not None
    assert row.tokens_per_step is not None
    assert row.acceptance_length.value == row.acceptance_length_emitted.value == 2.5
    assert row.tokens_per_step.value == pytest.approx(20 / 14)
    assert row.step_cost == pytest.approx(20 / 14 / 1.2)


def test_the_speed_at_another_acceptance_length_follows_from_the_step_cost() -> None:
    cells = [make_cell("baseline", "before", 0.06), DRAFTED]
    points = make_result(cells, spec=make_spec(ceiling=(1.0, 2.0, 4.0, 9.0))).ceilings
    # A step costs 2.0 / 1.5 plain ones; a length of 9 is out of reach with K = 3.
    assert [p.acceptance_length for p in points] == [1.0, 2.0, 4.0]
    assert [p.decode_speedup for p in points] == pytest.approx([0.75, 1.5, 3.0])
    assert not any(p.is_measured for p in points)


def test_a_smaller_k_gives_counts_cut_to_it_and_no_row_of_speed() -> None:
    cell = make_cell("a", "k3-0-acceptance", 0.9, histogram=(4, 6, 0, 0))
    cell = cell.model_copy(update={"key": cell.key.model_copy(update={"k": 1})})
    result = make_result([make_cell("baseline", "before", 0.06), DRAFTED], acceptance_cells=(cell,))
    (row,) = [row for row in result.acceptance_rows if row.category == "all"]
    assert (row.k, row.acceptance_rate_at) == (1, (0.6,))
    assert row.acceptance_length is not None
    assert row.acceptance_length.value == pytest.approx(1.6)
    assert [row.k for row in result.pooled()] == [3]


def test_nothing_drafted_is_no_acceptance_length_and_is_flagged() -> None:
    idle = make_cell("a", "k3-0", 0.06, histogram=(0, 0, 0, 0))
    (row,) = make_result([make_cell("baseline", "before", 0.06), idle]).pooled()
    assert row.acceptance_length is None
    assert row.why is None
    assert row.flags == ("nothing was drafted",)


def test_the_document_survives_a_round_trip_and_a_frame_has_a_row_a_prompt(tmp_path: Path) -> None:
    result = make_result([make_cell("baseline", "before", 0.06), DRAFTED])
    result.write(tmp_path / "result.json")
    assert BenchResult.load(tmp_path / "result.json") == result
    frame = result.to_frame()
    assert len(frame) == 2 * NUM_PROMPTS
    drafted = frame[frame.arm == "a"]
    length = 1 + drafted.num_accepted.sum() / drafted.num_drafts.sum()
    assert length == result.best.acceptance_length.value


def test_an_answer_of_one_token_has_no_time_per_token_in_the_frame() -> None:
    result = make_result([make_cell("baseline", "before", 0.06), DRAFTED])
    short = result.samples[0].model_copy(update={"num_decode_tokens": 0, "decode_s": 0.0})
    frame = result.model_copy(update={"samples": (short, *result.samples[1:])}).to_frame()
    assert frame.tpot_ms.isna().tolist() == [True] + [False] * (2 * NUM_PROMPTS - 1)


def test_precision_is_reached_only_with_a_baseline_to_compare_with() -> None:
    baseline = make_cell("baseline", "k3-0", 0.06)
    spec = make_spec(precision=0.02)
    assert is_precise(spec, [baseline, DRAFTED])
    assert not is_precise(spec, [DRAFTED])
    assert not is_precise(spec, [baseline])
    assert not is_precise(make_spec(), [baseline, DRAFTED])

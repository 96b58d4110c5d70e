from collections.abc import Mapping
from pathlib import Path

import pytest
from fakes.bench_results import bench_result, bench_row, prompt_samples

from eval.errors import ServerStartError
from eval.plan import build_arms
from eval.result import BASELINE, BenchResult, Divergence, Lossless
from eval.spec import ServerOptions, ServerSpec
from eval.tuning import REPEATED, START, Setting, Tuning, settings_for, tune

FLAG = Setting(name="flag", why="w", extra_args=("--flag",))
OTHER = Setting(name="other", why="w", speculative_config={"draft_sample_method": "greedy"})
OPTIONS = ServerOptions(extra_args=("--mine",))
OTHER_TEXT = Lossless(
    num_compared=12,
    num_equal=11,
    divergences=(Divergence(prompt_id="p1", turn=0, position=3, expected=5, found=6),),
)
FAILED = "the server exited\ncause: no such flag\nlast lines of the log:\n  | a\n  | b"


class Machine:
    """Seconds per token under each setting; None: vLLM does not start."""

    def __init__(self, tpot_s: Mapping[str, float | None], *, changing: str = "") -> None:
        self.tpot_s, self.seen = tpot_s, dict[str, ServerOptions]()
        self._changing = changing
        """A setting under which an answer is another."""

    def measure(self, name: str, options: ServerOptions) -> BenchResult:
        self.seen[name] = options
        tpot_s = self.tpot_s.get(name, 0.1)
        if tpot_s is None:
            raise ServerStartError(FAILED, "look at the log")
        changes = {"lossless": OTHER_TEXT} if name == self._changing else {}
        found = bench_result((bench_row("d", None, **changes),), {"d": Path("/d")})
        own = prompt_samples("d", [5] * 12, tpot_s)
        plain = prompt_samples(BASELINE, [0] * 12, 0.1, k=None)
        return found.model_copy(update={"samples": (*plain, *own)})

    def tune(self, *settings: Setting) -> Tuning:
        return tune(OPTIONS, settings, self.measure, max_drift=0.1)


def test_what_is_faster_is_kept_and_the_next_is_tried_on_top_of_it() -> None:
    machine = Machine({START: 0.1, "flag": 0.09, "other": 0.095, REPEATED: 0.1})
    found = machine.tune(FLAG, OTHER)
    assert {t.name: t.is_kept for t in found.trials} == {START: True, "flag": True, "other": False}
    assert found.options.extra_args == ("--mine", "--flag")
    assert machine.seen["other"].extra_args == ("--mine", "--flag")
    assert machine.seen["other"].speculative_config == {"draft_sample_method": "greedy"}
    assert found.trials[1].faster[1].value == pytest.approx(0.1 / 0.09)
    assert machine.seen[REPEATED] == OPTIONS


def test_what_the_server_is_started_with_already_is_not_tried() -> None:
    mine = Setting(name="mine", why="w", extra_args=("--mine",))
    machine = Machine({"mine": 0.05, "flag": 0.08})
    found = machine.tune(mine, FLAG, FLAG)
    assert [trial.name for trial in found.trials] == [START, "flag"]
    assert machine.seen.keys() == {START, "flag", REPEATED}
    assert found.options.extra_args == ("--mine", "--flag")


def test_what_changes_the_answers_is_never_kept_however_fast() -> None:
    found = Machine({"flag": 0.05}, changing="flag").tune(FLAG, OTHER)
    assert not found.trials[1].is_kept
    assert (found.trials[1].problem or "").startswith("1 greedy answers differ")
    assert "--flag" not in found.options.extra_args
    # Answers that differed as it was are no reason.
    found = Machine({"flag": 0.05}, changing=START).tune(FLAG)
    assert found.trials[1].is_kept


def test_what_does_not_start_is_said_and_left_out() -> None:
    machine = Machine({"flag": None, "other": 0.08})
    found = machine.tune(FLAG, OTHER)
    assert found.trials[1].problem == "cause: no such flag"
    assert found.options.extra_args == OPTIONS.extra_args
    assert found.options.speculative_config == {"draft_sample_method": "greedy"}


def test_on_a_machine_that_became_faster_by_itself_nothing_is_kept() -> None:
    found = Machine({START: 0.1, "flag": 0.08, REPEATED: 0.08}).tune(FLAG)
    assert found.options == OPTIONS
    assert not found.trials[1].is_kept
    assert found.drift[1].value == pytest.approx(1.25)


def test_what_cannot_be_measured_as_it_is_is_an_error() -> None:
    with pytest.raises(ServerStartError):
        Machine({START: None}).tune(FLAG)


@pytest.mark.parametrize(
    ("busy", "is_sampling", "count"), [(1, False, 5), (8, False, 6), (8, True, 7)]
)
def test_settings_follow_from_the_load(busy: int, is_sampling: bool, count: int) -> None:
    assert len(settings_for("cuda", 3, busy, is_sampling=is_sampling)) == count


def test_the_speculative_config_of_the_server_is_that_of_every_drafter() -> None:
    spec = bench_result((bench_row("d", None),), {"d": Path("/d")}).spec
    server = ServerSpec(verifier=Path("/v"), speculative_config=OTHER.speculative_config)
    (arm,) = build_arms(spec.model_copy(update={"server": server}), 3)
    assert arm.speculative_config is not None
    assert arm.speculative_config["draft_sample_method"] == "greedy"
    assert arm.speculative_config["num_speculative_tokens"] == 3

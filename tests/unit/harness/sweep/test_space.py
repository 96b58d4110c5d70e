import pytest
from fakes.sweep_world import BASE, make_config

from harness.config.sweep import SweepConfig
from harness.config.train import TrainConfig
from harness.errors import ConfigError
from harness.sweep.space import Space, completed, describe_axis, differences, spell


def make_space(axes: dict[str, object], base: TrainConfig = BASE, **changes: object) -> Space:
    return Space(make_config(space=axes, **changes), base)


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"space\.ttt_step: .*did you mean ttt_steps"):
        make_space({"ttt_step": {"type": "int", "low": 1, "high": 3}})


@pytest.mark.parametrize("key", ["corpus", "verifier", "val_ratio", "name", "keep_best"])
def test_what_makes_trials_incomparable_or_changes_nothing_is_not_searched(key: str) -> None:
    with pytest.raises(ConfigError, match="cannot be searched"):
        make_space({key: {"type": "categorical", "choices": ["a", "b"]}})


@pytest.mark.parametrize(
    ("key", "axis"),
    [
        ("lr", {"type": "float", "low": -1.0, "high": 1e-3}),
        ("ttt_steps", {"type": "int", "low": 1, "high": 40}),
        ("loss", {"type": "categorical", "choices": ["kl_div", "hinge"]}),
    ],
)
def test_an_end_that_is_no_training_is_refused_at_once(key: str, axis: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"space.*{key}"):
        make_space({key: axis})


def test_the_base_must_lie_in_the_space() -> None:
    with pytest.raises(ConfigError, match=r"the base training: lr = 0\.001 lies outside"):
        make_space({"lr": {"type": "float", "low": 2e-3, "high": 3e-3}})


def test_the_base_must_say_what_is_searched() -> None:
    with pytest.raises(ConfigError, match="does not say num_layers"):
        make_space({"num_layers": {"type": "int", "low": 1, "high": 2}})


def test_a_point_is_a_training_and_a_k() -> None:
    axes = {
        "lr": {"type": "float", "low": 1e-4, "high": 1e-2},
        "rope_parameters.rope_theta": {"type": "categorical", "choices": [1e4, 1e6]},
        "k": {"type": "int", "low": 1, "high": 5},
    }
    base = BASE.model_copy(update={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})
    space = make_space(axes, base, k=2)
    assert space.base_params["k"] == 2
    point = space.resolve({"lr": 5e-3, "rope_parameters.rope_theta": 1e6, "k": 5})
    assert point.k == 5
    assert point.train.lr == 5e-3
    assert point.train.rope_parameters == {"rope_type": "default", "rope_theta": 1e6}


def test_an_axis_with_a_condition_is_there_only_where_it_holds() -> None:
    axes = {
        "scheduler": {"type": "categorical", "choices": ["linear", "none"]},
        "warmup_ratio": {
            "type": "float", "low": 0.0, "high": 0.3, "when": {"scheduler": "none"},
        },
    }  # fmt: skip
    space = make_space(axes)
    assert space.base_params == {"scheduler": "linear"}
    assert space.complete({"scheduler": "none"}, "x") == {"scheduler": "none", "warmup_ratio": 0.01}
    assert "where scheduler = none" in describe_axis(space.axes["warmup_ratio"])


@pytest.mark.parametrize("when", [{"lr": 1.0}, {"nothing": 1}])
def test_a_condition_that_never_holds_is_refused(when: dict[str, object]) -> None:
    axes = {
        "lr": {"type": "float", "low": 1e-4, "high": 1e-2},
        "ttt_steps": {"type": "int", "low": 1, "high": 4, "when": when},
    }
    with pytest.raises(ConfigError, match=r"ttt_steps\.when"):
        make_space(axes)


def test_equal_spaces_are_equal_documents_without_differences() -> None:
    axes = {"lr": {"type": "float", "low": 1e-4, "high": 1e-2}}
    one, two = make_space(axes), make_space(axes, n_trials=99, workers=3)
    assert one.document() == two.document()
    other = make_space(axes, BASE.model_copy(update={"epochs": 9}))
    assert one.document() != other.document()
    assert differences(one.document(), other.document()) == ("base.epochs: 3 -> 9",)


def test_points_are_spelled_briefly() -> None:
    assert spell({"lr": 0.00123456, "loss": {"ce": 1.0}}) == 'lr=0.00123, loss={"ce": 1.0}'
    assert spell({}) == "(base)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objectives": [{}, {"metric": "train_s"}], "pruner": {"type": "wilcoxon"}}, "single"),
        (
            {"pruner": {"type": "hyperband", "min_resource": 1, "max_resource": 9}},
            "30 or more, found 6",
        ),
        ({"pruner": {"type": "successive_halving"}}, "min_resource"),
        ({"objectives": [{"metric": "val_loss"}], "pruner": {"type": "wilcoxon"}}, "no prompts"),
        ({"sampler": {"type": "grid"}}, "needs a step"),
        ({"max_retries": 3}, "less than or equal to 2"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


def test_the_configuration_survives_its_yaml(tmp_path: object) -> None:
    config = make_config(baselines=[{"lr": 2e-3}], limits={"max_parameters": 5})
    assert SweepConfig.model_validate(config.model_dump(mode="json")) == config


def test_a_sweep_of_an_earlier_version_differs_only_in_what_has_no_default() -> None:
    now = make_space({"lr": {"type": "float", "low": 1e-4, "high": 1e-2}}).document()
    before = {**now, "base": {k: v for k, v in now["base"].items() if k not in {"nproc", "noise"}}}
    assert differences(completed(before), now) == ()
    other = {**now, "base": {**now["base"], "nproc": 2}}
    assert differences(completed(before), other) == ("base.nproc: 1 -> 2",)

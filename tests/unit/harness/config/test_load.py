"""YAML and --set to one validated model."""

from pathlib import Path

import pytest

from harness.config.load import Frozen, dump_yaml, flatten, load_config
from harness.errors import ConfigError


class Optimizer(Frozen):
    lr: float = 1e-3


class Example(Frozen):
    verifier: str
    epochs: int = 3
    optimizer: Optimizer = Optimizer()


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "example.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_set_wins_over_yaml_and_yaml_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "verifier: a\nepochs: 5\noptimizer: {lr: 0.1}\n")
    config = load_config(Example, path, ["optimizer.lr=3e-4", "epochs=7"])
    assert (config.verifier, config.epochs, config.optimizer.lr) == ("a", 7, 3e-4)


def test_values_given_by_flag_win_and_none_means_not_given(tmp_path: Path) -> None:
    path = write(tmp_path, "verifier: a\n")
    assert load_config(Example, path, verifier="b", epochs=None).verifier == "b"


def test_an_unknown_key_names_file_key_and_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "verifier: a\nepoch: 5\n")
    with pytest.raises(ConfigError, match=r"epoch: unknown key; did you mean epochs\?") as raised:
        load_config(Example, path)
    assert str(path) in raised.value.message


def test_an_unknown_nested_key_names_the_nearest_of_its_own_level(tmp_path: Path) -> None:
    path = write(tmp_path, "verifier: a\noptimizer: {lrr: 1}\n")
    with pytest.raises(ConfigError, match=r"optimizer\.lrr: unknown key; did you mean lr\?"):
        load_config(Example, path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("verifier: [", "not valid YAML"),
        ("- a\n", "expected a mapping"),
        ("epochs: 2\n", "verifier: required"),
        ("verifier: a\nepochs: many\n", "epochs: .*'many'"),
    ],
)
def test_bad_yaml_is_explained(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(Example, write(tmp_path, text))


@pytest.mark.parametrize("override", ["lr", "=3", "verifier.a=3", "epochs=["])
def test_bad_overrides_are_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError, match=r"--set"):
        load_config(Example, write(tmp_path, "verifier: a\n"), [override])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found none"):
        load_config(Example, tmp_path / "absent.yaml")


def test_dump_and_load_round_trip(tmp_path: Path) -> None:
    config = Example(verifier="a", epochs=9, optimizer=Optimizer(lr=5e-5))
    assert load_config(Example, write(tmp_path, dump_yaml(config))) == config


def test_flatten_gives_dotted_keys() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": 2}) == {"a.b": 1, "a.c": {}, "d": 2}

"""YAML and --set to one validated model."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from harness.config.load import Frozen, dump_yaml, flatten, load_config
from harness.errors import ConfigError


class Optimizer(Frozen):
    lr: float = 1e-3


class Example(Frozen):
    verifier: str
    epochs: int = 3
    k: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(3,), min_length=1)
    kind: Literal["a", "b"] = "a"
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


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("optimizer.lr=abc", "optimizer.lr: expected a number, found 'abc'"),
        ("epochs=2.5", "epochs: expected a whole number, found 2.5"),
        ("k=3", "k: expected a list, found 3"),
        ("k=[0]", "k.0: expected at least 1, found 0"),
        ("k=[]", "k: expected 1 or more of them, found []"),
        ("kind=c", "kind: expected a or b, found 'c'"),
        ("optimizer=3", "optimizer: expected a mapping of keys, found 3"),
        ("verifier=3", "verifier: expected text, found 3"),
    ],
)
def test_a_value_of_another_kind_is_told_in_one_line(
    tmp_path: Path, override: str, line: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(Example, write(tmp_path, "verifier: a\n"), [override])
    head = "1 problem(s) in the configuration from --set:"
    assert raised.value.message.splitlines() == [head, f"  {line}"]
    assert raised.value.hint == "correct --set"


def test_a_flag_is_blamed_and_not_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "verifier: a\nepochs: many\n")
    with pytest.raises(ConfigError) as raised:
        load_config(Example, path, k=(0,))
    assert "2 problem(s) in the configuration from" in raised.value.message
    assert f"{path} and the flags" in raised.value.message
    with pytest.raises(ConfigError) as raised:
        load_config(Example, write(tmp_path, "verifier: a\n"), k=(0,))
    assert str(path) not in f"{raised.value.message} {raised.value.hint}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found none"):
        load_config(Example, tmp_path / "absent.yaml")


def test_dump_and_load_round_trip(tmp_path: Path) -> None:
    config = Example(verifier="a", epochs=9, optimizer=Optimizer(lr=5e-5))
    assert load_config(Example, write(tmp_path, dump_yaml(config))) == config


def test_flatten_gives_dotted_keys() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": 2}) == {"a.b": 1, "a.c": {}, "d": 2}

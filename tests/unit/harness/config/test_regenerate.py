import pytest

from eval.spec import ServerSpec
from harness.config.load import load_config
from harness.config.regenerate import RegenerateConfig
from harness.errors import ConfigError

SPEC = ServerSpec(verifier="v", dtype="float32", max_model_len=512)


def test_the_plan_of_an_older_folder_is_still_its_plan() -> None:
    planned = RegenerateConfig(max_tokens=64, concurrency=3).plan(SPEC)
    assert planned == {
        "max_tokens": 64,
        "temperature": 0.0,
        "dtype": "float32",
        "max_model_len": 512,
    }


def test_what_changes_answers_is_in_the_plan_and_what_changes_the_pace_is_not() -> None:
    one = RegenerateConfig(top_p=0.9, concurrency=2, max_failed=3).plan(SPEC)
    other = RegenerateConfig(top_p=0.9, concurrency=8, request_timeout_s=5).plan(SPEC)
    assert one == other
    assert one["top_p"] == 0.9
    assert RegenerateConfig(endpoint="http://h:1").plan(None)["is_endpoint"] is True


def test_the_address_may_end_as_clients_write_it() -> None:
    assert RegenerateConfig(endpoint="http://h:1/v1/").endpoint == "http://h:1"


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("endpoint=host:8000", "expected http://host:port, found 'host:8000'"),
        ("served_model=x", "served_model: needs an endpoint"),
        ("{endpoint: 'http://h', dtype: float32}", "dtype: decided by whoever started"),
        ("top_p=0", "top_p: expected more than 0"),
        ("temperature=-1", "temperature: expected at least 0"),
    ],
)
def test_settings_that_contradict_are_refused(override: str, complaint: str) -> None:
    overrides = [override] if override[0] != "{" else ["endpoint=http://h", "dtype=float32"]
    with pytest.raises(ConfigError, match=complaint):
        load_config(RegenerateConfig, None, overrides)

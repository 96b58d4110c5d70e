"""Failures of MLflow that pass are tried again; others are not."""

import psycopg
import pytest
from mlflow.exceptions import MlflowException
from requests.exceptions import ChunkedEncodingError
from sqlalchemy.exc import OperationalError

from harness.errors import TrackingError
from harness.tracking.backend import failures
from harness.tracking.backend.failures import translated, translated_at_once

LOST = (
    "(sqlite3.IntegrityError) UNIQUE constraint failed: datasets.experiment_id, datasets.name",
    'duplicate key value violates unique constraint "dataset_pk"',
)


@pytest.mark.parametrize("words", LOST)
def test_who_loses_a_race_for_a_data_set_finds_it_the_next_time(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_PAUSES_S", (0.0,))
    outcomes = [MlflowException(words), None]

    @translated
    def log() -> str:
        if error := outcomes.pop(0):
            raise error
        return "logged"

    assert log() == "logged"


def test_an_answer_that_broke_off_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_PAUSES_S", (0.0,))
    answers = [b"half of it", b"all of it"]

    @translated
    def ask() -> bytes:
        answer = answers.pop(0)
        if answer == b"half of it":
            error = MlflowException("API request failed")
            error.__context__ = ChunkedEncodingError(answer)  # MLflow raises it in the handler
            raise error
        return answer

    assert ask() == b"all of it"


def lost() -> OperationalError:
    """As SQLAlchemy says it; MLflow sets errors of its own on top, one of which says otherwise."""
    return OperationalError("SELECT", {}, psycopg.errors.AdminShutdown("terminating connection"))


def wrapped(words: str) -> MlflowException:
    error = MlflowException(words)
    error.__cause__ = lost()
    return error


@pytest.mark.parametrize("error", [lost(), wrapped("it is away"), wrapped("no such model")])
def test_a_postgresql_that_is_away_is_waited_for(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_PAUSES_S", ())
    monkeypatch.setattr(failures, "_AWAY_PAUSES_S", (0.0,) * 3)
    outcomes = [error, error, error, None]

    def log() -> str:
        if found := outcomes.pop(0):
            raise found
        return "logged"

    assert translated(log)() == "logged"
    outcomes[:] = [error, None]
    with pytest.raises(TrackingError):
        translated_at_once(log)()


def test_what_does_not_pass_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_PAUSES_S", (0.0,))
    calls: list[int] = []

    @translated
    def log() -> None:
        calls.append(1)
        raise MlflowException("UNIQUE constraint failed: registered_models.name")

    with pytest.raises(TrackingError, match="registered_models"):
        log()
    assert calls == [1]

"""A study's database that is away for a while ends nothing."""

from pathlib import Path

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import OperationalError, PendingRollbackError

from harness.sweep import journal
from harness.sweep.journal import PatientStorage, open_storage


class Restarted(optuna.storages.InMemoryStorage):
    """Answers every second call only, as a database that is being started again."""

    num_refused = 0

    def __getattribute__(self, name: str) -> object:
        if name == "get_all_trials" and Restarted.num_refused % 2 == 0:
            Restarted.num_refused += 1
            raise OperationalError("SELECT", {}, Exception("server closed the connection"))
        if name == "set_trial_user_attr" and Restarted.num_refused % 2 == 1:
            Restarted.num_refused += 1
            lost = OperationalError("UPDATE", {}, Exception("terminating connection"))
            pending = PendingRollbackError("Can't reconnect until it is rolled back")
            pending.__context__ = lost
            raise StorageInternalError from pending
        return super().__getattribute__(name)


def test_each_call_is_made_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_PAUSE_S", 0.0)
    study = optuna.create_study(storage=PatientStorage(Restarted()))
    trial = study.ask()
    trial.set_user_attr("stage", "asked")
    study.tell(trial, 1.0)
    assert [found.user_attrs for found in study.get_trials()] == [{"stage": "asked"}]
    assert Restarted.num_refused >= 2


def test_what_is_no_absence_is_said_at_once(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path / 'study.db'}", tmp_path)
    optuna.create_study(storage=storage, study_name="once")
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        optuna.create_study(storage=storage, study_name="once")


def test_it_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_PAUSE_S", 0.0)
    monkeypatch.setattr(journal, "_AWAY_S", 0.0)

    class Gone(optuna.storages.InMemoryStorage):
        def get_all_studies(self) -> list[optuna.study._frozen.FrozenStudy]:
            raise OperationalError("SELECT", {}, Exception("connection refused"))

    with pytest.raises(OperationalError):
        PatientStorage(Gone()).get_all_studies()

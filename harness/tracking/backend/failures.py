"""MLflow's failures in our words: retried while they can pass, then raised as TrackingError."""

import errno
import logging
import time
from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import ParamSpec, TypeVar

from mlflow.exceptions import MlflowException
from requests.exceptions import ChunkedEncodingError
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from harness.errors import PrerequisiteError, TrackingError
from harness.redaction import redacted

P = ParamSpec("P")
T = TypeVar("T")

_PAUSES_S = (0.2, 0.8, 2.0)
"""Pauses between tries. SQLite itself waits 20 s for a lock before it reports one."""
_AWAY_PAUSES_S = (*_PAUSES_S, *(5.0,) * 48)
"""For PostgreSQL that is restarted: four minutes, as MLflow itself waits for a server."""
_PASSING = frozenset({"TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED"})
_ABSENT = frozenset({"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"})
"""The second is MLflow's answer to an id that cannot be one."""
_RACES = ("UNIQUE constraint failed: datasets.", "dataset_pk")
"""Two processes log one data set: MLflow looks for its row, then inserts it. The loser finds it the
next time. In the words of SQLite and of PostgreSQL."""

_BUCKET_PACKAGES = {"boto3", "botocore", "s3transfer"}
"""Their errors have no common class, and they are an extra: known by where they come from."""
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)

logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it prints tracebacks


def translated(function: Callable[P, T]) -> Callable[P, T]:
    """Makes a store method retry what can pass and raise TrackingError for the rest.

    Every write of ours may be repeated: a point, param or tag written twice is the same one.
    """
    return _guarded(function, is_patient=True)


def translated_at_once(function: Callable[P, T]) -> Callable[P, T]:
    """The same for the first look at a store: a database that does not answer is said at once."""
    return _guarded(function, is_patient=False)


def _guarded(function: Callable[P, T], *, is_patient: bool) -> Callable[P, T]:
    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        for attempt in count():
            try:
                return function(*args, **kwargs)
            except (MlflowException, SQLAlchemyError) as error:
                pauses = _pauses_for(error, is_patient=is_patient)
                if attempt >= len(pauses):
                    raise _explained(error) from error
                time.sleep(pauses[attempt])
            except ModuleNotFoundError as error:  # of the database or bucket that is named
                raise PrerequisiteError(
                    f"the MLflow store's address needs the module {error.name}, which is not "
                    "installed",
                    f"pip install {error.name}, or name another store (MLFLOW_TRACKING_URI) or "
                    "place of artifacts (HARNESS_ARTIFACTS)",
                ) from error
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                raise TrackingError(
                    f"the MLflow store's files cannot be written: {error}",
                    "check the owner and mode of its artifacts, and whether their disk is mounted "
                    "read-only; metrics and params are in the database and stay",
                ) from error
            except Exception as error:
                if type(error).__module__.partition(".")[0] not in _BUCKET_PACKAGES:
                    raise
                raise TrackingError(
                    f"the bucket of the MLflow store's artifacts refused: {redacted(str(error))}",
                    "check its name in HARNESS_ARTIFACTS, the AWS_* variables, and "
                    "MLFLOW_S3_ENDPOINT_URL; metrics and params are in the database and stay",
                ) from error
        raise AssertionError

    return guarded


def is_absence(error: MlflowException) -> bool:
    """Whether the store answered that what was asked for is not there."""
    return bool(error.error_code in _ABSENT)


def _pauses_for(error: MlflowException | SQLAlchemyError, *, is_patient: bool) -> tuple[float, ...]:
    """How long to wait before each further try; empty: it does not pass."""
    if _is_postgresql_away(error):
        return _AWAY_PAUSES_S if is_patient else ()
    is_passing = isinstance(error, MlflowException) and _may_pass(error)
    return _PAUSES_S if is_passing else ()


def _is_postgresql_away(error: BaseException | None) -> bool:
    """Whether a connection that was lost or refused is behind it, however it is wrapped."""
    while error is not None:
        if isinstance(error, OperationalError) and "(psycopg." in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _may_pass(error: MlflowException) -> bool:
    """MLflow itself waits four minutes for a server that is away, not for half an answer."""
    if any(words in str(error) for words in _RACES):
        return True
    if isinstance(error.__context__, ChunkedEncodingError):
        return True
    return error.error_code in _PASSING and "readonly" not in str(error)


def _unreadable(error: SQLAlchemyError) -> TrackingError:
    cause = redacted(str(getattr(error, "orig", None) or error)).splitlines()[0]
    return TrackingError(
        f"the MLflow store's database cannot be used: {cause}",
        "harness doctor shows where it is; restore it from a backup, or set it aside",
    )


def _explained(error: MlflowException | SQLAlchemyError) -> TrackingError:
    if isinstance(error, SQLAlchemyError):
        return _unreadable(error)
    text = redacted(" ".join(str(error).split()))
    if "readonly database" in text:
        return TrackingError(
            "the MLflow store is read-only, and this command has to write to it",
            "check the owner and mode of mlruns/, or set MLFLOW_TRACKING_URI to a store you own",
        )
    if "out-of-date database schema" in text or "Can't locate revision" in text:
        return TrackingError(
            f"the MLflow store was made by another version of MLflow: {text}",
            "copy mlruns/mlflow.db first, then run: mlflow db upgrade <the store's address>",
        )
    if "error code 401" in text or "not authenticated" in text:
        return TrackingError(
            "the MLflow server asks for a login, and takes not the one that was given",
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or write them to "
            "~/.mlflow/credentials",
        )
    if "disk is full" in text or "disk I/O error" in text:
        return TrackingError(f"the disk refused a write to the MLflow store: {text}", "free space")
    return TrackingError(f"the MLflow store refused: {text[:600]}")

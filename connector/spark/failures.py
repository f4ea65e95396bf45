"""Turns known errors of Spark and Delta into errors that a user can repair. All others are raised
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Final

from delta.exceptions import DeltaConcurrentModificationException
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from connector.errors import ConnectorError
from connector.errors.changelog import checkpoint_foreign
from connector.errors.kafka import (
    access_denied,
    login_failed,
    spark_broker_unreachable,
    spark_records_deleted,
    tls_failed,
)
from connector.errors.spark import (
    apply_failed,
    ingest_failed,
    session_ended,
    spark_without_executors,
)
from connector.errors.tables import (
    concurrent_write,
    disk_full,
    table_unreadable,
)
from connector.spark.jvm import GONE, is_any_live
from connector.state.damage import cause_of_full_disk, data_file_damaged
from connector.state.store_errors import store_error

_LOST = ("KAFKA_DATA_LOSS", "Some data may have been lost")
_TWO_READERS = "CONCURRENT_STREAM_LOG_UPDATE"
# Two processes that begin with a new warehouse at once meet when they make its Delta tables.
_TWO_WRITERS = (
    "DELTA_CONCURRENT_",
    "DELTA_PROTOCOL_CHANGED",
    "DELTA_METADATA_CHANGED",
)
_STOPPED: Final = "stopped SparkContext"
_CALL: Final = "An error occurred while calling "
_CAUSED_BY: Final = "Caused by: "
_IN_TASK: Final = re.compile(r"most recent failure: Lost task .*?\): (.*)")
NO_EXECUTORS: Final = "lowmark found no executor"
"""The reason with which lowmark cancels jobs that no executor can run."""
_MASTER_GONE: Final = re.compile(
    r"(Master removed our application: \w+|All masters are unresponsive)"
)
_EXECUTOR_LOST: Final = (
    *("CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", "ExecutorLostFailure", "ExecutorDeadException"),
    *("FetchFailedException", "MetadataFetchFailedException", "TaskResultLost"),
    *("Failed to get broadcast_", "Exception while getting task result"),
)
_MISSING_FILE: Final = re.compile(r"while reading file (\S+)\. File does not exist")
_NO_CLIENT: Final = "Failed to create new KafkaAdminClient"
_AWAY: Final = (
    *("errors.TimeoutException", "errors.DisconnectException", "errors.NetworkException"),
    *("Cannot fetch record for offset", "No resolvable bootstrap urls"),
)
"""Signs that Kafka does not answer."""
_TABLE_OF_FILE: Final = re.compile(r"(.*/(?:data|changelog|tombstones[^/]*))/")


def situation(error: BaseException, what: str) -> ConnectorError | None:
    """The error with a remedy for `what`, for example "stream orders". None: it is not known."""
    text = str(error)
    if (master := _MASTER_GONE.search(text)) is not None:
        return session_ended(
            f"Spark ended while it worked on {what}",
            f"{master[1]}: the master of the cluster ended the application, or is gone",
        )
    if isinstance(error, GONE) or _STOPPED in text:
        return None if is_any_live() else session_ended(f"Spark ended while it worked on {what}")
    if NO_EXECUTORS in text:
        return spark_without_executors(what)
    if _TWO_READERS in text:
        return checkpoint_foreign(
            f"Another process wrote the checkpoint of {what} at the same time",
            "Two processes use the same warehouse",
        )
    if isinstance(error, DeltaConcurrentModificationException) or _has(text, _TWO_WRITERS):
        return concurrent_write(what)
    return _store_situation(text, what) or _kafka_situation(text, what)


def _has(text: str, signs: Iterable[str]) -> bool:
    return any(sign in text for sign in signs)


def _store_situation(text: str, what: str) -> ConnectorError | None:
    """The error of a store, a disk or a file."""
    if (error := store_error(text, f"The object store cannot be used for {what}")) is not None:
        return error
    if (cause := cause_of_full_disk(text)) is not None:
        return disk_full(f"No more data can be written for {what}", cause)
    if (missing := _MISSING_FILE.search(text)) is not None:
        file = re.sub("^file:/+", "/", missing[1])
        table = _TABLE_OF_FILE.match(file)
        return data_file_damaged(table[1] if table else file.rpartition("/")[0], file)
    return None


def _kafka_situation(text: str, what: str) -> ConnectorError | None:
    """The error if Kafka lacks records, or does not let Spark's client in (SEC-1)."""
    if _has(text, _LOST):
        return spark_records_deleted(what)
    if "SslAuthenticationException" in text:
        return tls_failed(f"for {what}", _line_with("SslAuthenticationException", text))
    if "SaslAuthenticationException" in text or _NO_CLIENT in text:
        cause = _line_with("SaslAuthenticationException", text)
        return login_failed(
            f"for {what}", cause or f"{_NO_CLIENT}: it got no token, or cannot use a certificate"
        )
    if "AuthorizationException" in text:
        cause = _line_with("AuthorizationException", text)
        return access_denied(f"read {what} with Spark", cause, "Read")
    if (sign := next((sign for sign in _AWAY if sign in text), None)) is not None:
        return spark_broker_unreachable(what, f"{sign}: {_line_with(sign, text)}".rstrip(": "))
    return None


def _line_with(sign: str, text: str) -> str:
    """The text of an exception of Java, from its name to the end of its line."""
    line = re.search(rf"{sign}: (.*?)(?: SQLSTATE: \w*)?$", text, re.MULTILINE)
    return "" if line is None else line[1]


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise the `situation` instead of an error that it explains."""
    try:
        yield
    except (PySparkException, Py4JError, *GONE) as error:
        if (explanation := situation(error, what)) is not None:
            raise explanation from error
        raise


def cause_of(error: BaseException) -> str:
    """The innermost cause on one line. Around it, Spark and Delta print plans and stacks."""
    text = text_of(error)
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(_CAUSED_BY)]
    if causes:
        return causes[-1].removeprefix(_CAUSED_BY)
    if (in_task := _IN_TASK.search(text)) is not None:
        return in_task[1]
    return next((line for line in lines if not line.startswith(_CALL)), type(error).__name__)


def lost_executor(error: BaseException | None) -> str | None:
    """The cause, if the error or one that it was raised from is due to the loss of executors: the
    same work can then succeed. None: it is another error.
    """
    while error is not None:
        if isinstance(error, PySparkException | Py4JError):
            text = text_of(error)
            return cause_of(error) if any(sign in text for sign in _EXECUTOR_LOST) else None
        error = error.__cause__
    return None


def text_of(error: BaseException) -> str:
    """The text of the error, and the causes in the JVM that it does not show."""
    text = str(error)
    with suppress(*GONE, Py4JError):
        thrown: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
        while thrown is not None and (thrown := thrown.getCause()) is not None:
            text += f"\n{_CAUSED_BY}{thrown.toString()}"
    return text


@contextmanager
def _explained_or(what: str, failed: Callable[[str], ConnectorError]) -> Iterator[None]:
    """Raise `failed` with the cause for an error of Spark or Delta without a `situation`."""
    try:
        with explained(what):
            yield
    except (PySparkException, Py4JError) as error:
        raise failed(cause_of(error)) from error


def ingesting(stream: str) -> AbstractContextManager[None]:
    """Raise a `ConnectorError` instead of an error of Spark or Delta."""
    return _explained_or(f"stream {stream}", partial(ingest_failed, stream))


def applying(table: str) -> AbstractContextManager[None]:
    """Raise a `ConnectorError` instead of an error of Spark or Delta."""
    return _explained_or(f"table {table}", partial(apply_failed, table))


def reading(table: str) -> AbstractContextManager[None]:
    """Raise a `ConnectorError` instead of an error of Spark or Delta."""
    return _explained_or(f"table {table}", partial(table_unreadable, table))

"""Turns known errors of Spark and Delta into errors that a user can repair. All others are raised
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from delta.exceptions import DeltaConcurrentModificationException
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from connector.errors import (
    BrokerError,
    ConnectorError,
    ErrorCode,
    StorageError,
    TableError,
    TopicError,
    WriterConflictError,
)
from connector.spark.jvm import GONE, is_any_live, session_ended
from connector.state.damage import FULL, TOO_LARGE
from connector.state.store_errors import store_error

_LOST = ("KAFKA_DATA_LOSS", "Some data may have been lost")
_TWO_READERS = "CONCURRENT_STREAM_LOG_UPDATE"
# Two processes that begin with a new warehouse at once meet when they make its Delta tables.
_TWO_WRITERS = (
    _TWO_READERS,
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
_REMEDY = (
    "Stop one of the two processes. If only one process runs, delete the checkpoint folder of the"
    " stream: ingest continues from the changelog"
)


def situation(
    error: BaseException, what: str, *, table: str | None = None
) -> ConnectorError | None:
    """The error that names `what`, for example "stream orders", and the problem. None: `error` is
    not a known one.

    `table` is the table whose changes are applied, if there is one.
    """
    text = str(error)
    if (gone := _MASTER_GONE.search(text)) is not None:
        return session_ended(
            f"Spark ended while it worked on {what}",
            f"{gone[1]}: the master of the cluster ended the application, or is gone",
        )
    if isinstance(error, GONE) or _STOPPED in text:
        return None if is_any_live() else session_ended(f"Spark ended while it worked on {what}")
    if NO_EXECUTORS in text:
        return ConnectorError(
            ErrorCode.SPARK_WITHOUT_EXECUTORS,
            f"Spark has no executor for {what}",
            "All workers are down, other applications use all cores, or the master of the cluster"
            " was started again without its state",
            "Look at the page of the master, then start again. Nothing is lost: lowmark continues"
            " where it stopped",
        )
    if isinstance(error, DeltaConcurrentModificationException) or any(
        sign in text for sign in _TWO_WRITERS
    ):
        return WriterConflictError(
            ErrorCode.CONCURRENT_WRITE,
            f"Another process wrote to {what} at the same time",
            "Two processes use the same warehouse",
            (
                _REMEDY
                if _TWO_READERS in text
                else "Stop one of the two processes. This one has changed nothing"
            ),
        )
    of_store = store_error(text, f"The object store cannot be used for {what}")
    if of_store is not None:
        return of_store
    if any(sign in text for sign in FULL):
        return StorageError(
            ErrorCode.DISK_FULL,
            f"No more data can be written for {what}",
            "The disk is full",
            "Free some space and start again. Nothing is lost: lowmark continues where it stopped",
        )
    if TOO_LARGE in text:
        return StorageError(
            ErrorCode.DISK_FULL,
            f"No more data can be written for {what}",
            "A file has reached the size limit of the process (ulimit -f) or of the file system",
            "Raise the limit and start again. Nothing is lost: lowmark continues where it stopped",
        )
    if any(sign in text for sign in _LOST):
        return TopicError(
            ErrorCode.RECORDS_DELETED,
            f"Kafka deleted records of {what} before they were read",
            "The retention of the topic deleted them, or Kafka partitions were removed",
            "Find out which records are missing, and send them again to a new stream",
        )
    if (missing := _MISSING_FILE.search(text)) is not None:
        return _without_file(missing[1], what, table)
    return _not_let_in(text, what)


def _not_let_in(text: str, what: str) -> BrokerError | None:
    """The error if Kafka does not let Spark's client in (SEC-1)."""
    again = "Start again once it is corrected. Nothing is lost: lowmark continues where it stopped"
    if "SslAuthenticationException" in text:
        return BrokerError(
            ErrorCode.KAFKA_TLS_FAILED,
            f"Spark has no secure connection to Kafka for {what}",
            _line_with("SslAuthenticationException", text),
            "Check ssl.ca.location and the client certificate of [kafka]: their files, who issued"
            f" the certificates, and when they expire. {again}",
        )
    if "SaslAuthenticationException" in text or _NO_CLIENT in text:
        return BrokerError(
            ErrorCode.KAFKA_LOGIN_FAILED,
            f"Kafka does not accept the login of Spark for {what}",
            _line_with("SaslAuthenticationException", text)
            or f"{_NO_CLIENT}: it got no token, or cannot use a certificate",
            "Check the user and password, or the client id, secret and token endpoint, of [kafka]."
            f" {again}",
        )
    if "AuthorizationException" in text:
        return BrokerError(
            ErrorCode.KAFKA_ACCESS_DENIED,
            f"Kafka refused a request of Spark for {what}",
            _line_with("AuthorizationException", text),
            f"Give this user the rights that docs/howto/run-against-your-cluster.md lists. {again}",
        )
    return None


def _line_with(sign: str, text: str) -> str:
    """The text of an exception of Java, from its name to the end of its line."""
    found = re.search(rf"{sign}: (.*?)(?: SQLSTATE: \w*)?$", text, re.MULTILINE)
    return "" if found is None else found[1]


def _without_file(file: str, what: str, table: str | None) -> StorageError:
    of_table = table is not None and "/changelog/" not in file
    return StorageError(
        ErrorCode.DATA_FILE_MISSING,
        f"A data file of {what if of_table else 'the changelog'} is missing",
        f"{file} does not exist, but the Delta log names it",
        "Restore the file from a backup"
        + (". Without a backup, rebuild the table from the changelog" if of_table else ""),
        **({"table": table} if of_table else {}),
    )


@contextmanager
def explained(what: str, *, table: str | None = None) -> Iterator[None]:
    """Raise the `situation` instead of an error that it explains."""
    try:
        yield
    except (PySparkException, Py4JError, *GONE) as error:
        if (known := situation(error, what, table=table)) is not None:
            raise known from error
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
def ingesting(stream: str) -> Iterator[None]:
    """Raise a `ConnectorError` instead of an error of Spark or Delta that `situation` does not
    know.
    """
    try:
        with explained(f"stream {stream}"):
            yield
    except (PySparkException, Py4JError) as error:
        raise ConnectorError(
            ErrorCode.INGEST_FAILED,
            f"Ingest of stream {stream} stopped",
            cause_of(error),
            "Remove the cause and start ingest again. Nothing is lost: ingest continues where it"
            " stopped",
            stream=stream,
        ) from error


@contextmanager
def applying(table: str) -> Iterator[None]:
    """Raise a `TableError` instead of an error of Spark or Delta that `situation` does not know."""
    try:
        with explained(f"table {table}", table=table):
            yield
    except (PySparkException, Py4JError) as error:
        raise TableError(
            ErrorCode.APPLY_FAILED,
            f"Changes could not be applied to table {table}",
            cause_of(error),
            "Nothing is lost: the table is at its last apply. If the definition of the table does"
            " not explain the cause, report the error",
            table=table,
        ) from error


@contextmanager
def reading(table: str) -> Iterator[None]:
    """Raise a `TableError` instead of an error of Spark or Delta that `situation` does not know."""
    try:
        with explained(f"table {table}", table=table):
            yield
    except (PySparkException, Py4JError) as error:
        raise TableError(
            ErrorCode.TABLE_UNREADABLE,
            f"Table {table} could not be read",
            cause_of(error),
            "Remove the cause and read again. The read changed nothing",
            table=table,
        ) from error

"""Turns known errors of Spark and Delta into errors that a user can repair. All others are raised
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from delta.exceptions import DeltaConcurrentModificationException
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from connector.errors import (
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
_MISSING_FILE: Final = re.compile(r"while reading file (\S+)\. File does not exist")
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
    if isinstance(error, GONE) or _STOPPED in text:
        return None if is_any_live() else session_ended(f"Spark ended while it worked on {what}")
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
    return None


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


def first_line(error: BaseException, otherwise: str) -> str:
    """The first line that names a cause. After it, Spark and Delta print plans and stacks."""
    lines = (line.removeprefix(": ") for line in str(error).splitlines() if line.strip())
    return next((line for line in lines if not line.startswith(_CALL)), otherwise)


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
            first_line(error, type(error).__name__),
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
            first_line(error, type(error).__name__),
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
            first_line(error, type(error).__name__),
            "Remove the cause and read again. The read changed nothing",
            table=table,
        ) from error

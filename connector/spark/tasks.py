"""Tasks that Spark's Python workers run: records in, files out (ENG-3)."""

from __future__ import annotations

import json
import pickle
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from connector.engine.batch import IngestJob, arrivals, changelog_rows, of_unseen_schemas
from connector.engine.replays import is_replay
from connector.engine.schema import KAFKA
from connector.engine.slots import by_slot
from connector.errors import ConnectorError
from connector.errors.spark import executors_without_package
from connector.spark.failures import text_of
from connector.spark.storage.changelog import WriteRows

_COLUMNS: Final = (
    *("key", "value", "partition", "offset", "timestamp", "timestampType"),
    "to_json(headers) AS headers",
)
"""The columns of Spark's Kafka source that a task gets, as SQL. Spark looks at the size of an Arrow
batch after each record, which costs more than all else for a list of structures.
"""
_BY_BROKER: Final = 1
"""The `timestampType` of a record timestamp that the broker wrote."""
_WITHOUT_PACKAGE: Final = (
    *("No module named", "Cannot run program", "PYTHON_VERSION_MISMATCH", "ImportError"),
)
"""Parts of Spark's errors if the Python of an executor lacks the package, or is another one."""
_MOST_BYTES: Final = 128_000_000
"""Rows in memory, before a task writes them."""
_RESULT: Final = pa.schema({"action": pa.string(), "records": pa.binary(), "error": pa.binary()})
_RESULT_TYPES: Final = "action string, records binary, error binary"


class Ingested(NamedTuple):
    """The actions that add the written files, and the records that are left to the driver: replays,
    and those of schemas that it has not asked the registry for.
    """

    actions: list[str]
    left: list[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class IngestTask:
    """Writes the rows of records to files of the changelog at a path. `job` has no records yet.
    `read_at` is when Kafka was asked for them (µs).
    """

    job: IngestJob
    asks_registry: bool
    read_at: int
    changelog: str
    write_rows: WriteRows

    def run(self, rows: DataFrame) -> Ingested:
        """Ingest the rows of Spark's Kafka source. Files that no commit names are removed later.

        Raises what `write_rows` raises in a task, and `ConnectorError` if an executor cannot run
        it.
        """
        rows = rows.selectExpr(*_COLUMNS)
        with _explained():
            results = rows.mapInArrow(self._results, _RESULT_TYPES).collect()
        for row in results:
            if row["error"] is not None:
                error: ConnectorError = pickle.loads(row["error"])  # noqa: S301, of an own task
                raise error
        left = [pa.ipc.open_stream(row["records"]) for row in results if row["records"] is not None]
        return Ingested(
            [row["action"] for row in results if row["action"] is not None],
            [batch for stream in left for batch in stream],
        )

    def written(self, records: pa.RecordBatch) -> list[str]:
        """Ingest records, with the schema `KAFKA`, in this process."""
        return [*self._written([changelog_rows(replace(self.job, records=records))])]

    def _results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The results of a task. Its error is one of them: Spark would only know its text."""
        try:
            yield from self._ingested(batches)
        except ConnectorError as error:
            yield _result(error=[pickle.dumps(error)])

    def _ingested(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables, size = list[pa.Table](), 0
        for batch in batches:
            records = _records(batch, self.read_at)
            is_left = is_replay(records)
            if self.asks_registry:
                is_left = pc.or_(is_left, of_unseen_schemas(records, self.job.schemas))
            if len(left := records.filter(is_left)):
                yield _result(records=[_as_bytes(left)])
            records = records.filter(pc.invert(is_left))
            tables.append(changelog_rows(replace(self.job, records=records)))
            size += tables[-1].nbytes
            if size >= _MOST_BYTES:
                yield _result(action=[*self._written(tables)])
                tables, size = [], 0
        yield _result(action=[*self._written(tables)])

    def _written(self, tables: list[pa.Table]) -> Iterator[str]:
        for slot, rows in by_slot(pa.concat_tables(tables)) if tables else ():
            yield self.write_rows(self.changelog, rows, slot)


def _records(batch: pa.RecordBatch, read_at: int) -> pa.RecordBatch:
    """Records with `_COLUMNS`, with the schema `KAFKA`."""
    times = batch["timestamp"].cast(pa.int64())
    columns = [
        batch["partition"],
        batch["offset"],
        arrivals(times, pc.equal(batch["timestampType"], _BY_BROKER), read_at),
        batch["key"],
        batch["value"],
        _headers(batch["headers"]),
    ]
    typed = [column.cast(type_) for column, type_ in zip(columns, KAFKA.types, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=KAFKA)


def _headers(texts: pa.Array) -> pa.Array:
    """Headers from JSON, whose values are base64."""
    type_ = KAFKA.field("headers").type
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), type_)
    return pa.array([None if text is None else _parsed(text) for text in texts.to_pylist()], type_)


def _parsed(text: str) -> list[tuple[str, bytes | None]]:
    headers = ((header["key"], header.get("value")) for header in json.loads(text))
    return [(key, None if value is None else b64decode(value)) for key, value in headers]


def _as_bytes(records: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema) as stream:
        stream.write_batch(records)
    return bytes(sink.getvalue())


def _result(**columns: Sequence[str | bytes]) -> pa.RecordBatch:
    number = max(map(len, columns.values()))
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, [None] * number), field.type) for field in _RESULT],
        schema=_RESULT,
    )


def check_python(spark: SparkSession, tasks: int) -> None:
    """Raise `ConnectorError` if an executor cannot run tasks of this version of lowmark (SCL-3)."""
    rows = spark.range(0, tasks, 1, tasks)
    with _explained():
        versions = {row[0] for row in rows.mapInArrow(_versions, "version string").collect()}
    if others := sorted(versions - {version("lowmark")}):
        raise executors_without_package(f"Executors have lowmark {' and '.join(others)}")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as error:
        for line in text_of(error).splitlines():
            if any(sign in line for sign in _WITHOUT_PACKAGE):
                raise executors_without_package(line.strip()) from error
        raise


def _versions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"version": [version("lowmark")]})

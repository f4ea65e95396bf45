"""Tasks that Spark's Python workers run: records in, files out (ENG-3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from connector.engine.batch import IngestJob, arrivals, changelog_rows, of_unseen_schemas
from connector.engine.replays import is_replay
from connector.engine.schema import KAFKA
from connector.engine.slots import by_slot
from connector.spark.storage.changelog import WriteRows

_BY_BROKER: Final = 1
"""The `timestampType` of a record timestamp that the broker wrote."""
_MOST_BYTES: Final = 128_000_000
"""Rows in memory, before a task writes them."""
_RESULT: Final = pa.schema({"action": pa.string(), "records": pa.binary()})


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
        """Ingest the rows of Spark's Kafka source. Files that no commit names are removed later."""
        results = rows.mapInArrow(self._results, "action string, records binary").collect()
        left = [pa.ipc.open_stream(row["records"]) for row in results if row["records"] is not None]
        return Ingested(
            [row["action"] for row in results if row["action"] is not None],
            [batch for stream in left for batch in stream],
        )

    def written(self, records: pa.RecordBatch) -> list[str]:
        """Ingest records, with the schema `KAFKA`, in this process."""
        return [*self._written([changelog_rows(self.job.with_records(records))])]

    def _results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables, size = list[pa.Table](), 0
        for batch in batches:
            records = _records(batch, self.read_at)
            is_left = is_replay(records)
            if self.asks_registry:
                is_left = pc.or_(is_left, of_unseen_schemas(records, self.job.schemas))
            if len(left := records.filter(is_left)):
                yield _result(records=[_as_bytes(left)])
            records = records.filter(pc.invert(is_left))
            tables.append(changelog_rows(self.job.with_records(records)))
            size += tables[-1].nbytes
            if size >= _MOST_BYTES:
                yield _result(action=[*self._written(tables)])
                tables, size = [], 0
        yield _result(action=[*self._written(tables)])

    def _written(self, tables: list[pa.Table]) -> Iterator[str]:
        for slot, rows in by_slot(pa.concat_tables(tables)) if tables else ():
            yield self.write_rows(self.changelog, rows, slot)


def _records(batch: pa.RecordBatch, read_at: int) -> pa.RecordBatch:
    """Records of Spark's Kafka source, with the schema `KAFKA`."""
    times = batch["timestamp"].cast(pa.int64())
    columns = [
        batch["partition"],
        batch["offset"],
        arrivals(times, pc.equal(batch["timestampType"], _BY_BROKER), read_at),
        batch["key"],
        batch["value"],
        batch["headers"],
    ]
    typed = [column.cast(type_) for column, type_ in zip(columns, KAFKA.types, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=KAFKA)


def _as_bytes(records: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema) as stream:
        stream.write_batch(records)
    return bytes(sink.getvalue())


def _result(
    action: Sequence[str | None] = (), records: Sequence[bytes | None] = ()
) -> pa.RecordBatch:
    number = max(len(action), len(records))
    columns = [action or [None] * number, records or [None] * number]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type_) for column, type_ in zip(columns, _RESULT.types, strict=True)],
        schema=_RESULT,
    )

"""The rows of a changelog from the records of a batch (TBL-4).

Columns decide about the records that they understand completely, and the definition,
`validate_record`, about every other one.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.dead_letters.envelope import REPLAY_HEADER, letter_id
from connector.engine.decode import decode
from connector.engine.record_rows import rows_of
from connector.engine.rules import RecordRules
from connector.engine.schema import CHANGELOG, POSITION, RECORD
from connector.records import codec
from connector.records.codec import ChangeRecord
from connector.records.rejection import Position, Rejection
from connector.validation import KafkaRecord

_ORDER: Final = [(name, "ascending") for name in ("table", "_hash", "kafka_partition", "offset")]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestJob:
    """The records of a batch, with the schema `KAFKA`, and what their rows depend on. None of them
    is a replay, and no row is erased. `schemas` has every schema of the registry that they name.
    `ingest_time` is in microseconds.
    """

    records: pa.RecordBatch
    rules: RecordRules
    schemas: codec.Schemas
    topic: str
    topic_id: str
    ingest_batch: int
    ingest_time: int


def has_replays(records: pa.RecordBatch) -> bool:
    """Whether some records say that they are replays of dead letters (DLQ-10)."""
    names = pc.struct_field(pc.list_flatten(records["headers"]), "key")
    return bool(pc.any(pc.equal(names, REPLAY_HEADER)).as_py())


def registry_ids(records: pa.RecordBatch) -> set[int]:
    """The ids of the schemas of the registry that records name."""
    prefixes = pc.binary_slice(records["value"], 0, codec.CONFLUENT_BYTES).unique()
    return {id_ for id_ in map(codec.confluent_id, prefixes.to_pylist()) if id_ is not None}


def changelog_rows(job: IngestJob) -> pa.Table:
    """The rows of the records, with the schema `CHANGELOG`, by source table and hash."""
    records, number = job.records, len(job.records)
    decoded = decode(
        records["key"],
        records["value"],
        records["record_timestamp"].to_numpy(),
        job.rules,
        job.schemas,
    )
    accepted, rejected = list[tuple[int, ChangeRecord]](), list[tuple[int, Rejection]]()
    letter_ids = list[str]()
    for index in np.flatnonzero(~decoded.is_decided).tolist():
        record = _record(job, index)
        judged = job.rules.judge(record, job.schemas)
        if isinstance(judged, Rejection):
            rejected.append((index, judged))
            letter_ids.append(letter_id(record.position))
        else:
            accepted.append((index, judged))
    contents = [decoded.records, rows_of([record for _, record in accepted])]
    if rejected:
        empty = pa.Table.from_pylist([{"kind": "rejected"}] * len(rejected), RECORD)
        contents.append(empty)
    order = np.concatenate(
        [
            np.flatnonzero(decoded.is_decided),
            np.array([index for index, _ in (*accepted, *rejected)], np.int64),
        ]
    )
    assert len(order) == number
    columns = _of_records(job, records.take(pa.array(order)))
    content = pa.concat_tables(contents)
    columns.update(zip(RECORD.names, content.columns, strict=True))
    columns["_hash"] = _hashes(content["row_key"])
    nothing = [None] * (number - len(rejected))
    reasons = [rejection for _, rejection in rejected]
    columns["reason"] = [*nothing, *(str(judged.reason) for judged in reasons)]
    columns["rule"] = [*nothing, *(judged.rule or None for judged in reasons)]
    columns["letter_id"] = [*nothing, *letter_ids]
    is_rejected = pa.array(np.arange(number) >= len(nothing))
    columns["key"] = _only(is_rejected, columns["key"])
    keeps_value = pc.or_(is_rejected, _has_unknown_fields(job.schemas, columns["value"]))
    columns["value"] = _only(keeps_value, columns["value"])
    arrays = [_typed(columns.get(field.name), field.type, number) for field in CHANGELOG]
    rows = pa.Table.from_arrays(arrays, schema=CHANGELOG)
    return rows.take(pc.sort_indices(rows, _ORDER))


def _record(job: IngestJob, index: int) -> KafkaRecord:
    """A record as the definition takes it, which does not look at headers."""
    row = job.records.slice(index, 1).to_pylist()[0]
    position = Position(job.topic, job.topic_id, row["kafka_partition"], row["offset"])
    return KafkaRecord(position, row["record_timestamp"], row["key"], row["value"])


def _of_records(job: IngestJob, records: pa.RecordBatch) -> dict[str, Any]:
    """The columns of rows that Kafka and the batch say."""
    number = len(records)
    at = (records["kafka_partition"], records["offset"])
    batch = pa.repeat(pa.scalar(job.ingest_batch, pa.int64()), number)
    first = pa.repeat(pa.scalar(0, pa.int32()), number)
    time = pa.scalar(job.ingest_time, pa.int64())
    return {
        "ingest_batch": batch,
        "kafka_partition": at[0],
        "offset": at[1],
        "order_position": pa.StructArray.from_arrays([batch, *at, first], fields=list(POSITION)),
        "topic": pa.repeat(job.topic, number),
        "topic_id": pa.repeat(job.topic_id, number),
        "record_timestamp": records["record_timestamp"],
        "ingest_time": pa.repeat(time, number),
        "headers": records["headers"],
        "key": records["key"],
        "value": records["value"],
    }


def _hashes(row_keys: pa.ChunkedArray) -> pa.Array:
    """The CRC-32 of each row key, as a number with a sign. Null: the row has no key."""
    hashes = [0 if key is None else zlib.crc32(key) for key in row_keys.to_pylist()]
    signed = np.array(hashes, np.uint32).view(np.int32)
    return pa.array(signed, mask=row_keys.is_null().to_numpy())


def _has_unknown_fields(schemas: codec.Schemas, values: pa.Array) -> pa.Array:
    """Whether each record was written with a schema that has fields that are not known here."""
    prefixes = [codec.frame(b"", id_) for id_ in codec.unknown_fields(schemas)]
    begins = pc.binary_slice(values, 0, codec.CONFLUENT_BYTES)
    return pc.is_in(begins, pa.array(prefixes, pa.binary()))


def _only(mask: pa.Array, column: pa.Array) -> pa.Array:
    return pc.if_else(mask, column, pa.scalar(None, column.type))


def _typed(column: Any, type_: pa.DataType, number: int) -> pa.Array:
    if column is None:
        return pa.nulls(number, type_)
    if isinstance(column, list):
        return pa.array(column, type_)
    return column if column.type == type_ else column.cast(type_)

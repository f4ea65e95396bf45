"""The rows of a changelog from the records of a batch (TBL-4).

Columns decide about the records that they understand completely, and the definition,
`validate_record`, about every other one.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.dead_letters.envelope import ClaimedLetter, letter_id
from connector.engine.decode import decode
from connector.engine.erased import without_erased, without_letter
from connector.engine.record_rows import rows_of
from connector.engine.replays import positions_with, replays_in
from connector.engine.rules import RecordRules
from connector.engine.schema import CHANGELOG, POSITION, RECORD
from connector.engine.values import Numbers, flags_of
from connector.records import codec
from connector.records.codec import ChangeRecord
from connector.records.model import MAX_TIMESTAMP
from connector.records.ordering import OrderPosition
from connector.records.rejection import Position, Rejection
from connector.validation import EARLIEST_ARRIVAL, MAX_AHEAD_US, KafkaRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestJob:
    """The records of a batch, with the schema `KAFKA`, and what their rows depend on.

    - `schemas` has every schema of the registry that they name.
    - `ingest_time` is in microseconds.
    - `logged` has the order positions of the dead letters that replays among them name, and that
      the changelog has.
    """

    records: pa.RecordBatch
    rules: RecordRules
    schemas: codec.Schemas
    topic: str
    topic_id: str
    ingest_batch: int
    ingest_time: int
    logged: Mapping[ClaimedLetter, OrderPosition] = field(default_factory=dict)


def arrivals(times: pa.Array, by_broker: pa.Array, read_at: int) -> pa.Array:
    """The times of arrival (µs) that record timestamps (µs) say, as `validation.arrival`. A time
    that is not believed becomes `read_at`.
    """
    latest = pc.if_else(by_broker, MAX_TIMESTAMP, read_at + MAX_AHEAD_US)
    is_in_time = pc.less_equal(times, latest)
    is_believed = pc.and_(pc.greater_equal(times, EARLIEST_ARRIVAL), is_in_time)
    return pc.if_else(is_believed, times, read_at)


def of_unseen_schemas(records: pa.RecordBatch, schemas: codec.Schemas) -> pa.Array:
    """Whether each record names a schema of the registry that is not in `schemas`, also as one that
    the registry does not have.
    """
    prefixes = pc.binary_slice(records["value"], 0, codec.CONFLUENT_BYTES)
    unseen = [
        prefix
        for prefix in prefixes.unique().to_pylist()
        if (id_ := codec.confluent_id(prefix)) is not None and id_ not in schemas.by_id
    ]
    return pc.is_in(prefixes, pa.array(unseen, pa.binary()))


def registry_ids(values: pa.Array) -> set[int]:
    """The ids of the schemas of the registry that values of records name."""
    prefixes = pc.binary_slice(values, 0, codec.CONFLUENT_BYTES).unique()
    return {id_ for id_ in map(codec.confluent_id, prefixes.to_pylist()) if id_ is not None}


def changelog_rows(job: IngestJob) -> pa.Table:
    """The rows of the records, with the schema `CHANGELOG`, in no order."""
    records, number = job.records, len(job.records)
    decoded = decode(
        records["key"],
        records["value"],
        records["record_timestamp"].to_numpy(),
        job.rules,
        job.schemas,
    )
    judged = _by_definition(job, np.flatnonzero(~decoded.is_decided))
    bare: list[dict[str, Any]] = [
        *({"kind": "erased", "row_key": hash_} for _, hash_ in judged.erased),
        *({"kind": "rejected"} for _ in judged.rejected),
    ]
    accepted = rows_of([record for _, record in judged.accepted])
    contents = [decoded.records, accepted, pa.Table.from_pylist(bare, RECORD)]
    by_definition = np.array(judged.order, np.int64)
    order = np.concatenate([np.flatnonzero(decoded.is_decided), by_definition])
    assert len(order) == number
    columns = _of_records(job, records.take(pa.array(order)))
    content = pa.concat_tables(contents).combine_chunks()
    is_erased = np.zeros(number, np.bool_)
    if job.rules.erased.erased_to:
        times = columns["record_timestamp"].to_numpy()
        content, is_erased = without_erased(content, times, job.rules.erased)
        is_erased |= flags_of(pc.equal(content["kind"], "erased"))
    columns.update(zip(RECORD.names, content.columns, strict=True))
    columns["_hash"] = _hashes(content["row_key"])
    first_rejected = number - len(judged.rejected)
    nothing = [None] * first_rejected
    reasons = [rejection for _, rejection in judged.rejected]
    positions = (_position(job, index) for index, _ in judged.rejected)
    columns["reason"] = [*nothing, *(str(judged.reason) for judged in reasons)]
    columns["rule"] = [*nothing, *(judged.rule or None for judged in reasons)]
    columns["letter_id"] = [*nothing, *map(letter_id, positions)]
    is_rejected = pa.array(np.arange(number) >= first_rejected)
    columns["key"] = _only(is_rejected, columns["key"])
    keeps_value = pc.or_(is_rejected, _has_unknown_fields(job.schemas, columns["value"]))
    is_kept = pa.array(~is_erased)
    columns["value"] = _only(pc.and_(keeps_value, is_kept), columns["value"])
    if is_erased.any():
        columns["headers"] = _only(is_kept, columns["headers"])
    arrays = [_typed(columns.get(field.name), field.type, number) for field in CHANGELOG]
    return pa.Table.from_arrays(arrays, schema=CHANGELOG)


class _Judged(NamedTuple):
    """Records that the definition has judged, each with its number: those that become rows of
    their content, those of erased rows that become nothing but a hash of their key, and dead
    letters.
    """

    accepted: list[tuple[int, ChangeRecord]]
    erased: list[tuple[int, bytes]]
    rejected: list[tuple[int, Rejection]]

    @property
    def order(self) -> list[int]:
        return [index for index, _ in (*self.accepted, *self.erased, *self.rejected)]


def _by_definition(job: IngestJob, indexes: Numbers) -> _Judged:
    judged = _Judged([], [], [])
    for index in indexes.tolist():
        record = _record(job, index)
        verdict: ChangeRecord | Rejection | bytes = job.rules.judge(record, job.schemas)
        if isinstance(verdict, Rejection):
            verdict = without_letter(record, verdict, job.schemas, job.rules.erased)
        match verdict:
            case ChangeRecord():
                judged.accepted.append((index, verdict))
            case Rejection():
                judged.rejected.append((index, verdict))
            case bytes():
                judged.erased.append((index, verdict))
    return judged


def _record(job: IngestJob, index: int) -> KafkaRecord:
    """A record as the definition takes it, which does not look at headers."""
    row = job.records.slice(index, 1).to_pylist()[0]
    return KafkaRecord(_position(job, index), row["record_timestamp"], row["key"], row["value"])


def _position(job: IngestJob, index: int) -> Position:
    at = (job.records[name][index].as_py() for name in ("kafka_partition", "offset"))
    return Position(job.topic, job.topic_id, *at)


def _of_records(job: IngestJob, records: pa.RecordBatch) -> dict[str, Any]:
    """The columns of rows that Kafka, the batch and earlier batches say."""
    number = len(records)
    replays = replays_in(records, job.topic_id)
    at = (records["kafka_partition"], records["offset"])
    batch = pa.repeat(pa.scalar(job.ingest_batch, pa.int64()), number)
    first = pa.repeat(pa.scalar(0, pa.int32()), number)
    time = pa.scalar(job.ingest_time, pa.int64())
    return {
        "ingest_batch": batch,
        "kafka_partition": at[0],
        "offset": at[1],
        "order_position": positions_with(
            pa.StructArray.from_arrays([batch, *at, first], fields=list(POSITION)),
            replays,
            job.logged,
        ),
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

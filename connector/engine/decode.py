"""Decodes and validates many change records at once, as columns.

Columns only decide about records that they understand completely, and accept. `validate_record`
accepts each of these with the same fields. All other records are left to it: those that it rejects,
and valid ones of a rare form or kind.

Decided are changes and heartbeats in the newest schema, in both framings, with arrays of one block
and branches and symbols of one byte. Fields that the kind of an entry does not use must have their
defaults, because the row has them. Long arrays are decided if enough records have them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.engine.avro import Buffer, Cursor, Fields, Items, Spans
from connector.engine.rules import RecordRules
from connector.engine.schema import RECORD
from connector.engine.values import Flags, Numbers, flags_of
from connector.records import codec
from connector.records.avro_plan import Plan
from connector.records.model import (
    CONTROL_KEY,
    FAMILY_PATTERN,
    MAX_ENTRIES,
    MAX_QUALIFIER_BYTES,
    MAX_RESUME_TOKEN_BYTES,
    MAX_ROW_KEY_BYTES,
    MAX_STREAM_PARTITION_BYTES,
    MAX_TIMESTAMP,
    SEQUENCE_NUMBER_PATTERN,
    TABLE_PATTERN,
    WRITE_STREAM_PATTERN,
    ChangeType,
    ModType,
)
from connector.validation import BEGINNING, RowImages

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SINGLE_OBJECT_HEAD: Final = codec.frame(b"", None)
_MAX_SKEW_US: Final = 2**62
"""No clock differs so much. Times can be subtracted from each other."""

_CHANGE_TYPES: Final = tuple(ChangeType)
_USER: Final = _CHANGE_TYPES.index(ChangeType.USER)
_MOD_TYPES: Final = tuple(ModType)
_ENTRY_KINDS: Final = ("UNKNOWN", "SET_CELL", "DELETE_CELLS", "DELETE_FAMILY")
_KINDS: Final = (1, 2, 3)
"""The indexes of the known kinds."""

_is_table = re.compile(TABLE_PATTERN.encode()).fullmatch
_is_family = re.compile(FAMILY_PATTERN.encode()).fullmatch
_is_write_stream = re.compile(WRITE_STREAM_PATTERN.encode()).fullmatch
_is_sequence_number = re.compile(SEQUENCE_NUMBER_PATTERN.encode()).fullmatch

_LEAST_ENTRY: Final = 7
_LEAST_COLUMN_TYPE: Final = 4
_LEAST_OLD_CELL: Final = 4
"""The least bytes of an item: each field has at least one."""


class Decoded(NamedTuple):
    """`records` has a row for each record that the columns decide, in their order, with the schema
    `RECORD`. `is_decided` says of each given record whether they do.
    """

    records: pa.Table
    is_decided: Flags


class _Given(NamedTuple):
    """The keys and arrivals of some records, and the rules for them."""

    keys: pa.Array
    arrivals: Numbers
    rules: RecordRules


_Columns = dict[str, pa.Array]


def decode(
    keys: pa.Array,
    values: pa.Array,
    arrivals: Numbers,
    rules: RecordRules,
    schemas: codec.Schemas,
) -> Decoded:
    """Decode records, as far as columns decide about them.

    Args:
        keys: The keys, of the type `binary`, with nulls.
        values: The values, of the same type and length.
        arrivals: The times of arrival (µs).
        rules: The rules of the stream. Erased rows and truncations do not matter here: the former
            are another question, and the latter are left to `validate_record`.
        schemas: The writer schemas that are known.
    """
    is_decided = np.zeros(len(values), np.bool_)
    buffer = Buffer(values)
    head = _head_sizes(buffer, schemas)
    sizes = buffer.end - buffer.start + _numbers(pc.fill_null(pc.binary_length(keys), 0))
    is_ours = (head > 0) & (sizes <= rules.limits.max_record_bytes)
    if values.null_count:
        is_ours &= flags_of(values.is_valid())
    records = np.nonzero(is_ours)[0]
    cursor = Cursor(buffer, (buffer.start + head)[records], buffer.end[records])
    common, is_change, is_heartbeat = _begin(cursor, rules)
    tables = []
    decided = []
    for is_kind, read in ((is_change, _changes), (is_heartbeat, _heartbeats)):
        of_kind = np.nonzero(is_kind & cursor.is_good)[0]
        if not len(of_kind):
            continue
        part = cursor.part(of_kind)
        indexes = records[of_kind]
        columns = read(part, _Given(_taken(keys, indexes), arrivals[indexes], rules))
        columns |= {name: _taken(column, of_kind) for name, column in common.items()}
        tables.append(_table(columns, part.is_good))
        decided.append(indexes[part.is_good])
    if not tables:
        return Decoded(RECORD.empty_table(), is_decided)
    order = np.concatenate(decided)
    is_decided[order] = True
    table = pa.concat_tables(tables).combine_chunks()
    if len(tables) > 1:
        table = table.take(pa.array(np.argsort(order)))
    return Decoded(table, is_decided)


def _head_sizes(buffer: Buffer, schemas: codec.Schemas) -> Numbers:
    """The bytes before the bodies. 0: the framing or the schema is another one."""
    start, size = buffer.start, buffer.end - buffer.start
    head = np.zeros(len(start), np.int64)
    first, rest = _SINGLE_OBJECT_HEAD[:8], _SINGLE_OBJECT_HEAD[8:]
    word = buffer.words[start]
    is_single = (word == _word(first)) & (size >= codec.SINGLE_OBJECT_BYTES)
    is_single &= buffer.words[start + 8] & np.uint64(0xFFFF) == _word(rest)
    head[is_single] = codec.SINGLE_OBJECT_BYTES
    is_confluent = (word & np.uint64(0xFF) == 0) & (size >= codec.CONFLUENT_BYTES)
    if is_confluent.any():
        ids = ((word >> np.uint64(8)) & np.uint64(0xFFFFFFFF)).astype("<u4").byteswap()
        ours = [
            number
            for number in np.unique(ids[is_confluent]).tolist()
            if _has_our_bodies(schemas.by_id.get(number))
        ]
        head[is_confluent & np.isin(ids, ours)] = codec.CONFLUENT_BYTES
    return head


def _has_our_bodies(schema: str | None) -> bool:
    """Whether records of a writer schema are read as those of the newest one."""
    plan = codec.plan_of(schema) if schema else None
    return (
        isinstance(plan, Plan)
        and plan.is_ours
        and not (plan.factors or plan.inconvertible or plan.unknown_fields)
    )


def _begin(cursor: Cursor, rules: RecordRules) -> tuple[_Columns, Flags, Flags]:
    """Read what all records have, and whether a change or a heartbeat follows."""
    name = cursor.spans()
    cursor.require((name[1] >= 1) & (name[1] <= MAX_STREAM_PARTITION_BYTES))
    kafka_partitions = cursor.int_()
    cursor.require((kafka_partitions >= 1) & (kafka_partitions <= rules.kafka_partitions))
    is_change = cursor.is_given()
    is_heartbeat = np.zeros(len(is_change), np.bool_)
    others = np.nonzero(~is_change)[0]
    if len(others):
        part = cursor.part(others)
        is_heartbeat[others] = part.is_given()
        cursor.resume(others, part)
    columns = {
        "stream_partition": _text(cursor, name),
        "kafka_partitions": _int32(kafka_partitions),
    }
    return columns, is_change, is_heartbeat


def _changes(cursor: Cursor, given: _Given) -> _Columns:
    rules = given.rules
    table = _name(cursor, cursor.spans(), _is_table)
    if rules.tables is not None:
        cursor.require(flags_of(pc.is_in(table, pa.array(sorted(rules.tables), pa.string()))))
    row_key = _row_key(cursor, given.keys)
    change_type = _symbol(cursor, cursor.byte(), _CHANGE_TYPES)
    cluster = cursor.spans()
    cursor.require((change_type == _USER) == (cluster[1] > 0))
    source_cluster_id = _text(cursor, cluster)
    time = cursor.long()
    tie_breaker = cursor.long()
    token = _resume_token(cursor)
    watermark = cursor.long()
    cursor.require(watermark >= 0)
    entries, sets_cells = _entries(cursor)
    transaction, is_part = _optional(cursor, _transaction, "transaction")
    sequence_number, _ = _optional(cursor, _sequence_number, "change_sequence_number")
    row_image, _ = _optional(cursor, _row_image, "row_image")
    write_stream, is_row = _optional(cursor, _write_stream, "write_stream")
    cursor.require_end(zeros=4)
    if rules.limits.row_images is RowImages.REJECT:
        cursor.require(~_contradicts(row_image, sets_cells))
    is_staged = time == 0
    is_legal = (time <= MAX_TIMESTAMP) & (time >= max(1, _least_time(rules)))
    is_empty = is_row & ~is_part & (token[1] == 0) & (watermark == 0)
    cursor.require(np.where(is_staged, is_empty, is_legal & _has_passed(time, given)))
    return {
        "kind": _chosen(("change", "staged"), is_staged),
        "table": table,
        "commit_timestamp": pa.array(time, mask=is_staged).cast(_type("commit_timestamp")),
        "row_key": row_key,
        "change_type": _chosen(_CHANGE_TYPES, change_type),
        "source_cluster_id": source_cluster_id,
        "tie_breaker": pa.array(tie_breaker),
        "resume_token": cursor.binary(token),
        "estimated_low_watermark": pa.array(watermark),
        "entries": entries,
        "transaction": transaction,
        "change_sequence_number": sequence_number,
        "row_image": row_image,
        "write_stream": write_stream,
    }


def _heartbeats(cursor: Cursor, given: _Given) -> _Columns:
    time = cursor.long()
    token = _resume_token(cursor)
    cursor.require_end(zeros=3)
    least = given.rules.limits.min_commit_timestamp - 1
    cursor.require((time >= 1) & (time <= MAX_TIMESTAMP) & ((time >= least) | (time == BEGINNING)))
    cursor.require(_has_passed(time, given))
    cursor.require(_holds(pc.equal(given.keys, CONTROL_KEY)))
    fields = {"timestamp": pa.array(time), "resume_token": cursor.binary(token)}
    return {
        "kind": pa.repeat("control", len(time)),
        "heartbeat": _struct(_type("heartbeat"), fields),
    }


def _least_time(rules: RecordRules) -> int:
    """The least time of a change that is neither too old nor too late."""
    return max(rules.limits.min_commit_timestamp, rules.horizon or 0)


def _has_passed(time: Numbers, given: _Given) -> Flags:
    """Whether times are not in the future. Any other number is not a time."""
    skew = min(given.rules.limits.max_clock_skew_s * 1_000_000, _MAX_SKEW_US)
    is_time = (time >= 0) & (time <= MAX_TIMESTAMP)
    return is_time & (given.arrivals >= np.where(is_time, time, 0) - skew)


def _row_key(cursor: Cursor, keys: pa.Array) -> pa.Array:
    """Read row keys, which must be the keys of their records."""
    spans = cursor.spans()
    cursor.require((spans[1] >= 1) & (spans[1] <= MAX_ROW_KEY_BYTES))
    row_key = cursor.binary(spans)
    cursor.require(_holds(pc.equal(keys, row_key)) & _holds(pc.not_equal(row_key, CONTROL_KEY)))
    return row_key


def _resume_token(cursor: Cursor) -> Spans:
    spans = cursor.spans()
    cursor.require(spans[1] <= MAX_RESUME_TOKEN_BYTES)
    return spans


def _entries(cursor: Cursor) -> tuple[pa.Array, Flags]:
    """Read the entries of changes, and say whether one of them sets a cell."""
    items = cursor.items(_LEAST_ENTRY, _entry)
    cursor.require((items.counts >= 1) & (items.counts <= MAX_ENTRIES))
    kind, family, qualifier, time, start, end, value = items.fields
    is_set, is_cells, is_family = (kind == symbol << 1 for symbol in _KINDS)
    has_no_range = (start | end) == 0
    is_range = (start >= 0) & ((end == 0) | (start < end))
    has_no_cell = (time | value[1]) == 0
    items.require(
        (qualifier[1] <= MAX_QUALIFIER_BYTES)
        & (
            (is_set & (time >= 0) & has_no_range)
            | (is_cells & has_no_cell & is_range)
            | (is_family & has_no_cell & has_no_range & (qualifier[1] == 0))
        )
    )
    fields = {
        "kind": _chosen(_ENTRY_KINDS, _symbol(items, kind, _ENTRY_KINDS)),
        "family": _name(items, family, _is_family),
        "qualifier": items.binary(qualifier),
        "cell_timestamp": pa.array(time),
        "range_start": pa.array(start),
        "range_end": pa.array(end),
        "value": items.binary(value),
    }
    return items.lists(_struct(_type("entries").value_type, fields)), items.any_(is_set)


def _entry(cursor: Cursor) -> Fields:
    return (
        *(cursor.byte(), cursor.spans(), cursor.spans()),
        *(cursor.long(), cursor.long(), cursor.long(), cursor.spans()),
    )


def _transaction(cursor: Cursor) -> pa.Array:
    id_ = cursor.spans()
    sequence = cursor.long()
    cursor.require(sequence >= 0)
    fields = {
        "server_transaction_id": _text(cursor, id_),
        "record_sequence": pa.array(sequence),
        "is_last_record_in_transaction_in_partition": _boolean(cursor.byte()),
        "number_of_records_in_transaction": _int32(cursor.int_()),
        "number_of_partitions_in_transaction": _int32(cursor.int_()),
        "transaction_tag": _text(cursor, cursor.spans()),
        "is_system_transaction": _boolean(cursor.byte()),
    }
    return _struct(_type("transaction"), fields)


def _sequence_number(cursor: Cursor) -> pa.Array:
    return _name(cursor, cursor.spans(), _is_sequence_number)


def _row_image(cursor: Cursor) -> pa.Array:
    fields = {
        "mod_type": _chosen(_MOD_TYPES, _symbol(cursor, cursor.byte(), _MOD_TYPES)),
        "value_capture_type": _text(cursor, cursor.spans()),
        "column_types": _column_types(cursor),
        "old_cells": _old_cells(cursor),
    }
    return _struct(_type("row_image"), fields)


def _column_types(cursor: Cursor) -> pa.Array:
    items = cursor.items(
        _LEAST_COLUMN_TYPE, lambda item: (item.spans(), item.spans(), item.byte(), item.int_())
    )
    name, type_, is_key, position = items.fields
    fields = {
        "name": _text(items, name),
        "type": _text(items, type_),
        "is_primary_key": _boolean(is_key),
        "ordinal_position": _int32(position),
    }
    return items.lists(_struct(_type("row_image").field("column_types").type.value_type, fields))


def _old_cells(cursor: Cursor) -> pa.Array:
    items = cursor.items(
        _LEAST_OLD_CELL, lambda item: (item.spans(), item.spans(), item.spans(), item.long())
    )
    family, qualifier, value, time = items.fields
    fields = {
        "family": _text(items, family),
        "qualifier": items.binary(qualifier),
        "value": items.binary(value),
        "cell_timestamp": pa.array(time),
    }
    return items.lists(_struct(_type("row_image").field("old_cells").type.value_type, fields))


def _contradicts(row_image: pa.Array, sets_cells: Flags) -> Flags:
    """Whether row images say something else than the entries (ING-7)."""
    mod_type = pc.struct_field(row_image, "mod_type")
    is_delete, is_insert = (
        _holds(pc.equal(mod_type, kind.value)) for kind in (ModType.DELETE, ModType.INSERT)
    )
    return np.where(sets_cells, is_delete, is_insert)


def _write_stream(cursor: Cursor) -> pa.Array:
    stream = _name(cursor, cursor.spans(), _is_write_stream)
    offset = cursor.long()
    cursor.require(offset >= 0)
    return _struct(_type("write_stream"), {"stream": stream, "offset": pa.array(offset)})


def _optional(
    cursor: Cursor, read: Callable[[Cursor], pa.Array], column: str
) -> tuple[pa.Array, Flags]:
    """Read a column of the records that have it. It is null in the others."""
    is_given = cursor.is_given()
    records = np.nonzero(is_given)[0]
    if not len(records):
        return pa.nulls(len(is_given), _type(column)), is_given
    if len(records) == len(is_given):
        return read(cursor), is_given
    part = cursor.part(records)
    array = read(part)
    cursor.resume(records, part)
    index = pa.array(np.cumsum(is_given) - 1, mask=~is_given)
    return array.take(index), is_given


def _text(owner: Cursor | Items, spans: Spans) -> pa.Array:
    """The text of spans, which must be UTF-8."""
    array = owner.binary(spans)
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return _where(owner, np.array([_is_text(value) for value in array.to_pylist()]), array)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _name(owner: Cursor | Items, spans: Spans, is_name: Callable[[bytes], object]) -> pa.Array:
    """The names in spans. They must be names, and are ASCII."""
    array = owner.binary(spans)
    encoded = array.dictionary_encode()
    fits = [is_name(name) is not None for name in encoded.dictionary.to_pylist()]
    return _where(owner, np.array(fits, np.bool_)[_numbers(encoded.indices)], array)


def _where(owner: Cursor | Items, is_text: Flags, array: pa.Array) -> pa.Array:
    """The values as text, which is required of them."""
    if not is_text.all():
        owner.require(is_text)
        array = pc.if_else(pa.array(is_text), array, pa.scalar(b"", pa.binary()))
    return array.cast(pa.string())


def _symbol(
    owner: Cursor | Items, encoded: NDArray[np.uint8], symbols: Sequence[str]
) -> NDArray[np.uint8]:
    """The indexes of symbols that are encoded in one byte."""
    is_symbol = (encoded & 1 == 0) & (encoded < 2 * len(symbols))
    owner.require(is_symbol)
    return np.where(is_symbol, encoded >> 1, np.uint8(0))


def _boolean(encoded: NDArray[np.uint8]) -> pa.Array:
    """Truth is 1. As in one record, every other byte is false."""
    return pa.array(encoded == 1)


def _chosen(symbols: Sequence[str], index: NDArray[Any]) -> pa.Array:
    """The symbols with these indexes."""
    names = pa.array([str(symbol) for symbol in symbols], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(index.astype(np.int8)), names).cast(pa.string())


def _int32(numbers: Numbers) -> pa.Array:
    return pa.array(numbers.astype(np.int32))


def _type(column: str) -> pa.DataType:
    return RECORD.field(column).type


def _struct(type_: pa.StructType, fields: Mapping[str, pa.Array]) -> pa.Array:
    assert [field.name for field in type_] == list(fields), fields
    return pa.StructArray.from_arrays(list(fields.values()), fields=list(type_))


def _table(columns: _Columns, is_good: Flags) -> pa.Table:
    """The rows of good records. A column that is missing is null."""
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(len(is_good), field.type)
        for field in RECORD
    ]
    table = pa.Table.from_arrays(arrays, schema=RECORD)
    return table if is_good.all() else table.filter(pa.array(is_good))


def _taken(array: pa.Array, indexes: Numbers) -> pa.Array:
    """The values at indexes, which ascend and differ."""
    return array if len(indexes) == len(array) else array.take(pa.array(indexes))


def _word(content: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(content, "little"))


def _numbers(array: pa.Array) -> Numbers:
    return np.asarray(array.to_numpy(zero_copy_only=False), np.int64)


def _holds(array: pa.Array) -> Flags:
    """The values of a condition. It does not hold for a null."""
    return flags_of(pc.fill_null(array, False))

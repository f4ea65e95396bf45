"""Counts the rows of a batch in the files of a changelog, without Spark (TBL-5).

Only the columns are read that a count needs, one row group at a time. Changes and staged rows are
counted by column. Control records are few, and are counted one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from connector.lake.checks import table_error
from connector.lake.stores import files_at
from connector.records.codec import CONFLUENT_BYTES, confluent_id
from connector.records.datum import child_partitions_of, release_of
from connector.records.model import MAX_TIMESTAMP, ModType, Transaction, Truncate
from connector.state.batch_counts import BatchRows, RowCounts
from connector.state.source_checks import SampledChange
from connector.state.unapplied import TableChanges
from connector.warehouse import (
    CONTROL_SLOT,
    FRONTIER_SLOT,
    MIXED_SLOT,
    REJECTED_SLOT,
    STAGED_SLOT,
)
from connector.watermarks.frontier import LineageRecord
from connector.watermarks.producer_epoch import epoch_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

Read = Callable[[Iterable[str]], "pa.Table"]
"""Reads columns of the rows of the batch in a row group."""

_OF_CHANGE: Final = (
    *("stream_partition", "kafka_partition", "record_timestamp", "commit_timestamp"),
    *("estimated_low_watermark", "order_position.attempt", "row_image.mod_type"),
    "transaction.number_of_records_in_transaction",
)
_OF_CONTROL: Final = (
    *("stream_partition", "kafka_partition", "offset", "headers", "order_position.attempt"),
    *("record_timestamp", "heartbeat.timestamp", "child_partitions", "release"),
    *("kind", "table", "commit_timestamp", "tie_breaker", "transaction", "change_sequence_number"),
)
_KIND_OF_ENTRY: Final = "entries.list.element.kind"
_ROWS_AT_ONCE: Final = 10_000
_MULTIPLIERS: Final = (-7046029254386353131, -4417276706812531889)
"""Odd numbers that spread consecutive offsets over all numbers of 64 bits."""


def count_rows(rows: BatchRows) -> RowCounts:
    """Count the rows of a batch. Raises `TableError` if a file cannot be read."""
    import pyarrow as pa
    from pyarrow import parquet

    counts, files = RowCounts(), files_at(rows.changelog)
    sample = list[tuple[int, SampledChange]]()
    try:
        for action in rows.files:
            add = json.loads(action)["add"]
            slot = int(add["partitionValues"]["slot"])
            counts.written += add["size"]
            if slot <= FRONTIER_SLOT:
                continue
            count = _COUNT_OF_SLOT.get(slot, _count_changes)
            source = files.open_input_file(unquote(add["path"]))
            kinds = [_KIND_OF_ENTRY]
            with (
                source,
                parquet.ParquetFile(source, pre_buffer=True, read_dictionary=kinds) as file,
            ):
                for number in range(file.num_row_groups):
                    read = partial(_read, file, number, rows.ingest_batch)
                    count(read, rows, counts)
                    if rows.sample and slot not in (CONTROL_SLOT, REJECTED_SLOT, STAGED_SLOT):
                        sample = nsmallest(rows.sample, [*sample, *_sample(read, rows)])
    except (OSError, ValueError, pa.ArrowException) as error:
        raise table_error(rows.changelog, "read", error) from error
    return _complete(counts, sample, rows)


def count_table(table: pa.Table, rows: BatchRows) -> RowCounts:
    """Count the rows of a batch that are in memory. The counts are those of `count_rows`, which
    reads the files of the batch. Here, only their sizes are taken.
    """
    counts = RowCounts(written=sum(json.loads(action)["add"]["size"] for action in rows.files))
    read = partial(_select, table)
    _count_mixed(read, rows, counts)
    return _complete(counts, _sample(read, rows) if rows.sample else [], rows)


def _complete(
    counts: RowCounts, sample: Iterable[tuple[int, SampledChange]], rows: BatchRows
) -> RowCounts:
    counts.sample = [placed for _, placed in sample]
    for truncate in counts.truncations:  # each copy is a row
        counts.unknown_tables += truncate.table not in rows.known_tables
        counts.late += truncate.commit_timestamp < rows.low_watermark
    return counts


def _select(table: pa.Table, columns: Iterable[str]) -> pa.Table:
    """Columns of rows in memory. Of a column with parts, all are there."""
    import pyarrow as pa

    from connector.lake.small_files import plain

    names = list(dict.fromkeys(name.partition(".")[0] for name in columns))
    return pa.table([plain(table[name]) for name in names], names=names)


def _filtered(read: Read, mask: pa.Array, columns: Iterable[str]) -> pa.Table:
    return read(columns).filter(mask)


def _count_mixed(read: Read, rows: BatchRows, counts: RowCounts) -> None:
    """Count the rows of a small batch, which has rows of all kinds."""
    import pyarrow.compute as pc

    of_kind = read(["kind", "table", "write_stream", "commit_timestamp"])
    kinds, nothing = of_kind["kind"], pc.is_null
    is_erased = pc.equal(kinds, "erased")
    is_bare = pc.and_(is_erased, nothing(of_kind["table"]))
    was_staged = pc.and_(is_erased, nothing(of_kind["commit_timestamp"]))
    was_staged = pc.and_not(was_staged, nothing(of_kind["write_stream"]))
    masks = {
        _count_control: pc.or_(pc.equal(kinds, "control"), pc.equal(kinds, "truncate")),
        _count_rejected: pc.or_(pc.equal(kinds, "rejected"), is_bare),
        _count_staged: pc.or_(pc.equal(kinds, "staged"), was_staged),
    }
    left = pc.invert(pc.or_(pc.or_(*list(masks.values())[:2]), masks[_count_staged]))
    for count, mask in {_count_changes: left, **masks}.items():
        if pc.any(mask).as_py():
            count(partial(_filtered, read, mask), rows, counts)


def _read(file: ParquetFile, number: int, ingest_batch: int, columns: Iterable[str]) -> pa.Table:
    """Columns of the rows of a batch in a row group. Times are in microseconds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from connector.lake.small_files import plain

    wanted = ["ingest_batch", *columns]
    table = file.read_row_group(number, wanted, use_threads=False)
    is_of_batch = pc.equal(table["ingest_batch"], ingest_batch)
    if not pc.all(is_of_batch).as_py():
        table = table.filter(is_of_batch)
    return pa.table([*map(plain, table.columns)], names=table.column_names)


def _columns(rows: BatchRows, *others: str) -> tuple[str, ...]:
    """The columns that are counted in every valid record, and others."""
    common = ("kafka_partitions", "ingest_time")
    return (*common, *others, *(("value",) if rows.with_schemas else ()))


def _count_common(table: pa.Table, rows: BatchRows, counts: RowCounts) -> None:
    import pyarrow.compute as pc

    _count_time(table, counts)
    most = pc.max(table["kafka_partitions"]).as_py()
    counts.kafka_partitions = max(counts.kafka_partitions, most or 0)
    if "table" in table.column_names:
        for group in pc.value_counts(table["table"]).to_pylist():
            counts.unknown_tables += group["counts"] * (group["values"] not in rows.known_tables)
    if rows.with_schemas:
        prefixes = pc.binary_slice(table["value"].drop_null(), 0, CONFLUENT_BYTES)
        for group in pc.value_counts(prefixes).to_pylist():
            if (id_ := confluent_id(group["values"])) is not None:
                counts.schemas[id_] += group["counts"]


def _count_time(table: pa.Table, counts: RowCounts) -> None:
    import pyarrow.compute as pc

    counts.read_at = max(counts.read_at, pc.max(table["ingest_time"]).as_py() or 0)


def _true(mask: pa.ChunkedArray) -> int:
    import pyarrow.compute as pc

    return pc.sum(mask).as_py() or 0


def _count_changes(read: Read, rows: BatchRows, counts: RowCounts) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    table = read(_columns(rows, "table", *_OF_CHANGE))
    _count_common(table, rows, counts)
    counts.changes += table.num_rows
    counts.late += _true(pc.less(table["commit_timestamp"], rows.low_watermark))
    records = _field(table, "transaction", "number_of_records_in_transaction")
    counts.declared += _true(pc.greater(records, 1))
    # The same rule as `frontier.is_claim`. A valid time minus the skew cannot overflow.
    low, arrival = table["estimated_low_watermark"], table["record_timestamp"]
    has_claim = pc.greater(low, 0)
    in_time = pc.less_equal(pc.subtract(low, rows.max_clock_skew), arrival)
    is_claim = pc.and_(pc.and_(has_claim, pc.less_equal(low, MAX_TIMESTAMP)), in_time)
    # A replay makes no claim for its stream partition, which may have ended (DLQ-10).
    is_replay = pc.greater(_field(table, "order_position", "attempt"), 0)
    nothing = pa.scalar(None, pa.int64())
    counted = pa.table(
        {
            "stream_partition": table["stream_partition"],
            "kafka_partition": table["kafka_partition"],
            "claim": pc.if_else(is_replay, nothing, pc.if_else(is_claim, low, 0)),
            "beyond": pc.and_(has_claim, pc.invert(is_claim)),
        }
    )
    by_partition = counted.group_by(["stream_partition", "kafka_partition"], use_threads=False)
    for group in by_partition.aggregate([("claim", "max"), ("beyond", "sum")]).to_pylist():
        if group["claim_max"] is not None:
            counts.claim(group["stream_partition"], group["kafka_partition"], group["claim_max"])
        counts.in_future[group["stream_partition"]] += group["beyond_sum"] or 0
    sets_cells = _sets_cells(read)
    _count_tables(table, sets_cells, counts)
    mod_type = _field(table, "row_image", "mod_type")
    if mod_type.null_count < len(mod_type):
        _count_row_images(mod_type, sets_cells, counts)


def _sets_cells(read: Read) -> pa.Array:
    """Whether each change sets a cell. A change that sets none is a delete."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    entries = read([_KIND_OF_ENTRY])["entries"].combine_chunks()
    kinds = pc.struct_field(pc.list_flatten(entries), "kind")
    if pa.types.is_dictionary(kinds.type):
        is_set = pc.equal(kinds.indices, pc.index(kinds.dictionary, "SET_CELL"))
    else:
        is_set = pc.equal(kinds, "SET_CELL")
    sets_cells = np.zeros(len(entries), np.bool_)
    sets_cells[pc.list_parent_indices(entries).filter(is_set)] = True
    return pa.array(sets_cells)


def _count_tables(table: pa.Table, sets_cells: pa.Array, counts: RowCounts) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    nothing = pa.scalar(None, pa.int64())
    changes = pa.table(
        {
            "table": table["table"],
            "arrived": pc.if_else(sets_cells, nothing, table["record_timestamp"]),
            "committed": pc.if_else(sets_cells, nothing, table["commit_timestamp"]),
        }
    )
    of_groups = [([], "count_all"), ("arrived", "min"), ("committed", "max")]
    for group in changes.group_by("table", use_threads=False).aggregate(of_groups).to_pylist():
        of_table = (group["count_all"], group["arrived_min"], group["committed_max"] or 0)
        counts.of_table(group["table"], TableChanges(*of_table))


def _count_row_images(mod_type: pa.ChunkedArray, sets_cells: pa.Array, counts: RowCounts) -> None:
    import pyarrow as pa

    images = pa.table({"mod_type": mod_type, "sets_cells": sets_cells}).drop_null()
    by_both = images.group_by(["mod_type", "sets_cells"], use_threads=False)
    for group in by_both.aggregate([([], "count_all")]).to_pylist():
        if ModType(group["mod_type"]).contradicts(sets_cells=group["sets_cells"]):
            counts.row_images[group["mod_type"]] += group["count_all"]


def _count_staged(read: Read, rows: BatchRows, counts: RowCounts) -> None:
    import pyarrow.compute as pc

    table = read(_columns(rows, "table", "write_stream.stream"))
    _count_common(table, rows, counts)
    counts.staged += table.num_rows  # no row of the newest batch has expired
    counts.streams.update(pc.unique(_field(table, "write_stream", "stream")).to_pylist())


def _count_rejected(read: Read, _: BatchRows, counts: RowCounts) -> None:
    import pyarrow.compute as pc

    table = read(["reason", "rule", "ingest_time"])
    _count_time(table, counts)
    table = table.filter(pc.is_valid(table["reason"]))  # the others are of erased rows
    by_both = table.group_by(["reason", "rule"], use_threads=False)
    for group in by_both.aggregate([([], "count_all")]).to_pylist():
        name = "/".join(filter(None, (group["reason"], group["rule"])))
        counts.rejected[name] += group["count_all"]


def _count_control(read: Read, rows: BatchRows, counts: RowCounts) -> None:
    table = read(_columns(rows, *_OF_CONTROL))
    _count_common(table.drop_columns(["table"]), rows, counts)
    counts.control += table.num_rows
    for few in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        for row in few.to_pylist():
            _count_control_record(row, counts)


def _count_control_record(row: Mapping[str, Any], counts: RowCounts) -> None:
    name, kafka_partition = row["stream_partition"], row["kafka_partition"]
    if (release := row["release"]) is not None:
        counts.releases[release_of(name, release)] = None
    if row["kind"] == "truncate":
        counts.truncations[_truncate_of(row)] = None
        deletes = TableChanges(0, row["record_timestamp"], row["commit_timestamp"])
        counts.of_table(row["table"], deletes)
    if row["order_position"]["attempt"] > 0:
        return
    headers = ((header["key"], header["value"]) for header in row["headers"] or ())
    if (epoch := epoch_of(headers)) is not None:
        counts.epoch(name, kafka_partition, epoch, row["offset"])
    if (heartbeat := row["heartbeat"]) is not None:
        counts.claim(name, kafka_partition, heartbeat["timestamp"] + 1)
    if (children := row["child_partitions"]) is not None:
        record = child_partitions_of(name, children)
        counts.lineage[LineageRecord(kafka_partition, row["kafka_partitions"], record)] = None


def _truncate_of(row: Mapping[str, Any]) -> Truncate:
    transaction = row["transaction"]
    return Truncate(
        *(row["stream_partition"], row["table"], row["commit_timestamp"], row["tie_breaker"]),
        None if transaction is None else Transaction(**transaction),
        row["change_sequence_number"],
    )


_COUNT_OF_SLOT: Final = {
    CONTROL_SLOT: _count_control,
    REJECTED_SLOT: _count_rejected,
    STAGED_SLOT: _count_staged,
    MIXED_SLOT: _count_mixed,
}
"""All other slots have changes."""


def _sample(read: Read, rows: BatchRows) -> list[tuple[int, SampledChange]]:
    """Some changes of a row group that are no replays and were not erased, each with a number that
    orders it. It depends on the coordinates of the change alone, so the same batch has the same
    sample, with changes of all Kafka partitions and tables.
    """
    import pyarrow.compute as pc

    names = SampledChange._fields[1:]
    table = read([*names, "kind", "row_key", "order_position.attempt"])
    is_new = pc.less_equal(_field(table, "order_position", "attempt"), 0)
    table = table.filter(pc.and_(is_new, pc.equal(table["kind"], "change")))
    by_partition, by_offset = _MULTIPLIERS
    partitions = pc.multiply(table["kafka_partition"].cast("int64"), by_partition)
    order = pc.multiply(pc.add(partitions, table["offset"]), by_offset)
    table = table.append_column("order", order)
    by = [(name, "ascending") for name in ("order", "kafka_partition", "offset")]
    first = pc.select_k_unstable(table, min(rows.sample, table.num_rows), by)
    return [
        (row["order"], SampledChange(row["row_key"], *(row[name] for name in names)))
        for row in table.take(first).to_pylist()
    ]


def _field(table: pa.Table, column: str, name: str) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.struct_field(table[column], name)

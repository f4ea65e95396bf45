"""Converts data of the schema `ChangeRecord` to records. A datum is a dict with the Avro field
names. Times are integers.

`build` reports the first limit that a datum breaks, in the order in which the values of a record
are built: the entries of a change one after the other, its transaction and its write stream, then
the change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from connector.errors import InvalidChangeError
from connector.records.model import (
    BRANCHES,
    SERVER_TIME,
    ChangeType,
    ChildPartition,
    ChildPartitions,
    ColumnType,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Heartbeat,
    ModType,
    OffsetRange,
    OldCell,
    Record,
    Release,
    RowImage,
    Rule,
    SetCell,
    Transaction,
    Truncate,
    WriteStreamOffset,
)

Datum = Mapping[str, Any]


def build(datum: Datum) -> Record:
    """Convert a datum to a record. Raises `InvalidChangeError` if it breaks a rule. Then `rule` is
    a `Rule`, `UNKNOWN_ENTRY` or `INVALID_SEQUENCE_NUMBER`.
    """
    filled = [branch for branch in BRANCHES if datum[branch] is not None]
    if len(filled) != 1:
        raise Rule.BRANCHES.broken(filled, "the content")
    return _BUILDERS[filled[0]](datum["stream_partition"], datum[filled[0]])


def _data_change(stream_partition: str, change: Datum) -> DataChange:
    entries = _entries(change["entries"])
    transaction, image, row = (
        change[name] for name in ("transaction", "row_image", "write_stream")
    )
    return DataChange(
        stream_partition=stream_partition,
        table=change["table"],
        row_key=change["row_key"],
        commit_timestamp=change["commit_timestamp"],
        entries=entries,
        change_type=ChangeType(change["change_type"]),
        source_cluster_id=change["source_cluster_id"],
        tie_breaker=change["tie_breaker"],
        resume_token=change["resume_token"],
        estimated_low_watermark=change["estimated_low_watermark"],
        transaction=None if transaction is None else Transaction(**transaction),
        change_sequence_number=change["change_sequence_number"],
        row_image=None if image is None else _row_image(image),
        write_stream=None if row is None else WriteStreamOffset(**row),
    )


def _entries(entries: Sequence[Datum]) -> tuple[Entry, ...]:
    built: list[Entry] = []
    try:
        for entry in entries:
            built.append(_entry(entry))  # noqa: PERF401, its length is the index of a fault
    except InvalidChangeError as error:
        error.within(f"entries[{len(built)}]")
        raise
    return tuple(built)


def _entry(entry: Datum) -> Entry:
    match entry["kind"]:
        case "SET_CELL":
            timestamp = entry["cell_timestamp"]
            cell = SetCell(entry["family"], entry["qualifier"], entry["value"], timestamp)
            if timestamp == SERVER_TIME:  # it is never sent
                raise Rule.CELL_TIMESTAMP.broken(timestamp)
            return cell
        case "DELETE_CELLS":
            return DeleteCells(
                entry["family"], entry["qualifier"], entry["range_start"], entry["range_end"]
            )
        case "DELETE_FAMILY":
            return DeleteFamily(entry["family"])
    raise InvalidChangeError(
        "UNKNOWN_ENTRY", "kind", "a kind of entry that this release knows", entry["kind"]
    )


def _row_image(image: Datum) -> RowImage:
    return RowImage(
        mod_type=ModType(image["mod_type"]),
        value_capture_type=image["value_capture_type"],
        column_types=tuple(ColumnType(**column) for column in image["column_types"]),
        old_cells=tuple(OldCell(**cell) for cell in image["old_cells"]),
    )


def _heartbeat(stream_partition: str, heartbeat: Datum) -> Heartbeat:
    return Heartbeat(stream_partition, heartbeat["timestamp"], heartbeat["resume_token"])


def release_of(stream_partition: str, release: Datum) -> Release:
    """Return the release with these fields. Raises `InvalidChangeError` if they break a rule."""
    ranges = tuple(OffsetRange(**range_) for range_ in release["ranges"])
    return Release(stream_partition, release["commit_timestamp"], ranges)


def truncate_of(stream_partition: str, truncate: Datum) -> Truncate:
    """Return the truncation with these fields. Raises `InvalidChangeError` if they break a rule."""
    transaction = truncate["transaction"]
    return Truncate(
        stream_partition,
        truncate["table"],
        truncate["commit_timestamp"],
        truncate["tie_breaker"],
        None if transaction is None else Transaction(**transaction),
        truncate["change_sequence_number"],
    )


def child_partitions_of(stream_partition: str, ended: Datum) -> ChildPartitions:
    """Return the record with these fields. Raises `InvalidChangeError` if they break a rule."""
    children = tuple(
        ChildPartition(
            child["token"],
            tuple(child["parent_partition_tokens"]),
            child["start_key"],
            child["end_key"],
        )
        for child in ended["children"]
    )
    return ChildPartitions(
        stream_partition, ended["start_timestamp"], ended["record_sequence"], children
    )


_BUILDERS: Final[Mapping[str, Callable[[str, Datum], Record]]] = {
    "data_change": _data_change,
    "heartbeat": _heartbeat,
    "child_partitions": child_partitions_of,
    "release": release_of,
    "truncate": truncate_of,
}

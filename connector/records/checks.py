"""The rules of REC-14 and REC-16 for a decoded record, in the order of the checks.

`to_record` takes a datum of the schema `ChangeRecord`, a dict with the Avro field names. It returns
a value of `connector.records.model`, or a `Rejection` with the **first** rule that is broken. The
tables below define the rules, from top to bottom:

    BRANCHES, STREAM_PARTITION, KAFKA_PARTITIONS       of every record
    TABLE to ENTRY_COUNT                               of a data change
    RESUME_TOKEN                                       of a data change or a heartbeat
    UNKNOWN_ENTRY                                      a separate reason
    FAMILY, QUALIFIER, CELL_TIMESTAMP, CELL_RANGE      of the entries. Each rule is checked for all
                                                       entries before the next rule
    HEARTBEAT_TIMESTAMP | START_TIMESTAMP, CHILDREN | RELEASE    of the control records
    INVALID_SEQUENCE_NUMBER                            a separate reason

The fields of an entry are checked for every kind of entry. The range is the exception: it is
checked only for `DELETE_CELLS`. The constructors of the model check the same rules, so a datum that
passes can be built. A property test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from connector.records.model import (
    CONTROL_KEY,
    MAX_ENTRIES,
    MAX_QUALIFIER_BYTES,
    MAX_RESUME_TOKEN_BYTES,
    MAX_ROW_KEY_BYTES,
    MAX_STREAM_PARTITION_BYTES,
    MAX_TIMESTAMP,
    RANGES_WORDS,
    STAGED_WITHOUT,
    WRITE_STREAM_WORDS,
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
    WriteStreamOffset,
    are_ranges,
    family_matches,
    is_row_offset,
    sequence_number_matches,
    table_matches,
)
from connector.records.rejection import Reason, Rejection
from connector.records.units import unit_hint

Datum = Mapping[str, Any]
BRANCHES: Final = ("data_change", "heartbeat", "child_partitions", "release")

Check = tuple[Rule, str, Callable[[Any], bool], str]
"""A rule, its field (empty: several fields), the condition, and the condition in words."""


def _is_timestamp(timestamp: int) -> bool:
    return 1 <= timestamp <= MAX_TIMESTAMP


def _is_plain_if_staged(change: Datum) -> bool:
    is_staged = change["commit_timestamp"] == 0
    return not (is_staged and any(change[field] for field in STAGED_WITHOUT))


def _is_stream_partition(text: str) -> bool:
    return 1 <= len(text.encode()) <= MAX_STREAM_PARTITION_BYTES


def _is_range(entry: Datum) -> bool:
    if entry["kind"] != "DELETE_CELLS":
        return True
    start, end = entry["range_start"], entry["range_end"]
    return bool(0 <= start < end or end == 0 <= start)


def _is_child(child: Datum) -> bool:
    if not all(map(_is_stream_partition, (child["token"], *child["parent_partition_tokens"]))):
        return False
    return (
        not child["start_key"]
        or not child["end_key"]
        or bool(child["start_key"] < child["end_key"])
    )


_TIMESTAMP_WORDS: Final = f"microseconds from 1 to {MAX_TIMESTAMP}"

RECORD_CHECKS: Final[Sequence[Check]] = (
    (
        Rule.BRANCHES,
        "",
        lambda record: sum(record[branch] is not None for branch in BRANCHES) == 1,
        "exactly one of data_change, heartbeat, child_partitions and release is not null",
    ),
    (
        Rule.STREAM_PARTITION,
        "stream_partition",
        _is_stream_partition,
        f"1 to {MAX_STREAM_PARTITION_BYTES} bytes of text",
    ),
    (Rule.KAFKA_PARTITIONS, "kafka_partitions", lambda count: count >= 1, "at least 1"),
)
"""Of every record. KAFKA_PARTITIONS also has an upper bound, which needs the topic. It is checked
directly after these.
"""

_RESUME_TOKEN: Final[Check] = (
    Rule.RESUME_TOKEN,
    "resume_token",
    lambda token: len(token) <= MAX_RESUME_TOKEN_BYTES,
    f"at most {MAX_RESUME_TOKEN_BYTES} bytes",
)

CHANGE_CHECKS: Final[Sequence[Check]] = (
    (
        Rule.TABLE,
        "table",
        lambda table: table_matches(table) is not None,
        "1 to 128 characters of a-z A-Z 0-9 . - _",
    ),
    (
        Rule.ROW_KEY,
        "row_key",
        lambda key: 1 <= len(key) <= MAX_ROW_KEY_BYTES and key != CONTROL_KEY,
        f"1 to {MAX_ROW_KEY_BYTES} bytes, and not the key of control records",
    ),
    (
        Rule.COMMIT_TIMESTAMP,
        "commit_timestamp",
        lambda timestamp: timestamp == 0 or _is_timestamp(timestamp),
        _TIMESTAMP_WORDS,
    ),
    (
        Rule.COMMIT_TIMESTAMP,
        "",
        lambda change: change["commit_timestamp"] != 0 or change["write_stream"] is not None,
        "commit_timestamp is 0 only in a row of a write stream",
    ),
    (
        Rule.SOURCE_CLUSTER_ID,
        "",
        lambda change: (change["change_type"] == "USER") == (change["source_cluster_id"] != ""),
        "source_cluster_id is empty for GARBAGE_COLLECTION, and not empty for USER",
    ),
    _RESUME_TOKEN,
    (
        Rule.ESTIMATED_LOW_WATERMARK,
        "estimated_low_watermark",
        lambda estimate: estimate >= 0,
        "at least 0",
    ),
    (
        Rule.TRANSACTION,
        "transaction",
        lambda transaction: transaction is None or transaction["record_sequence"] >= 0,
        "a transaction with a record_sequence of at least 0",
    ),
    (
        Rule.WRITE_STREAM,
        "write_stream",
        lambda row: row is None or is_row_offset(row["stream"], row["offset"]),
        f"{WRITE_STREAM_WORDS}, with an offset of at least 0",
    ),
    (
        Rule.WRITE_STREAM,
        "",
        _is_plain_if_staged,
        (
            "a change with a commit_timestamp of 0 has no estimated_low_watermark, no resume_token"
            " and no transaction"
        ),
    ),
    (
        Rule.ENTRY_COUNT,
        "entries",
        lambda entries: 1 <= len(entries) <= MAX_ENTRIES,
        f"1 to {MAX_ENTRIES} entries",
    ),
)

ENTRY_CHECKS: Final[Sequence[Check]] = (
    (
        Rule.FAMILY,
        "family",
        lambda family: family_matches(family) is not None,
        "1 to 64 characters of a-z A-Z 0-9 . - _",
    ),
    (
        Rule.QUALIFIER,
        "qualifier",
        lambda qualifier: len(qualifier) <= MAX_QUALIFIER_BYTES,
        f"at most {MAX_QUALIFIER_BYTES} bytes",
    ),
    (Rule.CELL_TIMESTAMP, "cell_timestamp", lambda timestamp: timestamp >= 0, "at least 0"),
    (
        Rule.CELL_RANGE,
        "",
        _is_range,
        "range_start is at least 0, and range_end is 0 or greater than range_start",
    ),
)

HEARTBEAT_CHECKS: Final[Sequence[Check]] = (
    _RESUME_TOKEN,
    (Rule.HEARTBEAT_TIMESTAMP, "timestamp", _is_timestamp, _TIMESTAMP_WORDS),
)

RELEASE_CHECKS: Final[Sequence[Check]] = (
    (Rule.RELEASE, "commit_timestamp", _is_timestamp, _TIMESTAMP_WORDS),
    (
        Rule.RELEASE,
        "ranges",
        lambda ranges: are_ranges([(one["stream"], one["first"], one["upto"]) for one in ranges]),
        RANGES_WORDS,
    ),
)

CHILD_PARTITIONS_CHECKS: Final[Sequence[Check]] = (
    (Rule.START_TIMESTAMP, "start_timestamp", _is_timestamp, _TIMESTAMP_WORDS),
    (
        Rule.CHILDREN,
        "children",
        lambda children: all(map(_is_child, children)),
        (
            f"stream partitions with names of 1 to {MAX_STREAM_PARTITION_BYTES} bytes of text, and"
            " with key ranges whose start is below their end"
        ),
    ),
)


def to_record(datum: Datum, kafka_partitions: int | None) -> Record | Rejection:
    """Convert a datum of `ChangeRecord` to a record, or return the first rule that it breaks.

    Never raises for a datum of the schema. `kafka_partitions` is the number of Kafka partitions of
    the topic. With None, the upper bound of REC-14 is not checked.
    """
    broken = _first_broken(RECORD_CHECKS, datum)
    if broken is not None:
        return broken
    if kafka_partitions is not None and datum["kafka_partitions"] > kafka_partitions:
        detail = (
            f"kafka_partitions is {datum['kafka_partitions']}, but the topic has {kafka_partitions}"
        )
        return Rejection(Reason.INVALID, detail, Rule.KAFKA_PARTITIONS.value)
    return _judge_branch(datum) or build(datum)


def build(datum: Datum) -> Record:
    """Convert a datum to a record. Raises `InvalidChangeError` if it breaks a rule that the model
    checks.
    """
    stream_partition = datum["stream_partition"]
    if datum["data_change"] is not None:
        return _data_change(stream_partition, datum["data_change"])
    if datum["heartbeat"] is not None:
        return Heartbeat(
            stream_partition, datum["heartbeat"]["timestamp"], datum["heartbeat"]["resume_token"]
        )
    if datum["release"] is not None:
        return release_of(stream_partition, datum["release"])
    return child_partitions_of(stream_partition, datum["child_partitions"])


def _judge_branch(datum: Datum) -> Rejection | None:
    if datum["data_change"] is not None:
        return _judge_change(datum["data_change"])
    if datum["heartbeat"] is not None:
        return _first_broken(HEARTBEAT_CHECKS, datum["heartbeat"])
    if datum["release"] is not None:
        return _first_broken(RELEASE_CHECKS, datum["release"])
    return _first_broken(CHILD_PARTITIONS_CHECKS, datum["child_partitions"])


def _judge_change(change: Datum) -> Rejection | None:
    return (
        _first_broken(CHANGE_CHECKS, change)
        or _judge_kinds(change["entries"])
        or _judge_entries(change["entries"])
        or _judge_sequence_number(change["change_sequence_number"])
    )


def _judge_kinds(entries: Sequence[Datum]) -> Rejection | None:
    for index, entry in enumerate(entries):
        if entry["kind"] == "UNKNOWN":
            return Rejection(
                Reason.UNKNOWN_ENTRY,
                f"entry {index} of {len(entries)} has a kind that this release does not know",
            )
    return None


def _judge_entries(entries: Sequence[Datum]) -> Rejection | None:
    for check in ENTRY_CHECKS:
        _, field, holds, _ = check
        for index, entry in enumerate(entries):
            if not holds(entry[field] if field else entry):
                return _broken(check, entry, f"entries[{index}]: ")
    return None


def _judge_sequence_number(text: str | None) -> Rejection | None:
    if text is None or sequence_number_matches(text):
        return None
    shown = _shortened(text)
    return Rejection(
        Reason.INVALID_SEQUENCE_NUMBER,
        f"change_sequence_number is {shown}, but must be 1 to 4 sections of 1 to 16 hexadecimal"
        " digits, separated by /",
    )


def _first_broken(checks: Sequence[Check], fields: Datum) -> Rejection | None:
    for check in checks:
        _, field, holds, _ = check
        if not holds(fields[field] if field else fields):
            return _broken(check, fields, "")
    return None


def _broken(check: Check, fields: Datum, where: str) -> Rejection:
    rule, field, _, words = check
    detail = (
        f"{where}{field} is {_shortened(fields[field])}, but must be {words}"
        if field
        else f"{where}broken rule: {words}"
    )
    if words is _TIMESTAMP_WORDS:
        detail += unit_hint(fields[field])
    return Rejection(Reason.INVALID, detail, rule.value)


def _shortened(value: object) -> str:
    if isinstance(value, (list, dict)):
        return f"a list of {len(value)}" if isinstance(value, list) else "given"
    shown = repr(value[:80] if isinstance(value, (str, bytes)) else value)
    return (
        f"{shown} (cut, {len(value)} long)"
        if isinstance(value, (str, bytes)) and len(value) > 80
        else shown
    )


def _data_change(stream_partition: str, change: Datum) -> DataChange:
    transaction, image = change["transaction"], change["row_image"]
    row = change["write_stream"]
    return DataChange(
        stream_partition=stream_partition,
        table=change["table"],
        row_key=change["row_key"],
        commit_timestamp=change["commit_timestamp"],
        entries=tuple([_entry(entry) for entry in change["entries"]]),
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


def _entry(entry: Datum) -> Entry:
    kind = entry["kind"]
    if kind == "SET_CELL":
        return SetCell(entry["family"], entry["qualifier"], entry["value"], entry["cell_timestamp"])
    if kind == "DELETE_CELLS":
        return DeleteCells(
            entry["family"], entry["qualifier"], entry["range_start"], entry["range_end"]
        )
    return DeleteFamily(entry["family"])


def _row_image(image: Datum) -> RowImage:
    return RowImage(
        mod_type=ModType(image["mod_type"]),
        value_capture_type=image["value_capture_type"],
        column_types=tuple(ColumnType(**column) for column in image["column_types"]),
        old_cells=tuple(OldCell(**cell) for cell in image["old_cells"]),
    )


def release_of(stream_partition: str, release: Datum) -> Release:
    """Return the release with these fields, which were checked."""
    ranges = tuple(OffsetRange(**one) for one in release["ranges"])
    return Release(stream_partition, release["commit_timestamp"], ranges)


def child_partitions_of(stream_partition: str, ended: Datum) -> ChildPartitions:
    """Return the child-partitions record with these fields, which were checked."""
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

"""Hypothesis strategies for records, framed bytes and dead letters. They are valid by default.
`edge_data` breaks rules on purpose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from connector.dead_letters.envelope import DeadLetter
from connector.records.model import (
    CONTROL_KEY,
    MAX_LONG,
    MAX_TIMESTAMP,
    ChangeType,
    ChildPartition,
    ChildPartitions,
    ColumnType,
    DataChange,
    DeleteCells,
    DeleteFamily,
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
from connector.records.rejection import Position, Reason
from tests.fastavro_encoder import to_datum

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
NATURAL = st.integers(0, MAX_LONG)
TIMESTAMP = st.integers(1, MAX_TIMESTAMP)
TEXT = st.text(max_size=12)
BYTES = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=6).map(str.encode),
    st.binary(min_size=60, max_size=200),
)
NAME = st.text("abcXYZ019-_.", min_size=1, max_size=8)
FAMILY = st.one_of(NAME, st.just("f" * 64))
TABLE = st.one_of(NAME, st.just("t" * 128))
STREAM_PARTITION = st.one_of(st.text(min_size=1, max_size=12), st.just("ä" * 512))
ROW_KEY = st.one_of(st.binary(min_size=1, max_size=16), st.just(b"k" * 4096)).filter(
    lambda key: key != CONTROL_KEY
)
SEQUENCE_NUMBER = st.from_regex(r"\A[0-9A-Fa-f]{1,16}(/[0-9A-Fa-f]{1,16}){0,3}\Z")
KAFKA_PARTITIONS = st.integers(1, 2**31 - 1)


@st.composite
def _delete_cells(draw: st.DrawFn) -> DeleteCells:
    start = draw(st.one_of(st.just(0), st.integers(0, MAX_LONG - 1)))
    end = draw(st.one_of(st.just(0), st.integers(start + 1, MAX_LONG)))
    return DeleteCells(draw(FAMILY), draw(BYTES), start, end)


ENTRIES = st.lists(
    st.one_of(
        st.builds(SetCell, FAMILY, BYTES, BYTES, st.one_of(st.just(-1), NATURAL, TIMESTAMP)),
        _delete_cells(),
        st.builds(DeleteFamily, FAMILY),
    ),
    min_size=1,
    max_size=6,
).map(tuple)

TRANSACTION = st.builds(Transaction, TEXT, NATURAL, st.booleans(), INT, INT, TEXT, st.booleans())

ROW_IMAGE = st.builds(
    RowImage,
    st.sampled_from(ModType),
    TEXT,
    st.lists(st.builds(ColumnType, TEXT, TEXT, st.booleans(), INT), max_size=3).map(tuple),
    st.lists(st.builds(OldCell, TEXT, BYTES, BYTES, LONG), max_size=3).map(tuple),
)


@st.composite
def data_changes(draw: st.DrawFn) -> DataChange:
    change_type = draw(st.sampled_from(ChangeType))
    return DataChange(
        stream_partition=draw(STREAM_PARTITION),
        table=draw(TABLE),
        row_key=draw(ROW_KEY),
        commit_timestamp=draw(TIMESTAMP),
        entries=draw(ENTRIES),
        change_type=change_type,
        source_cluster_id=(
            draw(st.text(min_size=1, max_size=8)) if change_type is ChangeType.USER else ""
        ),
        tie_breaker=draw(LONG),
        resume_token=draw(BYTES),
        estimated_low_watermark=draw(st.one_of(st.just(0), NATURAL)),
        transaction=draw(st.none() | TRANSACTION),
        change_sequence_number=draw(st.none() | SEQUENCE_NUMBER),
        row_image=draw(st.none() | ROW_IMAGE),
    )


@st.composite
def _children(draw: st.DrawFn) -> ChildPartition:
    start, end = draw(st.none() | BYTES), draw(st.none() | BYTES)
    if start and end and start >= end:
        start, end = (end, start) if end < start else (start, b"")
    return ChildPartition(
        draw(STREAM_PARTITION), tuple(draw(st.lists(STREAM_PARTITION, max_size=3))), start, end
    )


HEARTBEATS = st.builds(Heartbeat, STREAM_PARTITION, TIMESTAMP, BYTES)
CHILD_PARTITIONS = st.builds(
    ChildPartitions, STREAM_PARTITION, TIMESTAMP, LONG, st.lists(_children(), max_size=3).map(tuple)
)
_PART = st.one_of(NAME, st.just("w" * 64))
WRITE_STREAM = st.builds("{}/{}".format, _PART, _PART)


@st.composite
def committed_rows(draw: st.DrawFn) -> DataChange:
    """Rows of committed write streams."""
    row = WriteStreamOffset(draw(WRITE_STREAM), draw(NATURAL))
    return replace(draw(data_changes()), write_stream=row)


def _staged(row: DataChange) -> DataChange:
    return replace(
        row, commit_timestamp=0, resume_token=b"", estimated_low_watermark=0, transaction=None
    )


STAGED_ROWS = committed_rows().map(_staged)
"""Staged changes of the topic: each cell has a time."""

ROWS_TO_APPEND = st.one_of(
    committed_rows(),
    st.builds(lambda row, entries: replace(row, entries=entries), STAGED_ROWS, ENTRIES),
)
"""Rows as an application makes them: the cells of a staged change may have `SERVER_TIME`."""


@st.composite
def _offset_ranges(draw: st.DrawFn) -> OffsetRange:
    first = draw(st.integers(0, MAX_LONG - 1))
    return OffsetRange(draw(WRITE_STREAM), first, draw(st.integers(first + 1, MAX_LONG)))


RELEASES = st.builds(
    Release,
    STREAM_PARTITION,
    TIMESTAMP,
    st.lists(_offset_ranges(), min_size=1, max_size=3, unique_by=lambda one: one.stream).map(tuple),
)
TRUNCATIONS = st.builds(
    Truncate,
    STREAM_PARTITION,
    TABLE,
    TIMESTAMP,
    LONG,
    st.none() | TRANSACTION,
    st.none() | SEQUENCE_NUMBER,
)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    data_changes(),
    HEARTBEATS,
    CHILD_PARTITIONS,
    committed_rows(),
    STAGED_ROWS,
    RELEASES,
    TRUNCATIONS,
)


# Data of the schema that may be invalid: values at every limit, on both sides.

_EDGE_LONG = st.sampled_from([-(2**63), -1, 0, 1, 5, MAX_TIMESTAMP, MAX_TIMESTAMP + 1, MAX_LONG])
_EDGE_TEXT = st.sampled_from(
    [
        "",
        "a",
        "a" * 64,
        "a" * 65,
        "a" * 128,
        "a" * 129,
        "a\n",
        "é",
        "ä" * 512,
        "ä" * 513,
        "FFF/ABC",
        "a//b",
        "a/b",
        f"{'a' * 64}/{'b' * 64}",
        f"{'a' * 64}/{'b' * 65}",
        "0x1",
    ]
)
_EDGE_BYTES = st.sampled_from(
    [
        b"",
        b"a",
        b"b",
        CONTROL_KEY,
        b"k" * 4096,
        b"k" * 4097,
        b"q" * 16384,
        b"q" * 16385,
        b"r" * 65536,
        b"r" * 65537,
    ]
)


_EDGE_INT = st.sampled_from([-(2**31), -1, 0, 1, 4, 5, 2**31 - 1])
_INTS = (
    "kafka_partitions",
    "number_of_records_in_transaction",
    "number_of_partitions_in_transaction",
    "ordinal_position",
)
_SYMBOLS = {
    "kind": ("UNKNOWN", "SET_CELL", "DELETE_CELLS", "DELETE_FAMILY"),
    "change_type": tuple(ChangeType),
    "mod_type": tuple(ModType),
}


def slots(datum: Any, *types: type) -> list[tuple[Any, Any]]:
    """Every place in a datum with a value of these types, as (container, name or index). A boolean
    is no number.
    """
    pairs = list(
        datum.items()
        if isinstance(datum, dict)
        else enumerate(datum)
        if isinstance(datum, list)
        else ()
    )
    here = [
        (datum, name)
        for name, value in pairs
        if isinstance(value, types) and not isinstance(value, bool)
    ]
    return here + [slot for _, value in pairs for slot in slots(value, *types)]


@st.composite
def edge_data(draw: st.DrawFn, changed_fields: st.SearchStrategy[int]) -> dict[str, Any]:
    """A datum of ChangeRecord: a valid record in which some fields are at a limit, or beyond it."""
    datum = to_datum(draw(RECORDS), draw(st.integers(1, 4)))
    for _ in range(draw(changed_fields)):
        container, name = draw(st.sampled_from(slots(datum, int, str, bytes)))
        match container[name]:
            case int():
                container[name] = draw(_EDGE_INT if name in _INTS else _EDGE_LONG)
            case bytes():
                container[name] = draw(_EDGE_BYTES)
            case str():
                container[name] = draw(
                    st.sampled_from(_SYMBOLS[name]) if name in _SYMBOLS else _EDGE_TEXT
                )
    return datum


HEADER_NAMES = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
    st.sampled_from(
        [
            "__connect.errors.topic",
            "__connect.errors.offset",
            "connector.dlq.id",
            "connector.dlq.table",
            "connector.dlq.rule",
        ]
    ),
)
HEADERS = st.lists(st.tuples(HEADER_NAMES, st.none() | st.binary(max_size=8)), max_size=6).map(
    tuple
)
TOPIC_ID = st.text("ABCxyz019-_", min_size=22, max_size=22)
POSITIONS = st.builds(Position, NAME, TOPIC_ID, st.integers(0, 100), NATURAL)


@st.composite
def dead_letters(draw: st.DrawFn) -> DeadLetter:
    reason = draw(st.sampled_from(Reason))
    return DeadLetter(
        position=draw(POSITIONS),
        key=draw(st.none() | st.binary(max_size=20)),
        value=draw(st.none() | st.binary(max_size=40)),
        headers=draw(HEADERS),
        reason=reason,
        rule=draw(st.sampled_from(Rule)).value if reason is Reason.INVALID else "",
        detail=draw(st.one_of(TEXT, st.just("ü" * 3000))),
        attempt=draw(st.integers(0, 100)),
        first_failed_at=draw(TIMESTAMP),
        record_timestamp=draw(TIMESTAMP | LONG.map(lambda ms: ms * 1000)),
        schema_id=draw(st.none() | st.sampled_from(["12", "5fd20574604fad53"])),
        ingest_batch=draw(NATURAL),
        order_position=draw(st.sampled_from(["7/0/123/0", "12/3/0/2"])),
        table=draw(st.none() | TABLE),
        group=draw(st.none() | TABLE),
    )

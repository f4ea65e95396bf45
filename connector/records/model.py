"""The records of a change stream. A value of these types is always valid.

A change stream has five kinds of record:

- `DataChange`: all entries that one commit wrote to one row.
- `Heartbeat`: no data. It says how far a stream partition was delivered.
- `ChildPartitions`: a stream partition ended, and its children continue. Without parents, it is an
  announcement.
- `Release`: rows of write streams that were staged get their commit timestamp.
- `Truncate`: all rows of a table are deleted.

Each kind is a frozen dataclass. Its constructor checks every limit of REC-14 that does not depend
on a setting. If a limit is broken, it raises `InvalidChangeError` with the rule, the field, the
limit and the value. `connector.records.datum` builds decoded records with the same constructors.

Timestamps are integer microseconds since 1970-01-01 UTC. Attributes have the names of the Avro
fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, Self

from connector.errors import InvalidChangeError
from connector.records.field_types import (
    UNENCODABLE,
    Checked,
    check_int,
    check_long,
    check_text,
    check_types,
)
from connector.records.views import Always, Time

CONTROL_KEY: Final = b"\x00connector.control"
"""The Kafka key of control records. It is not allowed as a row key (REC-3)."""

SERVER_TIME: Final = -1
"""As a cell timestamp, it means "the time of the commit". The constructor of `DataChange` replaces
it. It is never sent (REC-14).
"""

MAX_TIMESTAMP: Final = 253402300799999999
"""The last microsecond of the year 9999."""

MAX_ROW_KEY_BYTES: Final = 4096
MAX_QUALIFIER_BYTES: Final = 16 * 1024
MAX_ENTRIES: Final = 100_000
MAX_STREAM_PARTITION_BYTES: Final = 1024
MAX_RESUME_TOKEN_BYTES: Final = 64 * 1024
MAX_RANGES: Final = 1_000

STAGED_WITHOUT: Final = ("estimated_low_watermark", "resume_token", "transaction")
"""The fields that are empty in a staged change (WRS-11)."""

BRANCHES: Final = ("data_change", "heartbeat", "child_partitions", "release", "truncate")

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1

FAMILY_PATTERN: Final = r"[-_.a-zA-Z0-9]{1,64}"
TABLE_PATTERN: Final = r"[-_.a-zA-Z0-9]{1,128}"
WRITE_STREAM_PATTERN: Final = r"[-_.a-zA-Z0-9]{1,64}/[-_.a-zA-Z0-9]{1,64}"
SEQUENCE_NUMBER_PATTERN: Final = r"[0-9A-Fa-f]{1,16}(/[0-9A-Fa-f]{1,16}){0,3}"

family_matches = re.compile(FAMILY_PATTERN).fullmatch
table_matches = re.compile(TABLE_PATTERN).fullmatch
write_stream_matches = re.compile(WRITE_STREAM_PATTERN).fullmatch
sequence_number_matches = re.compile(SEQUENCE_NUMBER_PATTERN).fullmatch

_NAME: Final = "of the characters - _ . a-z A-Z 0-9"
_TIME: Final = f"microseconds from 1 to {MAX_TIMESTAMP}"
_NATURAL: Final = "from 0 to 2^63 - 1"


class Rule(StrEnum):
    """The rules of `Reason.INVALID` that a decoded record can break. The list is complete (REC-14,
    REC-16).

    If several are broken, the first one in this order is reported, in Python and in the JVM: the
    parts of a change are built before the change. The rules of entries are checked for one entry
    after the other. A stream only rejects records by the last two if its settings say so (EVO-10,
    ING-7). `field` is the Avro field, and `limit` what it must be, in words.
    """

    def __new__(cls, name: str, limit: str, field: str | None = None) -> Self:
        rule = str.__new__(cls, name)
        rule._value_, rule.limit = name, limit
        rule.field = name.lower() if field is None else field
        return rule

    limit: str
    field: str

    LOGICAL_TYPE = "LOGICAL_TYPE", "the schema has only logical types that lowmark converts", ""
    BRANCHES = "BRANCHES", f"exactly one of {', '.join(BRANCHES)}", ""
    FAMILY = "FAMILY", f"1 to 64 {_NAME}"
    QUALIFIER = "QUALIFIER", f"at most {MAX_QUALIFIER_BYTES} bytes"
    CELL_TIMESTAMP = "CELL_TIMESTAMP", _NATURAL
    CELL_RANGE = (
        "CELL_RANGE",
        "at least 0, start < end or end = 0",
        "range_start, range_end",
    )
    TRANSACTION = "TRANSACTION", _NATURAL, "record_sequence"
    WRITE_STREAM = "WRITE_STREAM", f"a write stream such as job/rows: two parts of 1 to 64 {_NAME}"
    STREAM_PARTITION = "STREAM_PARTITION", f"1 to {MAX_STREAM_PARTITION_BYTES} bytes of text"
    TABLE = "TABLE", f"1 to 128 {_NAME}"
    ROW_KEY = "ROW_KEY", f"1 to {MAX_ROW_KEY_BYTES} bytes, and not the key of control records"
    COMMIT_TIMESTAMP = "COMMIT_TIMESTAMP", f"{_TIME}, or 0 in a change with a write_stream"
    SOURCE_CLUSTER_ID = "SOURCE_CLUSTER_ID", "given for USER, empty for GARBAGE_COLLECTION"
    HEARTBEAT_TIMESTAMP = "HEARTBEAT_TIMESTAMP", _TIME, "timestamp"
    RESUME_TOKEN = "RESUME_TOKEN", f"at most {MAX_RESUME_TOKEN_BYTES} bytes"
    ESTIMATED_LOW_WATERMARK = "ESTIMATED_LOW_WATERMARK", _NATURAL
    ENTRY_COUNT = "ENTRY_COUNT", f"1 to {MAX_ENTRIES} entries", "entries"
    START_TIMESTAMP = "START_TIMESTAMP", _TIME
    CHILDREN = "CHILDREN", "names as stream_partition, and key ranges that start before they end"
    RELEASE = (
        "RELEASE",
        f"1 to {MAX_RANGES} ranges of different write streams, each with at least one offset",
        "ranges",
    )
    KAFKA_PARTITIONS = "KAFKA_PARTITIONS", "from 1 to the number of Kafka partitions of the topic"
    UNKNOWN_FIELDS = "UNKNOWN_FIELDS", 'none, with `unknown_fields = "reject"`', ""
    ROW_IMAGE = "ROW_IMAGE", 'what the entries do, with `row_images = "reject"`', "mod_type"

    def broken(self, value: object, field: str = "", limit: str = "") -> InvalidChangeError:
        """Return the error for a value of this field that breaks the rule, or this limit of it."""
        return InvalidChangeError(self, field or self.field, limit or self.limit, value)


class ChangeType(StrEnum):
    """The origin of a change: a user, or the garbage collection of the source (REC-9)."""

    USER = "USER"
    GARBAGE_COLLECTION = "GARBAGE_COLLECTION"


_USER: Final = ChangeType.USER


class ModType(StrEnum):
    """The operation on the row, as a source with row images reports it."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"

    def contradicts(self, *, sets_cells: bool) -> bool:
        """Return whether the entries do something else (ING-7)."""
        return self is not ModType.UPDATE and sets_cells == (self is ModType.DELETE)


@dataclass(frozen=True, slots=True)
class SetCell(Checked):
    """Write one cell. `cell_timestamp` is at least 0, or `SERVER_TIME`."""

    family: str
    qualifier: bytes
    value: bytes
    cell_timestamp: Always[Time] = SERVER_TIME

    def _check(self) -> None:
        _check_family(self.family)
        if not isinstance(self.qualifier, bytes) or len(self.qualifier) > MAX_QUALIFIER_BYTES:
            raise _bytes_error(Rule.QUALIFIER, self.qualifier)
        if not isinstance(self.value, bytes):
            raise InvalidChangeError(UNENCODABLE, "value", "bytes", self.value)
        if not SERVER_TIME <= self.cell_timestamp <= MAX_LONG:
            raise Rule.CELL_TIMESTAMP.broken(self.cell_timestamp, limit=f"{_NATURAL}, or -1")


def with_data(cell: SetCell, value: bytes, cell_timestamp: int) -> SetCell:
    """Return a cell of the same column. The arguments must be legal: nothing is checked."""
    copy = object.__new__(SetCell)
    _set_family(copy, cell.family)
    _set_qualifier(copy, cell.qualifier)
    _set_value(copy, value)
    _set_cell_timestamp(copy, cell_timestamp)
    return copy


# The setters of the slots. They skip the checks, and that the class is frozen.
_set_family, _set_qualifier, _set_value, _set_cell_timestamp = (
    vars(SetCell)[name].__set__ for name in ("family", "qualifier", "value", "cell_timestamp")
)


@dataclass(frozen=True, slots=True)
class DeleteCells(Checked):
    """Delete the cells of one column with a cell timestamp in `[range_start, range_end)` (REC-7).

    A `range_end` of 0 means that the range has no end.
    """

    family: str
    qualifier: bytes
    range_start: Time = 0
    range_end: Time = 0

    def _check(self) -> None:
        _check_family(self.family)
        if not isinstance(self.qualifier, bytes) or len(self.qualifier) > MAX_QUALIFIER_BYTES:
            raise _bytes_error(Rule.QUALIFIER, self.qualifier)
        start, end = self.range_start, self.range_end
        if not (0 <= start < end <= MAX_LONG or end == 0 <= start <= MAX_LONG):
            raise Rule.CELL_RANGE.broken((start, end))


@dataclass(frozen=True, slots=True)
class DeleteFamily(Checked):
    """Delete all cells of one family. To delete a row, send one for each family (REC-6)."""

    family: str

    def _check(self) -> None:
        _check_family(self.family)


Entry = SetCell | DeleteCells | DeleteFamily
_ENTRY_TYPES: Final = frozenset({SetCell, DeleteCells, DeleteFamily})


@dataclass(frozen=True, slots=True)
class Transaction(Checked):
    """The source transaction of a change.

    `record_sequence` is unique in the transaction. It increases, and may have gaps.
    """

    server_transaction_id: str
    record_sequence: int = 0
    is_last_record_in_transaction_in_partition: bool = False
    number_of_records_in_transaction: int = 1
    number_of_partitions_in_transaction: int = 1
    transaction_tag: str = ""
    is_system_transaction: bool = False

    def _check(self) -> None:
        if not 0 <= self.record_sequence <= MAX_LONG:
            raise Rule.TRANSACTION.broken(self.record_sequence)
        check_text("server_transaction_id", self.server_transaction_id)
        check_text("transaction_tag", self.transaction_tag)
        for name in ("number_of_records_in_transaction", "number_of_partitions_in_transaction"):
            check_int(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class ColumnType(Checked):
    """A column as the source declares it. `ordinal_position` counts from 1."""

    name: str
    type: str
    is_primary_key: bool = False
    ordinal_position: int = 0

    def _check(self) -> None:
        check_text("name", self.name)
        check_text("type", self.type)
        check_int("ordinal_position", self.ordinal_position)


@dataclass(frozen=True, slots=True)
class OldCell(Checked):
    """A cell before the change, if the source knows it (REC-8)."""

    family: str
    qualifier: bytes
    value: bytes
    cell_timestamp: Time = 0

    def _check(self) -> None:
        check_text("family", self.family)
        for name in ("qualifier", "value"):
            if not isinstance(getattr(self, name), bytes):
                raise InvalidChangeError(UNENCODABLE, name, "bytes", getattr(self, name))
        check_long("cell_timestamp", self.cell_timestamp)


@dataclass(frozen=True, slots=True)
class RowImage(Checked):
    """Extra data of a source with row images. The merge does not use it (REC-8)."""

    mod_type: ModType
    value_capture_type: str = ""
    column_types: tuple[ColumnType, ...] = ()
    old_cells: tuple[OldCell, ...] = ()

    def _check(self) -> None:
        check_text("value_capture_type", self.value_capture_type)

    def contradicts(self, entries: Iterable[Entry]) -> bool:
        """Return whether `mod_type` is not what the entries do: a DELETE that sets a cell, or an
        INSERT that sets none (ING-7).
        """
        sets_cells = any(isinstance(entry, SetCell) for entry in entries)
        return self.mod_type.contradicts(sets_cells=sets_cells)


@dataclass(frozen=True, slots=True)
class WriteStreamOffset(Checked):
    """The write stream of a row, `session/name`, and the offset of the row there (WRS-1)."""

    stream: str
    offset: int

    def _check(self) -> None:
        if not write_stream_matches(self.stream):
            raise Rule.WRITE_STREAM.broken(self.stream, "stream")
        if not 0 <= self.offset <= MAX_LONG:
            raise Rule.WRITE_STREAM.broken(self.offset, "offset", _NATURAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChange(Checked):
    """All entries that one commit wrote to one row. They are applied together, in order, or not at
    all (REC-6).

    - `commit_timestamp` is in microseconds. It is 0 in a staged change: a row of a write stream
      that a `Release` makes visible (WRS-11). There, a `SetCell` keeps the timestamp `SERVER_TIME`
      until the row is appended.
    - `entries` may be a list. It is stored as a tuple. A `SetCell` with the timestamp `SERVER_TIME`
      gets the commit timestamp.
    - `tie_breaker` decides between equal commit timestamps. The larger number wins.
    - `estimated_low_watermark` (µs) is 0 if the source makes no claim.
    - `source_cluster_id` is required for `USER`, and empty for `GARBAGE_COLLECTION`.
    - `change_sequence_number` has 1 to 4 sections of 1 to 16 hexadecimal digits, separated by `/`.
      See `connector.records.ordering.sequence_number`.
    - `write_stream` names the write stream and the offset of a row (WRS-16). Without it, the change
      is outside write streams.

    Raises:
        InvalidChangeError: A value breaks a limit of REC-14, or a rule of REC-9 or REC-16.
    """

    stream_partition: str
    table: str
    row_key: bytes
    commit_timestamp: Time
    entries: tuple[Entry, ...]
    change_type: Always[ChangeType] = ChangeType.USER
    source_cluster_id: Always[str] = "default"
    tie_breaker: int = 0
    resume_token: bytes = b""
    estimated_low_watermark: Time = 0
    transaction: Transaction | None = None
    change_sequence_number: str | None = None
    row_image: RowImage | None = None
    write_stream: WriteStreamOffset | None = None

    @property
    def is_staged(self) -> bool:
        """Whether the row waits for a `Release`."""
        return self.commit_timestamp == 0

    def _check(self) -> None:
        commit_timestamp, write_stream = self.commit_timestamp, self.write_stream
        if commit_timestamp == 0 and write_stream is not None:
            for field in STAGED_WITHOUT:
                if value := getattr(self, field):
                    raise Rule.WRITE_STREAM.broken(value, field, "empty in a staged change")
        _check_stream_partition(self.stream_partition)
        check_table(self.table)
        row_key, resume_token = self.row_key, self.resume_token
        if (
            not isinstance(row_key, bytes)
            or not 1 <= len(row_key) <= MAX_ROW_KEY_BYTES
            or row_key == CONTROL_KEY
        ):
            raise _bytes_error(Rule.ROW_KEY, row_key)
        if not _is_timestamp(commit_timestamp) and (commit_timestamp != 0 or write_stream is None):
            raise _timestamp_error(Rule.COMMIT_TIMESTAMP, commit_timestamp)
        if (self.change_type is _USER) != bool(self.source_cluster_id):
            raise Rule.SOURCE_CLUSTER_ID.broken((self.change_type.value, self.source_cluster_id))
        check_text("source_cluster_id", self.source_cluster_id)
        check_long("tie_breaker", self.tie_breaker)
        if not isinstance(resume_token, bytes) or len(resume_token) > MAX_RESUME_TOKEN_BYTES:
            raise _bytes_error(Rule.RESUME_TOKEN, resume_token)
        if not 0 <= self.estimated_low_watermark <= MAX_LONG:
            raise Rule.ESTIMATED_LOW_WATERMARK.broken(self.estimated_low_watermark)
        entries = _entries(self.entries)
        if not 1 <= len(entries) <= MAX_ENTRIES:
            raise Rule.ENTRY_COUNT.broken(len(entries))
        if commit_timestamp:
            entries = tuple(
                [
                    with_data(entry, entry.value, commit_timestamp)
                    if type(entry) is SetCell and entry.cell_timestamp == SERVER_TIME
                    else entry
                    for entry in entries
                ]
            )
        object.__setattr__(self, "entries", entries)
        _check_sequence_number(self.change_sequence_number)


@dataclass(frozen=True, slots=True)
class Heartbeat(Checked):
    """All changes of the stream partition up to and including `timestamp` (µs) were delivered."""

    stream_partition: str
    timestamp: Time
    resume_token: bytes = b""

    def _check(self) -> None:
        _check_stream_partition(self.stream_partition)
        if not _is_timestamp(self.timestamp):
            raise _timestamp_error(Rule.HEARTBEAT_TIMESTAMP, self.timestamp)
        token = self.resume_token
        if not isinstance(token, bytes) or len(token) > MAX_RESUME_TOKEN_BYTES:
            raise _bytes_error(Rule.RESUME_TOKEN, token)


@dataclass(frozen=True, slots=True)
class ChildPartition:
    """One child of a stream partition.

    - `token` is its name.
    - `parent_partition_tokens` are the parents that it continues. In an announcement there are
      none.
    - `start_key` and `end_key` are its key range, if the source has key ranges. An empty or missing
      `start_key` is the start of the key space. An empty or missing `end_key` is its end. For
      example, `(b"", b"")` is the whole key space, as in Bigtable. If both are None, the source has
      no key ranges.
    """

    token: str
    parent_partition_tokens: tuple[str, ...] = ()
    start_key: bytes | None = None
    end_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class ChildPartitions(Checked):
    """The stream partition ended, and its children continue at `start_timestamp` (µs) (WMK-7).

    If the children have no parents, the record is an announcement (WMK-6).
    """

    stream_partition: str
    start_timestamp: Time
    record_sequence: int
    children: tuple[ChildPartition, ...]

    def _check(self) -> None:
        check_types(self)
        _check_stream_partition(self.stream_partition)
        if not _is_timestamp(self.start_timestamp):
            raise _timestamp_error(Rule.START_TIMESTAMP, self.start_timestamp)
        check_long("record_sequence", self.record_sequence)
        for child in self.children:
            for token in (child.token, *child.parent_partition_tokens):
                check_text("token", token)
                if not 1 <= len(token.encode()) <= MAX_STREAM_PARTITION_BYTES:
                    raise Rule.CHILDREN.broken(token)
            if child.start_key and child.end_key and child.start_key >= child.end_key:
                raise Rule.CHILDREN.broken((child.start_key, child.end_key))


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The rows `[first, upto)` of a write stream."""

    stream: str
    first: int
    upto: int


@dataclass(frozen=True, slots=True)
class Release(Checked):
    """The staged rows of these ranges get the commit timestamp (µs). They are one source
    transaction (WRS-16).

    `ranges` has 1 to 1,000 write streams, each once.
    """

    stream_partition: str
    commit_timestamp: Time
    ranges: tuple[OffsetRange, ...]

    def _check(self) -> None:
        _check_stream_partition(self.stream_partition)
        if not _is_timestamp(self.commit_timestamp):
            raise _timestamp_error(Rule.RELEASE, self.commit_timestamp, "commit_timestamp")
        streams = {range_.stream for range_ in self.ranges}
        if not 1 <= len(streams) == len(self.ranges) <= MAX_RANGES or not all(
            write_stream_matches(range_.stream) and 0 <= range_.first < range_.upto <= MAX_LONG
            for range_ in self.ranges
        ):
            raise Rule.RELEASE.broken(
                [(range_.stream, range_.first, range_.upto) for range_ in self.ranges[:3]]
            )


@dataclass(frozen=True, slots=True)
class Truncate(Checked):
    """All rows of a source table are deleted, as far as older changes wrote them (EVO-13).

    A change is older if its commit timestamp (µs), tie breaker and `record_sequence` are less,
    compared in this order: a transaction may truncate a table and fill it again. In a table ordered
    by sequence number, the number is compared. Each Kafka partition has a copy.
    """

    stream_partition: str
    table: str
    commit_timestamp: Time
    tie_breaker: int = 0
    transaction: Transaction | None = None
    change_sequence_number: str | None = None

    def _check(self) -> None:
        _check_stream_partition(self.stream_partition)
        check_table(self.table)
        if not _is_timestamp(self.commit_timestamp):
            raise _timestamp_error(Rule.COMMIT_TIMESTAMP, self.commit_timestamp)
        check_long("tie_breaker", self.tie_breaker)
        _check_sequence_number(self.change_sequence_number)


Mutation = DataChange | Truncate  # has a place in the order of its table
Record = DataChange | Heartbeat | ChildPartitions | Release | Truncate


def time_of(record: Record) -> int:
    """Return the time of a record (µs). It is 0 for a staged change."""
    match record:
        case Heartbeat():
            return record.timestamp
        case ChildPartitions():
            return record.start_timestamp
    return record.commit_timestamp


def kafka_key(record: Record) -> bytes:
    """Return the Kafka key of a record: the row key, or `CONTROL_KEY` (REC-1, REC-3)."""
    return record.row_key if isinstance(record, DataChange) else CONTROL_KEY


# The same names occur very often, so the cache keeps names that passed the check.
@lru_cache(maxsize=1024)
def check_table(table: str) -> None:
    """Raise `InvalidChangeError` if a source table cannot have this name."""
    if not table_matches(table):
        raise Rule.TABLE.broken(table)


@lru_cache(maxsize=1024)
def _check_family(family: str) -> None:
    if not family_matches(family):
        raise Rule.FAMILY.broken(family)


@lru_cache(maxsize=1024)
def _check_stream_partition(stream_partition: str) -> None:
    check_text("stream_partition", stream_partition)
    if not 1 <= len(stream_partition.encode()) <= MAX_STREAM_PARTITION_BYTES:
        raise Rule.STREAM_PARTITION.broken(stream_partition)


def _check_sequence_number(number: str | None) -> None:
    if number is not None and not sequence_number_matches(number):
        field = "change_sequence_number"
        limit = "1 to 4 sections of 1 to 16 hexadecimal digits, separated by /"
        raise InvalidChangeError("INVALID_SEQUENCE_NUMBER", field, limit, number)


def _is_timestamp(timestamp: object) -> bool:
    return isinstance(timestamp, int) and 1 <= timestamp <= MAX_TIMESTAMP


def _timestamp_error(rule: Rule, timestamp: object, field: str = "") -> InvalidChangeError:
    if not isinstance(timestamp, int):
        limit = f"an int, the number of microseconds since 1970: 1 to {MAX_TIMESTAMP}"
        return rule.broken(timestamp, field, limit)
    return rule.broken(timestamp, field, _TIME)


def _bytes_error(rule: Rule, value: object) -> InvalidChangeError:
    if not isinstance(value, bytes):
        return InvalidChangeError(UNENCODABLE, rule.field, "bytes", value)
    return rule.broken(value)


def _entries(given: Iterable[Entry]) -> tuple[Entry, ...]:
    """A copy of the entries: a list could be changed later."""
    try:
        entries = tuple(given)
    except TypeError:
        wrong: list[object] = [given]
    else:
        if _ENTRY_TYPES.issuperset(map(type, entries)):
            return entries
        wrong = [entry for entry in entries if type(entry) not in _ENTRY_TYPES]
    limit = "a tuple of SetCell, DeleteCells and DeleteFamily, for example (DeleteFamily('f'),)"
    raise InvalidChangeError(UNENCODABLE, "entries", limit, wrong[0])

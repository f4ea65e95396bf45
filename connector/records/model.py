"""The records of a change stream. A value of these types is always valid.

A change stream has four kinds of record:

- `DataChange`: all entries that one commit wrote to one row.
- `Heartbeat`: no data. It says how far a stream partition was delivered.
- `ChildPartitions`: a stream partition ended, and its children continue. Without parents, it is an
  announcement.
- `Release`: rows of write streams that were staged get their commit timestamp.

Each kind is a frozen dataclass. Its constructor checks every limit of REC-14 that does not depend
on a setting. If a limit is broken, it raises `InvalidChangeError` with the rule, the field, the
limit and the value.

Timestamps are integer microseconds since 1970-01-01 UTC. Attributes have the names of the Avro
fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from connector.errors import InvalidChangeError
from connector.records.field_types import wrong_field
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
"""The most write streams that one release names (WRS-4)."""

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


UNENCODABLE: Final = "UNENCODABLE"
"""The rule of an `InvalidChangeError` for a value that the wire format cannot represent. A decoded
record cannot break it.
"""


class Rule(StrEnum):
    """The rules of `Reason.INVALID` that a decoded record can break. The list is complete (REC-14,
    REC-16).

    The rules are checked in this order, in Python and in the JVM. If several are broken, the first
    one is reported. A stream only rejects records by the last two if its settings say so (EVO-10,
    ING-7).
    """

    LOGICAL_TYPE = "LOGICAL_TYPE"
    BRANCHES = "BRANCHES"
    STREAM_PARTITION = "STREAM_PARTITION"
    KAFKA_PARTITIONS = "KAFKA_PARTITIONS"
    TABLE = "TABLE"
    ROW_KEY = "ROW_KEY"
    COMMIT_TIMESTAMP = "COMMIT_TIMESTAMP"
    SOURCE_CLUSTER_ID = "SOURCE_CLUSTER_ID"
    RESUME_TOKEN = "RESUME_TOKEN"  # noqa: S105, a position, not a secret
    ESTIMATED_LOW_WATERMARK = "ESTIMATED_LOW_WATERMARK"
    TRANSACTION = "TRANSACTION"
    WRITE_STREAM = "WRITE_STREAM"
    ENTRY_COUNT = "ENTRY_COUNT"
    FAMILY = "FAMILY"
    QUALIFIER = "QUALIFIER"
    CELL_TIMESTAMP = "CELL_TIMESTAMP"
    CELL_RANGE = "CELL_RANGE"
    HEARTBEAT_TIMESTAMP = "HEARTBEAT_TIMESTAMP"
    START_TIMESTAMP = "START_TIMESTAMP"
    CHILDREN = "CHILDREN"
    RELEASE = "RELEASE"
    UNKNOWN_FIELDS = "UNKNOWN_FIELDS"
    ROW_IMAGE = "ROW_IMAGE"


class ChangeType(StrEnum):
    """The origin of a change: a user, or the garbage collection of the source (REC-9)."""

    USER = "USER"
    GARBAGE_COLLECTION = "GARBAGE_COLLECTION"


class ModType(StrEnum):
    """The operation on the row, as a source with row images reports it."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"

    def contradicts(self, *, sets_cells: bool) -> bool:
        """Return whether it is not what the entries do, by whether one of them sets a cell
        (ING-7).
        """
        return self is not ModType.UPDATE and sets_cells == (self is ModType.DELETE)


@dataclass(frozen=True, slots=True)
class SetCell:
    """Write one cell. `cell_timestamp` is at least 0, or `SERVER_TIME`."""

    family: str
    qualifier: bytes
    value: bytes
    cell_timestamp: Always[Time] = SERVER_TIME

    def __post_init__(self) -> None:
        try:
            _check_family(self.family)
            _check_qualifier(self.qualifier)
            _check_bytes("value", self.value)
            if not SERVER_TIME <= self.cell_timestamp <= MAX_LONG:
                raise InvalidChangeError(
                    Rule.CELL_TIMESTAMP,
                    "cell_timestamp",
                    "from 0 to 2^63 - 1, or -1 for the commit timestamp",
                    self.cell_timestamp,
                )
        except (TypeError, AttributeError):
            check_types(self)
            raise


@dataclass(frozen=True, slots=True)
class DeleteCells:
    """Delete the cells of one column with a cell timestamp in `[range_start, range_end)` (REC-7).

    A `range_end` of 0 means that the range has no end.
    """

    family: str
    qualifier: bytes
    range_start: Time = 0
    range_end: Time = 0

    def __post_init__(self) -> None:
        try:
            _check_family(self.family)
            _check_qualifier(self.qualifier)
            if not (
                0 <= self.range_start < self.range_end <= MAX_LONG
                or (self.range_end == 0 <= self.range_start <= MAX_LONG)
            ):
                raise InvalidChangeError(
                    Rule.CELL_RANGE,
                    "range_start, range_end",
                    "at least 0, the start below the end unless the end is 0",
                    (self.range_start, self.range_end),
                )
        except (TypeError, AttributeError):
            check_types(self)
            raise


@dataclass(frozen=True, slots=True)
class DeleteFamily:
    """Delete all cells of one family. To delete a row, send one for each family with data
    (REC-6).
    """

    family: str

    def __post_init__(self) -> None:
        try:
            _check_family(self.family)
        except (TypeError, AttributeError):
            check_types(self)
            raise


Entry = SetCell | DeleteCells | DeleteFamily


def _at(timestamp: int, cell: SetCell) -> SetCell:
    """Copy a cell with another, valid timestamp. The other fields are already checked."""
    copy = object.__new__(SetCell)
    _set_family(copy, cell.family)
    _set_qualifier(copy, cell.qualifier)
    _set_value(copy, cell.value)
    _set_cell_timestamp(copy, timestamp)
    return copy


# The setters of the slots. They skip the checks, and that the class is frozen.
_set_family, _set_qualifier, _set_value, _set_cell_timestamp = (
    vars(SetCell)[name].__set__ for name in ("family", "qualifier", "value", "cell_timestamp")
)


@dataclass(frozen=True, slots=True)
class Transaction:
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

    def __post_init__(self) -> None:
        try:
            if not 0 <= self.record_sequence <= MAX_LONG:
                raise InvalidChangeError(
                    Rule.TRANSACTION, "record_sequence", "from 0 to 2^63 - 1", self.record_sequence
                )
            _check_text("server_transaction_id", self.server_transaction_id)
            _check_text("transaction_tag", self.transaction_tag)
            _check_int("number_of_records_in_transaction", self.number_of_records_in_transaction)
            _check_int(
                "number_of_partitions_in_transaction", self.number_of_partitions_in_transaction
            )
        except (TypeError, AttributeError):
            check_types(self)
            raise


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column as the source declares it. `ordinal_position` counts from 1."""

    name: str
    type: str
    is_primary_key: bool = False
    ordinal_position: int = 0

    def __post_init__(self) -> None:
        try:
            _check_text("name", self.name)
            _check_text("type", self.type)
            _check_int("ordinal_position", self.ordinal_position)
        except (TypeError, AttributeError):
            check_types(self)
            raise


@dataclass(frozen=True, slots=True)
class OldCell:
    """A cell before the change, if the source knows it (REC-8)."""

    family: str
    qualifier: bytes
    value: bytes
    cell_timestamp: Time = 0

    def __post_init__(self) -> None:
        try:
            _check_text("family", self.family)
            _check_bytes("qualifier", self.qualifier)
            _check_bytes("value", self.value)
            _check_long("cell_timestamp", self.cell_timestamp)
        except (TypeError, AttributeError):
            check_types(self)
            raise


@dataclass(frozen=True, slots=True)
class RowImage:
    """Extra data of a source with row images. The merge does not use it (REC-8)."""

    mod_type: ModType
    value_capture_type: str = ""
    column_types: tuple[ColumnType, ...] = ()
    old_cells: tuple[OldCell, ...] = ()

    def __post_init__(self) -> None:
        try:
            _check_text("value_capture_type", self.value_capture_type)
        except (TypeError, AttributeError):
            check_types(self)
            raise

    def contradicts(self, entries: Iterable[Entry]) -> bool:
        """Return whether `mod_type` is not what the entries do: a DELETE that sets a cell, or an
        INSERT that sets none (ING-7).
        """
        sets_cells = any(isinstance(entry, SetCell) for entry in entries)
        return self.mod_type.contradicts(sets_cells=sets_cells)


@dataclass(frozen=True, slots=True)
class WriteStreamOffset:
    """The write stream of a row, as `session/name`, and the number of the row there, from 0
    (WRS-1).
    """

    stream: str
    offset: int

    def __post_init__(self) -> None:
        if not write_stream_matches(self.stream):
            raise InvalidChangeError(Rule.WRITE_STREAM, "stream", WRITE_STREAM_WORDS, self.stream)
        if not 0 <= self.offset <= MAX_LONG:
            raise InvalidChangeError(Rule.WRITE_STREAM, "offset", "from 0 to 2^63 - 1", self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChange:
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

    def __post_init__(self) -> None:
        try:
            self._check()
        except (TypeError, AttributeError):
            check_types(self)
            raise

    def _check(self) -> None:
        _check_stream_partition(self.stream_partition)
        check_table(self.table)
        _check_bytes("row_key", self.row_key)
        if not 1 <= len(self.row_key) <= MAX_ROW_KEY_BYTES or self.row_key == CONTROL_KEY:
            raise InvalidChangeError(
                Rule.ROW_KEY,
                "row_key",
                f"1 to {MAX_ROW_KEY_BYTES} bytes, and not the key of control records",
                self.row_key,
            )
        if self.commit_timestamp != 0 or self.write_stream is None:
            _check_timestamp(Rule.COMMIT_TIMESTAMP, "commit_timestamp", self.commit_timestamp)
        if (self.change_type is ChangeType.USER) != bool(self.source_cluster_id):
            raise InvalidChangeError(
                Rule.SOURCE_CLUSTER_ID,
                "source_cluster_id",
                "given for USER, empty for GARBAGE_COLLECTION",
                (self.change_type.value, self.source_cluster_id),
            )
        _check_text("source_cluster_id", self.source_cluster_id)
        _check_long("tie_breaker", self.tie_breaker)
        _check_resume_token(self.resume_token)
        if not 0 <= self.estimated_low_watermark <= MAX_LONG:
            raise InvalidChangeError(
                Rule.ESTIMATED_LOW_WATERMARK,
                "estimated_low_watermark",
                "from 0 to 2^63 - 1",
                self.estimated_low_watermark,
            )
        if self.is_staged:
            self._check_staged()
        given, commit_timestamp = _entries(self.entries), self.commit_timestamp
        if not 1 <= len(given) <= MAX_ENTRIES:
            raise InvalidChangeError(
                Rule.ENTRY_COUNT, "entries", f"1 to {MAX_ENTRIES} entries", len(given)
            )
        entries = [
            (
                _at(commit_timestamp, e)
                if type(e) is SetCell and e.cell_timestamp == SERVER_TIME and commit_timestamp
                else e
            )
            for e in given
        ]
        object.__setattr__(self, "entries", tuple(entries))
        if self.change_sequence_number is not None and not sequence_number_matches(
            self.change_sequence_number
        ):
            raise InvalidChangeError(
                "INVALID_SEQUENCE_NUMBER",
                "change_sequence_number",
                "1 to 4 sections of 1 to 16 hexadecimal digits, separated by /",
                self.change_sequence_number,
            )

    def _check_staged(self) -> None:
        for field in STAGED_WITHOUT:
            if getattr(self, field):
                raise InvalidChangeError(
                    Rule.WRITE_STREAM, field, "empty in a staged change", getattr(self, field)
                )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """All changes of the stream partition up to and including `timestamp` (µs) were delivered."""

    stream_partition: str
    timestamp: Time
    resume_token: bytes = b""

    def __post_init__(self) -> None:
        try:
            _check_stream_partition(self.stream_partition)
            _check_timestamp(Rule.HEARTBEAT_TIMESTAMP, "timestamp", self.timestamp)
            _check_resume_token(self.resume_token)
        except (TypeError, AttributeError):
            check_types(self)
            raise


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
class ChildPartitions:
    """The stream partition ended, and its children continue at `start_timestamp` (µs) (WMK-7).

    If the children have no parents, the record is an announcement (WMK-6).
    """

    stream_partition: str
    start_timestamp: Time
    record_sequence: int
    children: tuple[ChildPartition, ...]

    def __post_init__(self) -> None:
        check_types(self)
        _check_stream_partition(self.stream_partition)
        _check_timestamp(Rule.START_TIMESTAMP, "start_timestamp", self.start_timestamp)
        _check_long("record_sequence", self.record_sequence)
        for child in self.children:
            for token in (child.token, *child.parent_partition_tokens):
                _check_text("token", token)
                if not 1 <= len(token.encode()) <= MAX_STREAM_PARTITION_BYTES:
                    raise InvalidChangeError(
                        Rule.CHILDREN,
                        "children",
                        f"tokens of 1 to {MAX_STREAM_PARTITION_BYTES} bytes of text",
                        token,
                    )
            if child.start_key and child.end_key and child.start_key >= child.end_key:
                raise InvalidChangeError(
                    Rule.CHILDREN,
                    "children",
                    "key ranges that start before they end",
                    (child.start_key, child.end_key),
                )


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The rows `[first, upto)` of a write stream."""

    stream: str
    first: int
    upto: int


@dataclass(frozen=True, slots=True)
class Release:
    """The staged rows of these ranges get the commit timestamp (µs). They are one source
    transaction (WRS-16).

    `ranges` has 1 to 1,000 write streams, each once.
    """

    stream_partition: str
    commit_timestamp: Time
    ranges: tuple[OffsetRange, ...]

    def __post_init__(self) -> None:
        _check_stream_partition(self.stream_partition)
        _check_timestamp(Rule.RELEASE, "commit_timestamp", self.commit_timestamp)
        given = [(one.stream, one.first, one.upto) for one in self.ranges]
        if not are_ranges(given):
            raise InvalidChangeError(Rule.RELEASE, "ranges", RANGES_WORDS, given[:3])


Record = DataChange | Heartbeat | ChildPartitions | Release

STAGED_WITHOUT: Final = ("estimated_low_watermark", "resume_token", "transaction")
"""The fields that are empty in a staged change (WRS-11)."""

WRITE_STREAM_WORDS: Final = (
    "a write stream such as job/rows: two parts of 1 to 64 of the characters - _ . a-z A-Z 0-9"
)
RANGES_WORDS: Final = (
    f"1 to {MAX_RANGES} ranges of different write streams, each with at least one offset"
)


def is_row_offset(stream: str, offset: int) -> bool:
    """Return whether a row of a write stream can have this name and offset."""
    return write_stream_matches(stream) is not None and 0 <= offset <= MAX_LONG


def are_ranges(ranges: Sequence[tuple[str, int, int]]) -> bool:
    """Return whether a release can have these ranges (stream, first, upto)."""
    return (
        1 <= len(ranges) <= MAX_RANGES
        and len({stream for stream, _, _ in ranges}) == len(ranges)
        and all(
            write_stream_matches(stream) is not None and 0 <= first < upto <= MAX_LONG
            for stream, first, upto in ranges
        )
    )


def time_of(record: Record) -> int:
    """Return the time of a record (µs). It is 0 for a staged change."""
    match record:
        case Heartbeat():
            return record.timestamp
        case ChildPartitions():
            return record.start_timestamp
    return record.commit_timestamp


def check_types(record: object) -> None:
    """Raise `InvalidChangeError` if a field of a record, or of a part of it, does not have its
    type. The constructors call it when a value cannot be used, and `codec.encode` does.
    """
    if (wrong := wrong_field(record)) is not None:
        raise InvalidChangeError(UNENCODABLE, *wrong)


def kafka_key(record: Record) -> bytes:
    """Return the Kafka key of a record: the row key of a change, or `CONTROL_KEY` (REC-1,
    REC-3).
    """
    return record.row_key if isinstance(record, DataChange) else CONTROL_KEY


# The same names occur very often, so the cache keeps names that passed the check.


@lru_cache(maxsize=1024)
def check_table(table: str) -> None:
    """Raise `InvalidChangeError` if a source table cannot have this name."""
    if not table_matches(table):
        raise InvalidChangeError(
            Rule.TABLE, "table", "1 to 128 of the characters - _ . a-z A-Z 0-9", table
        )


@lru_cache(maxsize=1024)
def _check_family(family: str) -> None:
    if not family_matches(family):
        raise InvalidChangeError(
            Rule.FAMILY, "family", "1 to 64 of the characters - _ . a-z A-Z 0-9", family
        )


@lru_cache(maxsize=1024)
def _check_stream_partition(stream_partition: str) -> None:
    _check_text("stream_partition", stream_partition)
    if not 1 <= len(stream_partition.encode()) <= MAX_STREAM_PARTITION_BYTES:
        raise InvalidChangeError(
            Rule.STREAM_PARTITION,
            "stream_partition",
            f"1 to {MAX_STREAM_PARTITION_BYTES} bytes of text",
            stream_partition,
        )


def _check_qualifier(qualifier: bytes) -> None:
    _check_bytes("qualifier", qualifier)
    if len(qualifier) > MAX_QUALIFIER_BYTES:
        raise InvalidChangeError(
            Rule.QUALIFIER, "qualifier", f"at most {MAX_QUALIFIER_BYTES} bytes", qualifier
        )


def _check_resume_token(resume_token: bytes) -> None:
    _check_bytes("resume_token", resume_token)
    if len(resume_token) > MAX_RESUME_TOKEN_BYTES:
        raise InvalidChangeError(
            Rule.RESUME_TOKEN,
            "resume_token",
            f"at most {MAX_RESUME_TOKEN_BYTES} bytes",
            resume_token,
        )


def _check_timestamp(rule: Rule, field: str, timestamp: object) -> None:
    if not isinstance(timestamp, int):
        limit = f"an int, the number of microseconds since 1970: 1 to {MAX_TIMESTAMP}"
        raise InvalidChangeError(rule, field, limit, timestamp)
    if not 1 <= timestamp <= MAX_TIMESTAMP:
        raise InvalidChangeError(rule, field, f"microseconds from 1 to {MAX_TIMESTAMP}", timestamp)


_ENTRY_TYPES: Final = frozenset({SetCell, DeleteCells, DeleteFamily})


def _entries(given: Iterable[Entry]) -> tuple[Entry, ...]:
    """A copy of the entries: a list could be changed later."""
    try:
        entries = tuple(given)
    except TypeError:
        wrong: list[object] = [given]
    else:
        if _ENTRY_TYPES.issuperset(map(type, entries)):
            return entries
        wrong = [one for one in entries if not isinstance(one, Entry)]
        if not wrong:
            return entries
    limit = "a tuple of SetCell, DeleteCells and DeleteFamily, for example (DeleteFamily('f'),)"
    raise InvalidChangeError(UNENCODABLE, "entries", limit, wrong[0])


def _check_bytes(field: str, value: bytes) -> None:
    if not isinstance(value, bytes):
        raise InvalidChangeError(UNENCODABLE, field, "bytes", value)


def _check_text(field: str, text: str) -> None:
    """Refuse lone surrogates: UTF-8 cannot encode them. Python uses them for file names that are
    not text.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidChangeError(
                UNENCODABLE, field, "text that can be written as UTF-8", text
            ) from None


def _check_int(field: str, number: int) -> None:
    if not -MAX_INT - 1 <= number <= MAX_INT:
        raise InvalidChangeError(UNENCODABLE, field, "from -2^31 to 2^31 - 1", number)


def _check_long(field: str, number: int) -> None:
    if not -MAX_LONG - 1 <= number <= MAX_LONG:
        raise InvalidChangeError(UNENCODABLE, field, "from -2^63 to 2^63 - 1", number)

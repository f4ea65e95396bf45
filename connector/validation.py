"""Validates one Kafka record: can it be applied?

`validate_record` **defines** which records are rejected, and with which reason. The pipeline checks
the same rules in the JVM, in one pass (TBL-2). A test compares both. If a record breaks several
rules, the first one of this list is reported:

     1  TOO_LARGE                     key and value together have more than `max_record_bytes`
     2  UNKNOWN_FRAMING               there is no value, or it has neither of the two framings
                                      (REC-11)
     3  UNKNOWN_SCHEMA                the schema is not known, or cannot be read as a ChangeRecord
     4  UNDECODABLE                   truncated, trailing bytes, invalid UTF-8, a length above
                                      16 MiB (REC-13, `records.avro_decoder`)
     5  INVALID                       a rule of `records.model.Rule`, in the order of construction
                                      (REC-14, REC-16, REC-26). With them, in their order:
        UNKNOWN_ENTRY                 this release does not know the kind of an entry
        INVALID_SEQUENCE_NUMBER       the change sequence number is not valid (REC-10)
     6  KEY_MISMATCH                  the Kafka key is not the row key, or not `CONTROL_KEY`
                                      (REC-1, REC-3)
     7  COMMIT_TIMESTAMP_IN_FUTURE,   a time is more than `max_clock_skew_s` after the record
        WATERMARK_IN_FUTURE           timestamp (REC-15)
     8  COMMIT_TIMESTAMP_TOO_OLD      a time is before `min_commit_timestamp` (ING-6)
     9  INVALID                       rules UNKNOWN_FIELDS and ROW_IMAGE, if the stream rejects
                                      such records (EVO-10, ING-7)
    10  UNKNOWN_TABLE                 the stream rejects changes of tables that are not declared
    11  TOO_LATE                      the change, release or truncation is older than the horizon.
                                      Newer deletes may be forgotten (MRG-11, WRS-20)

The copies of a truncation are one record, which counts from the first copy that is accepted. So 7
and 11 do not apply to a truncation that is not newer than an accepted one of its table: it is a
copy, or it changes nothing (EVO-13).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from connector.errors import InvalidChangeError
from connector.records.codec import ChangeRecord, Schemas, decode, plan_of, schema_id
from connector.records.field_types import Between, check_ranges
from connector.records.model import (
    MAX_TIMESTAMP,
    DataChange,
    Heartbeat,
    ModType,
    Mutation,
    Record,
    Release,
    Rule,
    Truncate,
    kafka_key,
)
from connector.records.ordering import Rank, commit_rank
from connector.records.rejection import Headers, Position, Reason, Rejection
from connector.records.views import unit_hint, view_of_time
from connector.tables.retention import is_too_late

EARLIEST_ARRIVAL: Final = 1_293_840_000_000_000
"""2011-01-01. Kafka did not exist before."""

MAX_AHEAD_US: Final = 300_000_000
"""How far the clock of a client may be ahead of the clock of the reader: 5 minutes."""

NO_TABLE: Final[Mapping[str, Rank]] = {}
_COMMITTED: Final = (DataChange, Release, Truncate)

BEGINNING: Final = 1
"""The time of a control record that means the beginning, and has no unit."""


class UnknownFields(StrEnum):
    """How ingest treats a record whose schema has fields that are not known here (EVO-10)."""

    KEEP_AND_COUNT = "keep-and-count"
    REJECT = "reject"


class RowImages(StrEnum):
    """How ingest treats a change whose row image contradicts its entries (ING-7)."""

    COUNT = "count"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that a stream can configure. Raises `ConfigError`.

    - `max_clock_skew_s`: how far the clocks of the source and of Kafka may differ. Clocks that use
      NTP differ by milliseconds. Paused virtual machines differ by minutes.
    - `max_record_bytes`: the limit for key and value together. It must not be above the limit of
      the topic, which is checked elsewhere.
    - `min_commit_timestamp`: the least commit timestamp of a change, in microseconds. 0 sets no
      limit. See `check_age`.
    - `unknown_fields` and `row_images`: whether such records are rejected.
    """

    max_clock_skew_s: Annotated[int, Between(0)] = 300
    max_record_bytes: Annotated[int, Between(1, 1_000_000_000)] = 10_000_000
    min_commit_timestamp: Annotated[int, Between(0, MAX_TIMESTAMP)] = 0
    unknown_fields: UnknownFields = UnknownFields.KEEP_AND_COUNT
    row_images: RowImages = RowImages.COUNT

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record as Kafka delivered it. `record_timestamp` (µs) is its time of arrival (REC-25)."""

    position: Position
    record_timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the bytes of key, value and headers, without Kafka's own overhead."""
    return (
        len(key or b"")
        + len(value or b"")
        + sum(
            len(name.encode("utf-8", "surrogatepass")) + len(text or b"") for name, text in headers
        )
    )


def arrival(milliseconds: int, *, by_broker: bool, read_at: int) -> int | None:
    """Return the time of arrival (µs) that a record timestamp says. None: it is not believed, and
    the time of reading is used instead.

    Args:
        milliseconds: The record timestamp, as Kafka has it.
        by_broker: Whether the broker wrote it (`LogAppendTime`). Its clock may be any time ahead.
        read_at: The time (µs) at which the reader asked Kafka. The record arrived before.
    """
    latest = MAX_TIMESTAMP if by_broker else read_at + MAX_AHEAD_US
    return milliseconds * 1000 if EARLIEST_ARRIVAL <= milliseconds * 1000 <= latest else None


def validate_record(
    record: KafkaRecord,
    *,
    schemas: Schemas,
    limits: Limits,
    kafka_partitions: int,
    tables: frozenset[str] | None,
    horizon: int | None = None,
    truncated: Mapping[str, Rank] = NO_TABLE,
) -> ChangeRecord | Rejection:
    """Decode a record, or return the first reason why it cannot be applied. Never raises.

    Args:
        record: The record.
        schemas: The writer schemas that are known.
        limits: The limits of the stream.
        kafka_partitions: The current number of Kafka partitions of the topic.
        tables: The declared source tables. None: changes of undeclared tables are kept.
        horizon: The horizon (µs) that the batch before committed. None: there is no horizon yet.
        truncated: By source table, the commit rank of the newest truncation that was accepted
            before this batch.

    Returns:
        The change or control record, or a `Rejection`. The order of the checks is the list above.
    """
    size = len(record.key or b"") + len(record.value or b"")
    if size > limits.max_record_bytes:
        return Rejection(
            Reason.TOO_LARGE,
            f"key and value have {size} bytes, the limit is {limits.max_record_bytes}",
        )
    decoded = decode(record.value, schemas, kafka_partitions=kafka_partitions)
    if isinstance(decoded, Rejection):
        return decoded
    is_repeated = isinstance(decoded.record, Truncate) and commit_rank(
        decoded.record
    ) <= truncated.get(decoded.record.table, ())
    return (
        _judge_key(record, decoded.record)
        or (None if is_repeated else _judge_clock(record, decoded.record, limits))
        or _judge_least(decoded.record, limits.min_commit_timestamp)
        or _judge_schema(record, schemas, limits)
        or _judge_row_image(decoded.record, limits)
        or _judge_table(decoded.record, tables)
        or (None if is_repeated else _judge_age(decoded.record, horizon))
        or decoded
    )


def _judge_key(record: KafkaRecord, decoded: Record) -> Rejection | None:
    expected = kafka_key(decoded)
    if record.key == expected:
        return None
    given = (
        "null"
        if record.key is None
        else f"{len(record.key)} bytes beginning with {record.key[:32].hex() or 'nothing'}"
    )
    what = "the row key" if isinstance(decoded, DataChange) else "the key of control records"
    return Rejection(
        Reason.KEY_MISMATCH,
        f"the Kafka key is {given}, {what} has {len(expected)} bytes beginning with"
        f" {expected[:32].hex()}",
    )


def _judge_clock(record: KafkaRecord, decoded: Record, limits: Limits) -> Rejection | None:
    if isinstance(decoded, DataChange) and decoded.is_staged:
        return None
    reason = (
        Reason.COMMIT_TIMESTAMP_IN_FUTURE
        if isinstance(decoded, _COMMITTED)
        else Reason.WATERMARK_IN_FUTURE
    )
    field, claimed = _time_of(decoded)
    ahead = claimed - record.record_timestamp
    if ahead <= limits.max_clock_skew_s * 1_000_000:
        return None
    arrival = f"{ahead} µs after the record's arrival at {record.record_timestamp}"
    allowed = f"{limits.max_clock_skew_s} s are allowed"
    return Rejection(reason, f"{field} is {claimed}, {arrival}; {allowed}{unit_hint(claimed)}")


def _time_of(record: Record) -> tuple[str, int]:
    """The field of a record that has its time, and the time."""
    if isinstance(record, _COMMITTED):
        return "commit_timestamp", record.commit_timestamp
    if isinstance(record, Heartbeat):
        return "timestamp", record.timestamp
    return "start_timestamp", record.start_timestamp


def check_age(record: Record, min_commit_timestamp: int) -> None:
    """Refuse a record whose time is too old (ING-6). 0: no record is too old.

    The limit of a control record is one microsecond less, because an announcement is dated just
    before the first change. `BEGINNING` is allowed: it is no time of the source.

    Args:
        record: A change or a control record.
        min_commit_timestamp: The least commit timestamp, in microseconds.

    Raises:
        InvalidChangeError: The time is too old. The error names the unit that the number fits.
    """
    field, time = _time_of(record)
    least, is_time = min_commit_timestamp, True
    if isinstance(record, DataChange):
        is_time = not record.is_staged
    elif not isinstance(record, Release | Truncate):
        least, is_time = min_commit_timestamp - 1, time != BEGINNING
    if time < least and is_time:
        limit = f"at least {min_commit_timestamp} (min_commit_timestamp){unit_hint(time)}"
        raise InvalidChangeError(Reason.COMMIT_TIMESTAMP_TOO_OLD, field, limit, time)


def _judge_least(decoded: Record, min_commit_timestamp: int) -> Rejection | None:
    try:
        check_age(decoded, min_commit_timestamp)
    except InvalidChangeError as error:
        return Rejection(Reason.COMMIT_TIMESTAMP_TOO_OLD, error.problem)
    return None


def _judge_schema(record: KafkaRecord, schemas: Schemas, limits: Limits) -> Rejection | None:
    if limits.unknown_fields is not UnknownFields.REJECT:
        return None
    schema = schemas.writer(record.value)
    assert isinstance(schema, str), "the record was decoded"
    plan = plan_of(schema)
    assert not isinstance(plan, str), plan
    if not plan.unknown_fields:
        return None
    return Rejection(
        Reason.INVALID,
        f"the schema {schema_id(record.value)} has fields that this release does not know:"
        f" {', '.join(plan.unknown_fields)}",
        Rule.UNKNOWN_FIELDS,
    )


def _judge_row_image(decoded: Record, limits: Limits) -> Rejection | None:
    if (
        limits.row_images is not RowImages.REJECT
        or not isinstance(decoded, DataChange)
        or decoded.row_image is None
        or not decoded.row_image.contradicts(decoded.entries)
    ):
        return None
    mod_type = decoded.row_image.mod_type
    done = "set cells" if mod_type is ModType.DELETE else "set no cell"
    return Rejection(
        Reason.INVALID, f"row_image.mod_type is {mod_type}, but the entries {done}", Rule.ROW_IMAGE
    )


def _judge_table(decoded: Record, tables: frozenset[str] | None) -> Rejection | None:
    if tables is None or not isinstance(decoded, Mutation) or decoded.table in tables:
        return None
    return Rejection(
        Reason.UNKNOWN_TABLE, f"no table of the stream has the source table {decoded.table}"
    )


def _judge_age(decoded: Record, horizon: int | None) -> Rejection | None:
    if horizon is None or not isinstance(decoded, _COMMITTED) or not is_too_late(decoded, horizon):
        return None
    committed, oldest = view_of_time(decoded.commit_timestamp), view_of_time(horizon)
    return Rejection(Reason.TOO_LATE, f"commit_timestamp is {committed}, the horizon was {oldest}")

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
     5  INVALID                       rules BRANCHES to ENTRY_COUNT, in the order of
                                      `records.model.Rule` (REC-14, REC-16)
     6  UNKNOWN_ENTRY                 this release does not know the kind of an entry
     7  INVALID                       rules FAMILY to CHILDREN
     8  INVALID_SEQUENCE_NUMBER       the change sequence number is not valid (REC-10)
     9  KEY_MISMATCH                  the Kafka key is not the row key, or not `CONTROL_KEY`
                                      (REC-1, REC-3)
    10  COMMIT_TIMESTAMP_IN_FUTURE,   a time is more than `max_clock_skew_s` after the record
        WATERMARK_IN_FUTURE           timestamp (REC-15)
    11  UNKNOWN_TABLE                 the stream rejects changes of tables that are not declared
    12  TOO_LATE                      the change is older than the horizon. Newer deletes may be
                                      forgotten (MRG-11)
"""

from __future__ import annotations

from dataclasses import dataclass

from connector.errors import ConfigError, ErrorCode
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import DataChange, Heartbeat, Record, kafka_key
from connector.records.rejection import Headers, Position, Reason, Rejection
from connector.tables.retention import is_too_late


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that a stream can configure. Raises `ConfigError`.

    - `max_clock_skew_s`: how far the clocks of the source and of Kafka may differ. Clocks that use
      NTP differ by milliseconds. Paused virtual machines differ by minutes.
    - `max_record_bytes`: the limit for key and value together. It must not be above the limit of
      the topic, which is checked elsewhere.
    """

    max_clock_skew_s: int = 300
    max_record_bytes: int = 10_000_000

    def __post_init__(self) -> None:
        if self.max_clock_skew_s < 0:
            raise ConfigError(
                ErrorCode.SETTING_INVALID,
                f"max_clock_skew is {self.max_clock_skew_s} s",
                "The clock skew cannot be negative",
                "Set it to 0 seconds or more",
            )
        if self.max_record_bytes < 1:
            raise ConfigError(
                ErrorCode.SETTING_INVALID,
                f"max_record_bytes is {self.max_record_bytes}",
                "Every record would be above this limit",
                "Set it to 1 or more",
            )


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record as Kafka delivered it. `record_timestamp` is in microseconds."""

    position: Position
    record_timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def validate_record(
    record: KafkaRecord,
    *,
    schemas: Schemas,
    limits: Limits,
    kafka_partitions: int,
    tables: frozenset[str] | None,
    horizon: int | None = None,
) -> ChangeRecord | Rejection:
    """Decode a record, or return the first reason why it cannot be applied. Never raises.

    Args:
        record: The record.
        schemas: The writer schemas that are known.
        limits: The limits of the stream.
        kafka_partitions: The current number of Kafka partitions of the topic.
        tables: The declared source tables. None: changes of undeclared tables are kept.
        horizon: The horizon (µs) that the batch before committed. None: there is no horizon yet.

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
    return (
        _judge_key(record, decoded.record)
        or _judge_clock(record, decoded.record, limits)
        or _judge_table(decoded.record, tables)
        or _judge_age(decoded.record, horizon)
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
    if isinstance(decoded, DataChange):
        reason, field, claimed = (
            Reason.COMMIT_TIMESTAMP_IN_FUTURE,
            "commit_timestamp",
            decoded.commit_timestamp,
        )
    elif isinstance(decoded, Heartbeat):
        reason, field, claimed = Reason.WATERMARK_IN_FUTURE, "timestamp", decoded.timestamp
    else:
        reason, field, claimed = (
            Reason.WATERMARK_IN_FUTURE,
            "start_timestamp",
            decoded.start_timestamp,
        )
    ahead = claimed - record.record_timestamp
    if ahead <= limits.max_clock_skew_s * 1_000_000:
        return None
    arrival = f"{ahead} µs after the record's arrival at {record.record_timestamp}"
    return Rejection(
        reason, f"{field} is {claimed}, {arrival}; {limits.max_clock_skew_s} s are allowed"
    )


def _judge_table(decoded: Record, tables: frozenset[str] | None) -> Rejection | None:
    if tables is None or not isinstance(decoded, DataChange) or decoded.table in tables:
        return None
    return Rejection(
        Reason.UNKNOWN_TABLE, f"no table of the stream has the source table {decoded.table}"
    )


def _judge_age(decoded: Record, horizon: int | None) -> Rejection | None:
    if not isinstance(decoded, DataChange) or not is_too_late(decoded, horizon):
        return None
    return Rejection(
        Reason.TOO_LATE,
        f"commit_timestamp is {decoded.commit_timestamp}, the horizon was {horizon}",
    )

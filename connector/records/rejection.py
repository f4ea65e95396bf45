"""The reasons why a record cannot be applied.

A `Rejection` is a value with a `Reason`. A bad record never raises an exception. A `Position` names
one Kafka record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from connector.text import truncate_utf8

Headers = tuple[tuple[str, bytes | None], ...]
"""Kafka headers. Names may repeat, the order matters, and a value may be null."""


class Reason(StrEnum):
    """Why a record was rejected. The list is complete (DLQ-2)."""

    UNKNOWN_FRAMING = "UNKNOWN_FRAMING"
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"
    UNDECODABLE = "UNDECODABLE"
    INVALID = "INVALID"
    KEY_MISMATCH = "KEY_MISMATCH"
    COMMIT_TIMESTAMP_IN_FUTURE = "COMMIT_TIMESTAMP_IN_FUTURE"
    WATERMARK_IN_FUTURE = "WATERMARK_IN_FUTURE"
    COMMIT_TIMESTAMP_TOO_OLD = "COMMIT_TIMESTAMP_TOO_OLD"
    UNKNOWN_ENTRY = "UNKNOWN_ENTRY"
    UNKNOWN_TABLE = "UNKNOWN_TABLE"
    UNREADABLE_VALUE = "UNREADABLE_VALUE"
    MISSING_SEQUENCE_NUMBER = "MISSING_SEQUENCE_NUMBER"
    INVALID_SEQUENCE_NUMBER = "INVALID_SEQUENCE_NUMBER"
    TOO_LATE = "TOO_LATE"
    TOO_LARGE = "TOO_LARGE"
    REJECTED = "REJECTED"
    RETRIES_EXHAUSTED = "RETRIES_EXHAUSTED"
    CONSUMER_FAILED = "CONSUMER_FAILED"
    UNREADABLE_SOURCE = "UNREADABLE_SOURCE"

    @property
    def cause(self) -> str:
        """A sentence that explains how a record gets this reason."""
        return _TEXTS[self].cause

    @property
    def remedy(self) -> str:
        """A sentence that says what you can do, at the source or with the dead letter."""
        return _TEXTS[self].remedy


class _Texts(NamedTuple):
    cause: str
    remedy: str


_TEXTS: Final[Mapping[Reason, _Texts]] = {
    Reason.UNKNOWN_FRAMING: _Texts(
        "The value does not begin with a Confluent prefix (00) or with an Avro single-object"
        " marker (C3 01), or the record has no value",
        "Publish with ChangeProducer, or with a serializer that writes one of these framings."
        " To repair the letter, reframe it with a schema id",
    ),
    Reason.UNKNOWN_SCHEMA: _Texts(
        "Neither the schema registry nor this release knows the schema that the value names, or"
        " that schema is not a ChangeRecord",
        "Configure the schema registry that the producer uses, or upgrade the connector. Then"
        " replay the letter. You can also repair the letter: reframe it",
    ),
    Reason.UNDECODABLE: _Texts(
        "The bytes after the framing are not a record of the schema: they are truncated, too"
        " long or damaged",
        "Look at the byte that the detail names. Send the record again from the source, or"
        " discard the letter",
    ),
    Reason.INVALID: _Texts(
        "The record can be decoded, but breaks a rule for records. The rule is shown beside the"
        " reason",
        "Repair the producer, so that it refuses such a change before it sends it. Replace the"
        " field in the letter, and replay it",
    ),
    Reason.KEY_MISMATCH: _Texts(
        "The Kafka key is not the row key of the change, or a control record does not have the"
        " reserved key of control records",
        "Use row_key as the Kafka key, so that all changes of a row are in one Kafka partition."
        " Set the key of the letter, and replay it",
    ),
    Reason.COMMIT_TIMESTAMP_IN_FUTURE: _Texts(
        "The commit timestamp is more than max_clock_skew after the arrival of the record. If"
        " it were applied, it would win over all correct changes of the row",
        "Check whether the source sends nanoseconds instead of microseconds, or has a wrong"
        " clock. Set the commit timestamp of the letter, and replay it",
    ),
    Reason.WATERMARK_IN_FUTURE: _Texts(
        "The time of a heartbeat, or the start of a child partition, is more than"
        " max_clock_skew after the arrival of the record",
        "Check whether the source sends nanoseconds instead of microseconds, or has a wrong"
        " clock. Discard the letter: a later heartbeat replaces it",
    ),
    Reason.COMMIT_TIMESTAMP_TOO_OLD: _Texts(
        "The commit timestamp, or the time of a control record, is before min_commit_timestamp."
        " Usually the number is in seconds or milliseconds",
        "Send microseconds since 1970-01-01 in UTC: the detail names the unit that the number"
        " fits. Set the commit timestamp of the letter, and replay it. Discard the letter of a"
        " control record: a later one replaces it",
    ),
    Reason.UNKNOWN_ENTRY: _Texts(
        "The change has an entry of a kind that this release does not know. A change is applied"
        " as a whole or not at all",
        "Upgrade the connector, and replay the letter",
    ),
    Reason.UNKNOWN_TABLE: _Texts(
        "No table of the stream reads this source table, and the stream has unknown_tables ="
        ' "reject"',
        'Declare a table, or set unknown_tables to "keep". Then replay the letter',
    ),
    Reason.UNREADABLE_VALUE: _Texts(
        "The row key or a cell is not a value of the type that the table declares for it",
        "Repair the table definition, or the value in the letter. Then replay the letter",
    ),
    Reason.MISSING_SEQUENCE_NUMBER: _Texts(
        "The table is ordered by change_sequence_number, but the change has no such number",
        "Send the number from the source, or order the table by commit. To repair the letter,"
        " replace the field",
    ),
    Reason.INVALID_SEQUENCE_NUMBER: _Texts(
        "change_sequence_number is not 1 to 4 sections of 1 to 16 hexadecimal digits, separated"
        " by slashes",
        "Build the number with sequence_number of the Python package. To repair the letter,"
        " replace the field",
    ),
    Reason.TOO_LATE: _Texts(
        "The change is older than the horizon. Deletes of that time may be forgotten, so the"
        " change could bring back deleted rows",
        "Raise delete_retention, so that it does not happen again. Send the row again from the"
        " source, or publish the effect that the change would have now: show --new-change prints"
        " it",
    ),
    Reason.TOO_LARGE: _Texts(
        "Key and value together have more bytes than max_record_bytes allows",
        "Split the change at the source. Or raise max_record_bytes, up to the limit of the"
        " topic, and replay the letter",
    ),
    Reason.REJECTED: _Texts(
        "The broker refused a record of the producer permanently",
        "The detail has the error of the broker: for example, the record is too large for the"
        " topic, or the producer lacks a right. Remove the cause, and replay the letter",
    ),
    Reason.RETRIES_EXHAUSTED: _Texts(
        "The producer could not deliver the record within its time limit",
        "Check the broker and the network, then replay the letter. If the record was delivered"
        " after all, the replay changes nothing",
    ),
    Reason.CONSUMER_FAILED: _Texts(
        "A program that reads the stream could not process the record, and set it aside",
        "The detail is from the program. Repair the program or what it depends on, then replay"
        " the letter of its group. Tables are not affected",
    ),
    Reason.UNREADABLE_SOURCE: _Texts(
        "A bridge could not read a record of its source, or the row in it lacks a value. The letter"
        " has the bytes of the source, and the place in the order that the row has",
        "Repair the record in the letter, or declare what its table needs. Then replay the letter:"
        " it is read again, and becomes the change of the row at its place. A letter whose place is"
        " not known has no replay: compare the table with the source, and discard the letter",
    ),
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """The result for a record that cannot be applied. It is a value, and is never raised.

    - `detail` is one sentence with the numbers, shortened to `MAX_DETAIL_BYTES` (DLQ-6).
    - `rule` is the name of a `records.model.Rule` if the reason is `INVALID`. Otherwise it is
      empty.
    """

    reason: Reason
    detail: str
    rule: str = ""

    def __post_init__(self) -> None:
        assert bool(self.rule) == (self.reason is Reason.INVALID), (self.reason, self.rule)
        object.__setattr__(self, "detail", truncate_utf8(self.detail))


@dataclass(frozen=True, slots=True)
class Position:
    """The coordinates of a record.

    `topic_id` is Kafka's topic id as text. A topic that was deleted and created again with the same
    name has another id (REC-4).
    """

    topic: str
    topic_id: str
    kafka_partition: int
    offset: int

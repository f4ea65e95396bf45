"""The reasons why a record cannot be applied.

A `Rejection` is a value with a `Reason`. A bad record never raises an exception. A `Position` names
one Kafka record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
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
    UNKNOWN_ENTRY = "UNKNOWN_ENTRY"
    UNKNOWN_TABLE = "UNKNOWN_TABLE"
    UNREADABLE_VALUE = "UNREADABLE_VALUE"
    MISSING_SEQUENCE_NUMBER = "MISSING_SEQUENCE_NUMBER"
    INVALID_SEQUENCE_NUMBER = "INVALID_SEQUENCE_NUMBER"
    TOO_LATE = "TOO_LATE"
    TOO_LARGE = "TOO_LARGE"
    REJECTED = "REJECTED"
    RETRIES_EXHAUSTED = "RETRIES_EXHAUSTED"

    @property
    def cause(self) -> str:
        """A sentence that explains how a record gets this reason."""
        return _CAUSES_AND_REMEDIES[self][0]

    @property
    def remedy(self) -> str:
        """A sentence that says what you can do, at the source or with the dead letter."""
        return _CAUSES_AND_REMEDIES[self][1]


_CAUSES_AND_REMEDIES: Final[Mapping[Reason, tuple[str, str]]] = {
    Reason.UNKNOWN_FRAMING: (
        (
            "The value begins neither with a Confluent prefix (00) nor with an Avro single-object"
            " marker (C3 01), or there is no value"
        ),
        (
            "Publish through ChangeProducer or a serializer with one of these framings; mend the"
            " letter by reframing it with a schema id"
        ),
    ),
    Reason.UNKNOWN_SCHEMA: (
        (
            "The value names a schema that neither the registry nor this release knows, or one that"
            " is not a ChangeRecord"
        ),
        (
            "Configure the registry that the producer uses, or upgrade the connector, then replay;"
            " or mend the letter by reframing it"
        ),
    ),
    Reason.UNDECODABLE: (
        (
            "The bytes behind the framing are no record of the schema they name: truncated, too"
            " long, or damaged"
        ),
        (
            "Look at the byte that the detail names; send the record again from the source, or"
            " discard the letter"
        ),
    ),
    Reason.INVALID: (
        (
            "The record decodes, but breaks one of the limits of a change; the rule is named beside"
            " the reason"
        ),
        (
            "Mend the producer, which should refuse such a change before it is sent; replace the"
            " field in the letter and replay it"
        ),
    ),
    Reason.KEY_MISMATCH: (
        (
            "The Kafka key is not the row key of the change, or not the reserved key of control"
            " records"
        ),
        (
            "Key records by row_key, so that all changes of a row share a Kafka partition; set the"
            " key of the letter and replay it"
        ),
    ),
    Reason.COMMIT_TIMESTAMP_IN_FUTURE: (
        (
            "The commit timestamp lies further ahead of the record's arrival than max_clock_skew:"
            " it would beat every honest change of the row"
        ),
        (
            "Look for nanoseconds in place of microseconds, or a wrong clock; set the commit"
            " timestamp of the letter and replay it"
        ),
    ),
    Reason.WATERMARK_IN_FUTURE: (
        (
            "A heartbeat or the start of a child partition lies further ahead of the record's"
            " arrival than max_clock_skew"
        ),
        (
            "Look for nanoseconds in place of microseconds, or a wrong clock; discard the letter, a"
            " later heartbeat says more"
        ),
    ),
    Reason.UNKNOWN_ENTRY: (
        (
            "The change has an entry of a kind that this release does not know, and a change is"
            " applied whole or not at all"
        ),
        "Upgrade the connector and replay the letter",
    ),
    Reason.UNKNOWN_TABLE: (
        (
            "No table definition of the stream has this source table, and the stream is set to"
            " reject such changes"
        ),
        "Declare the table, or set unknown_tables to keep, and replay the letter",
    ),
    Reason.UNREADABLE_VALUE: (
        "A row key or a cell cannot be read as the type that its table declares for it",
        "Mend the table definition or the value in the letter, and replay it",
    ),
    Reason.MISSING_SEQUENCE_NUMBER: (
        "The table is ordered by change_sequence_number, and the change has none",
        (
            "Have the source send one, or order the table by commit; mend the letter by replacing"
            " the field"
        ),
    ),
    Reason.INVALID_SEQUENCE_NUMBER: (
        (
            "change_sequence_number is not 1 to 4 sections of 1 to 16 hexadecimal digits, separated"
            " by slashes"
        ),
        "Build it with the helper for sequence numbers; mend the letter by replacing the field",
    ),
    Reason.TOO_LATE: (
        (
            "The change is older than the horizon: what was deleted since may have been forgotten,"
            " so applying it could bring rows back"
        ),
        (
            "Raise delete_retention for the next time; replay --force works out the difference to"
            " the row of today and shows it first"
        ),
    ),
    Reason.TOO_LARGE: (
        "Key and value together have more bytes than max_record_bytes",
        (
            "Cut the change into several at the source, or raise max_record_bytes (never above what"
            " the topic takes) and replay the letter"
        ),
    ),
    Reason.REJECTED: (
        "The broker refused a record of the producer for good",
        (
            "The detail has the broker's error: a record larger than the topic takes, or missing"
            " rights; mend it and replay the letter"
        ),
    ),
    Reason.RETRIES_EXHAUSTED: (
        "The producer could not deliver a record within its time limit, however often it tried",
        (
            "Look after the broker or the network, then replay the letter; a replay of what was"
            " delivered after all changes nothing"
        ),
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

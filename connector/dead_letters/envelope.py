"""The envelope of a dead letter: how a rejected record is stored in Kafka.

A `Rejection` is the result of validating one Kafka record. It is a value, and is never raised. A
`DeadLetter` is the rejected record, with key, value and headers byte for byte (DLQ-1), and with
data about the failure. In Kafka it is the same record again, with this block of headers after the
original headers:

    __connect.errors.*    the names that Kafka Connect writes and other tools read
    connector.dlq.*       lowmark's own: id, reason, rule, detail, attempt, first_failed_at,
                          record_timestamp, schema_id, ingest_batch, order_position, table,
                          group. Absent values are omitted

All are UTF-8 text. Numbers are decimal, and times are in microseconds. The block begins with
`__connect.errors.topic`, which occurs once in the block. So the block starts at the last header
with this name, even if an original header has the same name.

A replay of a dead letter has none of these headers. It has the header `connector.replay` instead
(DLQ-10).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from connector.errors.settings import name_invalid
from connector.records.codec import schema_id as schema_of
from connector.records.model import MAX_INT, MAX_LONG, MAX_TIMESTAMP
from connector.records.rejection import Headers, Position, Reason
from connector.records.views import Flat, Hidden, OrNull, Shown, Time
from connector.text import as_header_name, truncate_utf8
from connector.validation import KafkaRecord

CONNECT_PREFIX: Final = "__connect.errors."
_TOPIC, _PARTITION, _OFFSET = (
    f"{CONNECT_PREFIX}{name}" for name in ("topic", "partition", "offset")
)
OWN_PREFIX: Final = "connector.dlq."
MAX_ATTEMPT: Final = 999_999_999
_LEDGER, _REPLAYS = ".ledger", ".replays"
_GROUP: Final = re.compile(r"[-_.a-zA-Z0-9]{1,64}")
REPLAY_HEADER: Final = "connector.replay"
"""The header of a replay. It names the dead letter and the attempt: `<letter id>/<attempt>`
(DLQ-10).
"""

_CONVERTER_REASONS: Final = frozenset(
    {Reason.UNKNOWN_FRAMING, Reason.UNKNOWN_SCHEMA, Reason.UNDECODABLE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A rejected record with its original bytes, and data about its failure (DLQ-1).

    - `position`, `key`, `value` and `headers` are those of the original record, and
      `record_timestamp` (µs) is its time of arrival (REC-25).
    - `reason`, `rule` and `detail` are those of the `Rejection`.
    - `attempt` is how often it was replayed before.
    - `first_failed_at` is in microseconds.
    - `schema_id` is the writer schema in the framing, if there is one.
    - `ingest_batch` is the batch that read it. It is 0 if no batch did.
    - `order_position` is the text of the order position (MRG-2).
    - `table` is set for a table letter: the changelog has the change, but one table could not
      contain it (TBL-9).
    - `group` is set if a program set the record aside: the group of its readers (SUB-4).
    """

    position: Flat[Position]
    key: Hidden[bytes | None]
    value: Hidden[bytes | None]
    headers: Hidden[Headers]
    reason: Reason
    rule: OrNull[str] = ""
    detail: str
    attempt: int = 0
    first_failed_at: Time
    record_timestamp: Time
    schema_id: str | None = None
    ingest_batch: int = 0
    order_position: str = ""
    table: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", truncate_utf8(self.detail))

    @property
    def id(self) -> Shown[str]:
        """The id: the same for each dead letter of the same record (DLQ-1)."""
        return letter_id(self.position, self.table)


def letter_id(position: Position, table: str | None = None) -> str:
    """Return `<topic id>-<Kafka partition>-<offset>`, of a table letter with `-<table>` (DLQ-1)."""
    return f"{position.topic_id}{_id_tail(position.kafka_partition, position.offset, table)}"


def dead_letter_topic(topic: str, group: str | None = None) -> str:
    """Return the dead-letter topic of a change topic (DLQ-1), or of a group of readers (SUB-4)."""
    return f"{topic}.dead-letters" + ("" if group is None else f".group.{group}")


def ledger_topic(topic: str, group: str | None = None) -> str:
    """Return the name of the ledger topic of a change topic (DLQ-1, DLQ-11), or of a group."""
    return f"{dead_letter_topic(topic, group)}{_LEDGER}"


def replay_topic(topic: str, group: str) -> str:
    """Return the name of the topic to which the dead letters of a group are replayed (SUB-4)."""
    return f"{dead_letter_topic(topic, group)}{_REPLAYS}"


def change_topic(topic: str) -> str:
    """Return the change topic that a topic of dead letters, of a ledger or of a group belongs to.
    Any other topic is returned unchanged.
    """
    of_stream = topic.partition(dead_letter_topic("", ""))[0]
    return of_stream.removesuffix(ledger_topic("")).removesuffix(dead_letter_topic(""))


def check_group(group: str) -> str:
    """Return a group that may have dead letters (SUB-4). Raises `ConfigError` if it may not."""
    # The topics of a group "a.ledger" would be those of the group "a".
    if (
        isinstance(group, str)
        and _GROUP.fullmatch(group)
        and not group.endswith((_LEDGER, _REPLAYS))
    ):
        return group
    raise name_invalid(
        "A group with dead letters",
        truncate_utf8(str(group)),
        f"1 to 64 characters of a-z A-Z 0-9 . - _, without {_LEDGER} or {_REPLAYS} at its end,"
        " because it is a part of the names of topics",
    )


def replay_header(letter: str, attempt: int) -> tuple[str, bytes]:
    """Return the header of the replay number `attempt` of a dead letter (DLQ-10)."""
    assert 1 <= attempt <= MAX_ATTEMPT, attempt
    return REPLAY_HEADER, f"{letter}/{attempt}".encode()


def replay_claim(headers: Headers) -> tuple[str, int] | None:
    """Return the dead letter and the attempt that the replay header of a record names, or None.

    Any producer can write such a header. It is only a claim. Check it with a ledger or a changelog
    that has the dead letter (DLQ-10).
    """
    for name, value in reversed(headers):
        if name == REPLAY_HEADER:
            letter, _, attempt = (value or b"").decode("utf-8", "replace").rpartition("/")
            is_number = (
                attempt.isascii() and attempt.isdigit() and len(attempt) < 10 and int(attempt) > 0
            )
            return (letter, int(attempt)) if letter and is_number else None
    return None


class ClaimedLetter(NamedTuple):
    """The coordinates of a dead letter in the changelog. `of_table`: it is a table letter, whose
    row is a change.
    """

    kafka_partition: int
    offset: int
    of_table: bool


_COORDINATES: Final = re.compile(r"-([0-9]{1,9})-([0-9]{1,18})(-.+)?", re.ASCII | re.DOTALL)


def coordinates_of(letter: str, topic_id: str) -> ClaimedLetter | None:
    """Return the coordinates of a dead letter of the topic with this id. None: it has none."""
    tail = letter.removeprefix(topic_id)
    match = _COORDINATES.fullmatch(tail) if letter.startswith(topic_id) else None
    if match is None:
        return None
    return ClaimedLetter(int(match[1]), int(match[2]), of_table=match[3] is not None)


NOWHERE: Final = -1
"""The Kafka partition and the offset of a record that its producer could not deliver."""
SOURCE_REASONS: Final = frozenset({Reason.REJECTED, Reason.RETRIES_EXHAUSTED})


def source_letter(
    topic: str, key: bytes, value: bytes, headers: Headers, why: str, *, now: int
) -> DeadLetter:
    """Return the dead letter of a record that a producer could not deliver to `topic` (DLQ-2).

    `why` is the error of the client, and `now` is in microseconds. An error of the broker becomes
    REJECTED. Any other error of the client becomes RETRIES_EXHAUSTED.
    """
    reason = Reason.REJECTED if why.startswith("Broker: ") else Reason.RETRIES_EXHAUSTED
    return DeadLetter(
        position=Position(topic, "", NOWHERE, NOWHERE),
        key=key,
        value=value,
        headers=headers,
        reason=reason,
        detail=why,
        first_failed_at=now,
        record_timestamp=now,
    )


def consumer_letter(source: KafkaRecord, group: str, detail: str, *, now: int) -> DeadLetter:
    """Return the dead letter of a record that a program of a group could not process (SUB-4).

    `now` is in microseconds. The attempt is the one that the replay header of the record claims.
    """
    claim = replay_claim(source.headers)
    return DeadLetter(
        position=source.position,
        key=source.key,
        value=source.value,
        headers=source.headers,
        reason=Reason.CONSUMER_FAILED,
        detail=detail,
        attempt=0 if claim is None else claim[1],
        first_failed_at=now,
        record_timestamp=source.record_timestamp,
        schema_id=schema_of(source.value),
        group=group,
    )


def to_headers(letter: DeadLetter) -> Headers:
    """Return the headers of a dead letter in Kafka: the original headers, then the block. A name
    that no Kafka client can write becomes the nearest one that it can (`as_header_name`).

    An original header may have the same name as one of the block. Both are kept, and readers use
    the last one. A record that its producer could not deliver has no id yet. Its id will be the
    coordinates of the dead letter.
    """
    position = letter.position
    is_somewhere = position.kafka_partition != NOWHERE
    block = {
        _TOPIC: position.topic,
        _PARTITION: str(position.kafka_partition) if is_somewhere else None,
        _OFFSET: str(position.offset) if is_somewhere else None,
        f"{CONNECT_PREFIX}connector.name": "lowmark",
        f"{CONNECT_PREFIX}stage": (
            "VALUE_CONVERTER" if letter.reason in _CONVERTER_REASONS else "TASK_PUT"
        ),
        f"{CONNECT_PREFIX}exception.class.name": f"lowmark.{letter.reason}",
        f"{CONNECT_PREFIX}exception.message": letter.detail,
        f"{OWN_PREFIX}id": letter.id if is_somewhere else None,
        f"{OWN_PREFIX}reason": letter.reason.value,
        f"{OWN_PREFIX}rule": letter.rule or None,
        f"{OWN_PREFIX}detail": letter.detail,
        f"{OWN_PREFIX}attempt": str(letter.attempt),
        f"{OWN_PREFIX}first_failed_at": str(letter.first_failed_at),
        f"{OWN_PREFIX}record_timestamp": str(letter.record_timestamp),
        f"{OWN_PREFIX}schema_id": letter.schema_id,
        f"{OWN_PREFIX}ingest_batch": str(letter.ingest_batch),
        f"{OWN_PREFIX}order_position": letter.order_position,
        f"{OWN_PREFIX}table": letter.table,
        f"{OWN_PREFIX}group": letter.group,
    }
    return (
        *((as_header_name(name), value) for name, value in letter.headers),
        *((name, text.encode()) for name, text in block.items() if text is not None),
    )


def from_record(
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    *,
    at: Position | None = None,
    record_timestamp: int = 0,
) -> DeadLetter:
    """Read the dead letter of a Kafka record. It is the inverse of `to_headers`.

    A record of another tool has no block, or a damaged block. It becomes a third-party dead letter:
    its position and time are `at` and `record_timestamp` (µs), its reason is `REJECTED`, and its
    detail comes from the headers of the tool (DLQ-1). A `source_letter` gets the same position and
    time, but keeps its reason and detail.

    Raises:
        ValueError: The record has no valid block, and `at` is `None`.
    """
    letter = _read_block(key, value, tuple(headers))
    if letter is not None:
        return letter
    if at is None:
        raise ValueError(
            "this record is not a dead letter of lowmark: its connector.dlq headers are missing or"
            " damaged"
        )
    start, own = _last_block(tuple(headers))
    if own.get("reason") in SOURCE_REASONS and "id" not in own:
        outer, reason, detail = tuple(headers)[:start], Reason(own["reason"]), own.get("detail")
    else:
        outer, reason, detail = tuple(headers), Reason.REJECTED, describe_failure(tuple(headers))
    return DeadLetter(
        position=at,
        key=key,
        value=value,
        headers=outer,
        reason=reason,
        detail=detail or "another tool wrote this record, and gave no reason",
        first_failed_at=record_timestamp,
        record_timestamp=record_timestamp,
    )


def _block_start(headers: Headers) -> int | None:
    for index in range(len(headers) - 1, -1, -1):
        if headers[index][0] == _TOPIC:
            return index
    return None


def _last_block(headers: Headers) -> tuple[int, dict[str, str]]:
    """Return the index of the block, and its `connector.dlq.` headers as text."""
    start = _block_start(headers)
    block = headers[start:] if start is not None else ()
    own = {
        name.removeprefix(OWN_PREFIX): (text or b"").decode("utf-8", "replace")
        for name, text in block
        if name.startswith(OWN_PREFIX)
    }
    return len(headers) if start is None else start, own


def _read_block(key: bytes | None, value: bytes | None, headers: Headers) -> DeadLetter | None:
    start = _block_start(headers)
    if start is None:
        return None
    try:
        block = {name: text.decode() for name, text in headers[start:] if text is not None}
        letter, table = block[f"{OWN_PREFIX}id"], block.get(f"{OWN_PREFIX}table")
        kafka_partition = _number(block[_PARTITION], MAX_INT)
        offset = _number(block[_OFFSET], MAX_LONG)
        tail = _id_tail(kafka_partition, offset, table)
        if not letter.endswith(tail):
            return None
        return DeadLetter(
            position=Position(block[_TOPIC], letter.removesuffix(tail), kafka_partition, offset),
            key=key,
            value=value,
            headers=headers[:start],
            reason=Reason(block[f"{OWN_PREFIX}reason"]),
            rule=block.get(f"{OWN_PREFIX}rule", ""),
            detail=block[f"{OWN_PREFIX}detail"],
            attempt=_number(block[f"{OWN_PREFIX}attempt"], MAX_ATTEMPT),
            first_failed_at=_number(block[f"{OWN_PREFIX}first_failed_at"], MAX_TIMESTAMP),
            record_timestamp=_any_time(block[f"{OWN_PREFIX}record_timestamp"]),
            schema_id=block.get(f"{OWN_PREFIX}schema_id"),
            ingest_batch=_number(block[f"{OWN_PREFIX}ingest_batch"], MAX_LONG),
            order_position=block[f"{OWN_PREFIX}order_position"],
            table=table,
            group=block.get(f"{OWN_PREFIX}group"),
        )
    except (KeyError, ValueError):
        return None


def _number(text: str, at_most: int) -> int:
    """Read a number. Raises ValueError if the text is not in the form that `to_headers` writes."""
    if text.isascii() and text.isdigit() and len(text) < 24 and (number := int(text)) <= at_most:
        return number
    raise ValueError(text)


def _any_time(text: str) -> int:
    """Read a record timestamp: any long, in milliseconds. Raises ValueError as `_number`."""
    number = _number(text.removeprefix("-"), (MAX_LONG + 1) * 1000)
    return -number if text.startswith("-") else number


def _id_tail(kafka_partition: int, offset: int, table: str | None) -> str:
    return f"-{kafka_partition}-{offset}" + (f"-{table}" if table is not None else "")


# The headers of other tools. Each one has its own names for position and failure (DLQ-1):
#
#                position                              numbers     failure
# Kafka Connect  __connect.errors.topic, partition, …  text        exception.class.name, .message
# Kafka Streams  __streams.errors.topic, …             text        exception, message
# share groups   __dlq.errors.topic, …                 text        message, delivery.count
# Spring Kafka   kafka_dlt-original-topic, …           big-endian  kafka_dlt-exception-fqcn

_SPRING: Final = "kafka_dlt-"
_TOOL_PREFIXES: Final = (
    "__connect.errors.",
    "__streams.errors.",
    "__dlq.errors.",
    _SPRING,
    "retry_topic-",
)
_TOOLS: Final = (
    ("Kafka Connect", "__connect.errors.", "", ("exception.class.name", "exception.message")),
    ("Kafka Streams", "__streams.errors.", "", ("exception", "message")),
    ("A share group", "__dlq.errors.", "", ("message",)),
    ("Spring Kafka", _SPRING, "original-", ("exception-fqcn", "exception-message")),
    ("Spring Kafka", _SPRING, "original-", ("key-exception-fqcn", "key-exception-message")),
)


def is_error_header(name: str) -> bool:
    """Return whether a header is about a failure and was written by one of these tools."""
    return name.startswith(_TOOL_PREFIXES)


def describe_failure(headers: Headers) -> str | None:
    """Describe the failure in one sentence: the tool, the position and the error. None if no tool
    wrote such headers.

    If a name repeats, the last header counts. Bytes that cannot be decoded are shown unchanged.
    """
    by_name = dict(headers)
    for tool, prefix, original, names in _TOOLS:
        what = [text for name in names if (text := _text(by_name.get(prefix + name)))]
        position = {
            name: by_name.get(f"{prefix}{original}{name}")
            for name in ("topic", "partition", "offset")
        }
        if what or (prefix != _SPRING and any(position.values())):
            partition, offset = (
                _spring_number(position[name]) if prefix == _SPRING else _text(position[name])
                for name in ("partition", "offset")
            )
            parts = (
                _text(position["topic"]),
                partition and f"Kafka partition {partition}",
                offset and f"offset {offset}",
            )
            where = ", ".join(part for part in parts if part)
            return ": ".join(part for part in (tool, where, *what) if part)
    return None


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "backslashreplace")


def _spring_number(value: bytes | None) -> str:
    """A number of Spring Kafka: 4 or 8 bytes, signed."""
    return (
        ""
        if value is None
        else str(int.from_bytes(value, "big", signed=True))
        if len(value) in (4, 8)
        else value.hex()
    )

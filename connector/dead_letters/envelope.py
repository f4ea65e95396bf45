"""Why a record is set aside, and the envelope it travels in.

A `Rejection` is the verdict on one Kafka record, a value: nothing is raised for bad data. A `DeadLetter` is the record
itself, key, value and headers byte for byte (DLQ-1), with what is known of the failure. On Kafka it becomes the same
record again, with this block of headers behind its own:

    __connect.errors.*    the names that Kafka Connect writes and other tools read
    connector.dlq.*       ours: id, reason, rule, detail, attempt, first_failed_at, record_timestamp, schema_id,
                          ingest_batch, order_position, table; absent ones are left out

All of them are UTF-8 text, numbers in decimal, times in microseconds. The block begins with `__connect.errors.topic`,
which occurs in it once: so its beginning is the last header of that name, whatever the original headers are called.

A record that is sent again for a letter bears none of these, and one of its own, `connector.replay` (DLQ-10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from connector.dead_letters.third_party_headers import describe_failure
from connector.records.model import MAX_INT, MAX_LONG, MAX_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Sequence
from connector.records.rejection import Headers, Position, Reason
from connector.text import truncate_utf8

CONNECT_PREFIX: Final = "__connect.errors."
_TOPIC, _PARTITION, _OFFSET = (f"{CONNECT_PREFIX}{name}" for name in ("topic", "partition", "offset"))
OWN_PREFIX: Final = "connector.dlq."
MAX_ATTEMPT: Final = 999_999_999
REPLAY_HEADER: Final = "connector.replay"
"""Names the letter that a record is the replay of, and which attempt it is: `<letter id>/<attempt>` (DLQ-10)."""

_CONVERTER_REASONS: Final = frozenset({Reason.UNKNOWN_FRAMING, Reason.UNKNOWN_SCHEMA, Reason.UNDECODABLE})


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A rejected record with its original bytes, and what is known of its failure (DLQ-1).

    `position` and `record_timestamp` (microseconds) are those of the original record, `headers` its own headers.
    `first_failed_at` is in microseconds. `schema_id` is the writer schema as the framing names it, where it does.
    `order_position` is the text form of the position that decides ties (MRG-2). `table` is given for a table letter: a change
    that the changelog took and one table could not (TBL-9).
    """

    position: Position
    key: bytes | None
    value: bytes | None
    headers: Headers
    reason: Reason
    rule: str
    detail: str
    attempt: int
    first_failed_at: int
    record_timestamp: int
    schema_id: str | None
    ingest_batch: int
    order_position: str
    table: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", truncate_utf8(self.detail))

    @property
    def id(self) -> str:
        """The same for the same record, however often it is published (DLQ-1)."""
        return letter_id(self.position, self.table)


def letter_id(position: Position, table: str | None = None) -> str:
    """`<topic id>-<Kafka partition>-<offset>`, with `-<table>` for a table letter (DLQ-1)."""
    return f"{position.topic_id}{_id_tail(position.kafka_partition, position.offset, table)}"


def dead_letter_topic(topic: str) -> str:
    """Where the dead letters of a change topic go (DLQ-1)."""
    return f"{topic}.dead-letters"


def ledger_topic(topic: str) -> str:
    """Where it is kept what was done about them (DLQ-1, DLQ-11)."""
    return f"{topic}.dead-letters.ledger"


def replay_header(letter: str, attempt: int) -> tuple[str, bytes]:
    """The header of a record that is sent again for a letter, for the `attempt`-th time (DLQ-10)."""
    assert 1 <= attempt <= MAX_ATTEMPT, attempt
    return REPLAY_HEADER, f"{letter}/{attempt}".encode()


def replay_claim(headers: Headers) -> tuple[str, int] | None:
    """The letter that a record says it is the replay of, and its attempt; None where it says nothing of the kind.

    Anybody can write such a header: it is a claim, to be believed only with a ledger or a changelog that has the letter (DLQ-10).
    """
    for name, value in reversed(headers):
        if name == REPLAY_HEADER:
            letter, _, attempt = (value or b"").decode("utf-8", "replace").rpartition("/")
            is_number = attempt.isascii() and attempt.isdigit() and len(attempt) < 10 and int(attempt) > 0
            return (letter, int(attempt)) if letter and is_number else None
    return None


NOWHERE: Final = -1
"""The Kafka partition and the offset of a record that its producer could not deliver."""
SOURCE_REASONS: Final = frozenset({Reason.REJECTED, Reason.RETRIES_EXHAUSTED})


def source_letter(topic: str, key: bytes, value: bytes, headers: Headers, why: str, *, now: int) -> DeadLetter:
    """The letter of a record that a producer could not deliver to `topic` (DLQ-2). `why` is the client's error, `now` in microseconds.

    What the broker says is its refusal; what the client says of itself, that it could not get through.
    """
    reason = Reason.REJECTED if why.startswith("Broker: ") else Reason.RETRIES_EXHAUSTED
    return _outside_ingest(Position(topic, "", NOWHERE, NOWHERE), key, value, headers, reason, why, now)


def _outside_ingest(
    position: Position, key: bytes | None, value: bytes | None, headers: Headers, reason: Reason, detail: str, at: int
) -> DeadLetter:
    """A letter of no ingest batch: all that is known of it was known `at` (microseconds)."""
    return DeadLetter(
        position=position,
        key=key,
        value=value,
        headers=headers,
        reason=reason,
        rule="",
        detail=detail,
        attempt=0,
        first_failed_at=at,
        record_timestamp=at,
        schema_id=None,
        ingest_batch=0,
        order_position="",
    )


def to_headers(letter: DeadLetter) -> Headers:
    """The headers of the letter's Kafka record: the original ones untouched, then our block.

    An original header that bears one of our names is kept as well; readers take the last of a name. A record that never was in the topic
    has no id before it is a letter: then that is its own coordinates.
    """
    position = letter.position
    is_somewhere = position.kafka_partition != NOWHERE
    block = {
        _TOPIC: position.topic,
        _PARTITION: str(position.kafka_partition) if is_somewhere else None,
        _OFFSET: str(position.offset) if is_somewhere else None,
        f"{CONNECT_PREFIX}connector.name": "lowmark",
        f"{CONNECT_PREFIX}stage": "VALUE_CONVERTER" if letter.reason in _CONVERTER_REASONS else "TASK_PUT",
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
    }
    return letter.headers + tuple((name, text.encode()) for name, text in block.items() if text is not None)


def from_record(
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    *,
    at: Position | None = None,
    record_timestamp: int = 0,
) -> DeadLetter:
    """The letter that `to_headers` wrote; the inverse of it.

    A record that others put into the topic has no block of ours, or a damaged one: it becomes a letter of its own
    coordinates `at` and `record_timestamp`, with the reason `REJECTED` and, as its detail, what their headers say (DLQ-1). So does a
    `source_letter`, with its own reason and detail. Without `at` it is a ValueError.
    """
    letter = _read_block(key, value, tuple(headers))
    if letter is not None:
        return letter
    if at is None:
        raise ValueError("this record was not written as a dead letter by us: its connector.dlq headers are missing or damaged")
    start, own = _last_block(tuple(headers))
    if own.get("reason") in SOURCE_REASONS and "id" not in own:
        outer, reason, detail = tuple(headers)[:start], Reason(own["reason"]), own.get("detail")
    else:
        outer, reason, detail = tuple(headers), Reason.REJECTED, describe_failure(tuple(headers))
    detail = detail or "another tool put this record here, without saying why"
    return _outside_ingest(at, key, value, outer, reason, detail, record_timestamp)


def _block_start(headers: Headers) -> int | None:
    """Where our block begins, if there is one."""
    for place in range(len(headers) - 1, -1, -1):
        if headers[place][0] == _TOPIC:
            return place
    return None


def _last_block(headers: Headers) -> tuple[int, dict[str, str]]:
    """Where it begins, and what it says under names of our own, as far as that is text."""
    start = _block_start(headers)
    said = headers[start:] if start is not None else ()
    own = {name.removeprefix(OWN_PREFIX): (text or b"").decode("utf-8", "replace") for name, text in said if name.startswith(OWN_PREFIX)}
    return len(headers) if start is None else start, own


def _read_block(key: bytes | None, value: bytes | None, headers: Headers) -> DeadLetter | None:
    start = _block_start(headers)
    if start is None:
        return None
    try:
        block = {name: text.decode() for name, text in headers[start:] if text is not None}
        letter, table = block[f"{OWN_PREFIX}id"], block.get(f"{OWN_PREFIX}table")
        kafka_partition, offset = _number(block[_PARTITION], MAX_INT), _number(block[_OFFSET], MAX_LONG)
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
            record_timestamp=_number(block[f"{OWN_PREFIX}record_timestamp"], MAX_TIMESTAMP),
            schema_id=block.get(f"{OWN_PREFIX}schema_id"),
            ingest_batch=_number(block[f"{OWN_PREFIX}ingest_batch"], MAX_LONG),
            order_position=block[f"{OWN_PREFIX}order_position"],
            table=table,
        )
    except (KeyError, ValueError):
        return None


def _number(text: str, at_most: int) -> int:
    """Raises ValueError for a text that we would not have written."""
    if text.isascii() and text.isdigit() and len(text) < 20 and (number := int(text)) <= at_most:
        return number
    raise ValueError(text)


def _id_tail(kafka_partition: int, offset: int, table: str | None) -> str:
    return f"-{kafka_partition}-{offset}" + (f"-{table}" if table is not None else "")

"""SUB-6: which dead letters are of a row, and what is known of them without Kafka."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.ledger import LetterState, LetterStatus
from connector.lake.changelog_changes import Arrival, LoggedChange, RejectedRecord
from connector.records.codec import Schemas, encode, frame
from connector.records.model import Heartbeat, Record, kafka_key
from connector.records.ordering import OrderPosition
from connector.records.rejection import Position, Reason, Rejection
from connector.services.rows import letters as module
from connector.services.rows.letters import (
    from_kafka,
    rejected_letters,
    table_letter,
    with_replays,
)
from connector.tables.definition import TableDefinition
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType
from tests.changes import change

ARRIVAL = Arrival(Position("orders", "id-1", 0, 7), 3, 1_000)


def rejected(
    value: bytes | None, key: bytes | None = b"a", reason: Reason = Reason.KEY_MISMATCH
) -> RejectedRecord:
    return RejectedRecord(ARRIVAL, OrderPosition(3, 0, 7), "id-1-0-7", reason, "", key, value)


def framed(record: Record) -> bytes:
    return frame(encode(record, 1), None)


def certain(record: RejectedRecord) -> list[bool]:
    return [letter.is_certain for letter in rejected_letters([record], "t", b"a", Schemas())]


def test_the_row_key_in_a_record_counts_and_not_its_kafka_key() -> None:
    mine = framed(change(row_key=b"a"))
    assert certain(rejected(mine, key=b"wrong")) == [True]
    assert certain(rejected(framed(change(row_key=b"b")), key=b"a")) == []
    assert certain(rejected(framed(change(row_key=b"a", table="other")))) == []
    assert certain(rejected(framed(Heartbeat("p", 5)))) == []


def test_of_a_record_that_cannot_be_decoded_the_kafka_key_decides() -> None:
    assert certain(rejected(b"\x00", reason=Reason.UNDECODABLE)) == [False]
    assert certain(rejected(None, reason=Reason.UNKNOWN_FRAMING)) == [False]
    assert certain(rejected(b"\x00", key=b"b", reason=Reason.UNDECODABLE)) == []


def test_a_table_letter_has_the_id_of_its_table() -> None:
    """TBL-9, DLQ-1."""
    logged = LoggedChange(ARRIVAL, change(row_key=b"a"), OrderPosition(3, 0, 7))
    letter = table_letter("accounts", logged, Rejection(Reason.UNREADABLE_VALUE, "no number"))
    assert (letter.id, letter.detail, letter.state) == ("id-1-0-7-accounts", "no number", None)


def test_a_replay_that_was_accepted_is_noticed() -> None:
    """DLQ-10: it has the order position of the letter, and its own attempt."""
    letters = list(rejected_letters([rejected(framed(change(row_key=b"a")))], "t", b"a", Schemas()))
    sent = change(row_key=b"a")
    assert kafka_key(sent) == b"a"
    for position, is_replayed in (
        (OrderPosition(3, 0, 7, 1), True),
        (OrderPosition(3, 0, 7), False),
        (OrderPosition(3, 0, 8, 1), False),
    ):
        (letter,) = with_replays(letters, [LoggedChange(ARRIVAL, sent, position)])
        assert letter.is_replayed is is_replayed


def letter(offset: int, value: bytes, key: bytes = b"a", **others: Any) -> DeadLetter:
    fields: dict[str, Any] = {
        "position": Position("orders", "id-1", 0, offset),
        "key": key,
        "value": value,
        "headers": (),
        "reason": Reason.KEY_MISMATCH,
        "rule": "",
        "detail": f"of offset {offset}",
        "attempt": 0,
        "first_failed_at": 1,
        "record_timestamp": 1,
        "schema_id": None,
        "ingest_batch": 3,
        "order_position": f"3/0/{offset}/0",
    }
    return DeadLetter(**fields | others)


def test_the_dead_letter_topic_adds_the_state_and_letters_of_other_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DLQ-1, DLQ-9: not the letters of other rows and other tables."""
    mine, others = framed(change(row_key=b"a")), framed(change(row_key=b"b"))
    parked = LetterStatus(LetterState.PARKED, 2, 2)
    in_topic = [
        letter(7, mine),
        letter(8, others),
        letter(9, mine, table="another"),
        letter(10, mine, ingest_batch=0, order_position=""),
    ]
    service = SimpleNamespace(
        list=lambda which: ((one, parked) for one in in_topic),
        schemas=Schemas(),
    )
    monkeypatch.setattr(module, "DeadLetters", lambda config, stream: service)
    definition = TableDefinition(
        name="accounts",
        stream="s",
        source="t",
        key=Key((KeyPart("id", DataType.STRING),), KeyForm.ROW_KEY),
    )
    known = list(rejected_letters([rejected(mine)], "t", b"a", Schemas()))
    only_in_changelog = table_letter(
        "accounts",
        LoggedChange(
            Arrival(Position("orders", "id-1", 0, 11), 3, 1), change(), OrderPosition(3, 0, 11)
        ),
        Rejection(Reason.UNREADABLE_VALUE, "no number"),
    )
    config = ConnectorConfig("w", KafkaConfig("127.0.0.1:1"))
    found = list(from_kafka(config, definition, b"a", [*known, only_in_changelog]))
    assert [(one.id, one.detail, one.state, one.attempt) for one in found] == [
        ("id-1-0-7", "of offset 7", LetterState.PARKED, 2),
        ("id-1-0-10", "of offset 10", LetterState.PARKED, 2),
        ("id-1-0-11-accounts", "no number", None, None),
    ]
    assert with_replays(found, [])[-1].id == "id-1-0-10", "a letter without a place comes last"

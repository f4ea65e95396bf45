"""SUB-6: which dead letters are of a row, and what is known of them without Kafka."""

from __future__ import annotations

from connector.lake.changelog_changes import Arrival, LoggedChange, RejectedRecord
from connector.records.codec import encode, frame
from connector.records.model import Heartbeat, Record, kafka_key
from connector.records.ordering import OrderPosition
from connector.records.rejection import Position, Reason, Rejection
from connector.services.rows.letters import rejected_letters, table_letter, with_replays
from tests.changes import change

ARRIVAL = Arrival(Position("orders", "id-1", 0, 7), 3, 1_000)


def rejected(
    value: bytes | None, key: bytes | None = b"a", reason: Reason = Reason.KEY_MISMATCH
) -> RejectedRecord:
    return RejectedRecord(ARRIVAL, OrderPosition(3, 0, 7), "id-1-0-7", reason, "", key, value)


def framed(record: Record) -> bytes:
    return frame(encode(record, 1), None)


def certain(record: RejectedRecord) -> list[bool]:
    return [letter.is_certain for letter in rejected_letters([record], "t", b"a")]


def test_a_record_that_says_its_row_is_of_that_row_whatever_its_kafka_key() -> None:
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
    letters = list(rejected_letters([rejected(framed(change(row_key=b"a")))], "t", b"a"))
    sent = change(row_key=b"a")
    assert kafka_key(sent) == b"a"
    for position, is_replayed in (
        (OrderPosition(3, 0, 7, 1), True),
        (OrderPosition(3, 0, 7), False),
        (OrderPosition(3, 0, 8, 1), False),
    ):
        (letter,) = with_replays(letters, [LoggedChange(ARRIVAL, sent, position)])
        assert letter.is_replayed is is_replayed

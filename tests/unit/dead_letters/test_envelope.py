from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connector.dead_letters.envelope import (
    MAX_ATTEMPT,
    DeadLetter,
    check_group,
    consumer_letter,
    dead_letter_topic,
    from_record,
    ledger_topic,
    letter_id,
    replay_claim,
    replay_header,
    replay_topic,
    source_letter,
    to_headers,
)
from connector.errors import ConfigError
from connector.records.rejection import Position, Reason, Rejection
from connector.reports.audit import digest
from connector.text import MAX_DETAIL_BYTES, is_plain, truncate_utf8
from connector.validation import KafkaRecord, size_of

POSITION = Position("orders", "MkU3OEVBNTcwNTJENDM2Qg", 3, 17)


def letter(**fields: Any) -> DeadLetter:
    given: dict[str, Any] = {
        "position": POSITION,
        "key": b"k",
        "value": b"\xff",
        "headers": (("trace", b"1"),),
        "reason": Reason.UNKNOWN_FRAMING,
        "rule": "",
        "detail": "the value begins with ff",
        "attempt": 1,
        "first_failed_at": 1714475984000000,
        "record_timestamp": 1714475983000000,
        "schema_id": None,
        "ingest_batch": 7,
        "order_position": "7/3/17/0",
        "table": None,
    }
    return DeadLetter(**given | fields)


def test_the_reasons_are_a_closed_list() -> None:
    """DLQ-2."""
    decoding = ["UNKNOWN_FRAMING", "UNKNOWN_SCHEMA", "UNDECODABLE"]
    judging = [
        "INVALID",
        "KEY_MISMATCH",
        "COMMIT_TIMESTAMP_IN_FUTURE",
        "WATERMARK_IN_FUTURE",
        "COMMIT_TIMESTAMP_TOO_OLD",
        "UNKNOWN_ENTRY",
        "UNKNOWN_TABLE",
    ]
    tables = [
        "UNREADABLE_VALUE",
        "MISSING_SEQUENCE_NUMBER",
        "INVALID_SEQUENCE_NUMBER",
        "TOO_LATE",
        "TOO_LARGE",
    ]
    outside = ["REJECTED", "RETRIES_EXHAUSTED", "CONSUMER_FAILED", "UNREADABLE_SOURCE"]
    assert list(Reason) == [*decoding, *judging, *tables, *outside]


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_cause_and_a_remedy_of_its_own(reason: Reason) -> None:
    """DLQ-2."""
    texts = (reason.cause, reason.remedy)
    assert all(len(text.split()) > 5 and not text.endswith(".") for text in texts)
    assert all(
        text not in (other.cause, other.remedy)
        for other in Reason
        if other is not reason
        for text in texts
    )


def test_the_id_is_made_of_the_position_alone() -> None:
    """DLQ-1: deterministic, so that a letter that is published twice is one letter."""
    assert (
        letter_id(POSITION)
        == letter(attempt=3, ingest_batch=99).id
        == "MkU3OEVBNTcwNTJENDM2Qg-3-17"
    )
    assert (
        letter_id(POSITION, "orders_eu")
        == letter(table="orders_eu").id
        == "MkU3OEVBNTcwNTJENDM2Qg-3-17-orders_eu"
    )


def test_the_topics_of_a_stream() -> None:
    """DLQ-1."""
    assert (dead_letter_topic("orders"), ledger_topic("orders")) == (
        "orders.dead-letters",
        "orders.dead-letters.ledger",
    )


def test_the_headers_of_a_letter_are_text_under_the_names_of_connect_and_ours() -> None:
    """DLQ-1."""
    assert to_headers(letter(reason=Reason.INVALID, rule="ROW_KEY", schema_id="12", table="t")) == (
        ("trace", b"1"),
        ("__connect.errors.topic", b"orders"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", b"17"),
        ("__connect.errors.connector.name", b"lowmark"),
        ("__connect.errors.stage", b"TASK_PUT"),
        ("__connect.errors.exception.class.name", b"lowmark.INVALID"),
        ("__connect.errors.exception.message", b"the value begins with ff"),
        ("connector.dlq.id", b"MkU3OEVBNTcwNTJENDM2Qg-3-17-t"),
        ("connector.dlq.reason", b"INVALID"),
        ("connector.dlq.rule", b"ROW_KEY"),
        ("connector.dlq.detail", b"the value begins with ff"),
        ("connector.dlq.attempt", b"1"),
        ("connector.dlq.first_failed_at", b"1714475984000000"),
        ("connector.dlq.record_timestamp", b"1714475983000000"),
        ("connector.dlq.schema_id", b"12"),
        ("connector.dlq.ingest_batch", b"7"),
        ("connector.dlq.order_position", b"7/3/17/0"),
        ("connector.dlq.table", b"t"),
    )


def test_an_unknown_fact_has_no_header() -> None:
    names = [name for name, _ in to_headers(letter())]
    assert {"connector.dlq.rule", "connector.dlq.schema_id", "connector.dlq.table"}.isdisjoint(
        names
    )


@pytest.mark.parametrize("reason", Reason)
def test_the_stage_tells_bytes_that_cannot_be_read_from_records_that_cannot_be_applied(
    reason: Reason,
) -> None:
    rule = "ROW_KEY" if reason is Reason.INVALID else ""
    stage = dict(to_headers(letter(reason=reason, rule=rule)))["__connect.errors.stage"]
    assert (stage == b"VALUE_CONVERTER") == (
        reason in (Reason.UNKNOWN_FRAMING, Reason.UNKNOWN_SCHEMA, Reason.UNDECODABLE)
    )


def test_an_original_header_with_one_of_our_names_survives_and_ours_is_the_last() -> None:
    """DLQ-1."""
    original = (
        ("connector.dlq.id", b"theirs"),
        ("connector.dlq.table", b"theirs"),
        ("__connect.errors.topic", None),
    )
    headers = to_headers(letter(headers=original))
    assert headers[:3] == original
    assert from_record(b"k", b"\xff", headers) == letter(headers=original)


@given(st.text(st.characters(), max_size=6), st.binary(max_size=3))
@example("a\0b", b"1")
@example("\ud800", b"1")
def test_a_letter_can_be_written_whatever_the_name_of_a_header(name: str, value: bytes) -> None:
    """poison_is_contained: otherwise one record would stop the stream. An audit takes it for the
    letter of its record.
    """
    headers = ((name, value),)
    written = to_headers(letter(headers=headers))
    assert all(is_plain(one) for one, _ in written)
    assert (written[0][0] == name) == is_plain(name)
    result = from_record(b"k", b"\xff", written)
    assert digest(b"k", b"\xff", result.headers) == digest(b"k", b"\xff", headers)


def test_headers_that_came_behind_ours_are_no_part_of_the_letter() -> None:
    """A mirror may add its own."""
    assert from_record(b"k", b"\xff", (*to_headers(letter()), ("mirror", b"eu"))) == letter()


def test_a_huge_detail_is_cut_and_the_record_is_not() -> None:
    """DLQ-6."""
    huge = letter(detail="é" * 10_000, value=b"v" * 10_000_000)
    assert len(huge.value or b"") == 10_000_000
    assert len(huge.detail.encode()) <= MAX_DETAIL_BYTES
    assert huge.detail.endswith("é…")
    assert Rejection(Reason.UNDECODABLE, "é" * 10_000).detail == huge.detail
    assert sum(len(name) + len(value or b"") for name, value in to_headers(huge)) < 4096


def test_text_that_has_no_utf_8_is_escaped() -> None:
    assert truncate_utf8("a\ud800b") == "a\\ud800b"


def test_a_letter_of_another_tool_has_its_own_coordinates() -> None:
    """DLQ-1."""
    theirs = (
        ("__connect.errors.topic", b"x"),
        ("__connect.errors.exception.message", b"no such field"),
    )
    result = from_record(
        b"k", b"v", theirs, at=Position("orders.dead-letters", "T", 0, 5), record_timestamp=9
    )
    assert (result.id, result.reason, result.detail, result.headers) == (
        "T-0-5",
        Reason.REJECTED,
        "Kafka Connect: x: no such field",
        theirs,
    )
    with pytest.raises(ValueError, match="not a dead letter of lowmark"):
        from_record(b"k", b"v", theirs)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", b"other-3-18"),
        ("reason", b"BAD"),
        ("attempt", b"x"),
        ("detail", b"\xff"),
        ("detail", None),
        ("first_failed_at", b""),
    ]
    + [("attempt", number) for number in (b"-3", b"1_0", "٣".encode(), b"9" * 10, b"9" * 5000)]
    + [("first_failed_at", b"9" * 18), ("ingest_batch", b"-9"), ("record_timestamp", b"9" * 40)],
)
def test_a_damaged_block_is_not_believed(name: str, value: bytes | None) -> None:
    headers = tuple(
        (header, value if header == f"connector.dlq.{name}" else text)
        for header, text in to_headers(letter())
    )
    with pytest.raises(ValueError, match="missing or damaged"):
        from_record(b"k", b"\xff", headers)


def test_a_rejection_has_a_rule_exactly_if_it_is_invalid() -> None:
    """DLQ-2, REC-16."""
    with pytest.raises(AssertionError):
        Rejection(Reason.INVALID, "which?")
    with pytest.raises(AssertionError):
        Rejection(Reason.TOO_LARGE, "no rule", "ROW_KEY")


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("Broker: Message size too large", Reason.REJECTED),
        ("Local: Message timed out", Reason.RETRIES_EXHAUSTED),
    ],
)
def test_an_undelivered_record_is_a_letter_with_its_own_coordinates(
    why: str, reason: Reason
) -> None:
    """DLQ-2: the broker refused it, or no broker answered. Its own headers are unchanged."""
    own = (("trace", None), ("connector.dlq.reason", b"UNDECODABLE"))
    sent = source_letter("orders", b"k", b"v", own, why, now=7)
    at = Position("orders.dead-letters", "D", 1, 2)
    result = from_record(b"k", b"v", to_headers(sent), at=at, record_timestamp=9)
    assert (result.id, result.reason, result.detail, result.headers, result.first_failed_at) == (
        "D-1-2",
        reason,
        why,
        own,
        9,
    )
    with pytest.raises(ValueError, match="not a dead letter of lowmark"):
        from_record(b"k", b"v", to_headers(sent))


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"/1",
        b"id/",
        b"id/0",
        b"id/-1",
        b"id/x",
        b"id/\xff",
        "id/١".encode(),
        b"id/" + b"9" * 5000,
    ],
)
def test_a_claim_is_a_letter_and_an_attempt(value: bytes | None) -> None:
    """DLQ-10."""
    assert replay_claim(
        (("connector.replay", b"first/1"), ("connector.replay", b"a-0-1-t/12"), ("x", b""))
    ) == ("a-0-1-t", 12)
    assert replay_claim((("connector.replay", b"first/1"), ("connector.replay", value))) is None
    assert replay_claim(()) is None
    assert replay_claim((replay_header("a-0-1", MAX_ATTEMPT),)) == ("a-0-1", MAX_ATTEMPT)


def test_the_size_of_a_record_is_that_of_its_key_value_and_headers() -> None:
    """DLQ-10: what the change topic takes is compared with it."""
    assert size_of(b"key", b"value!", (("é", b"1234"), ("none", None))) == 3 + 6 + 2 + 4 + 4
    assert size_of(None, None, ()) == 0


# ── letters of a group (SUB-4) ────────────────────────────────────────────────────────────────────


def test_a_record_that_a_program_set_aside_is_a_letter_of_its_group() -> None:
    """SUB-4, DLQ-1: its bytes and headers, and the attempt of the replay that it was."""
    headers = (("trace", b"1"), ("connector.replay", b"id-3-1/2"))
    source = KafkaRecord(POSITION, 5, b"k", b"\x00\x00\x00\x00\x07body", headers)
    made = consumer_letter(source, "index", "the index refused it", now=9)
    assert made.id == letter().id
    added = dict(to_headers(made)[2:])
    assert {name: added[f"connector.dlq.{name}"] for name in ("reason", "group", "schema_id")} == {
        "reason": b"CONSUMER_FAILED",
        "group": b"index",
        "schema_id": b"7",
    }
    assert (made.attempt, made.record_timestamp, made.first_failed_at) == (2, 5, 9)
    assert from_record(source.key, source.value, to_headers(made)) == made


def test_the_topics_of_a_group() -> None:
    """SUB-4."""
    assert dead_letter_topic("t", "g") == "t.dead-letters.group.g"
    assert ledger_topic("t", "g") == "t.dead-letters.group.g.ledger"
    assert replay_topic("t", "g") == "t.dead-letters.group.g.replays"
    for name in ("a", "A-b_c.9", "x" * 64, "ledger"):
        assert check_group(name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 65, "two words", "a/b", "ä", "a\n", "a.ledger", "a.replays", "\ud800"]
)
def test_a_group_whose_topics_cannot_have_its_name_is_refused(name: str) -> None:
    """SUB-4: also one whose topics would be those of another group."""
    with pytest.raises(ConfigError, match="A group with dead letters has the name"):
        check_group(name)

"""What becomes of a letter that is to be replayed (DLQ-10, DLQ-13, DLQ-14)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given

from connector.codec import ChangeRecord, Schemas, encode, frame
from connector.deadletter import DeadLetter, Headers, Position, Reason, Rejection, replay_claim
from connector.ledger import Standing, State
from connector.mending import Step
from connector.model import CONTROL_KEY, DataChange, Heartbeat, SetCell
from connector.replay import Decision, FrontDoor, Tally, Verdict, decide
from connector.tables import ColumnType, Key, KeyForm, KeyPart, TableDefinition
from connector.validation import KafkaRecord, Limits, judge
from tests.property.strategies import dead_letters
from tests.unit.test_deadletter import POSITION, letter

CHANGE = DataChange(stream_partition="p", table="users", row_key=b"k", commit_timestamp=9, entries=(SetCell("f", b"q", b"v", 9),))
VALUE = frame(encode(CHANGE, 4), None)
BEAT = frame(encode(Heartbeat("p", 5), 4), None)
NOW = 1_800_000_000_000_000
NUMBERS = TableDefinition(name="eu", stream="s", source="users", key=Key(parts=(KeyPart("id", ColumnType.INT64),), form=KeyForm.DELIMITED))


def judged(record: KafkaRecord, schemas: Schemas, horizon: int | None = None) -> ChangeRecord | Rejection:
    return judge(record, schemas=schemas, limits=Limits(), kafka_partitions=4, tables=None, horizon=horizon)


DOOR = FrontDoor("orders", 4, 1_000_000, judged, {"eu": NUMBERS})


def fit(**fields: object) -> DeadLetter:
    """A letter whose record would be taken."""
    return letter(**{"key": b"k", "value": VALUE, "reason": Reason.UNKNOWN_TABLE} | fields)


def decided(subject: DeadLetter, *steps: str, standing: Standing | None = None, door: FrontDoor = DOOR) -> Decision:
    how = standing or Standing(State.OPEN, 0, 0)
    return decide(subject, how, door, Schemas(), now=NOW, steps=[Step.parse(step) for step in steps])


def test_the_original_record_goes_back_with_its_letter_and_attempt() -> None:
    """DLQ-10: same key, original headers without ours, the Kafka partition of the key; a header with id and attempt + 1."""
    ours: Headers = (("connector.dlq.id", b"x"), ("connector.replay", b"x/1"), ("__connect.errors.topic", b"t"), ("kafka_dlt-x", None))
    found = decided(fit(headers=(("trace", b"1"), *ours, ("trace", None))), standing=Standing(State.OPEN, 2, 1))
    assert (found.verdict, found.why, found.kafka_partition, found.attempt, found.tries) == (Verdict.REPLAY, "", None, 3, 2)
    assert found.content is not None
    assert (found.content.key, found.content.value) == (b"k", VALUE)
    assert found.content.headers[:2] == (("trace", b"1"), ("trace", None))
    assert len(found.content.headers) == 3
    assert replay_claim(found.content.headers) == (fit().id, 3)


def test_a_control_record_goes_to_its_original_kafka_partition() -> None:
    """DLQ-10."""
    beat = fit(key=CONTROL_KEY, value=BEAT)
    assert (decided(beat).verdict, decided(beat).kafka_partition) == (Verdict.REPLAY, POSITION.kafka_partition)
    for elsewhere in (Position("orders", "T", 4, 1), Position("orders.dead-letters", "T", 0, 1)):
        assert "came from" in decided(fit(key=CONTROL_KEY, value=BEAT, position=elsewhere)).why
    assert "not mended" in decided(beat, "set-header=a=b").why


@pytest.mark.parametrize("state", [State.REPLAYED, State.PARKED, State.DISCARDED])
def test_only_an_open_letter_is_replayed(state: State) -> None:
    """DLQ-11, replay_is_safe: running it again doubles nothing."""
    found = decided(fit(), standing=Standing(state, 1, 1))
    assert (found.verdict, found.why.partition(":")[0]) == (Verdict.REFUSE, f"it is {state}")


def test_a_late_letter_is_refused_and_so_is_one_that_has_become_late() -> None:
    """DLQ-13: nothing older than the horizon is ever merged."""
    assert "too late" in decided(fit(reason=Reason.TOO_LATE)).why
    assert "too late" in decided(fit(reason=Reason.TOO_LATE), "commit-timestamp=1700000000000000").why
    late = FrontDoor("orders", 4, 1_000_000, partial(judged, horizon=10), {})
    assert "again as TOO_LATE" in decided(fit(), door=late).why


def test_a_claim_of_a_wrong_clock_does_not_become_true() -> None:
    """DLQ-10, watermark_is_honest: also when its time has come."""
    assert "wrong clock" in decided(fit(key=CONTROL_KEY, value=BEAT, reason=Reason.WATERMARK_IN_FUTURE)).why


def test_a_letter_that_was_tried_too_often_is_parked() -> None:
    """DLQ-14."""
    assert decided(fit(), standing=Standing(State.OPEN, 5, 2)).verdict is Verdict.REPLAY
    found = decided(fit(), standing=Standing(State.OPEN, 5, 3))
    assert (found.verdict, found.attempt, found.tries, found.content) == (Verdict.PARK, 5, 3, None)


def test_what_would_be_rejected_again_is_refused_until_it_is_mended() -> None:
    """DLQ-12: no attempt is wasted."""
    wrong = fit(key=b"other", reason=Reason.KEY_MISMATCH)
    assert decided(wrong).why.startswith("it would be rejected again as KEY_MISMATCH: ")
    mended = decided(wrong, "key-from-record")
    assert (mended.verdict, mended.content and mended.content.key) == (Verdict.REPLAY, b"k")
    assert mended.mended is not None
    assert mended.mended.before != mended.mended.after
    assert decided(wrong, "cut-prefix=9999").why.startswith("it cannot be mended: ")


def test_a_table_letter_is_tried_on_its_table() -> None:
    """TBL-9."""
    assert "again as UNREADABLE_VALUE" in decided(fit(table="eu", reason=Reason.UNREADABLE_VALUE)).why
    number = fit(
        table="eu",
        reason=Reason.UNREADABLE_VALUE,
        key=b"7",
        value=frame(encode(replace(CHANGE, row_key=b"7"), 4), None),
    )
    assert decided(number).verdict is Verdict.REPLAY
    assert "not declared" in decided(fit(table="gone")).why


def test_a_record_that_the_topic_does_not_take_is_refused() -> None:
    door = FrontDoor("orders", 4, len(VALUE) + 150, judged, {})
    assert decided(fit(headers=()), door=door).why.startswith("it is too large: ")


@given(dead_letters())
def test_no_letter_is_too_strange_for_a_decision(subject: DeadLetter) -> None:
    tally = Tally()
    found = decided(subject)
    tally.add(found)
    assert (found.why == "") == (found.verdict is Verdict.REPLAY)
    assert tally.verdicts.total() == 1

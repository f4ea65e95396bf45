"""What becomes of a letter that is to be replayed (DLQ-10, DLQ-13, DLQ-14)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.dead_letters.envelope import MAX_ATTEMPT, DeadLetter, replay_claim
from connector.dead_letters.ledger import (
    Action,
    LedgerEntry,
    LedgerWrite,
    LetterState,
    LetterStatus,
    Outgoing,
)
from connector.dead_letters.repair import Step
from connector.dead_letters.replay import (
    ALREADY_REPLAYED,
    MAX_ATTEMPTS,
    Decision,
    Remaining,
    ReplayTarget,
    Tally,
    Verdict,
    decide,
    in_batches,
    ledger_write,
)
from connector.records.codec import ChangeRecord, Schemas, encode, frame
from connector.records.model import CONTROL_KEY, DataChange, Heartbeat, SetCell
from connector.records.rejection import Headers, Position, Reason, Rejection
from connector.tables.definition import TableDefinition
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType
from connector.validation import KafkaRecord, Limits, validate_record
from tests.property.strategies import dead_letters
from tests.unit.dead_letters.test_envelope import POSITION, letter

CHANGE = DataChange(
    stream_partition="p",
    table="users",
    row_key=b"k",
    commit_timestamp=9,
    entries=(SetCell("f", b"q", b"v", 9),),
)
VALUE = frame(encode(CHANGE, 4), None)
BEAT = frame(encode(Heartbeat("p", 5), 4), None)
NOW = 1_800_000_000_000_000
NUMBERS = TableDefinition(
    name="eu",
    stream="s",
    source="users",
    key=Key(parts=(KeyPart("id", DataType.INT64),), form=KeyForm.DELIMITED),
)


def validated(
    record: KafkaRecord, schemas: Schemas, horizon: int | None = None, kafka_partitions: int = 4
) -> ChangeRecord | Rejection:
    return validate_record(
        record,
        schemas=schemas,
        limits=Limits(),
        kafka_partitions=kafka_partitions,
        tables=None,
        horizon=horizon,
    )


DOOR = ReplayTarget("orders", 4, 1_000_000, validated, {"eu": NUMBERS})


def fit(**fields: object) -> DeadLetter:
    """A letter whose record would be taken."""
    return letter(**{"key": b"k", "value": VALUE, "reason": Reason.UNKNOWN_TABLE} | fields)


def decided(
    subject: DeadLetter,
    *steps: str,
    standing: LetterStatus | None = None,
    door: ReplayTarget = DOOR,
    now: int = NOW,
    max_attempts: int = MAX_ATTEMPTS,
) -> Decision:
    how, parsed = (
        standing or LetterStatus(LetterState.OPEN, 0, 0),
        [Step.parse(step) for step in steps],
    )
    return decide(subject, how, door, Schemas(), now=now, steps=parsed, max_attempts=max_attempts)


def test_the_original_record_is_sent_with_its_letter_and_attempt() -> None:
    """DLQ-10: same key, original headers without ours, the Kafka partition of the key; a header
    with id and attempt + 1.
    """
    ours: Headers = (
        ("connector.dlq.id", b"x"),
        ("connector.replay", b"x/1"),
        ("__connect.errors.topic", b"t"),
        ("kafka_dlt-x", None),
    )
    result = decided(
        fit(headers=(("trace", b"1"), *ours, ("trace", None))),
        standing=LetterStatus(LetterState.OPEN, 2, 1),
    )
    assert (
        result.verdict,
        result.why,
        result.kafka_partition,
        result.attempt,
        result.attempts_since_reopen,
    ) == (Verdict.REPLAY, "", None, 3, 2)
    assert result.content is not None
    assert (result.content.key, result.content.value) == (b"k", VALUE)
    assert result.content.headers[:2] == (("trace", b"1"), ("trace", None))
    assert len(result.content.headers) == 3
    assert replay_claim(result.content.headers) == (fit().id, 3)


def test_a_control_record_is_sent_to_its_original_kafka_partition() -> None:
    """DLQ-10."""
    beat = fit(key=CONTROL_KEY, value=BEAT)
    assert (decided(beat).verdict, decided(beat).kafka_partition) == (
        Verdict.REPLAY,
        POSITION.kafka_partition,
    )
    for elsewhere in (Position("orders", "T", 4, 1), Position("orders.dead-letters", "T", 0, 1)):
        assert (
            "its Kafka partition"
            in decided(fit(key=CONTROL_KEY, value=BEAT, position=elsewhere)).why
        )
    assert "cannot be repaired" in decided(beat, 'set headers.a="b"').why


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (LetterState.REPLAYED, "it is already replayed"),
        (LetterState.PARKED, "it is parked: reopen it first"),
        (LetterState.DISCARDED, "it is discarded: reopen it first"),
        (LetterState.ERASED, "it is erased: nothing can be done with it"),
        (LetterState.COVERED, "it is covered: a rebuild brought its change into the table"),
    ],
)
def test_only_an_open_letter_is_replayed(state: LetterState, why: str) -> None:
    """DLQ-11, replay_is_safe: running it again doubles nothing, whatever else is to be said of the
    letter.
    """
    for subject in (
        fit(),
        fit(reason=Reason.TOO_LATE),
        fit(value=None),
        letter(attempt=MAX_ATTEMPT),
    ):
        result = decided(subject, standing=LetterStatus(state, 4, 9))
        assert (
            result.verdict,
            result.why,
            result.attempt,
            result.attempts_since_reopen,
            result.content,
        ) == (Verdict.REFUSE, why, 4, 9, None)


def test_a_letter_that_was_replayed_before_has_its_own_reason() -> None:
    """DLQ-14: who waits for what was sent is told to go on waiting."""
    tally = Tally()
    tally.add(decided(fit(), standing=LetterStatus(LetterState.REPLAYED, 1, 1)))
    assert tally.refused == {ALREADY_REPLAYED: 1}


def test_a_late_letter_is_refused_and_so_is_one_that_has_become_late() -> None:
    """DLQ-13, deletes_stay_deleted: nothing older than the horizon is ever merged. Both are told
    from other letters, because a person can publish their effect.
    """
    late = ReplayTarget("orders", 4, 1_000_000, partial(validated, horizon=10), {})
    tally = Tally()
    for decision, why in (
        (decided(fit(reason=Reason.TOO_LATE)), "it is too late: "),
        (
            decided(fit(reason=Reason.TOO_LATE), "set record.data_change.commit_timestamp=1700"),
            "it is too late: ",
        ),
        (decided(fit(), door=late), "it would be rejected again as TOO_LATE: "),
    ):
        assert (decision.verdict, decision.is_too_late) == (Verdict.REFUSE, True)
        assert decision.why.startswith(why)
        tally.add(decision)
    others = [decided(fit(key=b"other")), decided(fit()), decided(fit(), "reframe own@9999")]
    for decision in others:
        assert not decision.is_too_late
        tally.add(decision)
    assert tally.too_late == 3


def test_a_claim_of_a_wrong_clock_does_not_become_true() -> None:
    """DLQ-10, watermark_is_honest: also when its time has come."""
    assert (
        "wrong clock"
        in decided(fit(key=CONTROL_KEY, value=BEAT, reason=Reason.WATERMARK_IN_FUTURE)).why
    )


def test_a_letter_that_was_tried_too_often_is_parked() -> None:
    """DLQ-14."""
    assert decided(fit(), standing=LetterStatus(LetterState.OPEN, 5, 2)).verdict is Verdict.REPLAY
    result = decided(fit(), standing=LetterStatus(LetterState.OPEN, 5, 3))
    assert (result.verdict, result.attempt, result.attempts_since_reopen, result.content) == (
        Verdict.PARK,
        5,
        3,
        None,
    )
    assert result.why == "it was replayed 3 times and rejected each time"
    for attempts_since_reopen, verdict in (
        (0, Verdict.REPLAY),
        (1, Verdict.PARK),
        (2, Verdict.PARK),
    ):
        assert (
            decided(
                fit(),
                standing=LetterStatus(LetterState.OPEN, 9, attempts_since_reopen),
                max_attempts=1,
            ).verdict
            is verdict
        )


def test_attempts_have_a_last_number() -> None:
    """DLQ-10: its header has nine digits."""
    last = decided(fit(), standing=LetterStatus(LetterState.OPEN, MAX_ATTEMPT - 1, 0))
    assert (last.verdict, last.attempt) == (Verdict.REPLAY, MAX_ATTEMPT)
    beyond = decided(fit(), standing=LetterStatus(LetterState.OPEN, MAX_ATTEMPT, 0))
    assert (beyond.verdict, "the largest attempt number" in beyond.why) == (Verdict.REFUSE, True)


def test_a_letter_that_would_be_rejected_again_is_refused_until_it_is_repaired() -> None:
    """DLQ-12: no attempt is wasted."""
    wrong = fit(key=b"other", reason=Reason.KEY_MISMATCH)
    assert decided(wrong).why.startswith("it would be rejected again as KEY_MISMATCH: ")
    repaired = decided(wrong, "unset key")
    assert (repaired.verdict, repaired.content and repaired.content.key) == (Verdict.REPLAY, b"k")
    assert repaired.repair_note is not None
    assert repaired.repair_note.steps == ("unset key",)
    assert repaired.repair_note.before != repaired.repair_note.after
    assert decided(wrong, "reframe own@9999").why.startswith("it cannot be repaired: ")


def test_a_table_letter_is_tried_on_its_table() -> None:
    """TBL-9."""
    assert (
        "again as UNREADABLE_VALUE" in decided(fit(table="eu", reason=Reason.UNREADABLE_VALUE)).why
    )
    number = fit(
        table="eu",
        reason=Reason.UNREADABLE_VALUE,
        key=b"7",
        value=frame(encode(replace(CHANGE, row_key=b"7"), 4), None),
    )
    assert decided(number).verdict is Verdict.REPLAY
    assert "not declared" in decided(fit(table="gone")).why


@pytest.mark.parametrize("headers", [(), (("trace", b"1"), ("null", None), ("ü", b"22"))])
def test_a_record_that_the_topic_does_not_take_is_refused(headers: Headers) -> None:
    """DLQ-10: to the byte, with room for what Kafka writes around a record and each of its
    headers.
    """
    claim = ("connector.replay", f"{fit().id}/1".encode())
    size = (
        128
        + len(b"k")
        + len(VALUE)
        + sum(10 + len(name.encode()) + len(value or b"") for name, value in (*headers, claim))
    )
    assert (
        decided(fit(headers=headers), door=ReplayTarget("orders", 4, size, validated, {})).verdict
        is Verdict.REPLAY
    )
    result = decided(fit(headers=headers), door=ReplayTarget("orders", 4, size - 1, validated, {}))
    assert (result.verdict, result.why) == (
        Verdict.REFUSE,
        f"it is too large: it has {size} bytes with its headers, but orders allows {size - 1}",
    )


def test_a_wrong_clock_is_judged_by_the_time_of_the_replay() -> None:
    """DLQ-10: what lay in the future when it came may be the past by now."""
    early = replace(CHANGE, commit_timestamp=NOW + 400_000_000)
    subject = fit(reason=Reason.COMMIT_TIMESTAMP_IN_FUTURE, value=frame(encode(early, 4), None))
    assert decided(subject).why.startswith(
        "it would be rejected again as COMMIT_TIMESTAMP_IN_FUTURE: "
    )
    assert decided(subject, now=NOW + 200_000_000).verdict is Verdict.REPLAY


def test_a_tally_counts_letters_by_what_becomes_of_them_and_refused_ones_by_their_reason() -> None:
    """DLQ-14: briefly, without what differs from letter to letter."""
    tally = Tally()
    for result in (
        decided(fit()),
        decided(fit(), standing=LetterStatus(LetterState.OPEN, 5, 3)),
        decided(fit(), standing=LetterStatus(LetterState.OPEN, 4, 4)),
        decided(fit(reason=Reason.TOO_LATE)),
        decided(fit(key=b"one")),
        decided(fit(key=b"another")),
        decided(fit(), standing=LetterStatus(LetterState.PARKED, 0, 0)),
    ):
        tally.add(result)
    assert tally.verdicts == {Verdict.REPLAY: 1, Verdict.PARK: 2, Verdict.REFUSE: 4}
    assert tally.refused == {
        "it is too late": 1,
        "it would be rejected again as KEY_MISMATCH": 2,
        "it is parked": 1,
    }


def test_a_replay_is_written_with_its_record_and_a_parking_without_one() -> None:
    """DLQ-11, DLQ-14: a parked letter has the reason of its decision."""
    how = {"at": 7, "by": "ada", "why": "typo", "selection": "all"}
    sent = decided(fit(), "set headers.a=null", standing=LetterStatus(LetterState.OPEN, 4, 1))
    write = ledger_write(sent, **how)  # type: ignore[arg-type]
    assert sent.content is not None
    assert write == LedgerWrite(
        fit().id,
        LedgerEntry(Action.REPLAYED, 7, "ada", "typo", "all", 5, 2, sent.repair_note),
        Outgoing(b"k", VALUE, sent.content.headers),
    )
    parked = ledger_write(
        decided(fit(), standing=LetterStatus(LetterState.OPEN, 4, 3)),
        **how,  # type: ignore[arg-type]
    )
    why = "it was replayed 3 times and rejected each time"
    assert parked == LedgerWrite(fit().id, LedgerEntry(Action.PARKED, 7, "ada", why, "all", 4, 3))


def test_the_oldest_failure_is_that_of_letters_that_stay() -> None:
    """DLQ-7: open and parked ones."""
    remaining = Remaining()
    remaining.add(fit(first_failed_at=1), stays=False)
    for state, at in ((LetterState.REPLAYED, 2), (LetterState.PARKED, 5), (LetterState.OPEN, 4)):
        remaining.add_unchanged(fit(first_failed_at=at), LetterStatus(state, 0, 0))
    remaining.add(fit(first_failed_at=9), stays=True)
    assert (remaining.read, remaining.since) == (5, 4)


@pytest.mark.parametrize("name", ["\ud800", "trace\udcff", "a\0b"])
def test_a_record_with_a_header_that_no_client_can_write_is_refused(name: str) -> None:
    """DLQ-10: a client cuts such a name, or ends the process."""
    result = decided(fit(headers=(("trace", b"1"), (name, b"2"))))
    assert result.why == f"it has a header that no client can write: {name!r}"


@given(dead_letters(), st.lists(st.sampled_from(["\ud800", "a\0b", "ok"])))
def test_no_letter_is_too_strange_for_a_decision(subject: DeadLetter, names: list[str]) -> None:
    subject = replace(subject, headers=(*subject.headers, *((name, b"1") for name in names)))
    tally = Tally()
    result = decided(subject)
    tally.add(result)
    assert (result.why == "") == (result.verdict is Verdict.REPLAY)
    assert tally.verdicts.total() == 1


@given(st.lists(st.integers(0, 12)), st.integers(1, 5), st.integers(1, 20))
def test_batches_have_all_in_order_and_as_many_as_fit(
    sizes: list[int], at_most: int, at_most_bytes: int
) -> None:
    result = list(
        in_batches(sizes, lambda size: size, at_most=at_most, at_most_bytes=at_most_bytes)
    )
    assert [one for some in result for one in some] == sizes
    for some in result:
        assert 0 < len(some) <= at_most
        assert len(some) == 1 or sum(some) <= at_most_bytes
    for some, following in pairwise(result):
        assert len(some) == at_most or sum(some) + following[0] > at_most_bytes


def test_a_full_batch_does_not_wait_for_what_follows() -> None:
    taken: list[int] = []
    batches = in_batches(
        (taken.append(one) or one for one in range(9)), lambda _: 1, at_most=3, at_most_bytes=100
    )
    assert (next(batches), taken) == ([0, 1, 2], [0, 1, 2])

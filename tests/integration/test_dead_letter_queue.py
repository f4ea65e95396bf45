"""Looking at dead letters and acting on them, on a real broker (DLQ-8, DLQ-10 to DLQ-14)."""

from __future__ import annotations

import threading
import time

import pytest

from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.dead_letters.envelope import DeadLetter, replay_claim
from connector.dead_letters.filter import LetterFilter
from connector.dead_letters.ledger import Action, LetterState
from connector.dead_letters.repair import Step
from connector.dead_letters.replay import Verdict
from connector.kafka import (
    ChangeConsumer,
    ConsumerRecord,
    DeadLetterPublisher,
    topics,
)
from connector.kafka.dead_letters.ledger_topic import MAX_WRITES
from connector.records.codec import encode, frame
from connector.records.model import DataChange, Heartbeat
from connector.records.rejection import Position, Reason
from connector.services import DeadLetters
from tests.broker import NewTopic
from tests.integration.changes import change

ALL = LetterFilter()


def letter(
    facts: topics.TopicFacts, offset: int, value: bytes | None = None, **fields: object
) -> DeadLetter:
    """A record that would be taken today: its table was not declared."""
    known: dict[str, object] = {
        "position": Position(facts.topic, facts.topic_id, 1, offset),
        "key": b"row-%d" % (offset % 3),
        "value": (
            frame(encode(change(offset % 3, timestamp=1_000_000 + offset), 2), None)
            if value is None
            else value
        ),
        "headers": (("trace", b"\xff"), ("trace", None)),
        "reason": Reason.UNKNOWN_TABLE,
        "rule": "",
        "detail": "no table",
        "attempt": 0,
        "first_failed_at": 11,
        "record_timestamp": 5,
        "schema_id": None,
        "ingest_batch": 4,
        "order_position": f"4/1/{offset}/0",
    }
    return DeadLetter(**known | fields)  # type: ignore[arg-type]


def letters_of(kafka: KafkaConfig, facts: topics.TopicFacts, *letters: DeadLetter) -> DeadLetters:
    with DeadLetterPublisher(kafka, facts.topic) as publisher:
        publisher.publish(letters)
    stream = StreamConfig(name="s", topic=facts.topic)
    return DeadLetters(ConnectorConfig("w", kafka, streams={"s": stream}), by="ada@desk")


def received(kafka: KafkaConfig, facts: topics.TopicFacts) -> list[ConsumerRecord]:
    while topics.end_offsets(kafka, facts) != topics.high_watermarks(kafka, facts):
        time.sleep(0.02)
    at_once = KafkaConfig(kafka.bootstrap_servers, {"fetch.wait.max.ms": "10"})
    with ChangeConsumer(at_once, facts.topic, bounded=True) as consumer:
        return list(consumer)


def test_replayed_letters_are_sent_to_the_change_topic_in_the_order_of_their_keys(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """DLQ-10, DLQ-11, DLQ-13, DLQ-14: as they were, each once, stopped and gone on with; what is
    too late stays.
    """
    facts = new_topic(kafka_partitions=2)
    sent = [letter(facts, offset) for offset in range(9)]
    beat = letter(
        facts, 20, frame(encode(Heartbeat("p", 5), 2), None), key=b"\x00connector.control"
    )
    letters = letters_of(
        kafka, facts, *sent, beat, letter(facts, 30, reason=Reason.TOO_LATE), sent[0]
    )
    planned = [decision.verdict for decision, _ in letters.plan(ALL)]
    assert (
        planned.count(Verdict.REPLAY),
        planned.count(Verdict.REFUSE),
        received(kafka, facts),
    ) == (10, 1, [])

    steps: list[int] = []
    stop = threading.Event()

    def progress(looked: int, done: int) -> None:
        assert looked >= done
        steps.append(done)
        stop.set()

    first = letters.replay(
        ALL, why="the table is declared", max_changes_per_s=4, on_progress=progress, stop=stop
    )
    assert (first.verdicts[Verdict.REPLAY], steps) == (1, [1]), "PUB-7: no burst"
    rest = letters.replay(
        ALL,
        why="the table is declared",
        max_changes_per_s=50,
        on_progress=lambda _, done: steps.append(done),
    )
    assert (rest.verdicts, steps) == ({Verdict.REPLAY: 9, Verdict.REFUSE: 1}, [1, 5, 9])
    found = received(kafka, facts)
    data = [one for one in found if one.source.key != b"\x00connector.control"]
    for key in (b"row-0", b"row-1", b"row-2"):
        of_key = [one for one in data if one.source.key == key]
        assert [one.source.value for one in of_key] == [one.value for one in sent if one.key == key]
        assert len({one.source.position.kafka_partition for one in of_key}) == 1
    assert {replay_claim(one.source.headers) for one in data} == {(one.id, 1) for one in sent}
    assert all(
        one.source.headers[:2] == sent[0].headers and len(one.source.headers) == 3 for one in data
    )
    assert [one.source.position.kafka_partition for one in found if one not in data] == [1]

    assert letters.replay(ALL, why="again").verdicts == {Verdict.REFUSE: 1}
    assert len(received(kafka, facts)) == 10
    entry = letters.ledger().history(sent[0].id)[0]
    assert (entry.action, entry.by, entry.why, entry.selection) == (
        Action.REPLAYED,
        "ada@desk",
        "the table is declared",
        "all",
    )


def test_a_repeatedly_rejected_letter_is_parked_until_it_is_restored(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """DLQ-14: nothing circles for ever."""
    facts = new_topic(kafka_partitions=2)
    first = letter(facts, 1)
    letters = letters_of(kafka, facts, first)
    assert letters.replay(ALL, why="try", max_attempts=1).verdicts == {Verdict.REPLAY: 1}
    back = received(kafka, facts)[-1].source
    # Ingest, as it has another table definition than we do, rejects it: another letter with all its
    # headers.
    again = letter(facts, 1, position=back.position, headers=back.headers)
    letters = letters_of(kafka, facts, again)
    assert letters.replay(ALL, why="try", max_attempts=1).verdicts == {Verdict.PARK: 1}
    assert letters.replay(ALL, why="try", max_attempts=1).verdicts == {}
    every_state = LetterFilter(states=frozenset())
    assert letters.reopen(every_state, why="the cause is repaired") == (
        1,
        {LetterState.REPLAYED: 1},
    )
    assert letters.replay(ALL, why="try", max_attempts=1).verdicts == {Verdict.REPLAY: 1}
    assert replay_claim(received(kafka, facts)[-1].source.headers) == (again.id, 2)


def test_a_repaired_letter_is_replayed_and_the_original_is_kept(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """DLQ-12."""
    facts = new_topic(kafka_partitions=2)
    subject = letter(facts, 1, key=b"wrong", reason=Reason.KEY_MISMATCH)
    letters = letters_of(kafka, facts, subject)
    steps = [Step.parse("unset key")]
    assert letters.replay(
        LetterFilter(ids=frozenset({subject.id})), why="typo", steps=steps
    ).verdicts == {Verdict.REPLAY: 1}
    (back,) = received(kafka, facts)
    assert back.source.key == b"row-1"
    assert [
        found for found, _ in letters.list(LetterFilter(states=frozenset({LetterState.REPLAYED})))
    ] == [subject]
    (entry,) = letters.ledger().history(subject.id)
    assert entry.repair_note is not None
    assert entry.repair_note.steps == ("unset key",)


def test_many_letters_are_replayed_in_several_transactions(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """DLQ-11, DLQ-14: stopped after the first one, and continued with what is left."""
    facts = new_topic(kafka_partitions=2)
    sent = [letter(facts, offset) for offset in range(1500)]
    undecodable = [
        letter(facts, 2000 + offset, b"rubbish", reason=Reason.UNKNOWN_FRAMING)
        for offset in range(3)
    ]
    letters = letters_of(kafka, facts, *sent, *undecodable)
    first = LetterFilter(ids=frozenset({sent[0].id}))
    assert letters.discard(first, why="not wanted") == (1, {})
    stop, seen = threading.Event(), list[tuple[int, int]]()

    def progress(looked: int, done: int) -> None:
        seen.append((looked, done))
        stop.set()

    assert (
        letters.replay(ALL, why="the table is declared", on_progress=progress, stop=stop).verdicts[
            Verdict.REPLAY
        ]
        == MAX_WRITES
    )
    steps = [Step.parse('set record.data_change.table="users"')]
    rest = letters.replay(
        ALL,
        why="the table has another name",
        steps=steps,
        on_progress=lambda looked, done: seen.append((looked, done)),
    )
    assert (rest.verdicts, rest.refused) == (
        {Verdict.REPLAY: 499, Verdict.REFUSE: 3},
        {"it cannot be repaired": 3},
    )
    assert [done for _, done in seen] == [1000, 499]
    assert letters.ledger().open_since == 11
    found = received(kafka, facts)
    claims = [replay_claim(one.source.headers) for one in found]
    assert sorted(claims, key=str) == sorted(((one.id, 1) for one in sent[1:]), key=str)
    repaired = [
        one for one in found if isinstance(one.record, DataChange) and one.record.table == "users"
    ]
    assert len(repaired) == 499
    assert letters.replay(ALL, why="again").verdicts == {Verdict.REFUSE: 3}


@pytest.mark.long
def test_a_hundred_thousand_letters_are_found_and_replayed(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """DLQ-8, DLQ-11: whole transactions of a thousand."""
    facts = new_topic(kafka_partitions=2)
    letters = letters_of(kafka, facts, *(letter(facts, offset) for offset in range(100_000)))
    began = time.monotonic()
    assert sum(1 for _ in letters.list(LetterFilter(key_prefix=b"row-1", table="t"))) == 33_333
    looked = time.monotonic()
    assert letters.replay(ALL, why="all of them").verdicts == {Verdict.REPLAY: 100_000}
    print(f"found in {looked - began:.1f} s, replayed in {time.monotonic() - looked:.1f} s")
    found = received(kafka, facts)
    assert len(found) == len({replay_claim(one.source.headers) for one in found}) == 100_000

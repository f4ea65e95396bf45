"""What is done about dead letters is done once, whoever dies or comes between (DLQ-10, DLQ-11)."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from connector.config.settings import KafkaConfig
from connector.dead_letters.envelope import ledger_topic
from connector.dead_letters.ledger import (
    NONE_SENT,
    Action,
    LedgerEntry,
    LedgerWrite,
    LetterState,
    Outgoing,
    history_to_json,
)
from connector.errors import TopicError, WriterConflictError
from connector.kafka import client, topics
from connector.kafka.client import messages_between
from connector.kafka.dead_letters.ledger_topic import (
    TOTALS_KEY,
    LedgerWriter,
    read_ledger,
    read_totals,
)
from tests.broker import NewTopic

IDS = ("a-0-1", "a-0-2")
STEPS = ("record", "commit", "committed")

# What a person runs, and is killed in: does what is still open, as the ledger has it.
RUN = """
import os, sys
from connector import KafkaConfig
from tests.integration.test_ledger_topic import replay
servers, topic, deadly = sys.argv[1:]
replay(KafkaConfig(servers), topic, lambda step: os._exit(9) if step == deadly else None)
"""


def write(letter_id: str, action: Action = Action.REPLAYED) -> LedgerWrite:
    record = (
        Outgoing(letter_id.encode(), b"value", (("h", None),))
        if action is Action.REPLAYED
        else None
    )
    return LedgerWrite(letter_id, LedgerEntry(action, 1, "ada", "why", "all"), record)


def replay(kafka: KafkaConfig, topic: str, on_step: object = lambda step: None) -> None:
    with LedgerWriter(kafka, topic, on_step) as writer:  # type: ignore[arg-type]
        if left := [letter_id for letter_id in IDS if not writer.ledger.history(letter_id)]:
            writer.commit([write(letter_id) for letter_id in left])


def records(kafka: KafkaConfig, facts: topics.TopicFacts) -> list[bytes]:
    """The keys of the records that a reader of committed transactions sees, once the markers of
    what was committed are written.
    """
    while topics.end_offsets(kafka, facts) != topics.high_watermarks(kafka, facts):
        time.sleep(0.02)
    consumer = client.consumer(
        kafka, errors := client.LastError(), {"group.id": "test", "fetch.wait.max.ms": "10"}
    )
    ranges = {number: (0, end) for number, end in topics.end_offsets(kafka, facts).items()}
    found = sorted(
        client.contents(message)[0] or b""
        for message in messages_between(consumer, kafka, errors, ranges, facts.topic)
    )
    consumer.close()
    return found


def test_a_replay_that_is_killed_at_every_step_takes_effect_once(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """DLQ-11, replay_is_safe: the next run continues with the remaining letters."""
    facts = new_topic(kafka_partitions=2)
    for deadly in STEPS:
        program = [sys.executable, "-c", RUN, kafka.bootstrap_servers, facts.topic, deadly]
        ended = subprocess.run(
            program,
            cwd=Path(__file__).parents[2],
            timeout=60,
            check=False,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 9, ended.stderr
    replay(kafka, facts.topic)
    assert records(kafka, facts) == [letter_id.encode() for letter_id in IDS]
    assert len(read_ledger(kafka, facts.topic).ids(LetterState.REPLAYED)) == 2


def test_where_replays_lie_is_kept(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """DLQ-7: so that a table is not called complete before ingest has read them."""
    facts = new_topic(kafka_partitions=2)
    with LedgerWriter(kafka, facts.topic) as writer:
        writer.commit([write("T-0-1")])
        assert read_totals(kafka, facts.topic).sent == NONE_SENT  # type: ignore[union-attr]
        writer.write_totals(7)
    known = read_totals(kafka, facts.topic)
    assert known is not None
    ((partition, end),) = known.sent.ends.items()
    assert (known.sent.topic_id, end, known.open_since) == (facts.topic_id, 1, 7)
    with LedgerWriter(kafka, facts.topic) as writer:
        writer.commit([write("T-0-2", Action.DISCARDED)])
        writer.commit([write("T-0-3"), write("T-0-4")])
        writer.write_totals(7)
        assert writer.ledger.sent == read_totals(kafka, facts.topic).sent  # type: ignore[union-attr]
    ends = topics.high_watermarks(kafka, facts)
    found = read_ledger(kafka, facts.topic).sent.ends
    assert found.keys() >= {partition}
    assert all(ends[number] - 2 <= end < ends[number] for number, end in found.items()), (
        "markers lie behind them"
    )


def test_totals_are_found_however_few_or_many_records_lie_around_them(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """DLQ-7: records of aborted transactions follow them; a reader reads only the end."""
    facts = new_topic(kafka_partitions=1)
    assert read_totals(kafka, facts.topic) is None
    topic_id = facts.topic_id
    for number, table in enumerate(("", "-user-events", "-2024", "-a-1-2")):
        with LedgerWriter(kafka, facts.topic) as writer:
            writer.commit([write(f"{topic_id}-0-{number}{table}", Action.DISCARDED)])
            writer.write_totals(None)
        totals = read_totals(kafka, facts.topic)
        assert totals is not None
        assert totals.closed == {
            (topic_id, name.removeprefix("-")): 1
            for name in ("", "-user-events", "-2024", "-a-1-2")[: number + 1]
        }

    def dies(step: str) -> None:
        if step == "commit":
            raise RuntimeError(step)

    with pytest.raises(RuntimeError), LedgerWriter(kafka, facts.topic, dies) as writer:
        writer.commit(
            [write(f"{topic_id}-0-{number}", Action.DISCARDED) for number in range(10, 310)]
        )
    assert read_totals(kafka, facts.topic) == totals


def test_of_two_at_once_the_later_one_goes_on_and_nothing_is_done_twice(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """DLQ-11, replay_is_safe."""
    for moment in ("record", "commit"):
        facts = new_topic()
        others = iter([facts.topic])

        def between(step: str, moment: str = moment, others: object = others) -> None:
            if step == moment and (topic := next(others, None)):  # type: ignore[call-overload]
                replay(kafka, topic)

        with pytest.raises(WriterConflictError, match="Another process acts"):
            replay(kafka, facts.topic, between)
        assert records(kafka, facts) == [letter_id.encode() for letter_id in IDS]


def test_a_history_has_every_entry_in_order(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """DLQ-11: who, when, why."""
    facts = new_topic()
    for action in (Action.PARKED, Action.DISCARDED):
        with LedgerWriter(kafka, facts.topic) as writer:
            writer.commit([write("a-0-1", action)])
            writer.commit([write("a-0-2", action)])
    history = read_ledger(kafka, facts.topic).history("a-0-1")
    assert [(entry.action, entry.by, entry.why) for entry in history] == [
        (action, "ada", "why") for action in (Action.PARKED, Action.DISCARDED)
    ]


def test_a_ledger_that_would_forget_is_refused(
    admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """DLQ-1: compacted."""
    facts = new_topic()
    entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)  # type: ignore[no-untyped-call]
    for altered in admin.incremental_alter_configs(
        [
            ConfigResource(
                ConfigResource.Type.TOPIC, ledger_topic(facts.topic), incremental_configs=[entry]
            )
        ]
    ).values():
        altered.result(30)
    with pytest.raises(TopicError, match="policy=delete"):
        read_ledger(kafka, facts.topic)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"a-0-1", b"{}"),
        (b"a-0-1", None),
        (b"\xff", history_to_json((write("a-0-1").entry,))),
        (b"a-0-1", history_to_json((write("a-0-1").entry,)).replace(b'"at": 1', b'"at": 1e999')),
        (TOTALS_KEY, b'{"closed": [["T", "", 1e999]], "open_since": null}'),
    ],
)
def test_a_ledger_that_others_wrote_to_is_not_believed(
    kafka: KafkaConfig, new_topic: NewTopic, key: bytes, value: bytes | None
) -> None:
    """DLQ-11: the record is named, by whatever reads it."""
    facts = new_topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(2):  # as many as the least transaction of ours has, with its marker
        producer.produce(ledger_topic(facts.topic), value, key)
    producer.flush(30)
    for read in (read_ledger, read_totals):
        with pytest.raises(TopicError, match=r"Record 0 of .* was not written by lowmark"):
            read(kafka, facts.topic)

"""Records that a program cannot process, on a real broker (SUB-4)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.dead_letters.envelope import dead_letter_topic, replay_claim, replay_topic
from connector.dead_letters.filter import LetterFilter
from connector.dead_letters.ledger import NO_EXTERNAL, LetterState
from connector.errors import ConfigError, TopicError
from connector.kafka import (
    ChangeConsumer,
    ConsumerRecord,
    Group,
    WatermarkConsumer,
    create_group_topics,
    read_letters,
    topics,
)
from connector.kafka.consume import reader
from connector.kafka.dead_letters.ledger_topic import read_totals
from connector.kafka.dead_letters.topic import external_dead_letters
from connector.kafka.produce.producer import CopyingProducer
from connector.records.model import DataChange
from connector.records.rejection import Reason, Rejection
from connector.services.dead_letters import DeadLetters
from tests.broker import NewTopic
from tests.integration.changes import change, send_raw
from tests.integration.test_commands import Shell

ANY = LetterFilter(states=frozenset())


@pytest.fixture
def group(kafka: KafkaConfig, new_topic: NewTopic) -> Callable[..., tuple[topics.TopicFacts, str]]:
    """Make a topic with six changes, and the topics of a group."""

    def made(changes: int = 6) -> tuple[topics.TopicFacts, str]:
        facts, name = new_topic(kafka_partitions=2), f"group-{uuid.uuid4().hex[:8]}"
        create_group_topics(kafka, facts.topic, name)
        with CopyingProducer(kafka, facts.topic) as producer:
            for number in range(changes):
                producer.send(change(number))
        return facts, name

    return made


def letters_of(kafka: KafkaConfig, facts: topics.TopicFacts, group: str | None) -> DeadLetters:
    stream = StreamConfig(name="s", topic=facts.topic)
    config = ConnectorConfig("w", kafka, streams={"s": stream})
    return DeadLetters(config, group=group, by="ada@desk")


def consumer_of(
    kafka: KafkaConfig, facts: topics.TopicFacts, group: str, *, replays: bool = False
) -> ChangeConsumer:
    fast = replace(kafka, settings={**kafka.settings, "fetch.wait.max.ms": "10"})
    return ChangeConsumer(fast, facts.topic, start=Group(group, replays=replays), bounded=True)


def number_of(received: ConsumerRecord) -> int:
    assert isinstance(received.record, DataChange)
    return received.record.commit_timestamp - 1_000_000


def test_a_record_that_a_program_cannot_process_comes_again_after_its_replay(
    kafka: KafkaConfig, group: Callable[..., tuple[topics.TopicFacts, str]]
) -> None:
    """SUB-4: byte for byte, to this group only, and once. Set aside again, it is another letter
    with the next attempt.
    """
    facts, name = group()
    with consumer_of(kafka, facts, name) as consumer:
        for received in consumer:
            if number_of(received) in (2, 4):
                consumer.set_aside(received, "no such customer")
                consumer.set_aside(received, "twice")
            consumer.commit()
    letters = letters_of(kafka, facts, name)
    found = [letter for letter, _ in letters.list()]
    assert {(one.reason, one.detail, one.group) for one in found} == {
        (Reason.CONSUMER_FAILED, "no such customer", name)
    }
    assert {one.position.topic_id for one in found} == {facts.topic_id}
    assert len(found) == 2
    parked, sent = found
    assert letters.park(LetterFilter(ids=frozenset({parked.id})), why="later")[0] == 1
    assert letters.replay(LetterFilter(), why="repaired").verdicts.total() == 1
    assert letters.replay(ANY, why="again").verdicts.total() == 2, "both are refused"
    with consumer_of(kafka, facts, name, replays=True) as consumer:
        (again,) = consumer
        assert (again.source.key, again.source.value) == (sent.key, sent.value)
        assert replay_claim(again.source.headers) == (sent.id, 1)
        assert again.position.topic == replay_topic(facts.topic, name)
        consumer.set_aside(again, "still not")
        consumer.commit()
    (failed,) = [one for one, _ in letters.list()]
    assert (failed.attempt, failed.detail, failed.position) == (1, "still not", again.position)
    assert letters.show(failed.id).status.attempts_since_reopen == 1
    with consumer_of(kafka, facts, name, replays=True) as consumer:
        assert list(consumer) == [], "the replay was committed"
    with ChangeConsumer(kafka, facts.topic, bounded=True) as consumer:
        assert sum(isinstance(one.record, DataChange) for one in consumer) == 6


def test_tables_and_the_state_of_the_stream_do_not_count_them(
    kafka: KafkaConfig, group: Callable[..., tuple[topics.TopicFacts, str]]
) -> None:
    """SUB-4."""
    facts, name = group()
    with consumer_of(kafka, facts, name) as consumer:
        for received in consumer:
            consumer.set_aside(received, "bad")
    letters = letters_of(kafka, facts, name)
    assert letters.discard(ANY, why="not needed")[0] == 6
    assert list(letters_of(kafka, facts, None).list(ANY)) == []
    assert list(read_letters(kafka, facts.topic)) == []
    assert external_dead_letters(kafka, facts.topic, NO_EXTERNAL).count == 0
    assert read_totals(kafka, facts.topic) is None
    assert {status.state for _, status in letters.list(ANY)} == {LetterState.DISCARDED}
    assert len(list(read_letters(kafka, facts.topic, group=name))) == 6


def test_a_record_that_cannot_be_read_can_be_set_aside(
    kafka: KafkaConfig, group: Callable[..., tuple[topics.TopicFacts, str]]
) -> None:
    """SUB-4: its replay is refused while it cannot be read."""
    facts, name = group(0)
    send_raw(kafka, facts.topic, [(b"row-1", b"bad")])
    with consumer_of(kafka, facts, name) as consumer:
        (received,) = consumer
        assert isinstance(received.record, Rejection)
        consumer.set_aside(received, received.record.detail)
    ((decision, effects),) = letters_of(kafka, facts, name).plan(LetterFilter())
    assert decision.why.startswith("it would be rejected again as UNKNOWN_FRAMING")
    assert effects == {}


def test_an_item_that_cannot_be_set_aside_is_an_error_that_loses_nothing(
    kafka: KafkaConfig,
    new_topic: NewTopic,
    group: Callable[..., tuple[topics.TopicFacts, str]],
) -> None:
    """SUB-4: a record that was committed, one of another topic, one of no group, and topics that
    are missing.
    """
    facts, name = group(2)
    other, _ = group(1)
    with ChangeConsumer(kafka, other.topic, bounded=True) as consumer:
        (foreign,) = consumer
        with pytest.raises(ConfigError, match="each one has its own dead letters"):
            consumer.set_aside(foreign, "x")
    with consumer_of(kafka, facts, name) as consumer:
        first, second = consumer
        with pytest.raises(ConfigError, match="a record of") as of_other:
            consumer.set_aside(foreign, "x")
        assert of_other.value.code == "ARGUMENT_INVALID"
        consumer.set_aside(first, "x")
        consumer.commit()
        with pytest.raises(ConfigError, match="that is not acknowledged") as acknowledged:
            consumer.set_aside(second, "x")
        assert acknowledged.value.code == "ARGUMENT_INVALID"
    assert len(list(read_letters(kafka, facts.topic, group=name))) == 1
    bare = f"bare-{uuid.uuid4().hex[:8]}"
    with consumer_of(kafka, facts, bare) as consumer:
        one, _two = consumer
        with pytest.raises(TopicError, match="There is no topic") as missing:
            consumer.set_aside(one, "x")
        assert missing.value.code == "TOPIC_MISSING"
    with consumer_of(kafka, facts, bare) as consumer:
        assert len(list(consumer)) == 2, "nothing was committed"
    with pytest.raises(TopicError, match="There is no topic"):
        consumer_of(kafka, facts, bare, replays=True)
    with consumer_of(kafka, facts, "two words") as consumer:
        received = next(iter(consumer))
        with pytest.raises(ConfigError, match="A group with dead letters has the name"):
            consumer.set_aside(received, "x")


def test_replays_come_between_the_records_of_a_running_consumer(
    kafka: KafkaConfig,
    group: Callable[..., tuple[topics.TopicFacts, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SUB-4: without a new start, and with watermarks beside."""
    monkeypatch.setattr(reader, "REFRESH_S", 1.0)
    facts, name = group(3)
    found: list[tuple[int, bool]] = []
    with WatermarkConsumer(kafka, facts.topic, start=Group(name, replays=True)) as consumer:
        deadline = time.monotonic() + 60
        for step in count():
            assert time.monotonic() < deadline, found
            item = consumer.poll(0.2)
            if not isinstance(item, ConsumerRecord) or not isinstance(item.record, DataChange):
                continue
            is_replay = replay_claim(item.source.headers) is not None
            found.append((number_of(item), is_replay))
            if not is_replay:
                consumer.set_aside(item, f"step {step}")
            consumer.commit()
            if len(found) == 3:
                letters_of(kafka, facts, name).replay(LetterFilter(), why="again")
            if len(found) == 6:
                break
    assert sorted(found) == [(n, is_replay) for n in range(3) for is_replay in (False, True)]


def test_the_commands_of_a_group(
    kafka: KafkaConfig,
    new_topic: NewTopic,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SUB-4: topics, list, show, export, park, reopen, replay and discard."""
    facts = new_topic()
    (tmp_path / "connector.toml").write_text(
        'warehouse = "wh"\n[kafka]\nbootstrap_servers ='
        f' "{kafka.bootstrap_servers}"\n[streams.s]\ntopic = "{facts.topic}"\n'
    )
    shell = Shell(tmp_path, capsys, monkeypatch)

    def run(*words: str, code: int = 0) -> str:
        assert shell.run(*words) == code, shell.err
        return shell.out + shell.err

    run("dead-letters", "list", "--group", "g", code=1)
    run("topic", "create", "--group", "g")
    assert shell.out.strip() == dead_letter_topic(facts.topic, "g")
    run("topic", "create", "--group", "g.ledger", code=1)
    with CopyingProducer(kafka, facts.topic) as producer:
        for number in range(3):
            producer.send(change(number))
    with consumer_of(kafka, facts, "g") as consumer:
        for received in consumer:
            consumer.set_aside(received, "the index is read-only")
    of = ("--group", "g")
    run("dead-letters", "list", *of, "--since", "1h")
    ids = [line.split()[0] for line in shell.out.splitlines()]
    shown = run("dead-letters", "show", ids[0], *of)
    assert "the index is read-only" in shown
    assert "CONSUMER_FAILED" in shown
    assert '"group": "g"' in run("dead-letters", "export", *of)
    run("dead-letters", "park", ids[0], *of, "--why", "x")
    run("dead-letters", "reopen", ids[0], *of, "--why", "x")
    run("dead-letters", "discard", ids[0], *of, "--why", "x")
    run("dead-letters", "replay", "--all", *of, "--wait", "--execute", "--why", "x", code=2)
    assert "nothing was sent" in run("dead-letters", "replay", "--all", *of)
    sent = run("dead-letters", "replay", "--all", *of, "--execute", "--why", "repaired")
    assert "replayed 2" in sent
    assert "replays=True" in sent
    run("dead-letters", "show", "nothing", *of, code=1)
    assert "0 dead letters" in run("dead-letters", "list")

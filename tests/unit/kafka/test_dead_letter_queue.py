"""What of acting on dead letters needs no broker (DLQ-11, DLQ-12)."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import cli
from connector.config.settings import ConnectorConfig, KafkaConfig, RegistryConfig, StreamConfig
from connector.dead_letters.envelope import dead_letter_topic
from connector.dead_letters.ledger import Action, LedgerEntry, LedgerWrite, Outgoing
from connector.errors import BrokerError, ConnectorError, TopicError
from connector.kafka import DeadLetterPublisher
from connector.kafka.dead_letters.ledger_topic import (
    MAX_BYTES,
    in_transactions,
)
from connector.kafka.topics import TopicFacts, check_compacted
from connector.records.codec import SCHEMA
from connector.records.rejection import Position
from connector.services import DeadLetters
from tests.unit.dead_letters.test_envelope import letter
from tests.unit.mock_cluster import FACTS, MockCluster, answer_topic_requests
from tests.unit.registry_stub import running_registry

VALUES = {size: bytes(size) for size in (0, 1000, MAX_BYTES // 3, MAX_BYTES + 1)}


def write(number: int, size: int | None) -> LedgerWrite:
    record = None if size is None else Outgoing(b"k", VALUES[size], ())
    return LedgerWrite(f"T-0-{number}", LedgerEntry(Action.REPLAYED, 1, "", "", ""), record)


@given(st.lists(st.none() | st.sampled_from(list(VALUES)), max_size=40), st.integers(1, 10))
def test_transactions_have_all_deeds_in_order_and_end_in_time(
    sizes: list[int | None], at_most: int
) -> None:
    """DLQ-11: up to 1,000 letters; fewer where they are large. One that is too large goes alone."""
    writes = [write(number, size) for number, size in enumerate(sizes)]
    found = list(in_transactions(iter(writes), at_most))
    assert [one for some in found for one in some] == writes
    for some in found:
        assert 0 < len(some) <= at_most
        assert len(some) == 1 or sum(one.size for one in some) <= MAX_BYTES
    for some, following in pairwise(found):
        assert len(some) == at_most or sum(one.size for one in some) + following[0].size > MAX_BYTES


def test_a_schema_is_asked_for_when_it_is_needed_and_once() -> None:
    """DLQ-12: reframing may name another schema than the letter does."""
    stream = StreamConfig(name="s", topic="t")
    with running_registry() as registry:
        registry.add(SCHEMA, 7)
        config = ConnectorConfig(
            "w", KafkaConfig("127.0.0.1:1"), RegistryConfig(registry.url), {"s": stream}
        )
        letters = DeadLetters(config, by="ada")
        assert registry.requests == []
        assert [letters.schemas.by_id.get(number) for number in (7, 7, 8, 8)] == [
            SCHEMA,
            SCHEMA,
            None,
            None,
        ]
        assert len(registry.requests) == 2
    with pytest.raises(BrokerError):
        letters.schemas.by_id.get(9)
    config = ConnectorConfig("w", KafkaConfig("127.0.0.1:1"), streams={"s": stream})
    assert DeadLetters(config, by="ada").schemas.by_id.get(7) is None


@pytest.mark.parametrize(
    ("policy", "partitions"), [("delete", 1), ("compact,delete", 1), ("compact", 2)]
)
def test_a_ledger_that_would_forget_or_have_no_order_is_refused(
    policy: str, partitions: int
) -> None:
    """DLQ-1, DLQ-11."""
    check_compacted(TopicFacts("l", "T", 1, 1, "compact", "LogAppendTime", -1, 1_000_000))
    with pytest.raises(TopicError, match=r"must have cleanup\.policy=compact and one"):
        check_compacted(TopicFacts("l", "T", partitions, 1, policy, "LogAppendTime", -1, 1_000_000))


def test_a_short_id_names_the_one_letter_that_has_it(
    cluster: MockCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DLQ-8: a whole id needs no look at the letters, and never means another one."""
    name = dead_letter_topic("t")
    cluster.create_topic(name, 1)
    of_letters = replace(FACTS, topic=name, kafka_partitions=1, max_message_bytes=3_000_000)
    answer_topic_requests(FACTS, of_letters, patch=monkeypatch.setattr)
    places = [("A" * 22, 17, None), ("A" * 22, 170, None), ("A" * 22, 18, "eu")]
    places += [("AB" * 11, 17, None), ("t", 1, None), ("t", 17, None)]
    letters = [
        letter(position=Position("t", topic, 3, offset), table=table)
        for topic, offset, table in places
    ]
    with DeadLetterPublisher(cluster.kafka, "t") as publisher:
        publisher.publish(letters)
    streams = {"s": StreamConfig(name="s", topic="t")}
    queue = DeadLetters(ConnectorConfig("w", cluster.kafka, streams=streams), by="ada")
    short = ["AB", "AA-3-17", "-3-170", "A-3-18-eu", "t-3-1", "no-such-letter"]
    wanted = {letters[index].id for index in (3, 0, 1, 2, 4)} | {"no-such-letter"}
    assert queue.whole_ids(short) == wanted
    assert queue.find("AB")[0] == letters[3]
    with pytest.raises(ConnectorError, match="match the id A-3-17") as raised:
        queue.whole_ids(["A-3-17"])
    assert raised.value.code == "DEAD_LETTER_AMBIGUOUS"
    assert letters[0].id in str(raised.value)
    assert letters[3].id in str(raised.value)

    kafka = f'[kafka]\nbootstrap_servers = "{cluster.bootstrap_servers}"\n'
    (tmp_path / "connector.toml").write_text(f'warehouse = "w"\n{kafka}[streams.s]\ntopic = "t"\n')
    monkeypatch.chdir(tmp_path)
    cli.invoke(["dead-letters", "replay", "AB", "AA-3-17", "--json"])
    views = map(json.loads, capsys.readouterr().out.splitlines())
    assert [view["id"] for view in views] == [letters[0].id, letters[3].id]
    assert cli.invoke(["dead-letters", "park", "A-3-17", "--why", "x"]) == 1
    assert "run:    connector dead-letters list --state any --json --stream s" in (
        capsys.readouterr().err
    )

    cut = letters[0].id[:-1]
    with pytest.raises(ConnectorError, match=f"does not have the dead letter {cut}"):
        queue.find(cut)
    monkeypatch.setattr(queue, "_letters", pytest.fail)
    assert queue.whole_ids([cut, letters[2].id]) == {cut, letters[2].id}

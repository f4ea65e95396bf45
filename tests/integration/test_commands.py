"""The commands against a real broker, as a script would call them (OPS-1, OPS-10, REC-22, DLQ-8,
DLQ-9).
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from connector import cli
from connector.config.settings import KafkaConfig
from connector.dead_letters.envelope import DeadLetter
from connector.kafka import ChangeConsumer
from connector.kafka.dead_letters.topic import DeadLetterPublisher
from connector.kafka.topics import TopicFacts, create_dead_letter_topics, describe
from connector.records.codec import schema_id
from connector.records.rejection import Rejection
from tests.broker import Broker

CHANGE = {
    "table": "users",
    "row_key": "u#1",
    "commit_timestamp": 1_714_475_984_000_000,
    "entries": [{"kind": "DELETE_FAMILY", "family": "f"}],
}
LINES = [
    {"stream_partition": "p0", "data_change": CHANGE},
    {"stream_partition": "p0", "data_change": CHANGE | {"row_key": {"base64": "/wA="}}},
    {"stream_partition": "p0", "heartbeat": {"timestamp": "2024-04-30T12:00:00Z"}},
]


class Shell:
    """Runs commands against one topic; `out` and `err` are those of the last one."""

    def __init__(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.config = folder / "connector.toml"
        self._capsys, self._monkeypatch = capsys, monkeypatch
        self.out = self.err = ""

    def run(self, *arguments: str, stdin: bytes = b"") -> int:
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        code = cli.invoke(["--config", str(self.config), *arguments])
        self.out, self.err = self._capsys.readouterr()
        return code


@pytest.fixture
def topic(new_topic: Callable[..., TopicFacts]) -> str:
    return new_topic(kafka_partitions=2).topic


@pytest.fixture
def shell(
    kafka: KafkaConfig,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    text = (
        'warehouse = "wh"\n[kafka]\nbootstrap_servers ='
        f' "{kafka.bootstrap_servers}"\n[streams.s]\ntopic = "{topic}"\n'
    )
    (tmp_path / "connector.toml").write_text(text)
    return Shell(tmp_path, capsys, monkeypatch)


def lines(*documents: object) -> bytes:
    return "".join(json.dumps(document) + "\n" for document in documents).encode()


def test_tail_prints_published_records(shell: Shell) -> None:
    """REC-22: `publish` fills in kafka_partitions, and sends a control record to each Kafka
    partition (REC-3).
    """
    assert shell.run("publish", stdin=lines(*LINES)) == 0
    assert "published 3 records" in shell.err
    assert shell.run("tail") == 0
    shown = [json.loads(line) for line in shell.out.splitlines()]
    assert {line["kafka_partitions"] for line in shown} == {2}
    assert [("heartbeat" in line) for line in shown].count(True) == 2
    assert sorted(
        str(line["data_change"]["row_key"]) for line in shown if "data_change" in line
    ) == ["u#1", "{'base64': '/wA='}"]


def test_tail_goes_back_into_publish(shell: Shell) -> None:
    """REC-22: reading what was written gives the same record."""
    assert shell.run("publish", stdin=lines(*LINES[:2])) == 0
    assert shell.run("tail") == 0
    first = shell.out
    assert shell.run("publish", stdin=first.encode()) == 0
    assert shell.run("tail") == 0
    assert sorted(shell.out.splitlines()) == sorted(first.splitlines() * 2)


def test_a_bad_line_is_named_and_what_went_before_is_delivered(shell: Shell) -> None:
    """OPS-10: problem, cause, remedy."""
    assert (
        shell.run(
            "publish",
            stdin=lines(LINES[0])
            + b"\n"
            + lines({"stream_partition": "p0", "data_change": {"tabel": 1}}, LINES[1]),
        )
        == 1
    )
    assert "Line 3: data_change.tabel" in shell.err
    assert "Delivered before this line: 1 record" in shell.err
    assert shell.run("tail") == 0
    assert len(shell.out.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [(b"\xff\n", "not UTF-8"), (b"nonsense\n", "Line 1"), (b"[" * 100_000 + b"\n", "Line 1")],
)
def test_an_unreadable_line_is_an_error(shell: Shell, line: bytes, words: str) -> None:
    assert shell.run("publish", stdin=line) == 1
    assert words in shell.err


def test_tail_prints_a_range_of_commit_time(shell: Shell) -> None:
    """SUB-1: it ends at the low watermark, and both ends are included."""
    announced = {
        "stream_partition": "p0",
        "child_partitions": {
            "start_timestamp": "2024-04-30T11:00:00Z",
            "record_sequence": 0,
            "children": [{"token": "p0"}],
        },
    }
    assert shell.run("publish", stdin=lines(announced, *LINES)) == 0
    at = CHANGE["commit_timestamp"]
    assert shell.run("tail", "--start-commit", str(at), "--end-commit", str(at)) == 0
    shown = [json.loads(line) for line in shell.out.splitlines()]
    assert sum("data_change" in line for line in shown) == 2
    assert shell.run("tail", "--start-commit", "2100-01-01T00:00:00Z") == 1
    assert "ARGUMENT_INVALID" in shell.err


def test_tail_stops_at_a_limit_and_starts_at_the_end(shell: Shell) -> None:
    """REC-21."""
    assert shell.run("publish", stdin=lines(*LINES)) == 0
    assert shell.run("tail", "--limit", "1") == 0
    assert len(shell.out.splitlines()) == 1
    assert shell.run("tail", "--from", "end") == 0
    assert shell.out == ""


def test_validate_says_that_all_is_well(shell: Shell, topic: str) -> None:
    """OPS-1."""
    assert shell.run("validate") == 0
    assert f"topic {topic}, 2 Kafka partitions" in shell.out
    assert "no faults" in shell.err


def test_validate_names_every_fault(shell: Shell) -> None:
    """OPS-1: a topic that is missing, a limit above what the topic takes."""
    with shell.config.open("a") as file:
        file.write("max_record_bytes = 100000000\n[streams.other]\ntopic = 'nowhere'\n")
    assert shell.run("validate") == 1
    assert "max_record_bytes is 100000000" in shell.err
    assert "There is no topic nowhere" in shell.err
    assert "2 faults" in shell.err


def test_validate_names_a_record_of_the_ledger_that_cannot_be_read(
    shell: Shell, topic: str, kafka: KafkaConfig
) -> None:
    """OPS-1, DLQ-11: each action on a dead letter would fail with it."""
    create_dead_letter_topics(kafka, describe(kafka, topic))
    assert shell.run("validate") == 0
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(f"{topic}.dead-letters.ledger", b"not a history", b"an id")
    assert producer.flush(10) == 0
    assert shell.run("validate") == 1
    assert "dead-letters.ledger was not written by lowmark" in shell.err


def test_validate_looks_at_the_newest_records(shell: Shell, topic: str, kafka: KafkaConfig) -> None:
    """OPS-1, REC-11: records of another program are a fault, a few bad ones are not. It stores no
    position, and markers of transactions are no records.
    """
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()

    def send(*values: bytes | None, partition: int) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, b"key", partition=partition)
        producer.commit_transaction()

    assert shell.run("validate") == 0
    assert f"topic {topic} has no new records" in shell.out
    for bad in (b'{"id": 1}', b"", None, b"\0\0\0\0\x07abc", b"\xc3\x01not a fingerprint"):
        send(bad, bad, partition=0)
        send(bad, partition=1)
        assert shell.run("validate") == 1
        assert f"newest records of topic {topic} are not those of lowmark" in shell.err
        assert "1 fault\n" in shell.err
        assert "dead letter" in shell.err
    assert shell.run("publish", stdin=json.dumps(LINES[2]).encode()) == 0
    assert shell.run("validate") == 0
    assert f"newest records of topic {topic} cannot be read, for example that at" in shell.err
    for _ in range(4):
        assert shell.run("publish", stdin=json.dumps(LINES[2]).encode()) == 0
    assert shell.run("validate") == 0
    assert "newest records can be read" in shell.out
    assert shell.run("validate") == 0, "it changed nothing"


def test_validate_says_how_long_the_changelog_is_kept(shell: Shell) -> None:
    """OPR-5, TBL-15: `changelog_retention` lets go what all tables of the stream have applied;
    without a table it does nothing.
    """
    assert shell.run("validate") == 0
    assert "streams.s: the changelog is kept for ever" in shell.out
    with shell.config.open("a") as file:
        file.write('changelog_retention = "3d"\n')
    assert shell.run("validate") == 0
    assert "streams.s.changelog_retention has no effect: a stream without tables" in shell.err
    with shell.config.open("a") as file:
        file.write("[tables.one]\nstream = 's'\n")
    assert shell.run("validate") == 0
    assert "streams.s: the changelog is kept for 3d at least" in shell.out
    assert "no effect" not in shell.err


def test_records_that_kafka_deletes_soon_are_named(
    shell: Shell, topic: str, admin: AdminClient, broker: Broker
) -> None:
    """RUN-7: `validate` and `status` name the first record that ingest lacks, and how long Kafka
    keeps it. Status has the free space of a local broker.
    """
    assert shell.run("publish", stdin=lines(LINES[0])) == 0
    assert shell.run("validate") == 0
    assert "Kafka may delete" not in shell.out + shell.err, "it keeps the record for days"
    set_retention(admin, topic, 10_000)
    deadline = time.monotonic() + 9
    while "Kafka may delete the first record that ingest lacks in " not in shell.err:
        assert time.monotonic() < deadline
        assert shell.run("validate") == 0
    assert shell.run("status", "--json") == 0
    status = json.loads(shell.out)
    (headroom,) = status["streams"]["s"]["headroom"]
    assert (headroom["kafka_partition"], headroom["offset"]) in [(0, 0), (1, 0)]
    assert headroom["arrived_at"] < headroom["deleted_at"]
    assert [it["code"] for it in status["reasons"] if it["code"] == "HEADROOM"] == ["HEADROOM"]
    assert (status["broker_free_bytes"] is not None) == (broker.kind == "local")


def set_retention(admin: AdminClient, topic: str, milliseconds: int) -> None:
    entry = ConfigEntry(
        "retention.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


@pytest.mark.systems
def test_an_unreachable_broker_is_an_error_of_the_environment(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTOR__KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert shell.run("tail") == 1
    assert "127.0.0.1:1" in shell.err
    assert "connector broker start" in shell.err


def test_no_dead_letters_are_none(shell: Shell) -> None:
    assert shell.run("dead-letters", "list") == 0
    assert (shell.out, shell.err.split()[0]) == ("", "0")


@pytest.fixture
def letters(kafka: KafkaConfig, topic: str) -> list[DeadLetter]:
    """Two bad records, each published as a letter, the first one twice."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"rubbish \x1b[2J", b"k", headers=[("evil\x1b", b"\x07")])
    producer.produce(topic, b"\x00\x00\x00\x00\x07", b"k")
    producer.flush(30)
    found = []
    with ChangeConsumer(kafka, topic, bounded=True) as consumer:
        for received in consumer:
            source, verdict = received.source, received.record
            assert isinstance(verdict, Rejection)
            found.append(
                DeadLetter(
                    position=source.position,
                    key=source.key,
                    value=source.value,
                    headers=source.headers,
                    reason=verdict.reason,
                    rule=verdict.rule,
                    detail=verdict.detail,
                    attempt=0,
                    first_failed_at=time.time_ns() // 1000,
                    record_timestamp=source.record_timestamp,
                    schema_id=schema_id(source.value),
                    ingest_batch=1,
                    order_position="1/0/0/0",
                )
            )
    with DeadLetterPublisher(kafka, topic) as publisher:
        publisher.publish([*found, found[0]])
    return found


def test_dead_letters_are_counted_by_id(shell: Shell, letters: list[DeadLetter]) -> None:
    """DLQ-4, DLQ-8."""
    assert shell.run("dead-letters", "list") == 0
    assert "UNKNOWN_FRAMING" in shell.out
    assert "UNKNOWN_SCHEMA" in shell.out
    assert shell.err.startswith("2 dead letters")
    assert shell.run("dead-letters", "list", "--json") == 0
    assert {json.loads(line)["id"] for line in shell.out.splitlines()} == {
        letter.id for letter in letters
    }
    assert shell.run("dead-letters", "list", "--reason", "unknown_schema") == 0
    assert shell.out.split()[0] == letters[1].id


def test_one_dead_letter_is_explained_and_nothing_of_it_is_unescaped(
    shell: Shell, letters: list[DeadLetter]
) -> None:
    """DLQ-9."""
    assert shell.run("dead-letters", "show", letters[0].id) == 0
    for words in (letters[0].id, "UNKNOWN_FRAMING", "72 75 62 62 69 73 68", "evil\\x1b = \\x07"):
        assert words in shell.out
    assert "\x1b" not in shell.out
    assert shell.run("dead-letters", "show", letters[0].id, "--json") == 0
    assert json.loads(shell.out)["value"] == {"base64": "cnViYmlzaCAbWzJK"}


def test_an_unknown_letter_is_an_error(shell: Shell) -> None:
    assert shell.run("dead-letters", "show", "nonsense") == 1
    assert "does not have the dead letter nonsense" in shell.err


def test_a_topic_that_exists_is_left_as_it_is(shell: Shell, topic: str) -> None:
    """REC-2."""
    assert shell.run("topic", "create", "--stream", "s", "--kafka-partitions", "9") == 1
    assert f"The topic {topic} exists with other properties" in shell.err
    assert "another name" in shell.err
    assert "delete" not in shell.err, "it may be the topic of another program"

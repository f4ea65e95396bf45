"""The README's Python runs as it stands, against a real broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from connector.config.settings import KafkaConfig
from connector.kafka import ChangeProducer, create_group_topics, read_letters
from connector.records.model import Heartbeat
from tests.broker import NewTopic
from tests.documents import ROOT, code_blocks
from tests.integration.changes import change


def _run(text: str, kafka: KafkaConfig, topic: str) -> None:
    assert '"127.0.0.1:9092"' in text
    assert '"shop"' in text
    exec(
        compile(
            text.replace("127.0.0.1:9092", kafka.bootstrap_servers).replace('"shop"', f'"{topic}"'),
            "README.md",
            "exec",
        ),
        {},
    )


def test_producer_and_reader_of_the_readme_run(
    kafka: KafkaConfig, new_topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """REC-17, REC-21."""
    topic = new_topic(kafka_partitions=3).topic
    produce, read = code_blocks(ROOT / "README.md", "python")

    _run(produce, kafka, topic)
    _run(read, kafka, topic)

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1, "one change; the heartbeats are read and not printed"
    assert lines[0].startswith("b'105' (SetCell(family='f', qualifier=b'name', value=b'Izumi'")


def test_readers_of_the_documents_run(
    kafka: KafkaConfig,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """SUB-3, SUB-4: those that end. A record that the program sets aside is replayed and comes
    again.
    """
    monkeypatch.chdir(tmp_path)
    topic = new_topic().topic
    create_group_topics(kafka, topic, "index")
    with ChangeProducer(kafka, topic) as producer:
        for number, key in enumerate((b"a", b"\xff", b"b")):
            producer.send(replace(change(number), row_key=key))
        producer.flush()
        producer.send(Heartbeat("p", 1_000_002))
    letters = code_blocks(ROOT / "docs/howto/replay-dead-letters.md", "python")[-1]
    pages = code_blocks(ROOT / "docs/howto/read-a-stream.md", "python")
    ends = [text for text in pages if "bounded=True" in text]
    assert len(ends) == 5
    for text in [*ends, letters, ends[-1]]:
        _run(text, kafka, topic)
    assert "the index takes ASCII only open" in capsys.readouterr().out
    found = [letter for letter, _ in read_letters(kafka, topic, group="index")]
    assert [(one.key, one.attempt) for one in found] == [(b"\xff", 0), (b"\xff", 1)]


@pytest.mark.parametrize(
    "page", ["docs/howto/write-a-producer.md", "docs/howto/write-exactly-once.md"]
)
def test_producers_of_the_documents_run(page: str, kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """REC-17."""
    topic = new_topic().topic
    for text in code_blocks(ROOT / Path(page), "python"):
        _run(text, kafka, topic)

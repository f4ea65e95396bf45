"""The README's Python runs as it stands, against a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.config.settings import KafkaConfig
from tests.broker import NewTopic
from tests.documents import ROOT, code_blocks


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


@pytest.mark.parametrize("page", ["docs/howto/write-a-producer.md"])
def test_producers_of_the_documents_run(page: str, kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """REC-17."""
    topic = new_topic().topic
    for text in code_blocks(ROOT / Path(page), "python"):
        _run(text, kafka, topic)

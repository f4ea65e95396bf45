"""Changes in one line, and records that no producer of ours would send."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Producer

from connector.config.settings import KafkaConfig
from connector.records.model import DataChange, SetCell


def change(
    number: int,
    *,
    timestamp: int | None = None,
    partition: str = "p",
    value: bytes = b"v",
    estimate: int = 0,
) -> DataChange:
    return DataChange(
        stream_partition=partition,
        table="t",
        row_key=b"row-%d" % number,
        commit_timestamp=1_000_000 + number if timestamp is None else timestamp,
        entries=(SetCell("f", b"q", value),),
        estimated_low_watermark=estimate,
    )


def changes(count: int) -> list[DataChange]:
    return [change(number) for number in range(count)]


def send_raw(
    kafka: KafkaConfig,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes | None]],
    partition: int = 0,
    **settings: str,
) -> None:
    """Key and value as they are, with no check of ours."""
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "log_level": 0,
            "message.max.bytes": 20_000_000,
            **settings,
        }
    )
    for key, value in records:
        producer.produce(topic, value, key, partition)
    assert producer.flush(30) == 0

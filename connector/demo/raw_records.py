"""Records with any bytes, without checks. The demo and the tests send bad records with them.

All other records go through `ChangeProducer`, which sends only records that a reader accepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Message

from connector.errors import DeliveryError, ErrorCode
from connector.kafka import client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector.config.settings import KafkaConfig
    from connector.records.rejection import Headers


@dataclass(frozen=True, slots=True)
class RawRecord:
    """Key, value and headers of a Kafka record. Key and value may be null."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def send_raw_records(
    kafka: KafkaConfig, topic: str, records: Sequence[RawRecord], timeout_s: float = 60.0
) -> list[tuple[int, int]]:
    """Send records, each to the Kafka partition of its key. Returns the Kafka partition and offset
    of each one.

    Use it for few records: all of them are in memory until the last one is acknowledged. Raises
    `DeliveryError` if a record was not acknowledged within `timeout_s`.
    """
    errors = client.LastError()
    producer = client.producer(kafka, errors, {})
    positions: dict[int, tuple[int, int]] = {}
    refused: list[str] = []

    def report(number: int, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            positions[number] = (partition, offset)
        else:
            refused.append(error.str() if error else "no position was reported")

    try:
        for number, record in enumerate(records):
            producer.produce(
                topic,
                record.value,
                record.key,
                on_delivery=partial(report, number),
                headers=list(record.headers),
            )
            producer.poll(0)
        producer.flush(timeout_s)
    except (BufferError, KafkaException, SystemError) as error:
        raise DeliveryError(
            ErrorCode.RECORD_REFUSED,
            f"Raw records for {topic} were not accepted",
            str(error),
            "Check the brokers",
        ) from error
    if len(positions) < len(records):
        missing = len(records) - len(positions)
        cause = refused[0] if refused else errors.text or f"no answer within {timeout_s:g} s"
        raise DeliveryError(
            ErrorCode.RECORDS_UNDELIVERED,
            f"{missing} raw records were not delivered to {topic}",
            cause,
            "Check the brokers",
            undelivered=missing,
        )
    return [positions[number] for number in range(len(records))]

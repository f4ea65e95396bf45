"""Publishes failed changes of a producer as dead letters (DLQ-2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from connector.clock import now_us
from connector.dead_letters.envelope import source_letter
from connector.kafka.dead_letters.topic import DeadLetterPublisher

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig
    from connector.kafka.produce.record_bytes import RecordBytes
    from connector.kafka.produce.results import Results
    from connector.records.model import DataChange


def set_aside(
    changes: Sequence[DataChange],
    headers: Sequence[tuple[str, bytes | None]],
    kafka: KafkaConfig,
    record_bytes: RecordBytes,
    results: Results,
) -> None:
    """Publish failed changes, and stop waiting for them. Raises as `DeadLetterPublisher` does."""
    failed = {change: results.why_failed(change) for change in changes}
    assert None not in failed.values(), "only what has failed is set aside"
    topic = record_bytes.topic
    with DeadLetterPublisher(kafka, topic) as publisher:
        for change, why in failed.items():
            value = record_bytes.of(replace(change, estimated_low_watermark=0))
            letter = source_letter(
                topic, change.row_key, value, tuple(headers), why or "", now=now_us()
            )
            # One at a time, so that a failure does not publish the others again: a second dead
            # letter of a change has another id.
            publisher.publish([letter])
            results.set_aside(change)

"""What the iteration of a `ChangeConsumer` yields, for mypy (SUB-1 to SUB-3). Nothing runs this."""

from __future__ import annotations

from typing import assert_type

from connector.config.settings import KafkaConfig
from connector.kafka import ChangeConsumer, ConsumerRecord, Late, Rejected, Watermark
from connector.kafka import WholeTransaction as Whole
from connector.kafka.consume.stages import Received

kafka = KafkaConfig("127.0.0.1:9092")

for record in ChangeConsumer(kafka, "t", start="end", group="g", replays=True):
    assert_type(record, ConsumerRecord)
for either in ChangeConsumer(kafka, "t", watermarks=True, roots=["p"]):
    assert_type(either, ConsumerRecord | Watermark)
for in_range in ChangeConsumer(kafka, "t", start_commit=1, end_commit=2):
    assert_type(in_range, ConsumerRecord | Late)
for item in ChangeConsumer(kafka, "t", transactions=True, end_commit=2, state=b""):
    assert_type(item, Whole | Late | Rejected)
for anything in ChangeConsumer(kafka, "t", transactions=True, watermarks=True):
    assert_type(anything, Received)
assert_type(ChangeConsumer(kafka, "t").poll(1), ConsumerRecord | None)


def chosen(*, whole: bool) -> ChangeConsumer[Received]:
    return ChangeConsumer(kafka, "t", transactions=whole)


ChangeConsumer(kafka, "t", unknown=1)  # type: ignore[call-overload]
ChangeConsumer(kafka, "t", group=5)  # type: ignore[call-overload]

"""What a `ChangeConsumer` yields, for mypy (SUB-1 to SUB-3, WRS-22). Nothing runs this."""

from __future__ import annotations

from typing import assert_type

from connector.config.settings import KafkaConfig
from connector.kafka import (
    ChangeConsumer,
    ConsumerRecord,
    Late,
    Rejected,
    Released,
    Staged,
    Watermark,
)
from connector.kafka import WholeTransaction as Whole
from connector.kafka.consume.stages import Received

kafka = KafkaConfig("127.0.0.1:9092")

for record in ChangeConsumer(kafka, "t", start="end", group="g", replays=True):
    assert_type(record, ConsumerRecord | Released)
for either in ChangeConsumer(kafka, "t", watermarks=True, roots=["p"]):
    assert_type(either, ConsumerRecord | Released | Watermark)
for in_range in ChangeConsumer(kafka, "t", start_commit=1, end_commit=2):
    assert_type(in_range, ConsumerRecord | Released | Late)
for item in ChangeConsumer(kafka, "t", transactions=True, end_commit=2, state=b""):
    assert_type(item, Whole | Late | Rejected | Released)
for anything in ChangeConsumer(kafka, "t", transactions=True, watermarks=True):
    assert_type(anything, Received)
assert_type(ChangeConsumer(kafka, "t").poll(1), ConsumerRecord | Released | None)
for row in ChangeConsumer(kafka, "t", staged=True, group="g"):
    assert_type(row, ConsumerRecord | Released | Staged)
for row_or_time in ChangeConsumer(kafka, "t", staged=True, watermarks=True):
    assert_type(row_or_time, ConsumerRecord | Released | Staged | Watermark)
for any_item in ChangeConsumer(kafka, "t", staged=True, transactions=True, state=b""):
    assert_type(any_item, Whole | Late | Rejected | Released | Staged)


def chosen(*, whole: bool) -> ChangeConsumer[Received]:
    return ChangeConsumer(kafka, "t", transactions=whole)


ChangeConsumer(kafka, "t", unknown=1)  # type: ignore[call-overload]
ChangeConsumer(kafka, "t", group=5)  # type: ignore[call-overload]

"""What the consumers yield, for mypy (SUB-1 to SUB-3, WRS-22). Nothing runs this."""

from __future__ import annotations

from typing import assert_type

from connector.config.settings import KafkaConfig
from connector.kafka import (
    ChangeConsumer,
    CommitRange,
    ConsumerRecord,
    Group,
    Late,
    Rejected,
    Released,
    Staged,
    StreamSettings,
    TransactionConsumer,
    Watermark,
    WatermarkConsumer,
)
from connector.kafka import WholeTransaction as Whole
from connector.records.model import Record
from connector.records.rejection import Rejection

kafka = KafkaConfig("127.0.0.1:9092")
group = Group("g", start="end", replays=True)

for record in ChangeConsumer(kafka, "t", start=group):
    assert_type(record, ConsumerRecord | Released | Staged)
    assert_type(record.record, Record | Rejection)
for either in WatermarkConsumer(kafka, "t", stream=StreamSettings(roots=["p"])):
    assert_type(either, ConsumerRecord | Watermark | Late | Released | Staged)
for item in TransactionConsumer(kafka, "t", start=b"", commits=CommitRange(end=2)):
    assert_type(item, Whole | Late | Rejected | Released | Staged)
assert_type(ChangeConsumer(kafka, "t").poll(1), ConsumerRecord | Released | Staged | None)

ChangeConsumer(kafka, "t", unknown=1)  # type: ignore[call-arg]
ChangeConsumer(kafka, "t", start=b"")  # type: ignore[arg-type]
ChangeConsumer(kafka, "t", commits=CommitRange())  # type: ignore[call-arg]
ChangeConsumer(kafka, "t").state()  # type: ignore[attr-defined]
TransactionConsumer(kafka, "t", kafka_partitions=[0])  # type: ignore[call-arg]

"""Kafka as a Spark source, and the offsets of a micro-batch.

The checkpoint has the offset range of a batch before it runs. The rows alone do not show it,
because transaction markers and aborted records use offsets too (TBL-5).

Spark's source fails for a record timestamp that does not fit into its type. Such a batch is read
again by this process, in pieces (REC-25).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from connector.config import java_settings
from connector.config.settings import KafkaConfig, StreamConfig
from connector.engine.schema import KAFKA
from connector.errors.changelog import checkpoint_foreign
from connector.spark.failures import text_of
from connector.spark.storage.hadoop import content_of, names_in, remove_folder
from connector.spark.storage.logged_batch import BatchRange, Offsets, same
from connector.validation import KafkaRecord, size_of

PIECE_RECORDS: Final = 20_000
PIECE_BYTES: Final = 16_000_000
_TIME_OVERFLOW: Final = "java.lang.ArithmeticException: long overflow"
"""The error of the source for such a record timestamp. Errors in expressions have other names."""


class Topic(Protocol):
    """The facts about the change topic that ingest reads for every batch (REC-4, REC-14)."""

    @property
    def topic_id(self) -> str: ...
    @property
    def kafka_partitions(self) -> int: ...


def read_stream(
    spark: SparkSession, kafka: KafkaConfig, stream: StreamConfig, start: Offsets
) -> DataFrame:
    """The records of the topic from `start` on. `start` must name every Kafka partition (TBL-1)."""
    reader = spark.readStream.format("kafka").options(
        **java_settings.options(kafka, Path.read_text)
    )
    return reader.options(
        subscribe=stream.topic,
        startingOffsets=json.dumps({stream.topic: {str(k): offset for k, offset in start.items()}}),
        includeHeaders="true",
        failOnDataLoss="true",
        maxOffsetsPerTrigger=str(stream.max_offsets_per_trigger),
        groupIdPrefix=f"lowmark-{stream.name}",
    ).load()


def is_time_overflow(error: BaseException) -> bool:
    """Whether the source failed because of a record timestamp."""
    return _TIME_OVERFLOW in text_of(error)


class Piece(NamedTuple):
    """A part of a batch that was read by this process."""

    records: list[KafkaRecord]
    offsets: BatchRange

    def as_columns(self) -> pa.RecordBatch:
        """The records with the schema `KAFKA`. Their times of arrival are decided."""
        return pa.RecordBatch.from_pylist([*map(_row, self.records)], KAFKA)


def pieces(records: Iterable[KafkaRecord], offsets: BatchRange) -> Iterator[Piece]:
    """The records of a batch in pieces that fit into memory. `offsets` is the range of all."""
    piece, size = list[KafkaRecord](), 0
    start, reached = offsets.start, dict(offsets.start)
    for record in records:
        piece.append(record)
        size += size_of(record.key, record.value, record.headers)
        reached[record.position.kafka_partition] = record.position.offset + 1
        if len(piece) >= PIECE_RECORDS or size >= PIECE_BYTES:
            yield Piece(piece, BatchRange(start, dict(reached)))
            start, piece, size = dict(reached), [], 0
    if piece or not same(start, offsets.end):
        yield Piece(piece, BatchRange(start, offsets.end))


def _row(record: KafkaRecord) -> dict[str, object]:
    headers = [{"key": name, "value": value} for name, value in record.headers]
    return {
        "kafka_partition": record.position.kafka_partition,
        "offset": record.position.offset,
        "record_timestamp": record.record_timestamp,
        "key": record.key,
        "value": record.value,
        "headers": headers or None,
    }


def batch_range(spark: SparkSession, checkpoint: str, batch_id: int, topic: str) -> BatchRange:
    """The offsets of a batch, from the checkpoint's offset log. `batch_id` is Spark's."""
    end = _logged_offsets(spark, f"{checkpoint}/offsets/{batch_id}", topic)
    before = f"{checkpoint}/offsets/{batch_id - 1}" if batch_id > 0 else f"{checkpoint}/sources/0/0"
    start = _logged_offsets(spark, before, topic)
    return BatchRange({k: start.get(k, 0) for k in end}, end)


def forget_checkpoint(spark: SparkSession, checkpoint: str, *, even_finished: bool = False) -> None:
    """Remove a checkpoint that has no acknowledged batch, which Spark refuses, or whose last batch
    was not acknowledged. With `even_finished`, any checkpoint is removed. The changelog says
    whether the last batch was logged. A one-shot query of Spark 4.1 that repeats a batch fails
    afterwards.
    """

    def newest(name: str) -> int:
        names = names_in(spark, f"{checkpoint}/{name}")
        return max((int(name) for name in names if name.isdigit()), default=-1)

    acknowledged = newest("commits")
    is_whole = acknowledged >= 0 and newest("offsets") == acknowledged
    if even_finished or not is_whole:
        remove_folder(spark, checkpoint)


def _logged_offsets(spark: SparkSession, path: str, topic: str) -> Offsets:
    text = content_of(spark, path)
    last = text[text.rindex("{", 0, text.rindex("{")) :] if text.rstrip().endswith("}}") else ""
    offsets = json.loads(last).get(topic) if last else None
    if offsets is None:
        raise checkpoint_foreign(
            f"The checkpoint file {path} has no offsets of the topic {topic}",
            "The checkpoint belongs to another topic, or is damaged",
        )
    return {int(k): int(offset) for k, offset in offsets.items()}

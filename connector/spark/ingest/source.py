"""Kafka as a Spark source, and the offsets of a micro-batch.

The checkpoint has the offset range of a batch before the batch runs. The rows alone do not show it,
because transaction markers and aborted records use offsets too. Therefore the range is read from
the checkpoint (TBL-5).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from connector.config import java_settings
from connector.config.settings import KafkaConfig, StreamConfig
from connector.errors import ErrorCode, WriterConflictError
from connector.spark.storage.offsets import BatchRange, Offsets


class Topic(Protocol):
    """The facts about the change topic that ingest reads from Kafka for every batch (REC-4,
    REC-14).
    """

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


def batch_range(spark: SparkSession, checkpoint: str, batch_id: int, topic: str) -> BatchRange:
    """The offsets of a batch, from the checkpoint's offset log. `batch_id` is Spark's."""
    end = _logged_offsets(spark, f"{checkpoint}/offsets/{batch_id}", topic)
    before = f"{checkpoint}/offsets/{batch_id - 1}" if batch_id > 0 else f"{checkpoint}/sources/0/0"
    start = _logged_offsets(spark, before, topic)
    return BatchRange({k: start.get(k, 0) for k in end}, end)


def forget_checkpoint(spark: SparkSession, checkpoint: str, *, even_finished: bool = False) -> None:
    """Remove a checkpoint that has no acknowledged batch, whose last batch was not acknowledged, or
    whose logs two processes have damaged. Spark refuses one that was killed while it wrote the
    first batch: it has a temporary file, and no batch.

    With `even_finished`, any checkpoint is removed. The changelog says whether the last batch was
    logged. A one-shot query of Spark 4.1 that repeats a batch fails after it has done so.
    """
    folder = _path(spark, checkpoint)
    files = folder.getFileSystem(_hadoop(spark))

    def newest(name: str) -> int:
        part = _path(spark, f"{checkpoint}/{name}")
        names = (
            [status.getPath().getName() for status in files.listStatus(part)]
            if files.exists(part)
            else []
        )
        return max((int(name) for name in names if name.isdigit()), default=-1)

    acknowledged = newest("commits")
    is_whole = acknowledged >= 0 and newest("offsets") == acknowledged
    if files.exists(folder) and (even_finished or not is_whole):
        files.delete(folder, True)


def _path(spark: SparkSession, path: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(path)


def _hadoop(spark: SparkSession) -> Any:
    return spark._jsparkSession.sessionState().newHadoopConf()


def _logged_offsets(spark: SparkSession, path: str, topic: str) -> Offsets:
    jvm: Any = spark._jvm
    file = _path(spark, path)
    stream = file.getFileSystem(_hadoop(spark)).open(file)
    try:
        text = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
    finally:
        stream.close()
    last = text[text.rindex("{", 0, text.rindex("{")) :] if text.rstrip().endswith("}}") else ""
    offsets = json.loads(last).get(topic) if last else None
    if offsets is None:
        raise WriterConflictError(
            ErrorCode.CHECKPOINT_FOREIGN,
            f"The checkpoint file {path} has no offsets of the topic {topic}",
            "The checkpoint belongs to another topic, or is damaged",
            "Delete the checkpoint folder of the stream: ingest continues from the changelog",
            topic=topic,
            path=path,
        )
    return {int(k): int(offset) for k, offset in offsets.items()}

"""The counts of a batch, read from the changelog by column (TBL-5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from connector.records.model import MAX_TIMESTAMP, ChildPartition, ChildPartitions
from connector.spark.sql import constant, skew_us
from connector.state.stream_progress import BatchCounts, Progress
from connector.watermarks.frontier import BatchClaims, Frontier, LineageRecord

_ARRIVAL: Final = "unix_micros(record_timestamp)"
_IS_REPLAY: Final = "(order_position.attempt > 0)"


def count_rows(
    rows: DataFrame,
    known_tables: Iterable[str],
    before: Progress,
    *,
    kafka_partitions: int,
    max_clock_skew_s: int,
) -> BatchCounts:
    """The counts of a batch's rows in the changelog.

    It is one aggregation over a few columns, and one over the lineage if there is any.
    """
    names = ", ".join(f"'{table}'" for table in sorted(known_tables)) or "NULL"
    low = constant(before.low_watermark or 0, "kafka_partition")
    # The same rule as `frontier.is_claim`.
    is_claim = (
        f"estimated_low_watermark BETWEEN 1 AND {MAX_TIMESTAMP} AND estimated_low_watermark -"
        f" {skew_us(max_clock_skew_s)} <= {_ARRIVAL}"
    )
    said = (
        f"CASE WHEN kind = 'change' THEN CASE WHEN {is_claim} THEN estimated_low_watermark ELSE 0"
        " END ELSE heartbeat.timestamp + 1 END"
    )
    # A replay makes no claim for its stream partition, which may have ended (DLQ-10).
    claim = f"CASE WHEN NOT {_IS_REPLAY} THEN {said} END"
    counted = (
        rows.groupBy(
            "kind",
            "reason",
            "rule",
            "stream_partition",
            "kafka_partition",
            F.expr(f"coalesce(table IN ({names}), false)").alias("known"),
        )
        .agg(
            F.count("*").alias("count"),
            F.expr(f"max({claim})").alias("claim"),
            F.expr(f"count_if(NOT ({is_claim}) AND estimated_low_watermark > 0)").alias("beyond"),
            F.expr(f"count_if(unix_micros(commit_timestamp) < {low})").alias("late"),
            F.expr("max(kafka_partitions)").alias("kafka_partitions"),
            F.expr(f"count(CASE WHEN NOT {_IS_REPLAY} THEN child_partitions END)").alias("lineage"),
            F.expr("max(unix_micros(ingest_time))").alias("read_at"),
        )
        .collect()
    )
    good = [row for row in counted if row["reason"] is None]
    lineage = _lineage(rows) if any(row["lineage"] for row in good) else ()
    widest = max([kafka_partitions, *(row["kafka_partitions"] for row in good)])
    changes = [row for row in good if row["kind"] == "change"]
    rejected: Counter[str] = Counter()
    for row in counted:
        if row["reason"] is not None:
            rejected["/".join(filter(None, (row["reason"], row["rule"])))] += row["count"]
    heard = BatchClaims(widest, _claims(good), lineage)
    return BatchCounts(
        changes=sum(row["count"] for row in changes),
        control=sum(row["count"] for row in good if row["kind"] == "control"),
        unknown_tables=sum(row["count"] for row in changes if not row["known"]),
        late=sum(row["late"] for row in changes),
        ignored_claims=sum(row["beyond"] for row in changes)
        + _smaller_claims(heard, before.frontier),
        rejected=rejected,
        heard=heard,
        read_at=max((row["read_at"] for row in counted), default=0),
    )


def _claims(counted: Iterable[Row]) -> dict[str, dict[int, int]]:
    claims: dict[str, dict[int, int]] = {}
    for row in counted:
        if row["claim"] is not None:
            of_one = claims.setdefault(row["stream_partition"], {})
            of_one[row["kafka_partition"]] = max(
                of_one.get(row["kafka_partition"], 0), row["claim"]
            )
    return claims


def _smaller_claims(heard: BatchClaims, before: Frontier) -> int:
    known = {
        name: before.partitions[name] for name in heard.claims.keys() & before.partitions.keys()
    }
    return sum(
        0 < claim < one.claims.get(k, 0)
        for name, one in known.items()
        for k, claim in heard.claims[name].items()
    )


def _lineage(rows: DataFrame) -> tuple[LineageRecord, ...]:
    """The child-partitions records of a batch, each one once for each Kafka partition."""
    said = rows.where(f"child_partitions IS NOT NULL AND NOT {_IS_REPLAY}").select(
        "kafka_partition", "kafka_partitions", "stream_partition", "child_partitions"
    )
    return tuple(
        LineageRecord(
            row["kafka_partition"],
            row["kafka_partitions"],
            _child_partitions(row["stream_partition"], row["child_partitions"]),
        )
        for row in said.distinct().collect()
    )


def _child_partitions(stream_partition: str, said: Row) -> ChildPartitions:
    def key(stored: bytearray | None) -> bytes | None:
        return None if stored is None else bytes(stored)

    children = tuple(
        ChildPartition(
            child["token"],
            tuple(child["parent_partition_tokens"]),
            key(child["start_key"]),
            key(child["end_key"]),
        )
        for child in said["children"]
    )
    return ChildPartitions(
        stream_partition, said["start_timestamp"], said["record_sequence"], children
    )

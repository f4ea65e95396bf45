"""What a stream has achieved so far: a pure function of the progress before and of a batch's rows, read back by column (TBL-5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from connector.merge import Retention
from connector.model import MAX_TIMESTAMP, ChildPartition, ChildPartitions
from connector.spark.sql import constant, skew_us
from connector.watermark import UNKNOWN, Frontier, Heard, Lineage, advance


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What the rows of a batch come to.

    `rejected` is by reason, `INVALID` with its rule behind a slash. `late` counts changes below the low watermark of the batch
    before (WMK-11). `ignored_claims` counts estimated low watermarks ahead of their arrival (REC-15), and once each stream
    partition that claimed less in a Kafka partition than before (WMK-2). `read_at` is the latest ingest time, in microseconds.
    """

    changes: int = 0
    control: int = 0
    unknown_tables: int = 0
    late: int = 0
    ignored_claims: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    heard: Heard = field(default_factory=lambda: Heard(0))
    read_at: int = 0

    @property
    def records(self) -> int:
        return self.changes + self.control + sum(self.rejected.values())


@dataclass(frozen=True, slots=True)
class Cut:
    """What an apply brings a table to: the changes of ingest batches up to `batch` with commit timestamps below `low_watermark`.

    The two name the state of the source at `low_watermark` (TBL-10). With `goes_past` the low watermark is not known or stalled, and
    everything ingested is applied (TBL-11).
    """

    batch: int
    low_watermark: int | None
    goes_past: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """The counts of all batches up to and including `ingest_batch`, 0 before the first, and what is complete with it.

    `unknown_tables` counts changes of source tables that no definition named when they were ingested (TBL-7). `horizon` is None
    while the low watermark is not known.
    """

    ingest_batch: int = 0
    changes: int = 0
    control: int = 0
    unknown_tables: int = 0
    late: int = 0
    ignored_claims: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    horizon: int | None = None
    frontier: Frontier = UNKNOWN

    @property
    def low_watermark(self) -> int | None:
        """Every change with a commit timestamp strictly below it is in the changelog, as far as the source's watermarks are true."""
        return self.frontier.low_watermark

    def cut(self, now: int, stall_after_s: int) -> Cut:
        """What all tables of the stream are to be brought to at `now` (TBL-10, TBL-11)."""
        is_stalled = self.frontier.is_stalled(now, stall_after_s * 1_000_000)
        return Cut(self.ingest_batch, self.low_watermark, self.low_watermark is None or is_stalled)

    def after(self, ingest_batch: int, counts: BatchCounts, retention: Retention, roots: frozenset[str]) -> Progress:
        """The progress once `ingest_batch`, the next one, is in the changelog. `roots` as in `watermark.advance`."""
        assert ingest_batch == self.ingest_batch + 1, (ingest_batch, self.ingest_batch)
        reasons = sorted({*self.rejected, *counts.rejected})
        frontier = advance(self.frontier, counts.heard, now=counts.read_at, horizon=self.horizon, roots=roots)
        return replace(
            self,
            ingest_batch=ingest_batch,
            changes=self.changes + counts.changes,
            control=self.control + counts.control,
            unknown_tables=self.unknown_tables + counts.unknown_tables,
            late=self.late + counts.late,
            ignored_claims=self.ignored_claims + counts.ignored_claims,
            rejected={reason: self.rejected.get(reason, 0) + counts.rejected.get(reason, 0) for reason in reasons},
            horizon=retention.horizon(self.horizon, frontier.low_watermark),
            frontier=frontier,
        )

    def to_json(self) -> dict[str, Any]:
        """All but the frontier, which may be large and has a row of its own."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "frontier"} | {
            "low_watermark": self.low_watermark
        }

    @staticmethod
    def from_json(stored: Mapping[str, Any], frontier: Frontier) -> Progress:
        return Progress(**{name: value for name, value in stored.items() if name != "low_watermark"}, frontier=frontier)


_ARRIVAL: Final = "unix_micros(record_timestamp)"


def count_rows(
    rows: DataFrame, known_tables: Iterable[str], before: Progress, *, kafka_partitions: int, max_clock_skew_s: int
) -> BatchCounts:
    """The counts of a batch's rows, from the changelog: one aggregation over a few columns, and one over the lineage if there is any."""
    names = ", ".join(f"'{table}'" for table in sorted(known_tables)) or "NULL"
    low = constant(before.low_watermark or 0, "kafka_partition")
    # As `watermark.is_claim` has it.
    is_claim = (
        f"estimated_low_watermark BETWEEN 1 AND {MAX_TIMESTAMP} AND estimated_low_watermark - {skew_us(max_clock_skew_s)} <= {_ARRIVAL}"
    )
    claim = f"CASE WHEN kind = 'change' THEN CASE WHEN {is_claim} THEN estimated_low_watermark ELSE 0 END ELSE heartbeat.timestamp + 1 END"
    counted = (
        rows.groupBy(
            "kind", "reason", "rule", "stream_partition", "kafka_partition", F.expr(f"coalesce(table IN ({names}), false)").alias("known")
        )
        .agg(
            F.count("*").alias("count"),
            F.expr(f"max({claim})").alias("claim"),
            F.expr(f"count_if(NOT ({is_claim}) AND estimated_low_watermark > 0)").alias("beyond"),
            F.expr(f"count_if(unix_micros(commit_timestamp) < {low})").alias("late"),
            F.expr("max(kafka_partitions)").alias("kafka_partitions"),
            F.expr("count(child_partitions)").alias("lineage"),
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
    heard = Heard(widest, _claims(good), lineage)
    return BatchCounts(
        changes=sum(row["count"] for row in changes),
        control=sum(row["count"] for row in good if row["kind"] == "control"),
        unknown_tables=sum(row["count"] for row in changes if not row["known"]),
        late=sum(row["late"] for row in changes),
        ignored_claims=sum(row["beyond"] for row in changes) + _smaller_claims(heard, before.frontier),
        rejected=rejected,
        heard=heard,
        read_at=max((row["read_at"] for row in counted), default=0),
    )


def _claims(counted: Iterable[Row]) -> dict[str, dict[int, int]]:
    claims: dict[str, dict[int, int]] = {}
    for row in counted:
        if row["claim"] is not None:
            of_one = claims.setdefault(row["stream_partition"], {})
            of_one[row["kafka_partition"]] = max(of_one.get(row["kafka_partition"], 0), row["claim"])
    return claims


def _smaller_claims(heard: Heard, before: Frontier) -> int:
    known = {name: before.partitions[name] for name in heard.claims.keys() & before.partitions.keys()}
    return sum(0 < claim < one.claims.get(k, 0) for name, one in known.items() for k, claim in heard.claims[name].items())


def _lineage(rows: DataFrame) -> tuple[Lineage, ...]:
    """The child-partitions records of a batch, each once for each Kafka partition."""
    said = rows.where("child_partitions IS NOT NULL").select("kafka_partition", "kafka_partitions", "stream_partition", "child_partitions")
    return tuple(
        Lineage(row["kafka_partition"], row["kafka_partitions"], _child_partitions(row["stream_partition"], row["child_partitions"]))
        for row in said.distinct().collect()
    )


def _child_partitions(stream_partition: str, said: Row) -> ChildPartitions:
    def key(stored: bytearray | None) -> bytes | None:
        return None if stored is None else bytes(stored)

    children = tuple(
        ChildPartition(child["token"], tuple(child["parent_partition_tokens"]), key(child["start_key"]), key(child["end_key"]))
        for child in said["children"]
    )
    return ChildPartitions(stream_partition, said["start_timestamp"], said["record_sequence"], children)

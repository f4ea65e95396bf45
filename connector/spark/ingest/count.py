"""The counts of a batch, read from the changelog by column (TBL-5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from connector.records.model import (
    MAX_TIMESTAMP,
    ChildPartition,
    ChildPartitions,
    OffsetRange,
    Release,
)
from connector.spark.ingest.validate import CONFLUENT_ID, row_image_contradicts
from connector.spark.sql import constant, skew_us
from connector.state.changelog_slots import CONTROL_SLOT, STAGED_SLOT
from connector.state.source_checks import (
    SAMPLE_RECORDS,
    BatchFindings,
    Placed,
    SchemaFields,
    ignored_claims,
)
from connector.state.stream_progress import BatchCounts, Progress
from connector.watermarks.frontier import BatchClaims, Frontier, LineageRecord
from connector.watermarks.producer_epoch import (
    EPOCH_HEADER,
    EPOCH_PATTERN,
    EpochRun,
    OlderProducer,
    newest_epochs,
    older_producer,
)

_ARRIVAL: Final = "unix_micros(record_timestamp)"
_IS_REPLAY: Final = "(order_position.attempt > 0)"

_CHECKED_TYPES: Final = ("DELETE", "INSERT")
"""The values of `mod_type` that entries can contradict (ING-7)."""

# The same rule as `producer_epoch.epoch_of`. A replay keeps no header of a producer (PUB-4).
_EPOCH_TEXT: Final = (
    f"cast(get(headers, cast(array_position(headers.key, '{EPOCH_HEADER}') AS int) - 1).value"
    " AS string)"
)
_EPOCH: Final = (
    f"CASE WHEN NOT {_IS_REPLAY} THEN"
    rf" cast(nullif(regexp_extract({_EPOCH_TEXT}, r'\A({EPOCH_PATTERN})\z', 1), '') AS bigint) END"
)


def count_rows(
    rows: DataFrame,
    known_tables: Iterable[str],
    before: Progress,
    *,
    kafka_partitions: int,
    max_clock_skew_s: int,
    tasks: int,
    unknown_fields: Callable[[Collection[int]], Mapping[int, tuple[str, ...]]] | None,
) -> BatchCounts:
    """The counts of a batch's rows in the changelog.

    It is one aggregation over a few columns, and one over the lineage if there is any. `tasks` read
    the rows. One task needs no exchange of rows, and so no second stage.
    `unknown_fields` returns those of the schemas with these ids (ING-3). None: no valid record of
    the batch has a schema with unknown fields.
    """
    counted = _counted(
        _with_epochs(rows).coalesce(tasks),
        known_tables,
        before.low_watermark or 0,
        max_clock_skew_s,
        unknown_fields is not None,
    )
    good = [row for row in counted if row["reason"] is None]
    lineage = _lineage(rows) if any(row["lineage"] for row in good) else ()
    staged = sum(row["count"] for row in good if row["kind"] == "staged")
    widest = max([kafka_partitions, *(row["kafka_partitions"] for row in good)])
    changes = [row for row in good if row["kind"] == "change"]
    rejected: Counter[str] = Counter()
    for row in counted:
        if row["reason"] is not None:
            rejected["/".join(filter(None, (row["reason"], row["rule"])))] += row["count"]
    runs = _epoch_runs(good)
    epochs = {name: newest_epochs(of_one) for name, of_one in runs.items()}
    heard = BatchClaims(widest, _claims(good), lineage, epochs)
    ignored = ignored_claims(_in_future(changes), heard, before.frontier)
    return BatchCounts(
        changes=sum(row["count"] for row in changes),
        control=sum(row["count"] for row in good if row["kind"] == "control"),
        staged=staged,
        streams=_staged_streams(rows) if staged else frozenset(),
        releases=_releases(rows) if any(row["releases"] for row in good) else (),
        unknown_tables=sum(
            row["count"] for row in good if row["kind"] in ("change", "staged") and not row["known"]
        ),
        late=sum(row["late"] for row in changes),
        declared=sum(row["declared"] for row in changes),
        ignored_claims=sum(sum(counts.values()) for counts in ignored.values()),
        rejected=rejected,
        heard=heard,
        read_at=max((row["read_at"] for row in counted), default=0),
        findings=BatchFindings(
            ignored=ignored,
            older_producers=_older_producers(runs, before.frontier),
            row_images={
                mod_type: count
                for mod_type in _CHECKED_TYPES
                if (count := sum(row[f"contradicting_{mod_type.lower()}"] for row in changes))
            },
            unknown_fields=_schemas(good, unknown_fields) if unknown_fields else {},
        ),
    )


def _with_epochs(rows: DataFrame) -> DataFrame:
    """`rows` with `epoch`, the epoch of the producer of a control record, and `epoch_offset`.

    The headers and offsets of other records are not read: they would double the time of the
    aggregation.
    """
    is_control = F.col("slot") == CONTROL_SLOT
    others = rows.where(~is_control).selectExpr(
        "*", "cast(NULL AS bigint) AS epoch", "cast(NULL AS bigint) AS epoch_offset"
    )
    control = rows.where(is_control).selectExpr("*", f"{_EPOCH} AS epoch", "offset AS epoch_offset")
    return others.union(control)


def sample_of_keys(rows: DataFrame) -> list[Placed]:
    """Some changes of a batch that are no replays, at most `SAMPLE_RECORDS` (ING-1).

    The same batch has the same sample. It has changes of all Kafka partitions and tables.
    """
    sample = (
        rows.where(f"kind = 'change' AND NOT {_IS_REPLAY}")
        .select("row_key", "kafka_partition", "kafka_partitions", "offset")
        .orderBy(F.xxhash64("kafka_partition", "offset"))
        .limit(SAMPLE_RECORDS)
        .collect()
    )
    return [Placed(bytes(key), *place) for key, *place in sample]


def _counted(
    rows: DataFrame,
    known_tables: Iterable[str],
    low_watermark: int,
    max_clock_skew_s: int,
    with_schemas: bool,
) -> list[Row]:
    """The counts of `count_rows`, by kind, reason, stream partition, Kafka partition and epoch."""
    names = ", ".join(f"'{table}'" for table in sorted(known_tables)) or "NULL"
    low = constant(low_watermark, "kafka_partition")
    # The same rule as `frontier.is_claim`.
    is_claim = (
        f"estimated_low_watermark BETWEEN 1 AND {MAX_TIMESTAMP} AND estimated_low_watermark -"
        f" {skew_us(max_clock_skew_s)} <= {_ARRIVAL}"
    )
    said = (
        f"CASE WHEN kind = 'change' THEN CASE WHEN {is_claim} THEN estimated_low_watermark ELSE 0"
        " END ELSE heartbeat.timestamp + 1 END"
    )
    contradicts = row_image_contradicts("row_image", "entries")
    # A replay makes no claim for its stream partition, which may have ended (DLQ-10).
    claim = f"CASE WHEN NOT {_IS_REPLAY} THEN {said} END"
    return (
        rows.groupBy(
            "kind",
            "reason",
            "rule",
            "stream_partition",
            "kafka_partition",
            F.expr(f"coalesce(table IN ({names}), false)").alias("known"),
            "epoch",
            F.expr(
                "cast(NULL AS bigint)"
                if not with_schemas
                else f"CASE WHEN reason IS NULL AND value IS NOT NULL THEN {CONFLUENT_ID} END"
            ).alias("schema_id"),
        )
        .agg(
            F.count("*").alias("count"),
            F.expr(f"max({claim})").alias("claim"),
            F.expr(f"count_if(NOT ({is_claim}) AND estimated_low_watermark > 0)").alias("beyond"),
            F.expr(f"count_if(unix_micros(commit_timestamp) < {low})").alias("late"),
            F.expr("count_if(transaction.number_of_records_in_transaction > 1)").alias("declared"),
            F.expr("max(kafka_partitions)").alias("kafka_partitions"),
            F.expr(f"count(CASE WHEN NOT {_IS_REPLAY} THEN child_partitions END)").alias("lineage"),
            F.expr("count(release)").alias("releases"),
            F.expr("max(unix_micros(ingest_time))").alias("read_at"),
            F.min("epoch_offset").alias("first_offset"),
            F.max("epoch_offset").alias("last_offset"),
            *(
                F.expr(f"count_if(row_image.mod_type = '{mod_type}' AND {contradicts})").alias(
                    f"contradicting_{mod_type.lower()}"
                )
                for mod_type in _CHECKED_TYPES
            ),
        )
        .collect()
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


def _in_future(changes: Iterable[Row]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in changes:
        found[row["stream_partition"]] += row["beyond"]
    return found


def _epoch_runs(counted: Iterable[Row]) -> dict[str, dict[int, list[EpochRun]]]:
    """The epochs of the control records, by stream partition and Kafka partition."""
    runs: dict[str, dict[int, list[EpochRun]]] = {}
    for row in counted:
        if row["epoch"] is not None:
            run = EpochRun(row["epoch"], row["first_offset"], row["last_offset"])
            of_one = runs.setdefault(row["stream_partition"], {})
            of_one.setdefault(row["kafka_partition"], []).append(run)
    return runs


def _older_producers(
    runs: Mapping[str, Mapping[int, list[EpochRun]]], before: Frontier
) -> dict[str, OlderProducer]:
    found = {}
    for name, by_place in runs.items():
        known = before.partitions[name].epochs if name in before.partitions else {}
        older = (older_producer(k, of_one, known.get(k, 0)) for k, of_one in by_place.items())
        signs = [sign for sign in older if sign is not None]
        if signs:
            found[name] = max(
                signs, key=lambda sign: (sign.newer, sign.older, sign.kafka_partition)
            )
    return found


def _schemas(
    counted: Iterable[Row],
    unknown_fields: Callable[[Collection[int]], Mapping[int, tuple[str, ...]]],
) -> dict[int, SchemaFields]:
    records: Counter[int] = Counter()
    for row in counted:
        if row["schema_id"] is not None:
            records[row["schema_id"]] += row["count"]
    fields = unknown_fields(records.keys()) if records else {}
    return {id_: SchemaFields(fields.get(id_, ()), count) for id_, count in records.items()}


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


def _staged_streams(rows: DataFrame) -> frozenset[str]:
    staged = rows.where(F.col("slot") == STAGED_SLOT).select("write_stream.stream").distinct()
    return frozenset(row["stream"] for row in staged.collect())


def _releases(rows: DataFrame) -> tuple[Release, ...]:
    """The releases of a batch, each one once."""
    found = rows.where((F.col("slot") == CONTROL_SLOT) & F.expr("release IS NOT NULL"))
    return tuple(
        Release(
            row["stream_partition"],
            row["release"]["commit_timestamp"],
            tuple(OffsetRange(**one.asDict()) for one in row["release"]["ranges"]),
        )
        for row in found.select("stream_partition", "release").distinct().collect()
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

"""The counts of a batch, from those of its rows in the changelog (TBL-5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from connector.records.model import Release, Truncate
from connector.state.source_checks import BatchFindings, SampledChange, SchemaFields, ignored_claims
from connector.state.stream_progress import BatchCounts, Progress
from connector.state.unapplied import TableChanges
from connector.watermarks.frontier import BatchClaims, Frontier, LineageRecord
from connector.watermarks.producer_epoch import (
    EpochRun,
    OlderProducer,
    newest_epochs,
    older_producer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRows:
    """The rows to count: those of an ingest batch in some files of a changelog.

    - `changelog` is its folder. Each of `files` is the JSON of an action of Delta's log that adds
      the file.
    - Changes with a commit timestamp below `low_watermark` are late.
    - A claim may be `max_clock_skew` (µs) after the arrival of its record.
    - `with_schemas`: valid records are also counted by the id of the schema in their value.
    - `sample` is the number of changes to take as a sample.
    """

    changelog: str
    files: tuple[str, ...]
    ingest_batch: int
    known_tables: frozenset[str]
    low_watermark: int
    max_clock_skew: int
    with_schemas: bool
    sample: int


@dataclass(slots=True)
class RowCounts:
    """The counts of rows, as far as they do not depend on earlier batches.

    - `kafka_partitions` is the greatest number that a valid record names.
    - `claims` has the greatest claim by stream partition and Kafka partition, and `in_future` the
      number of claims too far after their arrival, by stream partition.
    - `epochs` are those of the control records, by stream partition and Kafka partition: the least
      and the greatest offset of each.
    - `lineage`, `releases` and `truncations` have each record once, in the order of the rows.
    - `row_images` counts contradictions by `mod_type`, and `schemas` the records by schema id.
    - `written` is the size of the files. `tables` has the changes by source table.
    """

    changes: int = 0
    control: int = 0
    staged: int = 0
    unknown_tables: int = 0
    late: int = 0
    declared: int = 0
    kafka_partitions: int = 0
    read_at: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    claims: dict[str, dict[int, int]] = field(default_factory=dict)
    in_future: Counter[str] = field(default_factory=Counter)
    epochs: dict[str, dict[int, dict[int, EpochRun]]] = field(default_factory=dict)
    lineage: dict[LineageRecord, None] = field(default_factory=dict)
    releases: dict[Release, None] = field(default_factory=dict)
    truncations: dict[Truncate, None] = field(default_factory=dict)
    streams: set[str] = field(default_factory=set)
    row_images: Counter[str] = field(default_factory=Counter)
    schemas: Counter[int] = field(default_factory=Counter)
    sample: list[SampledChange] = field(default_factory=list)
    written: int = 0
    tables: dict[str, TableChanges] = field(default_factory=dict)

    def of_table(self, source: str, changes: TableChanges) -> None:
        """Count changes of a source table."""
        self.tables[source] = self.tables.get(source, TableChanges()) + changes

    def claim(self, stream_partition: str, kafka_partition: int, claim: int) -> None:
        """Count a claim. It is 0 if there were records, but no claim."""
        of_one = self.claims.setdefault(stream_partition, {})
        of_one[kafka_partition] = max(claim, of_one.get(kafka_partition, 0))

    def epoch(self, stream_partition: str, kafka_partition: int, epoch: int, offset: int) -> None:
        runs = self.epochs.setdefault(stream_partition, {}).setdefault(kafka_partition, {})
        run = runs.get(epoch, EpochRun(epoch, offset, offset))
        runs[epoch] = EpochRun(epoch, min(run.first, offset), max(run.last, offset))


CountRows = Callable[[BatchRows], RowCounts]
"""Counts the rows of a batch. Raises `TableError` if a file cannot be read."""


def counts_of(
    rows: RowCounts,
    before: Progress,
    kafka_partitions: int,
    unknown_fields: Mapping[int, tuple[str, ...]],
) -> BatchCounts:
    """The counts of a batch after the progress `before`, in a topic with so many Kafka partitions.
    `unknown_fields` are those of the schemas of its records (ING-3).
    """
    truncations = tuple(rows.truncations)
    runs = {
        name: {k: list(of_one.values()) for k, of_one in by_place.items()}
        for name, by_place in rows.epochs.items()
    }
    claims = BatchClaims(
        max(kafka_partitions, rows.kafka_partitions),
        rows.claims,
        tuple(rows.lineage),
        {name: newest_epochs(of_one) for name, of_one in runs.items()},
    )
    ignored = ignored_claims(rows.in_future, claims, before.frontier)
    return BatchCounts(
        changes=rows.changes,
        control=rows.control,
        staged=rows.staged,
        streams=frozenset(rows.streams),
        releases=tuple(rows.releases),
        truncations=truncations,
        unknown_tables=rows.unknown_tables,
        late=rows.late,
        declared=rows.declared + sum(map(_is_declared, truncations)),
        ignored_claims=sum(sum(counts.values()) for counts in ignored.values()),
        rejected=rows.rejected,
        claims=claims,
        read_at=rows.read_at,
        findings=BatchFindings(
            ignored=ignored,
            older_producers=_older_producers(runs, before.frontier),
            row_images=rows.row_images,
            unknown_fields={
                id_: SchemaFields(unknown_fields.get(id_, ()), count)
                for id_, count in rows.schemas.items()
            },
        ),
    )


def _is_declared(truncate: Truncate) -> bool:
    transaction = truncate.transaction
    return transaction is not None and transaction.number_of_records_in_transaction > 1


def _older_producers(
    runs: Mapping[str, Mapping[int, list[EpochRun]]], before: Frontier
) -> dict[str, OlderProducer]:
    older_producers = {}
    for name, by_partition in runs.items():
        newest_epochs_before = before.partitions[name].epochs if name in before.partitions else {}
        older = (
            older_producer(k, runs_of_partition, newest_epochs_before.get(k, 0))
            for k, runs_of_partition in by_partition.items()
        )
        signs = [sign for sign in older if sign is not None]
        if signs:
            older_producers[name] = max(
                signs, key=lambda sign: (sign.newer, sign.older, sign.kafka_partition)
            )
    return older_producers

"""The findings of ingest about the producers of a stream, beyond single records (PUB-4, ING-1,
ING-3, ING-4, ING-7).

A finding rejects nothing. It is counted with the progress of the stream, and `status` shows it.
Each kind of finding has at most `MAX_NAMES` names, so that the stored form stays small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Final, NamedTuple, TypeVar

from connector.records.views import Hidden, Listed, Named, Shown, Time, TimeOrNull
from connector.watermarks.frontier import BatchClaims, Frontier
from connector.watermarks.producer_epoch import OlderProducer

MAX_NAMES: Final = 50
MAX_FIELDS: Final = 10
MAX_FIELD_LENGTH: Final = 100
MAX_SHOWN_KEY_BYTES: Final = 64

SAMPLE_EVERY_S: Final = 60
SAMPLE_RECORDS: Final = 1_000

_Key = TypeVar("_Key", bound=str)
_Name = TypeVar("_Name", str, int)
_Finding = TypeVar("_Finding")


class Ignored(StrEnum):
    """Why a watermark claim had no effect (ING-4).

    - `IN_FUTURE`: an estimated low watermark too far after its arrival (REC-15).
    - `BACKWARDS`: below an earlier claim of the stream partition in the Kafka partition (WMK-2).
    - `ENDED`: the stream partition has ended.
    - `OLDER_ANNOUNCEMENT`: an announcement older than one that was read before in the Kafka
      partition, usually of an older producer (WMK-6).
    - `LATER_START`: the start timestamp of a child, where another parent named another one. The
      later one has no effect (WMK-7).
    """

    IN_FUTURE = "in_future"
    BACKWARDS = "backwards"
    ENDED = "ended"
    OLDER_ANNOUNCEMENT = "older_announcement"
    LATER_START = "later_start"


@dataclass(frozen=True, slots=True)
class IgnoredClaims:
    """How many claims of a stream partition had no effect, for one reason."""

    stream_partition: str
    reason: Ignored
    count: int


@dataclass(frozen=True, slots=True)
class TwoProducers:
    """The newest sign that two producers write one stream partition: both epochs, where, in how
    many batches so far, and when the last one was read (µs).
    """

    kafka_partition: int
    older_epoch: int
    newer_epoch: int
    batches: int
    last_at: Time


@dataclass(frozen=True, slots=True)
class SchemaFields:
    """The fields of a writer schema that are not known here, and how many records have it."""

    fields: tuple[str, ...]
    records: int


class SampledChange(NamedTuple):
    """A change of a sample, and the number of Kafka partitions that it names."""

    key: bytes
    kafka_partition: int
    kafka_partitions: int
    offset: int


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A change in a wrong Kafka partition. `key` has `MAX_SHOWN_KEY_BYTES` bytes at most."""

    key: bytes
    kafka_partition: int
    offset: int
    right_partition: int
    kafka_partitions: int


@dataclass(frozen=True, slots=True)
class KeyPlacement:
    """The changes of all samples, how many of them were in a wrong Kafka partition, and the newest
    one of these. `sampled_at` is the time of the last sample (µs), or 0.
    """

    sampled_at: TimeOrNull = 0
    sampled: int = 0
    misplaced: int = 0
    example: Misplaced | None = None

    def is_due(self, now: int) -> bool:
        return now - self.sampled_at >= SAMPLE_EVERY_S * 1_000_000

    def after(
        self, sample: Iterable[SampledChange], partition_of: Callable[[bytes, int], int], now: int
    ) -> KeyPlacement:
        """Compare the changes of a sample with the Kafka partitions of their keys (ING-1).

        `partition_of` returns the Kafka partition of a key among so many Kafka partitions.
        """
        placed = list(sample)
        wrong = [
            Misplaced(
                change.key[:MAX_SHOWN_KEY_BYTES],
                change.kafka_partition,
                change.offset,
                right,
                change.kafka_partitions,
            )
            for change in placed
            if (right := partition_of(change.key, change.kafka_partitions))
            != change.kafka_partition
        ]
        return KeyPlacement(
            now,
            self.sampled + len(placed),
            self.misplaced + len(wrong),
            max(wrong, key=lambda change: (change.offset, change.kafka_partition))
            if wrong
            else self.example,
        )


@dataclass(frozen=True, slots=True)
class BatchFindings:
    """The findings in one batch.

    - `ignored` counts claims by stream partition and reason.
    - `older_producers` is by stream partition.
    - `row_images` counts the changes whose row image contradicts their entries, by `mod_type`.
    - `unknown_fields` counts valid records by the id of a schema that has unknown fields.
    """

    ignored: Mapping[str, Mapping[Ignored, int]] = field(default_factory=dict)
    older_producers: Mapping[str, OlderProducer] = field(default_factory=dict)
    row_images: Mapping[str, int] = field(default_factory=dict)
    unknown_fields: Mapping[int, SchemaFields] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceChecks:
    """The findings of all batches: of each kind, the most or the newest."""

    ignored: Hidden[Mapping[str, Mapping[Ignored, int]]] = field(default_factory=dict)
    two_producers: Annotated[Mapping[str, TwoProducers], Listed("stream_partition")] = field(
        default_factory=dict
    )
    row_images: Annotated[Mapping[str, int], Named("row_image_mismatches")] = field(
        default_factory=dict
    )
    unknown_fields: Annotated[Mapping[int, SchemaFields], Listed("schema_id")] = field(
        default_factory=dict
    )
    placement: Annotated[KeyPlacement, Named("key_placement")] = field(default_factory=KeyPlacement)

    @property
    def ignored_claims_by_partition(self) -> Shown[list[IgnoredClaims]]:
        """The claims without effect; stream partitions with the most of them come first."""
        names = sorted(self.ignored, key=lambda name: (-sum(self.ignored[name].values()), name))
        return [
            IgnoredClaims(name, reason, count)
            for name in names
            for reason, count in self.ignored[name].items()
        ]

    def after(self, findings: BatchFindings, placement: KeyPlacement, now: int) -> SourceChecks:
        """Return the findings after a batch that was read at `now`."""
        ignored = {
            name: sum_counts(self.ignored.get(name, {}), counts)
            for name, counts in findings.ignored.items()
        }
        producers = {
            name: self._two(name, older, now) for name, older in findings.older_producers.items()
        }
        schemas = {id_: self._fields(id_, new) for id_, new in findings.unknown_fields.items()}
        return replace(
            self,
            ignored=_greatest({**self.ignored, **ignored}, lambda counts: sum(counts.values())),
            two_producers=_greatest({**self.two_producers, **producers}, lambda two: two.last_at),
            row_images=sum_counts(self.row_images, findings.row_images),
            unknown_fields=_greatest(
                {**self.unknown_fields, **schemas}, lambda schema: schema.records
            ),
            placement=placement,
        )

    def _two(self, name: str, older: OlderProducer, now: int) -> TwoProducers:
        before = self.two_producers.get(name)
        batches = 1 if before is None else before.batches + 1
        return TwoProducers(older.kafka_partition, older.older, older.newer, batches, now)

    def _fields(self, schema_id: int, fields: SchemaFields) -> SchemaFields:
        before = self.unknown_fields.get(schema_id)
        shown = tuple(name[:MAX_FIELD_LENGTH] for name in fields.fields[:MAX_FIELDS])
        return SchemaFields(shown, fields.records + (0 if before is None else before.records))


NOTHING_FOUND: Final = SourceChecks()


def ignored_claims(
    in_future: Mapping[str, int], claims: BatchClaims, before: Frontier
) -> dict[str, dict[Ignored, int]]:
    """Count the claims of a batch without effect, by stream partition and reason (ING-4).

    `in_future` counts those of the batch. For each Kafka partition, a batch counts at most one
    claim that goes backwards, and one of a stream partition that has ended. An announcement counts
    if it is older than the newest one of the batches before. A record that ends a parent counts if
    it gives a child another start timestamp than the batches before, or a later one than the batch.
    """
    ignored: dict[str, Counter[Ignored]] = {
        name: Counter({Ignored.IN_FUTURE: count}) for name, count in in_future.items() if count
    }

    def add(name: str, reason: Ignored) -> None:
        ignored.setdefault(name, Counter())[reason] += 1

    for name, by_kafka_partition in claims.claims.items():
        partition = before.partitions.get(name)
        for k, claim in by_kafka_partition.items():
            if name in before.ended and claim:
                add(name, Ignored.ENDED)
            elif partition is not None and 0 < claim < partition.claims.get(k, 0):
                add(name, Ignored.BACKWARDS)
    newest = {
        (root, k): start
        for (root, start), announcement in sorted(before.announcements.items())
        for k in announcement.read_in
    }
    earlier_starts = {
        name: partition.start for name, partition in before.partitions.items() if partition.start
    }
    starts = _starts_of_children(claims, earlier_starts)
    for lineage in claims.lineage:
        record = lineage.record
        key = record.stream_partition, lineage.kafka_partition
        if born := [child.token for child in record.children if child.parent_partition_tokens]:
            at = record.start_timestamp
            if any({at} != {starts[token], earlier_starts.get(token, at)} for token in born):
                add(record.stream_partition, Ignored.LATER_START)
        elif record.start_timestamp < newest.get(key, before.past_roots.get(key[0], 0)):
            add(record.stream_partition, Ignored.OLDER_ANNOUNCEMENT)
    return {name: dict(counts) for name, counts in sorted(ignored.items())}


def _starts_of_children(claims: BatchClaims, earlier_starts: Mapping[str, int]) -> dict[str, int]:
    """Return the least start timestamp of each child that the ends of a batch name."""
    starts = dict(earlier_starts)
    for lineage in claims.lineage:
        for child in lineage.record.children:
            if child.parent_partition_tokens:
                at = lineage.record.start_timestamp
                starts[child.token] = min(at, starts.get(child.token, at))
    return starts


def sum_counts(first: Mapping[_Key, int], second: Mapping[_Key, int]) -> dict[_Key, int]:
    return {key: first.get(key, 0) + second.get(key, 0) for key in sorted({*first, *second})}


def _greatest(
    by_name: Mapping[_Name, _Finding], weight: Callable[[_Finding], int]
) -> dict[_Name, _Finding]:
    if len(by_name) <= MAX_NAMES:
        return dict(by_name)
    ordered = sorted(by_name, key=lambda name: (-weight(by_name[name]), name))
    return {name: by_name[name] for name in sorted(ordered[:MAX_NAMES])}

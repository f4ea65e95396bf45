"""Ingest: from Kafka into the changelog (TBL-1 to TBL-5). `Ingest.batch` is the whole journey of a micro-batch, on one page.

The order of effects is the order of promises. The changelog's commit is the fact. The progress that is derived from its rows is part
of it; where rows were rejected, it is a commit of its own, behind their letters. Spark's acknowledgement comes last. A crash between
two steps runs the batch again: it finds its commit, publishes the same letters with the same ids, and derives the same progress.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from connector.config.settings import StreamConfig
from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.external import ExternalDeadLetters
from connector.errors import StreamHaltedError
from connector.records import codec
from connector.spark.ingest.count import count_rows
from connector.spark.ingest.dead_letters import rejected_letters
from connector.spark.ingest.replays import UNSEEN_REPLAY, with_replays, without_replays
from connector.spark.ingest.source import Topic
from connector.spark.ingest.validate import UNSEEN_SCHEMA, schema_ids, validated
from connector.spark.storage.changelog import Changelog, LoggedBatch
from connector.spark.storage.offsets import BatchRange, same
from connector.state.overrides import ClosePartition
from connector.state.stream_progress import BatchCounts, Progress
from connector.tables.retention import Retention
from connector.validation import KafkaRecord, validate_record
from connector.watermarks.freshness import EndOffsets

MIN_RECORDS_FOR_RATIO = 1_000
"""A batch with fewer records says nothing about a disaster (DLQ-5)."""

RECORDS_PER_TASK = 10_000
"""A batch of fewer is written by one task: each task leaves files of its own, and a small one costs as much as it saves."""


@dataclass(frozen=True, slots=True)
class IngestPorts:
    """What ingest needs of Kafka and the clock, as functions: the folder that knows Kafka is not this one.

    `topic` asks for the topic's identity and Kafka partitions anew; `high_watermarks` for the end of every Kafka partition, open
    transactions included. `publish` delivers letters, or raises; it returns how many there were. `schema_by_id` asks the
    registry: the schema's JSON, None if there is no such id; it raises if it cannot tell. None in its place: no registry is
    configured. `now` is the time in microseconds. `ends` asks for the stream partitions of this stream that operators want ended, as
    far as their numbers are greater than the one given (WMK-8); `discarded` for the ids of letters that are (DLQ-3). `outside` goes on
    counting the letters of others, as far as Kafka can tell; so many were published since by ingest itself (DLQ-7).
    """

    topic: Callable[[], Topic]
    publish: Callable[[Iterable[DeadLetter]], int]
    now: Callable[[], int]
    high_watermarks: Callable[[], Mapping[int, int]]
    schema_by_id: Callable[[int], str | None] | None = None
    ends: Callable[[int], Sequence[ClosePartition]] = lambda taken_to: ()
    discarded: Callable[[], frozenset[str]] = frozenset
    outside: Callable[[ExternalDeadLetters, int], ExternalDeadLetters] = lambda known, published: known


class Ingest:
    """Ingest of one stream. Not for use by two threads at once."""

    def __init__(
        self,
        stream: StreamConfig,
        changelog: Changelog,
        world: IngestPorts,
        *,
        known_tables: frozenset[str],
        known_families: frozenset[str] = frozenset(),
        reject_unknown_tables: bool,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._stream = stream
        self._changelog = changelog
        self._world = world
        self._known_tables = known_tables
        self._known_families = known_families
        self._only_tables = known_tables if reject_unknown_tables else None
        self._schemas = codec.Schemas()
        self._writer = uuid.uuid4().hex
        self._on_step = on_step

    def batch(self, rows: DataFrame, offsets: BatchRange) -> Progress:
        """Take one micro-batch to the end; called again after a crash, it goes on where it was. Returns the progress.

        `rows` are those of Spark's Kafka source at `offsets`; an empty range is nothing to log. Raises what stops the stream:
        `WriterConflictError`, `TopicError`, `RegistryError`, `DeliveryError`, `StorageError`, `StreamHaltedError`; after all but
        the last the batch is to be taken again.
        """
        if same(offsets.start, offsets.end):
            return self._changelog.progress()
        topic = self._world.topic()
        batch = self._changelog.find(offsets, topic.topic_id)
        if batch is None:
            self.recover()
            batch = self._log(rows, offsets, topic)
        self._on_step("logged")
        return self._follow_up(batch)

    def recover(self) -> None:
        """Publish the letters and derive the progress of the newest batch, if a crash came between. Before anything else is read."""
        newest = self._changelog.newest()
        if newest is not None and self._changelog.progress(with_frontier=False).ingest_batch < newest.ingest_batch:
            self._follow_up(newest)

    def is_at_end(self) -> bool:
        """Whether the changelog ends where Kafka does, open transactions included: there is nothing to read. Never for another topic."""
        newest = self._changelog.newest()
        if newest is None or self._world.topic().topic_id != newest.topic_id:
            return False
        return same(newest.offsets.end, self._world.high_watermarks())

    def renew(self) -> None:
        """Ask Kafka for its ends again. If everything was read, the states of the stream are as new as this moment (TBL-16)."""
        newest, progress, asked = self._changelog.newest(), self._changelog.progress(with_frontier=False), self._asked()
        is_quiet = newest is not None and progress.ingest_batch == newest.ingest_batch and asked.is_contained(newest.offsets.end)
        if newest is not None and is_quiet and self._world.topic().topic_id == newest.topic_id:
            self._changelog.renew(self._with_outside(progress.renewed(newest.offsets.end, asked), 0))

    def end_partitions(self) -> bool:
        """Take the ends that operators wish for with a batch that reads nothing: one that does may be long in coming (WMK-8).

        Returns whether there is such a batch. Raises as `batch` does.
        """
        newest, progress = self._changelog.newest(), self._changelog.progress(with_frontier=False)
        if newest is None or progress.ingest_batch < newest.ingest_batch or not (overrides := self._world.ends(progress.closed_to)):
            return False
        topic = self._world.topic()
        if topic.topic_id != newest.topic_id:
            return False
        batch = replace(
            newest,
            ingest_batch=newest.ingest_batch + 1,
            kafka_partitions=topic.kafka_partitions,
            asked=self._asked(),
            writer=self._writer,
            ends=tuple(overrides),
        )
        self._changelog.append_nothing(batch)
        self._on_step("logged")
        self._follow_up(batch)
        return True

    def _with_outside(self, progress: Progress, published: int) -> Progress:
        return replace(progress, external_dead_letters=self._world.outside(progress.external_dead_letters, published))

    def _asked(self) -> EndOffsets:
        at = self._world.now()
        return EndOffsets(at, self._world.high_watermarks())

    def _follow_up(self, batch: LoggedBatch) -> Progress:
        before = self._changelog.progress_before(batch)
        if before.ingest_batch == batch.ingest_batch:
            self._on_step("progress committed")
            return before
        counts = self._counted(self._changelog.batch_rows(batch.ingest_batch), batch, before)
        published = 0
        if counts.rejected:
            rejected = self._changelog.rejected(batch.ingest_batch)
            # A process that did not log the batch has not seen its schemas yet, and letters must not depend on who writes them.
            self._learn_schemas(rejected)
            published = self._world.publish(rejected_letters(rejected, lambda record: self._explain(record, batch, before.horizon)))
        self._on_step("letters published")
        progress = self._progress_after(before, batch, counts, published)
        self._changelog.append_progress(progress)
        self._on_step("progress committed")
        self._halt_on_disaster(batch, counts)
        return progress

    def _settled(self, rows: DataFrame, batch: LoggedBatch, before: Progress) -> Progress | None:
        """The progress after `before` with rows of a batch that are written and not yet committed; None where some were rejected.

        The letters of these come behind the commit: before it, another attempt may still judge the records otherwise.
        """
        self._on_step("rows written")
        counts = self._counted(rows, batch, before)
        return None if counts.rejected else self._progress_after(before, batch, counts, published=0)

    def _counted(self, rows: DataFrame, batch: LoggedBatch, before: Progress) -> BatchCounts:
        skew_s = self._stream.limits.max_clock_skew_s
        return count_rows(rows, self._known_tables, before, kafka_partitions=batch.kafka_partitions, max_clock_skew_s=skew_s)

    def _progress_after(self, before: Progress, batch: LoggedBatch, counts: BatchCounts, published: int) -> Progress:
        retention, roots = Retention(self._stream.delete_retention_s), frozenset(self._stream.partitions)
        after = before.after(batch.ingest_batch, counts, batch.offsets.end, batch.asked, retention, roots, batch.ends)
        return self._with_outside(after, published)

    def _log(self, rows: DataFrame, offsets: BatchRange, topic: Topic) -> LoggedBatch:
        newest = self._changelog.newest()
        number = newest.ingest_batch + 1 if newest else 1
        changelog_id = newest.changelog_id if newest else uuid.uuid4().hex
        before = self._changelog.progress()
        # With the batch, so that whoever derives its progress after a crash takes the same ones.
        ends = tuple(self._world.ends(before.closed_to))
        batch = LoggedBatch(number, offsets, topic.topic_id, topic.kafka_partitions, self._asked(), changelog_id, self._writer, ends)
        # What the registry does not know today it may know tomorrow: absent ids are asked for again with each batch.
        self._schemas = codec.Schemas({id_: schema for id_, schema in self._schemas.by_id.items() if schema is not None})
        placed, known = without_replays(rows), set[str]()
        while True:
            try:
                self._append(placed, batch, before)
                return batch
            except (PySparkException, Py4JError) as error:
                unseen = next((one for one in (UNSEEN_SCHEMA, UNSEEN_REPLAY) if one in str(error)), None)
                if unseen is None or unseen in known:
                    raise
                known.add(unseen)
            if unseen == UNSEEN_SCHEMA:
                self._learn_schemas(rows)
            else:
                placed = with_replays(rows, self._changelog.rows() if newest else None, topic.topic_id)

    def _learn_schemas(self, rows: DataFrame) -> None:
        """Ask the registry for the schema ids in `rows` that it was not asked about yet."""
        if self._world.schema_by_id is None:
            return
        known = self._schemas.by_id
        unseen = [row["id"] for row in schema_ids(rows).collect() if row["id"] not in known]
        self._schemas = codec.Schemas({**known, **{id_: self._world.schema_by_id(id_) for id_ in unseen}})

    def _append(self, rows: DataFrame, batch: LoggedBatch, before: Progress) -> None:
        verdicts = validated(
            rows,
            schemas=self._schemas,
            ask_registry=self._world.schema_by_id is not None,
            limits=self._stream.limits,
            kafka_partitions=batch.kafka_partitions,
            tables=self._only_tables,
            known_tables=self._known_tables,
            known_families=self._known_families,
            # The batch before has committed it, so a batch that runs again decides the same (MRG-11).
            horizon=before.horizon,
        )
        few = verdicts.coalesce(1 + batch.offsets.records // RECORDS_PER_TASK)
        self._changelog.append(few, batch, ingest_time=self._world.now(), settle=partial(self._settled, batch=batch, before=before))

    def _explain(self, record: KafkaRecord, batch: LoggedBatch, horizon: int | None) -> object:
        return validate_record(
            record,
            schemas=self._schemas,
            limits=self._stream.limits,
            kafka_partitions=batch.kafka_partitions,
            tables=self._only_tables,
            horizon=horizon,
        )

    def _halt_on_disaster(self, batch: LoggedBatch, counts: BatchCounts) -> None:
        counted = {reason: count for reason, count in counts.rejected.items() if reason != "TOO_LATE"}
        rejected = sum(counted.values())
        too_many = counts.records >= MIN_RECORDS_FOR_RATIO and rejected > self._stream.max_dead_letter_ratio * counts.records
        if not too_many and not (self._stream.halt_on_first and rejected):
            return
        reason, name = max(counted, key=lambda name: counted[name]), self._stream.name
        raise StreamHaltedError(
            f"{rejected} of {counts.records} records of batch {batch.ingest_batch} of stream {name} were rejected, "
            f"most of them ({counted[reason]}) as {reason}",
            "Their letters are published and nothing is lost; the stream stops so that a common cause is noticed",
            f"See `connector dead-letters list --stream {name}`, mend the cause, start `connector run` again, and replay what it rejected: "
            f'`connector dead-letters replay --stream {name} --ingest-batch {batch.ingest_batch} --execute --why "…"`',
            reason=reason,
        )

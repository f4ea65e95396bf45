"""Ingest: from Kafka into the changelog (TBL-1 to TBL-5). `Ingest.batch` shows all steps of a
micro-batch.

The changelog's commit comes first, with the progress from its rows. If rows were rejected, the
progress is a second commit, after their dead letters. After a crash between two steps, the batch
runs again, finds its commit, publishes the same dead letters, and computes the same progress.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from connector.config.settings import StreamConfig
from connector.dead_letters.ledger import ExternalDeadLetters
from connector.engine.batch import IngestJob, changelog_rows, registry_ids
from connector.engine.replays import letters_of, replays_in
from connector.engine.rules import RecordRules
from connector.engine.schema import KAFKA
from connector.engine.slots import by_key
from connector.errors import TopicError
from connector.errors.changelog import rejected_ratio_exceeded
from connector.errors.kafka import stream_records_deleted
from connector.records import codec
from connector.records.model import Heartbeat
from connector.records.rejection import Rejection
from connector.spark.ingest.completeness import count_rows_of, incomplete_transactions
from connector.spark.ingest.erased import refused_staged
from connector.spark.ingest.ports import IngestPorts
from connector.spark.ingest.source import Topic, is_time_overflow, pieces
from connector.spark.sql import skew_us
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.dead_letters import rejected_letters
from connector.spark.storage.logged_batch import BatchRange, LoggedBatch, Offsets, same
from connector.spark.tasks import IngestTask
from connector.state.accepted_losses import (
    AcceptLoss,
    Lost,
    lost_between,
    offsets_of,
    text_of,
    times_of,
)
from connector.state.batch_counts import BatchRows, counts_of
from connector.state.incomplete_transactions import TransactionCheck
from connector.state.overrides import ClosePartition
from connector.state.source_checks import SAMPLE_RECORDS, KeyPlacement
from connector.state.stream_progress import (
    BatchCounts,
    Progress,
    StreamRules,
    still_hiding,
)
from connector.state.unapplied import BatchContents
from connector.validation import KafkaRecord
from connector.watermarks.freshness import EndOffsets
from connector.write_streams.releases import ReleasedRange, ReleaseProgress, ReleaseRows

COUNT_EVERY_US = 60_000_000
"""How often the external dead letters are counted, if a batch adds none."""

MOST_HEARTBEATS = 1_000
"""So many heartbeats may wait for their batch."""

FEW_OFFSETS = 20_000
"""A batch with more offsets is one of Spark."""


_NONE = pa.RecordBatch.from_pylist([], KAFKA)


class _Requests(NamedTuple):
    """The requests of operators that a batch takes."""

    closed_partitions: tuple[ClosePartition, ...]
    row_releases: tuple[ReleaseRows, ...]
    losses: tuple[AcceptLoss, ...]


class Ingest:
    """Ingest of one stream. Use it from one thread only."""

    def __init__(
        self,
        stream: StreamConfig,
        changelog: Changelog,
        ports: IngestPorts,
        *,
        known_tables: frozenset[str],
        known_families: frozenset[str] = frozenset(),
        reject_unknown_tables: bool,
        on_step: Callable[[str], None] = lambda step: None,
        turn: AbstractContextManager[object] = nullcontext(),  # noqa: B008, it has no state
    ) -> None:
        """Small batches are logged in the `turn` of small work."""
        self._stream, self._turn = stream, turn
        self._changelog = changelog
        self._ports = ports
        self._known_tables = known_tables
        self._known_families = known_families
        self._only_tables = known_tables if reject_unknown_tables else None
        self._schemas = codec.Schemas()
        self._checked: TransactionCheck | None = None
        self._writer = uuid.uuid4().hex
        self._counted_at = -COUNT_EVERY_US
        self._only_heartbeats_to: Mapping[int, int] = {}
        self._on_step = on_step
        self._contents: dict[int, BatchContents] = {}

    def take_contents(self) -> Mapping[int, BatchContents]:
        """The contents of the batches that were counted since the last call, by batch."""
        contents, self._contents = self._contents, {}
        return contents

    def batch(self, rows: DataFrame, offsets: BatchRange) -> Progress:
        """Complete one micro-batch, whose rows Spark's Kafka source has at `offsets`, and return
        the progress. After a crash, the same call continues where the batch was.

        Raises the error that stops the stream. After all errors but `REJECTED_RATIO_EXCEEDED`, the
        batch must be run again.
        """
        if same(offsets.start, offsets.end):
            return self._changelog.progress()
        topic = self._ports.topic()
        batch = self._changelog.find(offsets, topic.topic_id)
        if batch is None:
            self.recover()
            try:
                batch = self._log(rows, offsets, topic)
            except (PySparkException, Py4JError) as error:
                if self._ports.read is None or not is_time_overflow(error):
                    raise
                return self._read_again(offsets, topic, self._ports.read)
        self._on_step("logged")
        return self._follow_up(batch)

    def _read_again(
        self,
        offsets: BatchRange,
        topic: Topic,
        read: Callable[[BatchRange], Iterator[KafkaRecord]],
    ) -> Progress:
        """Complete a batch that Spark cannot read, as several ingest batches. Spark's checkpoint
        names the whole range. After a crash, ingest continues from the changelog.
        """
        progress = self._changelog.progress()
        for piece in pieces(read(offsets), offsets):
            batch = self._log(piece.as_columns(), piece.offsets, topic)
            self._on_step("logged")
            progress = self._follow_up(batch)
        return progress

    def recover(self) -> None:
        """Complete the newest batch, if a crash prevented it. Call it before reading."""
        newest = self._changelog.newest()
        if (
            newest is not None
            and self._changelog.progress(with_frontier=False).ingest_batch < newest.ingest_batch
        ):
            self._follow_up(newest)

    def check_topic(self) -> None:
        """Raise `TopicError` if the topic cannot be read on. Call it before reading."""
        topic = self._ports.topic()
        self._changelog.check_topic(topic.topic_id, topic.kafka_partitions)

    def lost_records(self, first: Offsets) -> Lost:
        """The records that Kafka, whose first offsets are `first`, deleted unread (RUN-7)."""
        newest = self._changelog.newest()
        return {} if newest is None else lost_between(newest.offsets.end, first)

    def records_deleted(self, lost: Lost) -> TopicError:
        progress = self._changelog.progress(with_frontier=False)
        read_to = progress.freshness.time_of(progress.ingest_batch)
        left = self._ports.first_arrivals({number: end for number, (_, end) in lost.items()})
        times = times_of(lost, left, read_to)
        return stream_records_deleted(self._stream.name, text_of(lost), times)

    def pass_lost_records(self, first: Offsets) -> None:
        """Go on behind records that Kafka deleted unread, if a person has accepted their loss, with
        a batch without records. Otherwise raise `TopicError`. `recover` and `check_topic` before.
        """
        newest, lost = self._changelog.newest(), self.lost_records(first)
        if newest is None or not lost:
            return
        accepted = [loss for loss in self._ports.accepted_losses(0) if loss.covers(lost)]
        if not accepted:
            raise self.records_deleted(lost)
        requests, start = self._requests(self._changelog.progress()), newest.offsets.end
        end = {**start, **{number: offset for number, (_, offset) in lost.items()}}
        losses = (*requests.losses, replace(accepted[-1], offsets=offsets_of(lost)))
        offsets = BatchRange(start, end)
        self._log_nothing(replace(newest, offsets=offsets), requests._replace(losses=losses))

    def is_at_end(self) -> bool:
        """Whether the changelog ends where its topic does, including open transactions."""
        newest = self._changelog.newest()
        if newest is None or self._ports.topic().topic_id != newest.topic_id:
            return False
        return same(newest.offsets.end, self._ports.high_watermarks())

    def offsets_after(self, start: Mapping[int, int]) -> int:
        """How many offsets the topic has after the `start` of each Kafka partition."""
        return sum(
            max(0, end - start.get(number, 0))
            for number, end in self._ports.high_watermarks().items()
        )

    def has_only_heartbeats(self, read_to: Mapping[int, int]) -> bool:
        """Whether Kafka has no record from these offsets on, the end of the newest batch, or only
        heartbeats (TBL-24). Each is read once. Any thread may call it.
        """
        start, ends = self._with_heartbeats(read_to), self._ports.committed_ends()
        waiting = BatchRange(start, {k: max(end, start.get(k, 0)) for k, end in ends.items()})
        if waiting.records and (self._ports.read is None or waiting.records > MOST_HEARTBEATS):
            return False
        for record in self._ports.read(waiting) if self._ports.read and waiting.records else ():
            decoded = codec.decode(record.value, self._schemas)
            if isinstance(decoded, Rejection) or not isinstance(decoded.record, Heartbeat):
                return False
        self._only_heartbeats_to = waiting.end
        return True

    def _with_heartbeats(self, read_to: Mapping[int, int]) -> dict[int, int]:
        """These offsets, without the heartbeats behind them that are known."""
        passed = self._only_heartbeats_to
        return {k: max(read_to.get(k, 0), passed.get(k, 0)) for k in read_to.keys() | passed.keys()}

    def refresh(self) -> None:
        """Read the end offsets from Kafka again. If every record was read, or only heartbeats were
        not, the states of the stream are as fresh as now (TBL-16), which is stored in a file
        (TBL-24). External dead letters, and open transactions that hide records, are looked for
        once in `COUNT_EVERY_US`. A change is a commit.
        """
        newest, progress, asked = (
            self._changelog.newest(),
            self._changelog.progress(with_frontier=False),
            self._asked(),
        )
        if newest is None or progress.ingest_batch != newest.ingest_batch:
            return
        if self._ports.topic().topic_id != newest.topic_id:
            return
        ends = newest.offsets.end
        if self._with_heartbeats(ends) != ends:
            self.has_only_heartbeats(ends)  # more may have come
        is_at_end = asked.is_contained(self._with_heartbeats(ends))
        if is_at_end:
            asked = EndOffsets(asked.at, ends)
            self._changelog.write_freshness(asked)
        if not self._is_count_due(asked.at):
            return
        hiding = () if is_at_end else still_hiding(self._ports.open_transactions(), ends)
        if is_at_end or hiding:
            counted = self._with_external_dead_letters(progress.refreshed(ends, asked, hiding), 0)
            before = (progress.external_dead_letters, progress.open_transactions)
            if (counted.external_dead_letters, counted.open_transactions) != before:
                self._changelog.update_progress(counted)

    def take_requests(self) -> bool:
        """Close the stream partitions, and release the rows, that operators asked for, with a batch
        without records: the next one with records may come much later (WMK-8, WRS-18). Returns
        whether there is such a batch. Raises as `batch`.
        """
        newest, progress = self._changelog.newest(), self._changelog.progress(with_frontier=False)
        if newest is None or progress.ingest_batch < newest.ingest_batch:
            return False
        requests, topic = self._requests(progress), self._ports.topic()
        if not any(requests) or topic.topic_id != newest.topic_id:
            return False
        self._log_nothing(newest, requests)
        return True

    def _log_nothing(self, newest: LoggedBatch, requests: _Requests) -> None:
        """Commit a batch without records, which takes requests, and complete it."""
        batch = replace(
            newest,
            ingest_batch=newest.ingest_batch + 1,
            kafka_partitions=self._ports.topic().kafka_partitions,
            asked=self._asked(),
            writer=self._writer,
            **requests._asdict(),
        )
        self._changelog.append_nothing(batch)
        self._on_step("logged")
        self._follow_up(batch)

    def _requests(self, progress: Progress) -> _Requests:
        """The requests that were not taken yet. They are stored with a batch, so that a process
        that continues after a crash uses the same ones.
        """
        releases = progress.releases
        row_releases = self._ports.row_releases(releases.requests_to) if releases.open else ()
        taken_to = max((decision.number for decision in progress.losses), default=0)
        decisions = self._ports.accepted_losses(taken_to) if progress.losses else ()
        return _Requests(
            tuple(self._ports.closed_partitions(progress.closed_to)),
            tuple(row_releases),
            tuple(decision for decision in decisions if decision.table),
        )

    def check_transactions(self, *, is_last: bool = False) -> TransactionCheck | None:
        """Look for transactions that lack records, if a check is due, and take releases (ING-2).

        It changes nothing: `keep_check` stores the result. Batches may be ingested meanwhile.
        `is_last`: no other check follows soon. None: there is no news.
        """
        progress, now = self._changelog.progress(with_frontier=False), self._ports.now()
        stored, low = progress.transactions, progress.low_watermark
        before = stored if self._checked is None else self._checked
        before = replace(
            before,
            declared=stored.declared,
            waits=stored.waits,
            checked_to=max(before.checked_to, stored.checked_to, progress.horizon or 0),
        )
        releases = self._ports.releases(before.released_to) if before.incomplete else ()
        check, ready = before.released(releases), replace(before, checked_at=0)
        if low is not None and (before.is_due(low, now) or (is_last and ready.is_due(low, now))):
            lacking, checked_to = incomplete_transactions(self._changelog, before, low)
            if self._stream.wait_s is None:
                checked_to = low
            check = check.after(
                max(checked_to, before.checked_to),
                lacking,
                now,
                wait_us=(self._stream.wait_s or 0) * 1_000_000,
                horizon=progress.horizon,
            )
        self._checked = check
        is_news = check.is_news(
            stored, now, below=progress.horizon or 0, waits=self._stream.wait_s is not None
        )
        return check if is_news else None

    def keep_check(self, check: TransactionCheck) -> bool:
        """Store the result of a check with the newest batch, if that batch is complete. Otherwise
        the next check stores it. Call it between two batches.
        """
        newest, progress = self._changelog.newest(), self._changelog.progress(with_frontier=False)
        if newest is None or progress.ingest_batch < newest.ingest_batch:
            return False
        stored = progress.transactions
        # A batch, or a trim, may have been committed since the check.
        check = replace(check, declared=stored.declared, waits=stored.waits)
        check = check.trimmed(stored.checked_to)
        self._changelog.update_progress(replace(progress, transactions=check))
        return True

    def _is_count_due(self, now: int) -> bool:
        """Whether external dead letters are counted now (µs)."""
        if now - self._counted_at < COUNT_EVERY_US:
            return False
        self._counted_at = now
        return True

    def _with_external_dead_letters(self, progress: Progress, published: int) -> Progress:
        return replace(
            progress,
            external_dead_letters=self._ports.external_dead_letters(
                progress.external_dead_letters, published
            ),
        )

    def _asked(self) -> EndOffsets:
        at = self._ports.now()
        return EndOffsets(at, self._ports.high_watermarks())

    def _follow_up(self, batch: LoggedBatch) -> Progress:
        before = self._changelog.progress_before(batch)
        if before.ingest_batch == batch.ingest_batch:
            self._on_step("progress committed")
            return before
        files = self._changelog.batch_files(batch.ingest_batch)
        # Another process may have logged the batch, so its schemas may not be known yet.
        counts, placement = self._counted(files, batch, before, self._unknown_fields)
        published = 0
        if counts.rejected:
            rejected = self._changelog.rejected(batch.ingest_batch - 1, batch.ingest_batch)
            # A process that did not log the batch does not know its schemas yet. Dead letters must
            # not depend on the process that writes them.
            self._learn_schemas(rejected)
            rules, schemas = self._rules(batch, before), self._schemas
            published = self._ports.publish(
                rejected_letters(rejected, lambda record: rules.judge(record, schemas))
            )
        self._on_step("letters published")
        releases, released = self._releases_after(before, batch, counts)
        self._refuse_erased(released)
        progress = self._progress_after(before, batch, counts, placement, published, releases)
        self._changelog.append_progress(progress, released)
        self._on_step("progress committed")
        self._halt_on_disaster(batch, counts)
        return progress

    def _settled(
        self,
        files: tuple[str, ...],
        batch: LoggedBatch,
        before: Progress,
        rows: pa.Table | None = None,
        external: ExternalDeadLetters | None = None,
    ) -> Progress | None:
        """The progress after `before` with the written files of a batch, before their commit. They
        are counted in memory if `rows` are theirs. None: some rows were rejected, whose dead
        letters need the commit, or a release may be complete, whose rows are counted in the
        changelog.
        """
        self._on_step("rows written")
        asks = self._unknown_fields if codec.unknown_fields(self._schemas) else None
        counts, placement = self._counted(files, batch, before, asks, rows)
        self._on_step("rows counted")
        if counts.rejected or _may_complete(before, batch, counts):
            return None
        releases, _ = self._releases_after(before, batch, counts)
        after = self._progress_after(before, batch, counts, placement, 0, releases)
        return after if external is None else replace(after, external_dead_letters=external)

    def _releases_after(
        self, before: Progress, batch: LoggedBatch, counts: BatchCounts
    ) -> tuple[ReleaseProgress, Sequence[ReleasedRange]]:
        """The releases after a committed batch, and the ranges that it makes visible (WRS-18)."""
        logged = _logged(before, batch, counts)
        rows = None
        if _may_complete(before, batch, counts):
            rows = count_rows_of(logged, self._changelog, batch.ingest_batch)
        return logged.completed(batch.ingest_batch, rows, batch.offsets.end, before.horizon)

    def _refuse_erased(self, released: Sequence[ReleasedRange]) -> None:
        """Remove staged rows that a release makes changes of erased rows (OPR-2)."""
        refused = released and refused_staged(released, self._ports.erased())
        if refused:
            self._changelog.refuse(*refused)
            self._on_step("staged rows refused")

    def _counted(
        self,
        files: tuple[str, ...],
        batch: LoggedBatch,
        before: Progress,
        fields_of: Callable[[Collection[int]], Mapping[int, tuple[str, ...]]] | None,
        in_memory: pa.Table | None = None,
    ) -> tuple[BatchCounts, KeyPlacement | None]:
        """The counts of a batch, and the placement of keys with a sample of it, if one is due
        (ING-1), as of the time of the batch.

        `fields_of` returns the unknown fields of the schemas with these ids (ING-3). None: no valid
        record of the batch has a schema with unknown fields.
        """
        placement, partition_of = before.checks.placement, self._ports.partition_of
        is_due = batch.kafka_partitions > 1 and placement.is_due(batch.asked.at)
        ports = self._ports
        count = ports.count_rows if in_memory is None else partial(ports.count_table, in_memory)
        rows = count(
            BatchRows(
                changelog=self._changelog.path,
                files=files,
                ingest_batch=batch.ingest_batch,
                known_tables=self._known_tables,
                low_watermark=before.low_watermark or 0,
                max_clock_skew=skew_us(self._stream.limits.max_clock_skew_s),
                with_schemas=fields_of is not None,
                sample=SAMPLE_RECORDS if is_due and partition_of is not None else 0,
            )
        )
        self._contents[batch.ingest_batch] = BatchContents(rows.written, rows.tables)
        fields = fields_of(rows.schemas.keys()) if fields_of and rows.schemas else {}
        counts = counts_of(rows, before, batch.kafka_partitions, fields)
        if partition_of is None or not is_due or not counts.changes:
            return counts, None
        return counts, placement.after(rows.sample, partition_of, batch.asked.at)

    def _unknown_fields(self, ids: Collection[int]) -> Mapping[int, tuple[str, ...]]:
        self._learn(ids)
        return codec.unknown_fields(self._schemas)

    def _progress_after(
        self,
        before: Progress,
        batch: LoggedBatch,
        counts: BatchCounts,
        placement: KeyPlacement | None,
        published: int,
        releases: ReleaseProgress,
    ) -> Progress:
        stream = self._stream
        after = before.after(
            batch.ingest_batch,
            counts,
            batch.offsets.end,
            batch.asked,
            StreamRules(stream.delete_retention_s, frozenset(stream.partitions), stream.wait_s),
            batch.closed_partitions,
            placement,
            releases,
        )
        after = replace(after, losses=(*before.losses, *batch.losses))
        if not published and not self._is_count_due(batch.asked.at):
            return after
        return self._with_external_dead_letters(after, published)

    def _log(
        self, rows: DataFrame | pa.RecordBatch, offsets: BatchRange, topic: Topic
    ) -> LoggedBatch:
        newest = self._changelog.newest()
        number = newest.ingest_batch + 1 if newest else 1
        changelog_id = newest.changelog_id if newest else uuid.uuid4().hex
        before = self._changelog.progress()
        batch = LoggedBatch(
            number,
            offsets,
            topic.topic_id,
            topic.kafka_partitions,
            self._asked(),
            changelog_id,
            self._writer,
            **self._requests(before)._asdict(),
        )
        # The registry may get a missing schema later. Therefore missing ids are read again with
        # each batch.
        self._schemas = codec.Schemas(
            {id_: schema for id_, schema in self._schemas.by_id.items() if schema is not None}
        )
        rules = replace(self._rules(batch, before), erased=self._ports.erased())
        job = IngestJob(
            records=_NONE,
            rules=rules,
            schemas=self._schemas,
            topic=self._stream.topic,
            topic_id=batch.topic_id,
            ingest_batch=batch.ingest_batch,
            ingest_time=self._ports.now(),
        )
        records = rows if isinstance(rows, pa.RecordBatch) else self._few(batch)
        if records is not None:
            self._log_few(records, batch, before, job)
        else:
            assert isinstance(rows, DataFrame)
            self._log_many(rows, batch, before, job)
        return batch

    def _few(self, batch: LoggedBatch) -> pa.RecordBatch | None:
        """The records of a small batch, without a Spark job (ENG-4). None: the batch is large, or
        this process cannot read it.
        """
        if batch.offsets.records > FEW_OFFSETS:
            return None
        columns = self._ports.read_few(batch.offsets, batch.asked.at)
        return None if columns is None else pa.RecordBatch.from_pydict(columns, KAFKA)

    def _log_few(
        self, records: pa.RecordBatch, batch: LoggedBatch, before: Progress, job: IngestJob
    ) -> None:
        job, external = self._with_what_it_names(job, records), None
        if self._is_count_due(batch.asked.at):  # before the turn, since Kafka may take long
            external = self._ports.external_dead_letters(before.external_dead_letters, 0)
        with self._turn if self._changelog.log.is_own else nullcontext():
            rows = by_key(changelog_rows(job))
            settle = partial(
                self._settled, batch=batch, before=before, rows=rows, external=external
            )
            self._changelog.append_few(batch, rows, settle)

    def _log_many(
        self, rows: DataFrame, batch: LoggedBatch, before: Progress, job: IngestJob
    ) -> None:
        """Log a large batch by tasks of Spark (ENG-3), and the records that they leave."""
        if asks_registry := self._ports.schema_by_id is not None:
            first = self._ports.read_few(batch.offsets.first(), batch.asked.at)
            values = pa.array(first["value"] if first else [], pa.binary())
            self._learn(registry_ids(values))
        task = IngestTask(
            replace(job, schemas=self._schemas),
            asks_registry,
            batch.asked.at,
            self._changelog.path,
            self._ports.write_rows,
        )
        self._changelog.prepare(batch)
        ingested = task.run(rows)
        for records in ingested.left:
            left = replace(task, job=self._with_what_it_names(job, records))
            ingested.actions.extend(left.written(records))
        settle = partial(self._settled, batch=batch, before=before)
        self._changelog.append(batch, ingested.actions, settle)

    def _with_what_it_names(self, job: IngestJob, records: pa.RecordBatch) -> IngestJob:
        """A job for these records, with the schemas and dead letters that they name."""
        self._learn(registry_ids(records["value"]))
        letters = letters_of(replays_in(records, job.topic_id))
        logged = self._ports.logged_positions(self._changelog.path, letters) if letters else {}
        return replace(job, records=records, schemas=self._schemas, logged=logged)

    def _learn_schemas(self, rows: DataFrame) -> None:
        """Read the schemas that rows name from the registry, if they were not read yet."""
        if self._ports.schema_by_id is not None:
            first = rows.selectExpr(f"substring(value, 1, {codec.CONFLUENT_BYTES}) AS first")
            prefixes = [row["first"] for row in first.distinct().collect()]
            self._learn(registry_ids(pa.array(prefixes, pa.binary())))

    def _learn(self, ids: Iterable[int]) -> None:
        if self._ports.schema_by_id is None:
            return
        schemas = dict(self._schemas.by_id)
        for id_ in ids:
            if id_ not in schemas:
                schemas[id_] = self._ports.schema_by_id(id_)
        self._schemas = codec.Schemas(schemas)

    def _rules(self, batch: LoggedBatch, before: Progress) -> RecordRules:
        return RecordRules(
            limits=self._stream.limits,
            kafka_partitions=batch.kafka_partitions,
            tables=self._only_tables,
            known_tables=self._known_tables,
            known_families=self._known_families,
            # The batch before has committed this horizon, so a batch that runs again decides the
            # same (MRG-11).
            horizon=before.horizon,
            truncated=before.truncations.ranks(),
        )

    def _halt_on_disaster(self, batch: LoggedBatch, counts: BatchCounts) -> None:
        counted = {
            reason: count for reason, count in counts.rejected.items() if reason != "TOO_LATE"
        }
        rejected = sum(counted.values())
        too_many = self._stream.rejects_too_many(counts.records, rejected)
        if not too_many and not (self._stream.halt_on_first and rejected):
            return
        reason = max(counted, key=lambda name: counted[name])
        raise rejected_ratio_exceeded(
            *(self._stream.name, batch.ingest_batch, counts.records, rejected),
            *(reason, counted[reason]),
        )


def _may_complete(before: Progress, batch: LoggedBatch, counts: BatchCounts) -> bool:
    """Whether a batch may make a release complete."""
    return bool(counts.releases or batch.row_releases or (counts.staged and before.releases.open))


def _logged(before: Progress, batch: LoggedBatch, counts: BatchCounts) -> ReleaseProgress:
    """The releases of `before` with the staged rows and releases of a batch."""
    releases = before.releases.requested(batch.row_releases)
    if not counts.staged and not counts.releases:
        return releases
    return releases.logged(
        batch.ingest_batch,
        counts.read_at,
        counts.streams,
        counts.releases,
        batch.asked.ends,
        before.low_watermark,
    )

"""The status of a stream and its stream partitions: lag, low watermark, what delays it, and open
dead letters (OPS-5, DLQ-7).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from connector.config.settings import StreamConfig
from connector.dead_letters.ledger import ExternalDeadLetters, Totals, covered_by
from connector.records.views import Flat, Hidden, Named, Shown, Time, Viewed, view_of_time
from connector.reports.bridge_status import BridgeStatus
from connector.reports.headroom import Headroom
from connector.reports.source_status import hints_of_checks
from connector.reports.write_stream_status import NONE_RELEASED, ReleaseReport, release_report
from connector.state.accepted_losses import AcceptLoss
from connector.state.incomplete_transactions import NOT_CHECKED, TransactionCheck
from connector.state.jobs import Job, failed_maintenance
from connector.state.source_checks import NOTHING_FOUND, SourceChecks
from connector.state.stream_progress import NORMAL_US, OpenTransaction, Progress
from connector.state.table_state import TableState
from connector.text import counted, summarize_names
from connector.watermarks.frontier import Frontier, Stall
from connector.watermarks.stream_partition import KeyRange


@dataclass(frozen=True, slots=True)
class OpenLetters:
    """Dead letters that were not replayed or discarded: their number, and since when (µs; None:
    unknown).

    `is_known` is False if the ledger could not be read. Then `count` includes all dead letters
    (DLQ-7). If Kafka refused the read, `problem` names the right. `under_way`: some were replayed,
    and ingest has not read all these replays.
    `uncounted_tables` are the tables of a stream that could not be read. `count` lacks the dead
    letters that only their applies found. `withheld` is the number of releases that are
    withheld, which are treated like dead letters (WRS-18).
    """

    count: Annotated[int, Named("open_dead_letters")] = 0
    since: Annotated[Time | None, Named("dead_letters_since")] = None
    is_known: Annotated[bool, Named("is_ledger_known")] = True
    problem: Hidden[str] = ""
    under_way: Annotated[bool, Named("replays_under_way")] = False
    uncounted_tables: Hidden[tuple[str, ...]] = ()
    withheld: Annotated[int, Named("withheld_releases")] = 0


NONE_OPEN: Final = OpenLetters()


class Uncovered(NamedTuple):
    """A root whose key space has a hole or an overlap, and where."""

    root: str
    key_range: Flat[KeyRange]


@dataclass(frozen=True, slots=True)
class StreamStatus(Viewed):
    """The status of a stream after its newest batch.

    ignored_claims      watermark claims without effect; `checks` has their reasons (ING-4)
    lag                 offsets between that batch and the end of the topic, as Kafka reported it at
                        `topic_read_at`
    lagging_partition   the live stream partition with the least low watermark; None: there are none
    stalled             partitions whose low watermark has not advanced for `stall_after`, the
                        longest first (WMK-12)
    stalls_unverified   ingest has not asked Kafka since they stalled, so newer records may be
                        waiting
    undeclared          stream partitions that send records and were never announced (WMK-8)
    never_seen          partitions of the configuration that have sent no record (WMK-6)
    uncovered           a root whose key space has a hole or an overlap, and where (WMK-9)
    without_key_range   for a hole: the live descendants of that root that were announced without a
                        key range; they may fill it
    dead_letters        rejected records and dead letters of tables that were neither replayed nor
                        discarded (DLQ-7)
    maintenance         the last compaction and the last clean-up of the changelog (TBL-15)
    last_audit          the newest audit, of which `error` says what it proved wrong
    other_commits       the operations of other programs since lowmark's newest commit of the
                        changelog: they changed no row (RUN-3)
    undefined_sources   the source tables of the newest changes that no table definition names
                        (TBL-7)
    checks              the findings about the producers
    transactions        the transactions that lack records, and how many were found (ING-2)
    wait_s              how long tables wait for such a transaction; None: they do not
    write_streams       the staged rows of write streams, and their releases
    open_transactions   the transactions in Kafka that hid records at `topic_read_at`
    losses              the records that Kafka deleted unread and that were given up, and the tables
                        that were confirmed since (RUN-7)
    unfinished_erasures the erasures of rows that have begun and not ended (OPR-2)
    headroom            until when Kafka keeps the first records that ingest lacks (RUN-7). None:
                        Kafka does not answer
    bridge              how far its source is published (SRC-8); None: it has no source
    """

    name: Hidden[str]
    now: Hidden[int]
    ingest_batch: int
    changes: int
    unknown_tables: int
    late: int
    ignored_claims: int
    rejected: Mapping[str, int]
    dead_letters: Flat[OpenLetters]
    lag: int | None
    topic_read_at: Time | None
    low_watermark: Time | None
    horizon: Time | None
    lagging_partition: Stall | None
    stalled: tuple[Stall, ...]
    stalls_unverified: bool
    undeclared: tuple[str, ...]
    never_seen: tuple[str, ...]
    uncovered: Uncovered | None
    without_key_range: tuple[str, ...]
    maintenance: tuple[Job, ...] = ()
    last_audit: Job | None = None
    other_commits: tuple[str, ...] = ()
    undefined_sources: tuple[str, ...] = ()
    checks: Flat[SourceChecks] = NOTHING_FOUND
    transactions: TransactionCheck = NOT_CHECKED
    wait_s: Hidden[int | None] = None
    write_streams: ReleaseReport = NONE_RELEASED
    open_transactions: tuple[OpenTransaction, ...] = ()
    losses: tuple[AcceptLoss, ...] = ()
    unfinished_erasures: tuple[str, ...] = ()
    headroom: tuple[Headroom, ...] | None = None
    bridge: BridgeStatus | None = None

    @property
    def low_watermark_age_s(self) -> Shown[float | None]:
        """The difference of `now` and the low watermark, in seconds."""
        return None if self.low_watermark is None else (self.now - self.low_watermark) / 1_000_000

    @property
    def uncounted_tables(self) -> Shown[tuple[str, ...]]:
        """The tables that could not be read. Dead letters that only they have are not counted."""
        return self.dead_letters.uncounted_tables

    @property
    def hints(self) -> Shown[list[str]]:
        """Problems that keep the stream from being complete, with their remedies."""
        return [
            *self._partition_hints(),
            *(
                transaction.describe(self.now)
                for transaction in self.open_transactions
                if self.now - transaction.since >= NORMAL_US
            ),
            *self._stall_hints(),
            *hints_of_checks(self.checks, self.now),
            *self._transaction_hints(),
            *self.write_streams.hints(self.now),
            *(() if self.bridge is None else self.bridge.hints(self.now)),
            *self._claim_hints(),
            *self._letter_hints(),
            *failed_maintenance(self.maintenance),
            *self._audit_hints(),
        ]

    def _partition_hints(self) -> Iterator[str]:
        if not self.ingest_batch:
            yield "nothing was ingested yet"
        elif self.low_watermark is None:
            yield (
                "the low watermark is unknown, so no table is a consistent cut and no tombstone"
                " expires: announce the stream partitions"
            )
        if self.ingest_batch and self.never_seen:
            names = summarize_names(self.never_seen)
            yield f"stream partitions of the configuration have sent no record: {names}"
        if self.uncovered is not None:
            root, keys = self.uncovered
            problem = (
                f"the live stream partitions of the root {root} leave a hole in {keys}, or overlap"
                " there"
            )
            if self.without_key_range:
                names = summarize_names(self.without_key_range)
                problem = (
                    f"no key range of the root {root} covers {keys}; announce these stream"
                    f" partitions with a key range: {names}"
                )
            yield f"the low watermark does not advance: {problem}"
        if self.undeclared:
            names = summarize_names(self.undeclared)
            yield f"no announcement names {names}: announce or close these stream partitions"

    def _stall_hints(self) -> Iterator[str]:
        if not self.stalled:
            return
        names = summarize_names([stall.stream_partition for stall in self.stalled])
        if self.stalls_unverified:
            yield f"{names} stalled: ingest has not asked Kafka since then"
            return
        yield (
            f"{names} stalled: send heartbeats, or close the stream partitions that send no more"
            " records. One that an announcement omits ends with a second announcement that omits"
            " it, too"
        )
        if silent := [stall.stream_partition for stall in self.stalled if not stall.watermark]:
            yield (
                "neither a heartbeat nor an estimated low watermark was read in every Kafka"
                f" partition from {summarize_names(silent)}: call reached in the producer, or send"
                " heartbeats"
            )

    def _transaction_hints(self) -> Iterator[str]:
        waiting = [
            transaction
            for transaction in self.transactions.incomplete
            if not transaction.is_released
        ]
        if not waiting:
            return
        oldest = waiting[0]
        problem = (
            f"transaction {oldest.server_transaction_id} of {view_of_time(oldest.commit_timestamp)}"
            f" lacks {counted(oldest.missing, 'record')}"
        )
        if len(waiting) > 1:
            problem += f", and {counted(len(waiting) - 1, 'other')} lack some"
        if self.wait_s is None:
            yield f"{problem}: look for dead letters, or ask the producer"
            return
        effect = "tables wait for it"
        if self.transactions.overdue(self.now, self.wait_s * 1_000_000):
            effect = "tables no longer wait for it, and are no consistent cut"
        remedy = "replay the dead letter, let the producer send the record, or release it"
        yield f"{problem}: {effect}; {remedy}"

    def _claim_hints(self) -> Iterator[str]:
        if self.ignored_claims and (self.low_watermark is None or self.stalled):
            yield (
                f"{counted(self.ignored_claims, 'watermark claim')} without effect, for example in"
                " the future or below an earlier one: let producers send 0 if they know no low"
                " watermark, and check their clocks"
            )

    def _audit_hints(self) -> Iterator[str]:
        if self.last_audit is not None and self.last_audit.error:
            at = view_of_time(self.last_audit.ended_at)
            yield f"the audit of {at} failed: {self.last_audit.error}; audit the stream again"

    def _letter_hints(self) -> Iterator[str]:
        if self.dead_letters.under_way:
            yield "replayed dead letters are not ingested yet"
        if not self.dead_letters.is_known:
            why = f" ({problem})" if (problem := self.dead_letters.problem) else ""
            yield (
                f"the ledger could not be read{why}, so replayed and discarded dead letters are"
                " counted as open"
            )
        if self.uncounted_tables:
            names = summarize_names(self.uncounted_tables)
            yield f"tables that cannot be read may have more open dead letters: {names}"


def open_letters(
    rejected: int,
    tables: Mapping[str, TableState],
    external: ExternalDeadLetters,
    topic_id: str,
    totals: Totals | None,
    first: int | None,
    *,
    problem: str | None = None,
    under_way: bool = False,
) -> tuple[OpenLetters, dict[str, OpenLetters]]:
    """Return the open dead letters of a stream, and of each of its tables.

    A rejected record without a known table counts for every table. `problem` and `under_way` are
    copied to all results.

    Args:
        rejected: The number of all rejected records.
        tables: The states of the tables, which have the numbers of all their table letters.
        external: The dead letters of other programs.
        topic_id: The id of the change topic.
        totals: The totals of the ledger. None: there were no actions.
        first: The first failure of the oldest dead letter (µs).
        problem: Why the ledger could not be read. Empty: Kafka did not answer. None: it could.
        under_way: Whether replays are not ingested yet.
    """
    closed, published = ({}, {}) if totals is None else (totals.closed, totals.published)
    since = first if totals is None or totals.open_since is None else totals.open_since

    def letters(count: int) -> OpenLetters:
        since_when = since if count else None
        return OpenLetters(count, since_when, problem is None, problem or "", under_way)

    closed_external = sum(
        count for (letter_topic, _), count in closed.items() if letter_topic != topic_id
    )
    open_rejected = max(0, rejected - closed.get((topic_id, ""), 0))
    open_rejected += max(0, external.count - closed_external)

    def open_of(name: str, state: TableState) -> int:
        covered = (
            min(count, closed.get((topic_id, covered_by(name, rebuild)), 0))
            for rebuild, count in state.covered_by.items()
        )
        if not state.letters:
            return 0
        # A version that was restored does not know the letters that others have published.
        letters = max(state.letters, published.get((topic_id, name), 0))
        return max(0, letters - closed.get((topic_id, name), 0) - sum(covered))

    of_tables = {name: open_of(name, state) for name, state in tables.items()}
    return letters(open_rejected + sum(of_tables.values())), {
        name: letters(open_rejected + count) for name, count in of_tables.items()
    }


@dataclass(frozen=True, slots=True)
class PartitionStatus(Viewed):
    """The status of a stream partition in the frontier.

    low_watermark       its least watermark over all Kafka partitions. None: there is no claim yet
    lagging_partition   the Kafka partition with this least watermark
    advanced_at         when its low watermark got its value
    is_stalled          whether this is longer ago than `stall_after`
    roots               the roots that it descends from. Empty: it is undeclared (WMK-8)
    waits_for           the parents that have not ended. Until then they delay the low watermark
                        (WMK-7)
    is_over             it has ended, but its children wait for other parents
    """

    name: Annotated[str, Named("stream_partition")]
    low_watermark: Time | None
    lagging_partition: Annotated[int, Named("kafka_partition")]
    advanced_at: Annotated[Time, Named("since")]
    is_stalled: bool
    roots: tuple[str, ...]
    key_range: KeyRange | None
    waits_for: tuple[str, ...]
    is_over: bool

    @property
    def is_declared(self) -> Shown[bool]:
        """Whether an announcement names it or one of its ancestors."""
        return bool(self.roots)


def partition_statuses(frontier: Frontier, now: int, stall_after_s: int) -> list[PartitionStatus]:
    """Return the status of the stream partitions that have not ended.

    Those that delay the low watermark come first. Those that wait for their parents come last.
    """
    k, waiting = frontier.kafka_partitions, frontier.waiting
    stalled = {stall.stream_partition for stall in frontier.stalls(now, stall_after_s * 1_000_000)}
    statuses = [
        PartitionStatus(
            name=name,
            low_watermark=partition.low_watermark(k) or None,
            lagging_partition=partition.lagging_partition(k),
            advanced_at=frontier.last_advance[name].at,
            is_stalled=name in stalled,
            roots=tuple(sorted(partition.roots)),
            key_range=partition.key_range,
            waits_for=(
                tuple(sorted(partition.parents & frontier.partitions.keys()))
                if name in waiting
                else ()
            ),
            is_over=partition.has_ended,
        )
        for name, partition in frontier.partitions.items()
    ]
    return sorted(
        statuses,
        key=lambda status: (bool(status.waits_for), status.low_watermark or 0, status.name),
    )


def stream_status(
    stream: StreamConfig,
    progress: Progress,
    now: int,
    *,
    dead_letters: OpenLetters = NONE_OPEN,
    maintenance: Sequence[Job] = (),
    last_audit: Job | None = None,
    undefined_sources: Sequence[str] = (),
    other_commits: Sequence[str] = (),
) -> StreamStatus:
    """Return the status of a stream at the time `now` (µs)."""
    frontier = progress.frontier
    topic_read_at = progress.freshness.newest
    stall_after = stream.stall_after_s * 1_000_000
    uncovered = frontier.uncovered()
    return StreamStatus(
        name=stream.name,
        now=now,
        ingest_batch=progress.ingest_batch,
        changes=progress.changes,
        unknown_tables=progress.unknown_tables,
        late=progress.late,
        ignored_claims=progress.ignored_claims,
        rejected=progress.rejected,
        dead_letters=dead_letters,
        lag=None if topic_read_at is None else progress.freshness.behind,
        topic_read_at=topic_read_at,
        low_watermark=progress.low_watermark,
        horizon=progress.horizon or None,  # at 0, no change is older
        lagging_partition=frontier.lagging_partition,
        stalled=tuple(frontier.stalls(now, stall_after)),
        stalls_unverified=topic_read_at is None
        or now - topic_read_at > stall_after
        or not any(frontier.stalls(topic_read_at, stall_after)),
        undeclared=tuple(frontier.undeclared),
        never_seen=tuple(root for root in stream.partitions if not _has_record(frontier, root)),
        uncovered=None if uncovered is None else Uncovered(*uncovered),
        without_key_range=() if uncovered is None else _may_fill(frontier, *uncovered),
        maintenance=tuple(maintenance),
        last_audit=last_audit,
        other_commits=tuple(other_commits),
        undefined_sources=tuple(undefined_sources),
        checks=progress.checks,
        transactions=progress.transactions,
        wait_s=stream.wait_s,
        write_streams=release_report(progress.staged, progress.releases),
        open_transactions=progress.open_transactions,
        losses=progress.losses,
    )


def _may_fill(frontier: Frontier, root: str, keys: KeyRange) -> tuple[str, ...]:
    """Return the live stream partitions without a key range that may fill the hole at `keys`.
    Empty: ranges overlap there.

    Roots that announced the same stream partition share their key space (WMK-9).
    """
    live = frontier.live
    ranged = [
        (partition.roots, partition.key_range)
        for partition in live.values()
        if partition.key_range is not None
    ]
    family, extended = frozenset[str](), frozenset({root})
    while family != extended:
        family = extended
        extended = family.union(*(roots for roots, _ in ranged if roots & family))
    for roots, key_range in ranged:
        if (
            roots & family
            and key_range.start <= keys.start
            and (key_range.end is None or keys.start < key_range.end)
        ):
            return ()
    return tuple(
        sorted(
            name
            for name, partition in live.items()
            if partition.key_range is None and partition.roots & family
        )
    )


def _has_record(frontier: Frontier, root: str) -> bool:
    """Return whether ingest has read a record of a root, or an announcement of it."""
    is_announced = any(announced == root for announced, _ in frontier.announcements)
    partitions = (frontier.partitions, frontier.ended, frontier.past_roots)
    return is_announced or any(root in names for names in partitions)

"""The progress of a stream, computed from the progress before and from the counts of a batch
(TBL-5), and the file beside a changelog with the time at which ingest last asked Kafka and had
nothing to read (TBL-24).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from connector.dead_letters.blocked_rows import BlockingLetter
from connector.dead_letters.ledger import NO_EXTERNAL, ExternalDeadLetters
from connector.errors.tables import table_stale, table_stale_blocked
from connector.records.model import Release, Truncate
from connector.records.views import Time, view_of_time
from connector.state.accepted_losses import NOTHING_LOST, AcceptLoss
from connector.state.incomplete_transactions import NOT_CHECKED, TransactionCheck
from connector.state.overrides import ClosePartition
from connector.state.source_checks import (
    NOTHING_FOUND,
    BatchFindings,
    KeyPlacement,
    SourceChecks,
    sum_counts,
)
from connector.state.table_state import TableState
from connector.state.truncations import NEVER_TRUNCATED, SourceTruncations
from connector.stored import from_checked, from_stored, to_checked, to_stored
from connector.tables.retention import DELETE_RETENTION_S, NONE_READ, BatchHorizons, next_horizon
from connector.text import counted, duration
from connector.watermarks.advance import advance
from connector.watermarks.freshness import NONE_ASKED, EndOffsets, FreshnessLog, is_fresh
from connector.watermarks.frontier import UNKNOWN, BatchClaims, Frontier
from connector.write_streams.releases import NO_RELEASES, ReleaseProgress

NORMAL_US: Final = 60_000_000
"""A transaction that is open for less is no problem."""


class OpenTransaction(NamedTuple):
    """The oldest open transaction of a Kafka partition.

    `first_offset` is that of its first record, which arrived at `since` (µs) and is of the
    `stream_partition`. Empty: it is no record of a known schema. `hidden` is the number of offsets
    from there to the end.
    """

    kafka_partition: int
    first_offset: int
    hidden: int
    since: Time
    stream_partition: str = ""

    def describe(self, now: int) -> str:
        """Return what is known of it, and what you can do, as one sentence."""
        origin = (
            f"of stream partition {self.stream_partition}"
            if self.stream_partition
            else "not a record of a known schema"
        )
        return (
            f"an open transaction hides {counted(self.hidden, 'offset')} of Kafka partition"
            f" {self.kafka_partition}: its first record, at offset {self.first_offset}, arrived"
            f" {duration(max(0, now - self.since) / 1_000_000)} ago"
            f" ({view_of_time(self.since)}), and is {origin}. End or restart its producer, or"
            " wait for its transaction.timeout.ms"
        )


def still_hiding(
    transactions: Iterable[OpenTransaction], ends: Mapping[int, int]
) -> tuple[OpenTransaction, ...]:
    """Return those that hold reading up, if it has reached `ends`. One that reading has passed has
    ended, and one that reading has not reached hides nothing yet.
    """
    return tuple(
        transaction
        for transaction in transactions
        if ends.get(transaction.kafka_partition, 0) == transaction.first_offset
    )


@dataclass(frozen=True, slots=True)
class StreamRules:
    """The settings of a stream that its progress depends on. `roots` are as in
    `connector.watermarks.advance`, and `wait_s` as in `Progress.cut`.
    """

    delete_retention_s: int = DELETE_RETENTION_S
    roots: frozenset[str] = frozenset()
    wait_s: int | None = None


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The counts of the rows of a batch.

    - `rejected` is by reason. `INVALID` has its rule after a slash, for example `INVALID/TABLE`.
    - `late` is the number of changes below the low watermark of the batch before (WMK-11).
    - `ignored_claims` is the number of claims without effect (ING-4). `findings` has their reasons.
    - `declared` is the number of changes whose transaction declares more than one record (ING-2).
    - `staged` is the number of staged rows, `streams` are their write streams, and `releases` the
      releases (WRS-17). `truncations` has each truncation once.
    - `read_at` is the latest ingest time, in microseconds.
    """

    changes: int = 0
    control: int = 0
    unknown_tables: int = 0
    late: int = 0
    ignored_claims: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    claims: BatchClaims = field(default_factory=lambda: BatchClaims(0))
    read_at: int = 0
    findings: BatchFindings = field(default_factory=BatchFindings)
    declared: int = 0
    staged: int = 0
    streams: frozenset[str] = frozenset()
    releases: tuple[Release, ...] = ()
    truncations: tuple[Truncate, ...] = ()

    @property
    def records(self) -> int:
        return self.changes + self.staged + self.control + sum(self.rejected.values())


@dataclass(frozen=True, slots=True)
class Cut:
    """The target of an apply: changes up to ingest batch `batch` with commit timestamps below
    `low_watermark`.

    The result is the state of the source at `low_watermark` (TBL-10). With `ignores_watermark` the
    low watermark is unknown or stalled, and every logged change is applied (TBL-11). `horizon` is
    the horizon of `batch`: older deletes may be forgotten once the cut is reached. In tables
    ordered by sequence number, `batch_horizons` is used instead.
    """

    batch: int
    low_watermark: int | None
    ignores_watermark: bool
    horizon: int | None = None
    freshness: FreshnessLog = NONE_ASKED
    chosen_at: int = 0
    batch_horizons: BatchHorizons = NONE_READ
    losses: tuple[AcceptLoss, ...] = NOTHING_LOST


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a stream up to and including `ingest_batch`. The batch is 0 before the first
    one.

    - `unknown_tables` is the number of changes whose source table was not declared at ingest
      (TBL-7).
    - `rejected_since` is when the first record was rejected (µs). None: no record was rejected.
    - `horizon` is `None` while the low watermark is unknown. For tables ordered by sequence number,
      `batch_horizons` is used.
    - `freshness` is the age of the states of the newest batches.
    - `ends` are the stream partitions that operators closed and that `ingest_batch` took. All of
      them up to the number `closed_to` were taken (WMK-8).
    - `external_dead_letters` counts the external dead letters that ingest has read (DLQ-7).
    - `checks` are the findings about the producers.
    - `transactions` is the result of the checks of transactions (ING-2).
    - `open_transactions` are those that hid records when Kafka was last asked.
    - `staged` counts the staged rows of write streams, and `releases` is what is known of their
      releases (WRS-17).
    - `truncations` are those of the source tables (EVO-13).
    - `losses` are all decisions about lost records, in the order in which ingest took them (RUN-7).
    """

    ingest_batch: int = 0
    changes: int = 0
    control: int = 0
    unknown_tables: int = 0
    late: int = 0
    ignored_claims: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    rejected_since: int | None = None
    horizon: int | None = None
    batch_horizons: BatchHorizons = NONE_READ
    freshness: FreshnessLog = NONE_ASKED
    ends: tuple[ClosePartition, ...] = ()
    closed_to: int = 0
    external_dead_letters: ExternalDeadLetters = NO_EXTERNAL
    checks: SourceChecks = NOTHING_FOUND
    transactions: TransactionCheck = NOT_CHECKED
    staged: int = 0
    releases: ReleaseProgress = NO_RELEASES
    open_transactions: tuple[OpenTransaction, ...] = ()
    truncations: SourceTruncations = NEVER_TRUNCATED
    losses: tuple[AcceptLoss, ...] = NOTHING_LOST
    frontier: Frontier = UNKNOWN

    @property
    def low_watermark(self) -> int | None:
        """The low watermark: the changelog has every change with a smaller commit timestamp."""
        return self.frontier.low_watermark

    @property
    def consistent_to(self) -> int | None:
        """The commit timestamp below which all transactions are shown, and are whole. It is the low
        watermark, unless a release lacks rows (WRS-18), or the stream waits for incomplete
        transactions (ING-2).
        """
        low = self.low_watermark
        if low is None:
            return None
        low = self.releases.waits_below(low)
        return self.transactions.complete_to(low) if self.transactions.waits else low

    def cut(self, now: int, stall_after_s: int, wait_s: int | None = None) -> Cut:
        """Return the target of an apply of all tables of the stream at `now` (TBL-10, TBL-11).

        `wait_s` is how long tables wait for an incomplete transaction (ING-2). None: they do not.
        """
        low, wait_us = self.low_watermark, (wait_s or 0) * 1_000_000
        is_stalled = self.frontier.is_stalled(now, stall_after_s * 1_000_000)
        is_overdue = wait_s is not None and bool(self.transactions.overdue(now, wait_us))
        ignores_watermark = low is None or is_stalled or is_overdue
        if low is not None:
            low = self.releases.waits_below(low)
            if wait_s is not None:
                low = self.transactions.complete_to(low)
        return Cut(
            self.ingest_batch,
            low,
            ignores_watermark,
            self.horizon,
            self.freshness,
            now,
            self.batch_horizons,
            self.losses,
        )

    def after(
        self,
        ingest_batch: int,
        counts: BatchCounts,
        ends: Mapping[int, int],
        asked: EndOffsets,
        rules: StreamRules,
        overrides: Sequence[ClosePartition] = (),
        placement: KeyPlacement | None = None,
        releases: ReleaseProgress | None = None,
    ) -> Progress:
        """Return the progress after `ingest_batch`, the next batch, was read up to `ends`.

        `overrides` are those of the batch. One that was already taken is ignored. `placement` is
        that of the keys, if a sample was taken (ING-1). `releases` are those after the batch; None:
        as before.
        """
        wait_s, retention_s = rules.wait_s, rules.delete_retention_s
        assert ingest_batch == self.ingest_batch + 1, (ingest_batch, self.ingest_batch)
        taken = tuple(override for override in overrides if override.number > self.closed_to)
        ended = [override.stream_partition for override in taken]
        # A batch without rows has the time when Kafka was asked.
        read_at = counts.read_at or asked.at
        frontier = advance(
            self.frontier,
            counts.claims,
            now=read_at,
            horizon=self.horizon,
            roots=rules.roots,
            ends=ended,
        )
        waits, low = wait_s is not None, self.low_watermark
        transactions = self.transactions.counted(counts.declared, low, waits=waits)
        releases = self.releases if releases is None else releases
        complete_to = _complete_to(frontier, releases, transactions, read_at, wait_s)
        return replace(
            self,
            ingest_batch=ingest_batch,
            changes=self.changes + counts.changes,
            control=self.control + counts.control,
            unknown_tables=self.unknown_tables + counts.unknown_tables,
            late=self.late + counts.late,
            ignored_claims=self.ignored_claims + counts.ignored_claims,
            rejected=sum_counts(self.rejected, counts.rejected),
            rejected_since=self.rejected_since or (read_at if counts.rejected else None),
            horizon=next_horizon(self.horizon, complete_to, retention_s),
            batch_horizons=self.batch_horizons.after(ingest_batch, read_at, retention_s),
            freshness=self.freshness.after(
                ingest_batch, ends, asked, is_whole=not releases.is_waiting
            ),
            ends=taken,
            closed_to=max((self.closed_to, *(override.number for override in taken))),
            transactions=transactions,
            staged=self.staged + counts.staged,
            releases=releases,
            truncations=self.truncations.after(ingest_batch, counts.truncations),
            checks=self.checks.after(counts.findings, placement or self.checks.placement, read_at),
            open_transactions=still_hiding(self.open_transactions, ends),
            frontier=frontier,
        )

    @property
    def needs_heartbeats(self) -> bool:
        """Whether rows, or whole transactions, may become visible without a new change."""
        return bool(self.releases.open) or self.consistent_to != self.low_watermark

    def may_change_rows_after(self, before: Progress) -> bool:
        """Return whether the batches after `before` may change a row of a table. Batches of
        heartbeats do not.
        """
        return any(
            getattr(self, name) != getattr(before, name)
            for name in ("changes", "staged", "rejected", "truncations", "releases")
        )

    def as_of(self, table: TableState) -> int | None:
        """Return the time (µs) up to which a table of the stream has all records (TBL-16).

        It is the later one of the current value and the value at the last apply.
        """
        return max(
            filter(None, (table.as_of, self.freshness.time_of(table.complete_to_batch))),
            default=None,
        )

    def is_late(self, table: TableState, now: int, within_us: int) -> bool:
        """Return whether a batch has waited longer than `within_us` for an apply of the table.

        The state that the batch gives is as old as the time when Kafka was asked for its end. If
        that is no longer known, the oldest time that is known counts: the batch has waited for
        longer.
        """
        if table.to_batch >= self.ingest_batch:
            return False
        asked = self.freshness.time_of(table.to_batch + 1)
        if asked is None:
            asked = min((moment.at for moment in self.freshness.contained), default=now)
        return now - asked > within_us

    def suffices(self, table: TableState, max_staleness_s: float | None, now: int) -> bool:
        """Return whether a table, without a merge, is enough for a read with this bound.

        It is enough if it is fresh enough, or if no known change is missing. A bound of None or 0
        is no bound: such a read needs everything (TBL-16).
        """
        is_fresh_enough = bool(max_staleness_s) and is_fresh(
            self.as_of(table), max_staleness_s or 0, now
        )
        return is_fresh_enough or table.complete_to_batch >= self.ingest_batch

    def check_age(
        self,
        table: str,
        stream: str,
        as_of: int | None,
        max_staleness_s: float | None,
        now: int,
        blocked_rows: tuple[BlockingLetter, ...] = (),
    ) -> None:
        """Raise `StaleTableError` if the newest possible result of a read, as of `as_of`, is older
        than its bound (TBL-16).

        `blocked_rows` are the dead letters that rows of the table wait for. If ingest is not
        behind, they are the cause.
        """
        if not max_staleness_s or is_fresh(as_of, max_staleness_s, now):
            return
        age = "of unknown age" if as_of is None else f"{(now - as_of) / 1_000_000:.1f} s old"
        bound = f"{max_staleness_s:g}"
        if blocked_rows and is_fresh(
            self.freshness.time_of(self.ingest_batch), max_staleness_s, now
        ):
            since = view_of_time(min(letter.since for letter in blocked_rows))
            raise table_stale_blocked(table, stream, age, bound, str(since), as_of)
        asked = self.freshness.newest
        last = (
            "Ingest has never run"
            if asked is None
            else f"Ingest last asked Kafka at {view_of_time(asked)}"
        )
        lag = f", and was {self.freshness.behind} offsets behind" if self.freshness.behind else ""
        raise table_stale(table, age, bound, f"{last}{lag}", as_of)

    def refreshed(
        self,
        ends: Mapping[int, int],
        asked: EndOffsets,
        open_transactions: Iterable[OpenTransaction] = (),
    ) -> Progress:
        """Return the progress after Kafka was asked and had no new records, except those that
        `open_transactions` hide. `ends` is the end of the newest batch (TBL-16).
        """
        is_whole = not self.releases.is_waiting
        return replace(
            self,
            open_transactions=tuple(open_transactions),
            freshness=self.freshness.after(self.ingest_batch, ends, asked, is_whole=is_whole),
        )

    def expires_before(self, now: int, staging_retention_s: int) -> int:
        """Return the time (µs): the rows of a write stream without a row since then are removed, if
        they are not released (WRS-21).

        A release of these rows came to Kafka at most `staging_retention_s` after the last of them.
        So everything must be read that had arrived by then. Otherwise, an ingest that starts again
        after a long stop would remove rows whose release it has not read yet.
        """
        read_to = min(now, self.freshness.time_of(self.ingest_batch) or 0)
        return read_to - 2 * staging_retention_s * 1_000_000

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values without the frontier, which is stored in a separate row."""
        stored = to_stored(replace(self, frontier=UNKNOWN))
        del stored["frontier"]
        if self.checks == NOTHING_FOUND:
            del stored["checks"]
        if self.transactions == NOT_CHECKED:
            del stored["transactions"]
        if not self.open_transactions:
            del stored["open_transactions"]
        if self.truncations == NEVER_TRUNCATED:
            del stored["truncations"]
        if not self.losses:
            del stored["losses"]
        if self.releases == NO_RELEASES:
            del stored["releases"]
            if not self.staged:
                del stored["staged"]
        horizons = stored["batch_horizons"]["horizons"]
        return {**stored, "batch_horizons": horizons, "low_watermark": self.low_watermark}

    @staticmethod
    def from_json(stored: Mapping[str, Any], frontier: Frontier) -> Progress:
        horizons = {"horizons": stored["batch_horizons"]}
        progress = from_stored(Progress, {**stored, "batch_horizons": horizons})
        return replace(progress, frontier=frontier)


@dataclass(frozen=True, slots=True)
class FreshnessFile:
    """The content of the file beside a changelog: the topic, and its end offsets at a time (µs).

    An idle stream overwrites it in place of a commit. It names its batch by the topic and the end
    offsets. Readers use it if it is newer than the newest commit. Without it, or if it is damaged,
    a state looks older than it is, but never younger.
    """

    topic_id: str
    at: int
    ends: Mapping[int, int]

    def to_text(self) -> str:
        """Convert to the text of the file."""
        return to_checked(self)

    @staticmethod
    def from_text(text: str) -> FreshnessFile | None:
        """Read the text of the file. None: it is damaged."""
        return from_checked(FreshnessFile, text)


def _complete_to(
    frontier: Frontier,
    releases: ReleaseProgress,
    transactions: TransactionCheck,
    now: int,
    wait_s: int | None,
) -> int | None:
    """The time below which nothing is waited for. The horizon is counted back from it."""
    if frontier.low_watermark is None:
        return None
    low = releases.waits_below(frontier.low_watermark)
    return low if wait_s is None else transactions.waits_to(low, now, wait_s * 1_000_000)


def with_freshness_file(
    progress: Progress, stored: Mapping[str, Any], text: str | None
) -> Progress:
    """Return a progress with the freshness of the file, if the file is newer.

    Args:
        progress: That of the newest commit of the changelog.
        stored: The metadata of this commit.
        text: The text of the file. None: there is no file.
    """
    if text is None or stored["ingest_batch"] != progress.ingest_batch:
        return progress
    file = FreshnessFile.from_text(text)
    if file is None or file.topic_id != stored["topic_id"]:
        return progress
    if file.at <= (progress.freshness.newest or 0):
        return progress
    read_to = from_stored(dict[int, int], stored["end_offsets"])
    asked = EndOffsets(file.at, file.ends)
    return progress.refreshed(read_to, asked, progress.open_transactions)

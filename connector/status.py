"""How streams and tables stand, for those who operate them: values from their newest commits in, values out (OPS-5, TBL-20).

A stream is judged by its progress, a table by its own bookkeeping and the progress of its stream. All times and watermarks are
microseconds, `now` is the clock of whoever asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from connector.bookkeeping import Bookkeeping
from connector.freshness import is_fresh
from connector.history import Job, keeps_bound, p95_s, recommended_bound_s
from connector.json_view import view_of_bytes, view_of_time
from connector.ledger import Totals
from connector.outside import OutsideLetters
from connector.pace import APPLY_EVERY_S
from connector.progress import Progress
from connector.tables import TableDefinition
from connector.watermark import Frontier, KeyRange, Stall

FEW: Final = 3
_TIMES: Final = frozenset(
    {
        "asked_at",
        "low_watermark",
        "horizon",
        "since",
        "watermark",
        "upsert_stream_apply_watermark",
        "no_cut_since",
        "as_of",
        "ended_at",
        "held_since",
        "due_at",
    }
)


@dataclass(frozen=True, slots=True)
class OpenLetters:
    """Dead letters that were neither replayed nor discarded: how many, and since when at the earliest (µs; None: not known).

    `is_known` false: the ledger could not be read, and `count` has all there ever were (DLQ-7). `under_way`: some were replayed, and ingest
    has not read all of those replays.
    """

    count: int = 0
    since: int | None = None
    is_known: bool = True
    under_way: bool = False


NONE_OPEN: Final = OpenLetters()


def open_letters(
    rejected: int,
    tables: Mapping[str, int],
    outside: OutsideLetters,
    topic_id: str,
    totals: Totals | None,
    first: int | None,
    *,
    is_known: bool = True,
    under_way: bool = False,
) -> tuple[OpenLetters, dict[str, OpenLetters]]:
    """Those of a stream, and those of each of its tables, by how many records were ever `rejected`, how many changes became letters of
    `tables`, and how many came from `outside`. `first` is when the first of all failed. What has no table may have been one of any.

    `totals` are those of the ledger of the topic with the id `topic_id`, None where nobody has acted yet. `is_known` and `under_way` are
    theirs all alike.
    """
    closed = {} if totals is None else totals.closed
    since = first if totals is None or totals.open_since is None else totals.open_since

    def left(count: int) -> OpenLetters:
        return OpenLetters(count, since if count else None, is_known, under_way)

    closed_outside = sum(count for (of, _), count in closed.items() if of != topic_id)
    open_rejected = max(0, rejected - closed.get((topic_id, ""), 0)) + max(0, outside.count - closed_outside)
    of_tables = {name: max(0, count - closed.get((topic_id, name), 0)) for name, count in tables.items()}
    return left(open_rejected + sum(of_tables.values())), {name: left(open_rejected + count) for name, count in of_tables.items()}


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """How a stream stands after its newest batch.

    ignored_claims      watermark claims that moved nothing: ahead of their arrival (REC-15), or below an earlier claim of the same
                        stream partition in the same Kafka partition (WMK-2)
    lag                 offsets between that batch and the ends that Kafka told when it was asked last, `asked_at`
    held_by             the live stream partition whose low watermark is the least; None: there is none
    stalled             those whose low watermark has not moved for `stall_after`, the longest first (WMK-12)
    is_unasked          what they have sent since is not known: ingest has not asked Kafka for `stall_after`, or none was stalled yet then
    undeclared          those that speak and that nobody announced (WMK-8)
    silent              those that the configuration names and that have not spoken (WMK-6)
    uncovered           a root whose key space has a hole or an overlap, and where (WMK-9)
    without_key_range   where it has a hole: the live descendants of that root that were announced without a key range, which may fill it
    dead_letters        rejected records and table letters that were neither replayed nor discarded (DLQ-7)
    maintenance         the last compaction and the last clean-up of the changelog (TBL-15)
    """

    name: str
    now: int
    ingest_batch: int
    changes: int
    unknown_tables: int
    late: int
    ignored_claims: int
    rejected: Mapping[str, int]
    dead_letters: OpenLetters
    lag: int | None
    asked_at: int | None
    low_watermark: int | None
    horizon: int | None
    held_by: Stall | None
    stalled: tuple[Stall, ...]
    is_unasked: bool
    undeclared: tuple[str, ...]
    silent: tuple[str, ...]
    uncovered: tuple[str, KeyRange] | None
    without_key_range: tuple[str, ...]
    maintenance: tuple[Job, ...] = ()

    @property
    def low_watermark_age_s(self) -> float | None:
        """How far the source's time, as far as it is complete, lies behind `now`."""
        return None if self.low_watermark is None else (self.now - self.low_watermark) / 1_000_000

    @property
    def hints(self) -> list[str]:
        """What keeps the stream from being complete, and what to do about it."""
        found = []
        if not self.ingest_batch:
            found.append("nothing was ingested yet: start `connector run`")
        elif self.low_watermark is None:
            found.append("no low watermark: no table is a consistent cut, and nothing expires; have the stream partitions announced")
        if self.ingest_batch and self.silent:
            found.append(f"named in the configuration and not heard of: {few(self.silent)}")
        if self.uncovered is not None:
            root, keys = self.uncovered
            wrong = f"below {root} the live stream partitions leave a hole in {keys}, or overlap there"
            if self.without_key_range:
                names = few(self.without_key_range)
                wrong = f"below {root} no key range covers {keys}, and {names} have none: announce them with key ranges, as the others are"
            found.append(f"the low watermark stands: {wrong}")
        if self.undeclared:
            found.append(f"{few(self.undeclared)}: nobody announced what writes there; announce it, or `connector partitions end` it")
        if self.stalled:
            names = few([stall.stream_partition for stall in self.stalled])
            remedy = "have heartbeats sent, or `connector partitions end` what is over"
            if self.is_unasked:
                remedy = "ingest has not asked Kafka for so long: see that `connector run` is at work"
            found.append(f"{names}: stalled; {remedy}")
        if self.ignored_claims and (self.low_watermark is None or self.stalled):
            claims = f"{self.ignored_claims:,} watermark claim{'' if self.ignored_claims == 1 else 's'}"
            remedy = "have producers send 0 where they know no low watermark, and check their clocks"
            found.append(f"{claims} moved nothing, being ahead of the clock or below earlier ones: {remedy}")
        if self.dead_letters.under_way:
            found.append("dead letters were replayed that are not ingested yet: see that `connector run` is at work")
        if not self.dead_letters.is_known:
            found.append("the ledger of dead letters could not be read: those that were replayed or discarded are counted as open")
        return found + failed_maintenance(self.maintenance)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; names are stable, times ISO 8601."""
        uncovered = None if self.uncovered is None else {"root": self.uncovered[0], **view_of_range(self.uncovered[1])}
        return _view(self) | {
            **_view_of_letters(self.dead_letters),
            "low_watermark_age_s": self.low_watermark_age_s,
            "rejected": dict(self.rejected),
            "held_by": None if self.held_by is None else _view_of_stall(self.held_by),
            "stalled": [_view_of_stall(stall) for stall in self.stalled],
            "undeclared": list(self.undeclared),
            "silent": list(self.silent),
            "uncovered": uncovered,
            "without_key_range": list(self.without_key_range),
            "maintenance": [view_of_job(job) for job in self.maintenance],
            "hints": self.hints,
        }


@dataclass(frozen=True, slots=True)
class TableStatus:
    """How a table stands after its last apply.

    upsert_stream_apply_watermark   every change with a smaller commit timestamp is in the table; None: not known
    no_cut_since, held_by           since when it is no consistent cut, and who holds the low watermark; None: it is one, or is empty
    as_of                           everything that had arrived in Kafka then is in it; None: not known
    pending_batches                 those of which something is still to be applied
    declared_max_staleness_s        that of the configuration; `max_staleness_s` is the one in force
    letters                         how many changes of it ever became table letters (TBL-9)
    held_rows, held_since           rows that wait for a dead change of theirs, and since when the oldest does (DLQ-3)
    dead_letters                    open ones that are, or may be, of this table: without them it is not complete (DLQ-7)
    last_job                        the last apply or rebuild: a read that merged says nothing of the table
    p95_s, recommended_max_staleness_s   of the applies of the last seven days (TBL-19)
    apply_every_s, due_at           the time from one apply to the next, and when the next one is due, if there is something to apply
                                    (JOB-2); None: at once
    maintenance                     the last compaction and the last clean-up, of the table and its graveyard (TBL-15)
    """

    name: str
    stream: str
    now: int
    apply: int
    to_batch: int
    pending_batches: int
    upsert_stream_apply_watermark: int | None
    is_consistent_cut: bool
    no_cut_since: int | None
    held_by: Stall | None
    as_of: int | None
    declared_max_staleness_s: int | None
    max_staleness_s: int | None
    letters: int
    held_rows: int
    held_since: int | None
    dead_letters: OpenLetters
    last_job: Job | None
    p95_s: float | None
    recommended_max_staleness_s: int | None
    apply_every_s: float
    due_at: int | None
    maintenance: tuple[Job, ...] = ()

    @property
    def age_s(self) -> float | None:
        """How old the table as it stands is, on the clock of arrival in Kafka (TBL-16); None: not known."""
        return None if self.as_of is None else (self.now - self.as_of) / 1_000_000

    @property
    def is_complete(self) -> bool:
        """Whether it is a consistent cut, and no dead letter that may be of it is open, or on its way back."""
        return self.is_consistent_cut and not self.dead_letters.count and not self.dead_letters.under_way

    @property
    def is_older_than_its_bound(self) -> bool:
        """Whether a read within the bound has to merge, or to wait."""
        return bool(self.max_staleness_s) and not is_fresh(self.as_of, self.max_staleness_s or 0, self.now)

    @property
    def hints(self) -> list[str]:
        """What keeps the table from being what was asked for, and what to do about it."""
        found = []
        if not self.apply:
            found.append("nothing was applied yet: start `connector run`")
        elif self.is_older_than_its_bound:
            found.append("older than its max_staleness: reads merge what is not applied, and fail where ingest is behind, too")
        if self.max_staleness_s and not keeps_bound(self.p95_s, self.max_staleness_s):
            took = f"95 of 100 applies take up to {self.p95_s:.1f} s, more than half of its max_staleness"
            found.append(f"{took}: they can keep one of {self.recommended_max_staleness_s} s")
        elif self.max_staleness_s and self.apply_every_s > self.max_staleness_s:
            found.append(f"applied every {self.apply_every_s:g} s, more than its max_staleness: reads in between merge")
        if self.last_job is not None and self.last_job.error:
            found.append(f"its last job failed: {self.last_job.error}")
        if self.held_rows:
            found.append(f"{self.held_rows:,} rows wait for a dead letter: mend and replay it, or discard it")
        if self.dead_letters.count:
            letters = f"{self.dead_letters.count:,} dead letter{'' if self.dead_letters.count == 1 else 's'}"
            found.append(f"not complete without {letters}: see `connector dead-letters list`")
        return found + failed_maintenance(self.maintenance)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; names are stable, times ISO 8601."""
        return _view(self) | {
            **_view_of_letters(self.dead_letters),
            "is_complete": self.is_complete,
            "age_s": self.age_s,
            "held_by": None if self.held_by is None else _view_of_stall(self.held_by),
            "last_job": None if self.last_job is None else view_of_job(self.last_job),
            "maintenance": [view_of_job(job) for job in self.maintenance],
            "hints": self.hints,
        }


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How a stream partition stands that is not over.

    low_watermark, held_by       the least that it claims, and the Kafka partition in which it does; None: nothing yet
    moved_at, is_stalled         when its low watermark became what it is, and whether that is longer ago than `stall_after`
    roots                        whose descendant it is; none: nobody has declared it (WMK-8)
    waits_for                    the parents that have not ended: until then they hold the low watermark (WMK-7)
    is_over                      it has ended, and others wait for its siblings
    """

    name: str
    low_watermark: int | None
    held_by: int
    moved_at: int
    is_stalled: bool
    roots: tuple[str, ...]
    key_range: KeyRange | None
    waits_for: tuple[str, ...]
    is_over: bool

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; names are stable, times ISO 8601."""
        return {
            "stream_partition": self.name,
            "low_watermark": None if self.low_watermark is None else view_of_time(self.low_watermark),
            "kafka_partition": self.held_by,
            "since": view_of_time(self.moved_at),
            "is_stalled": self.is_stalled,
            "is_declared": bool(self.roots),
            "roots": list(self.roots),
            "key_range": None if self.key_range is None else view_of_range(self.key_range),
            "waits_for": list(self.waits_for),
            "is_over": self.is_over,
        }


def partition_statuses(frontier: Frontier, now: int, stall_after_s: int) -> list[PartitionStatus]:
    """The stream partitions that are not over, those first that hold the low watermark, then those that wait for their parents."""
    k, waiting = frontier.kafka_partitions, frontier.waiting
    stalled = {stall.stream_partition for stall in frontier.stalls(now, stall_after_s * 1_000_000)}
    statuses = [
        PartitionStatus(
            name=name,
            low_watermark=one.low_watermark(k) or None,
            held_by=one.held_by(k),
            moved_at=frontier.moved[name].at,
            is_stalled=name in stalled,
            roots=tuple(sorted(one.roots)),
            key_range=one.key_range,
            waits_for=tuple(sorted(one.parents & frontier.partitions.keys())) if name in waiting else (),
            is_over=one.has_ended(k),
        )
        for name, one in frontier.partitions.items()
    ]
    return sorted(statuses, key=lambda status: (bool(status.waits_for), status.low_watermark or 0, status.name))


def stream_status(
    name: str,
    progress: Progress,
    now: int,
    *,
    stall_after_s: int,
    roots: Sequence[str] = (),
    dead_letters: OpenLetters = NONE_OPEN,
    maintenance: Sequence[Job] = (),
) -> StreamStatus:
    """How the stream stands. `progress` has its frontier; `roots` are those that the configuration names."""
    frontier, asked_at, stall_after = progress.frontier, progress.moments.newest, stall_after_s * 1_000_000
    uncovered = frontier.uncovered()
    return StreamStatus(
        name=name,
        now=now,
        ingest_batch=progress.ingest_batch,
        changes=progress.changes,
        unknown_tables=progress.unknown_tables,
        late=progress.late,
        ignored_claims=progress.ignored_claims,
        rejected=progress.rejected,
        dead_letters=dead_letters,
        lag=None if asked_at is None else progress.moments.behind,
        asked_at=asked_at,
        low_watermark=progress.low_watermark,
        horizon=progress.horizon,
        held_by=holder(frontier),
        stalled=tuple(frontier.stalls(now, stall_after)),
        is_unasked=asked_at is None or now - asked_at > stall_after or not any(frontier.stalls(asked_at, stall_after)),
        undeclared=tuple(frontier.undeclared),
        silent=tuple(root for root in roots if not _has_spoken(frontier, root)),
        uncovered=uncovered,
        without_key_range=() if uncovered is None else _may_fill(frontier, *uncovered),
        maintenance=tuple(maintenance),
    )


def table_status(
    definition: TableDefinition,
    table: Bookkeeping,
    progress: Progress,
    now: int,
    *,
    max_staleness_s: int | None = None,
    apply_every_s: float = APPLY_EVERY_S,
    last_job: Job | None = None,
    durations_us: Sequence[int] = (),
    bound_buffer_s: int = 0,
    dead_letters: OpenLetters = NONE_OPEN,
    maintenance: Sequence[Job] = (),
) -> TableStatus:
    """How the table stands. `max_staleness_s` and `apply_every_s` are those in force, `durations_us` of the last week's applies (TBL-19).

    `bound_buffer_s` is added to the bound that these can keep (JOB-4).
    """
    p95 = p95_s(durations_us)
    no_cut = bool(table.apply) and not table.is_consistent_cut
    return TableStatus(
        name=definition.name,
        stream=definition.stream,
        now=now,
        apply=table.apply,
        to_batch=table.to_batch,
        pending_batches=max(0, progress.ingest_batch - table.complete_to_batch),
        upsert_stream_apply_watermark=table.complete_below,
        is_consistent_cut=table.is_consistent_cut,
        no_cut_since=table.past_since if no_cut else None,
        held_by=holder(progress.frontier) if no_cut else None,
        as_of=progress.as_of(table),
        declared_max_staleness_s=definition.max_staleness_s,
        max_staleness_s=max_staleness_s,
        letters=table.letters,
        held_rows=len({dead.row_key for dead in table.held}),
        held_since=min((dead.since for dead in table.held), default=None),
        dead_letters=dead_letters,
        last_job=last_job,
        p95_s=p95,
        recommended_max_staleness_s=recommended_bound_s(p95, bound_buffer_s),
        apply_every_s=apply_every_s,
        due_at=None if last_job is None else last_job.started_at + int(apply_every_s * 1_000_000),
        maintenance=tuple(maintenance),
    )


def holder(frontier: Frontier) -> Stall | None:
    """The live stream partition whose own low watermark is the least: nothing is complete above it (WMK-3). None: there is none."""
    k = frontier.kafka_partitions
    least = min(frontier.live.items(), key=lambda item: (item[1].low_watermark(k), item[0]), default=None)
    return None if least is None else Stall(least[0], least[1].held_by(k), *frontier.moved[least[0]])


def failed_maintenance(jobs: Sequence[Job]) -> list[str]:
    """A hint for each kind of maintenance whose last job failed."""
    return [f"its last {job.kind.value.replace('_', '-')} failed, and is tried again: {job.error}" for job in jobs if job.error]


def few(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    more = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {more} more" if more > 0 else "")


def view_of_job(job: Job) -> dict[str, Any]:
    """A job as JSON can hold it."""
    times = ("started_at", "ended_at", "watermark_before", "watermark_after")
    view: dict[str, Any] = {name: getattr(job, name) for name in Job.__dataclass_fields__}
    view |= {name: view_of_time(view[name]) for name in times if view[name] is not None}
    return {**view, "kind": job.kind.value, "duration_s": job.duration_s, "error": job.error or None}


def view_of_range(keys: KeyRange) -> dict[str, Any]:
    """A range of row keys as JSON can hold it: bytes as in the JSON view (REC-22); an end of null is behind the last key."""
    return {"start_key": view_of_bytes(keys.start), "end_key": None if keys.end is None else view_of_bytes(keys.end)}


def _may_fill(frontier: Frontier, root: str, keys: KeyRange) -> tuple[str, ...]:
    """The live stream partitions without a key range that a hole at `keys` may belong to; none where key ranges overlap there.

    Roots that announced the same stream partition share their key space (WMK-9).
    """
    live = frontier.live
    ranged = [(one.roots, one.key_range) for one in live.values() if one.key_range is not None]
    family, grown = frozenset[str](), frozenset({root})
    while family != grown:
        family = grown
        grown = family.union(*(roots for roots, _ in ranged if roots & family))
    if any(roots & family and _holds(key_range, keys.start) for roots, key_range in ranged):
        return ()
    return tuple(sorted(name for name, one in live.items() if one.key_range is None and one.roots & family))


def _holds(keys: KeyRange, key: bytes) -> bool:
    return keys.start <= key and (keys.end is None or key < keys.end)


def _has_spoken(frontier: Frontier, root: str) -> bool:
    is_announced = any(announced == root for announced, _ in frontier.announcements)
    return root in frontier.partitions or root in frontier.ended or root in frontier.past_roots or is_announced


def _view(status: StreamStatus | TableStatus) -> dict[str, Any]:
    view = {name: getattr(status, name) for name in status.__dataclass_fields__ if name not in ("name", "now", "dead_letters")}
    return {name: view_of_time(value) if name in _TIMES and value is not None else value for name, value in view.items()}


def _view_of_letters(letters: OpenLetters) -> dict[str, Any]:
    since = None if letters.since is None else view_of_time(letters.since)
    known = {"is_ledger_known": letters.is_known, "replays_under_way": letters.under_way}
    return {"open_dead_letters": letters.count, "dead_letters_since": since, **known}


def _view_of_stall(stall: Stall) -> dict[str, Any]:
    return {
        "stream_partition": stall.stream_partition,
        "kafka_partition": stall.kafka_partition,
        "watermark": view_of_time(stall.watermark) if stall.watermark else None,
        "since": view_of_time(stall.since),
    }

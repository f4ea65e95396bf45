"""`connector status`: how streams and tables stand, from their newest commits and the totals of ledgers, without a JVM (OPS-5, TBL-20).

Names of stream partitions, keys and reasons came from outside: all of it is escaped before it reaches the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from connector.cli import settings
from connector.cli.open_letters import open_letters_of
from connector.cli.terminal import console, escaped, out, say, table
from connector.clock import now_us
from connector.errors import TableError
from connector.records.json_view import to_line
from connector.records.views import view_of_time
from connector.state.jobs import RECOMMENDED_OVER_S, Job, JobKind
from connector.state.open_dead_letters import OpenLetters
from connector.state.overrides import bound_in_force, pace_in_force
from connector.state.status_json import FEW, summarize_names
from connector.state.stream_progress import Progress
from connector.state.stream_status import StreamStatus, stream_status
from connector.state.table_state import TableState
from connector.state.table_status import TableStatus, table_status
from connector.text import counted
from connector.watermarks.frontier import Stall

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig

WATCH_EVERY_S: Final = 2.0
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))

_Read = TypeVar("_Read")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--watch", is_flag=True, help=f"Show it again every {WATCH_EVERY_S:g} seconds, until Ctrl-C.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool, watch: bool) -> None:
    """Show how far every stream is ingested and complete, and how old every table is.

    Everything is read from the warehouse: what Kafka has is known as of when ingest asked last. Only where there ever were dead letters,
    Kafka is asked which of them are open. What cannot be read is said, and the rest is shown.
    """
    if as_json and watch:
        raise click.UsageError("--watch is for people; call `connector status --json` again instead")
    config = settings.load(ctx)
    while True:
        found = Found.read(config, now_us())
        if as_json:
            out(to_line(found.to_json()))
        else:
            if watch:
                console().clear()
            _print(found)
        if not watch:
            break
        time.sleep(WATCH_EVERY_S)
    if found.errors:
        raise next(iter(found.errors.values()))


@dataclass(frozen=True, slots=True)
class Found:
    """How the streams and tables of a configuration stand at `at`. Those that cannot be read are in `errors`, by their path."""

    at: int
    streams: dict[str, StreamStatus] = field(default_factory=dict)
    tables: dict[str, TableStatus] = field(default_factory=dict)
    errors: dict[str, TableError] = field(default_factory=dict)

    @staticmethod
    def read(config: ConnectorConfig, at: int) -> Found:
        from connector.lake.overrides import Overrides
        from connector.lake.state_reader import progress_of, table_state_of

        found = Found(at)
        bounds = found._try("settings", Overrides(config.warehouse).bounds) or {}
        paces = found._try("settings", Overrides(config.warehouse).paces) or {}
        tables = {name: found._try(f"tables.{name}", partial(table_state_of, config.warehouse, name)) for name in config.tables}
        for name, stream in config.streams.items():
            progress = found._try(f"streams.{name}", partial(progress_of, config.warehouse, name, with_frontier=True))
            if progress is None:
                continue
            of_stream = {of: book for of, book in tables.items() if book is not None and config.tables[of].stream == name}
            letters, of_tables = open_letters_of(config, stream, progress, of_stream)
            found.streams[name] = stream_status(
                *(name, progress, at),
                stall_after_s=stream.stall_after_s,
                dead_letters=letters,
                roots=stream.partitions,
                maintenance=found._maintenance(config, f"streams.{name}", stream=name),
            )
            for of, book in of_stream.items():
                found._try(f"tables.{of}", partial(book.check_changelog, of, progress.ingest_batch))
                every_s = pace_in_force(config.tables[of], bounds, paces)
                found.tables[of] = found._table(config, of, book, progress, bounds, every_s, of_tables[of])
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "at": view_of_time(self.at),
            "streams": {name: status.to_json() for name, status in self.streams.items()},
            "tables": {name: status.to_json() for name, status in self.tables.items()},
            "errors": {path: str(error) for path, error in self.errors.items()},
        }

    def _table(
        self,
        config: ConnectorConfig,
        name: str,
        book: TableState,
        progress: Progress,
        bounds: Mapping[str, int],
        apply_every_s: float,
        dead_letters: OpenLetters,
    ) -> TableStatus:
        from connector.lake.jobs import History

        history, definition = History(config.warehouse), config.tables[name]
        jobs = self._try(f"tables.{name}", partial(history.jobs, name, limit=1, kinds=(JobKind.APPLY, JobKind.REBUILD))) or []
        durations = self._try(f"tables.{name}", partial(history.durations_us, name, since=self.at - RECOMMENDED_OVER_S * 1_000_000)) or []
        bound, last_job = bound_in_force(definition, bounds), next(iter(jobs), None)
        return table_status(
            *(definition, book, progress, self.at),
            dead_letters=dead_letters,
            max_staleness_s=bound,
            apply_every_s=apply_every_s,
            last_job=last_job,
            durations_us=durations,
            bound_buffer_s=config.streams[definition.stream].buffer_s,
            maintenance=self._maintenance(config, f"tables.{name}", table=name),
        )

    def _maintenance(self, config: ConnectorConfig, path: str, *, table: str = "", stream: str = "") -> list[Job]:
        from connector.lake.jobs import History

        found = self._try(path, partial(History(config.warehouse).maintenance, table=table, stream=stream))
        return list(found.values()) if found else []

    def _try(self, path: str, read: Callable[[], _Read]) -> _Read | None:
        try:
            return read()
        except TableError as error:
            self.errors[path] = error
            return None


def _print(found: Found) -> None:
    for stream in found.streams.values():
        out(f"stream {stream.name}")
        for name, fact in _facts(stream):
            out(f"  {name:<14}  {escaped(fact)}")
        out("")
    if found.tables:
        _print_tables(found)
    for path, error in found.errors.items():
        say(f"{path}: {error}")


def _facts(stream: StreamStatus) -> Iterator[tuple[str, str]]:
    unknown = f", {stream.unknown_tables:,} of source tables that no definition names" if stream.unknown_tables else ""
    yield "ingested", f"{counted(stream.changes, 'change')} by ingest batch {stream.ingest_batch:,}{unknown}"
    if stream.topic_read_at is not None:
        yield "lag", f"{counted(stream.lag or 0, 'offset')}, when Kafka was asked last, {_ago(stream.now, stream.topic_read_at)}"
    if stream.low_watermark is not None:
        yield "complete below", f"{view_of_time(stream.low_watermark)}, {_ago(stream.now, stream.low_watermark)}"
    if stream.horizon is not None:
        yield "horizon", f"{view_of_time(stream.horizon)}: deletes before it may be forgotten, changes are refused"
    if stream.lagging_partition is not None:
        yield "held by", _held(stream.lagging_partition, stream.now)
    for stall in stream.stalled[:FEW]:
        yield "stalled", _held(stall, stream.now)
    if stream.undeclared:
        yield "undeclared", summarize_names(stream.undeclared)
    if stream.late:
        yield "late", f"{counted(stream.late, 'change')} below the low watermark: applied, and revisions of their cuts"
    if stream.ignored_claims:
        yield "ignored claims", f"{stream.ignored_claims:,}: ahead of their arrival, or below an earlier one; they moved no low watermark"
    if stream.dead_letters.count or stream.rejected:
        by_reason = ", ".join(f"{count:,} {reason}" for reason, count in sorted(stream.rejected.items(), key=lambda item: -item[1]))
        since = "" if stream.dead_letters.since is None else f", the oldest {_ago(stream.now, stream.dead_letters.since)}"
        known = f"{stream.dead_letters.count:,} open" if stream.dead_letters.is_known else f"at most {stream.dead_letters.count:,} open"
        yield "dead letters", f"{known}{since}" + (f"; rejected so far: {by_reason}" if by_reason else "")
    if (kept := _maintained(stream.maintenance, stream.now)) is not None:
        yield "maintained", kept
    for hint in stream.hints:
        yield "hint", hint


def _print_tables(found: Found) -> None:
    right = frozenset({"pending", "letters"})
    shown = table("table", "complete below", "cut", "letters", "age", "bound", "can keep", "pending", "due", "last job", right=right)
    for of in found.tables.values():
        shown.add_row(
            of.name,
            "" if of.upsert_stream_apply_watermark is None else _to_the_second(of.upsert_stream_apply_watermark),
            _cut(of),
            f"{of.dead_letters.count:,}",
            "" if of.age_s is None else duration(of.age_s),
            "" if of.max_staleness_s is None else duration(of.max_staleness_s),
            "" if of.recommended_max_staleness_s is None else duration(of.recommended_max_staleness_s),
            f"{of.pending_batches:,}",
            _due(of),
            "" if of.last_job is None else escaped(_job(of.last_job, of.now)),
        )
    console().print(shown)
    for of in found.tables.values():
        if (kept := _maintained(of.maintenance, of.now)) is not None:
            out(f"maintained: {of.name}: {kept}")
        for hint in of.hints:
            out(f"hint: {of.name}: {escaped(hint)}")


def _maintained(jobs: Iterable[Job], now: int) -> str | None:
    """What was done last, and what was left on disk then; None if nothing was done yet."""
    parts = []
    for job in jobs:
        what = "fewer" if job.kind is JobKind.COMPACTION else f"removed, {_mib(job.bytes)} freed"
        did = "failed" if job.error else f"{counted(job.files, 'file')} {what}"
        parts.append(f"{job.kind.value.replace('_', '-')} {_ago(now, job.ended_at)}, {did}")
        if job.disk_bytes:
            parts.append(f"then {_mib(job.disk_bytes)} on disk, {_mib(job.live_bytes)} of the newest version")
    return "; ".join(parts) or None


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _cut(of: TableStatus) -> str:
    if of.is_consistent_cut:
        return "yes"
    if not of.apply:
        return "nothing applied"
    since = "" if of.inconsistent_since is None else f" for {duration((of.now - of.inconsistent_since) / 1_000_000)}"
    blocked_rows = "" if of.lagging_partition is None else f", held by {escaped(of.lagging_partition.stream_partition)}"
    return f"no{since}{blocked_rows}"


def _due(of: TableStatus) -> str:
    if of.due_at is not None and of.due_at > of.now:
        return f"in {duration((of.due_at - of.now) / 1_000_000)}"
    return "now" if of.pending_batches else ""


def _to_the_second(timestamp: int) -> str:
    return str(view_of_time(timestamp - timestamp % 1_000_000)).replace(".000000", "")


def _job(job: Job, now: int) -> str:
    return f"{job.kind.value.replace('_', ' ')} {_ago(now, job.ended_at)}, {job.duration_s:.1f} s" + (", failed" if job.error else "")


def _held(stall: Stall, now: int) -> str:
    reached = f"at {view_of_time(stall.watermark)}" if stall.watermark else "without a watermark"
    return f"{stall.stream_partition} in Kafka partition {stall.kafka_partition}, {reached} since {_ago(now, stall.since)}"


def _ago(now: int, then: int) -> str:
    seconds = (now - then) / 1_000_000
    return f"{duration(seconds)} ago" if seconds >= 0 else f"{duration(-seconds)} ahead"


def duration(seconds: float) -> str:
    """A duration in its two largest units, rounded down, as a setting would have it: `0s`, `1m30s`, `2d4h`."""
    rest = int(seconds)
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        parts.append(f"{count}{unit}" if count else "")
    first = next((place for place, part in enumerate(parts) if part), len(parts))
    return "".join(parts[first : first + 2]) or "0s"

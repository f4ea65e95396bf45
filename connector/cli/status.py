"""`connector status`: the status of streams and tables, without a JVM (OPS-5, TBL-20).

Names of stream partitions, keys and reasons came from outside: all of it is escaped before it
reaches the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final

import click

from connector.cli.parameters import config_of
from connector.cli.terminal import console, err, escaped, out, table
from connector.records.json_view import to_line
from connector.records.views import view_of_time
from connector.reports.source_status import facts_of_checks
from connector.reports.stream_status import StreamStatus
from connector.reports.table_status import TableStatus
from connector.services.status import StatusReport, status
from connector.state.jobs import Job, JobKind
from connector.text import FEW, counted, duration, summarize_names
from connector.watermarks.frontier import Stall

WATCH_EVERY_S: Final = 2.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--watch", is_flag=True, help=f"Refresh every {WATCH_EVERY_S:g} seconds until you press Ctrl-C."
)
@click.pass_context
def command(ctx: click.Context, *, as_json: bool, watch: bool) -> None:
    """Show the progress of each stream, the age of each table, and open dead letters.

    The command reads the warehouse; the lag is from the last check of Kafka by ingest. The command
    asks Kafka only for the state of dead letters. If a stream or table cannot be read, it shows the
    others and the error.
    """
    if as_json and watch:
        raise click.UsageError(
            "use --watch without --json; run `connector status --json` again to refresh JSON"
        )
    config = config_of(ctx)
    while True:
        found = status(config)
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


def _print(found: StatusReport) -> None:
    for stream in found.streams.values():
        out(f"stream {stream.name}")
        for name, fact in _facts(stream):
            out(f"  {name:<14}  {escaped(fact)}")
        out("")
    if found.tables:
        _print_tables(found)
    for command in dict.fromkeys(_commands(found)):
        out(f"run: {command}")
    for path, error in found.errors.items():
        err(f"{path}: {error}")


def _commands(found: StatusReport) -> Iterator[str]:
    """The commands that help with the hints. Names of streams need no quotes."""
    for stream in found.streams.values():
        if not stream.ingest_batch or _waits_for_ingest(stream):
            yield "connector run"
        is_delayed = stream.stalled or stream.undeclared or stream.never_seen or stream.uncovered
        if stream.ingest_batch and is_delayed:
            yield f"connector partitions list {stream.name}"
        if stream.dead_letters.count:
            yield f"connector dead-letters list --stream {stream.name}"
        if stream.write_streams.is_withheld:
            yield f"connector write-streams list {stream.name}"
    for of in found.tables.values():
        if not of.apply:
            yield "connector run"
        if of.is_waiting:
            yield f"connector partitions list {of.stream}"


def _waits_for_ingest(stream: StreamStatus) -> bool:
    """Whether a hint or a fact says to check that ingest runs."""
    is_stalled = bool(stream.stalled) and stream.stalls_unverified
    return is_stalled or stream.dead_letters.under_way or stream.write_streams.is_waiting


def _facts(stream: StreamStatus) -> Iterator[tuple[str, str]]:
    named = summarize_names(stream.undefined_sources)
    unknown = (
        f", {stream.unknown_tables:,} of source tables without a table definition"
        + (f" (of late: {named})" if named else "")
        if stream.unknown_tables
        else ""
    )
    released = stream.write_streams.released_rows
    yield (
        "ingested",
        counted(stream.changes, "change")
        + (f" and {counted(released, 'released row')}" if released else "")
        + f" by ingest batch {stream.ingest_batch:,}{unknown}",
    )
    if stream.topic_read_at is not None:
        yield (
            "lag",
            (
                f"{counted(stream.lag or 0, 'offset')} at the last check of Kafka,"
                f" {_ago(stream.now, stream.topic_read_at)}"
            ),
        )
    if stream.low_watermark is not None:
        yield (
            "complete below",
            f"{view_of_time(stream.low_watermark)}, {_ago(stream.now, stream.low_watermark)}",
        )
    if stream.horizon:
        yield (
            "horizon",
            (
                f"{view_of_time(stream.horizon)}: older changes are rejected, and older deletes"
                " may be forgotten"
            ),
        )
    lagging = stream.lagging_partition
    if lagging is not None and lagging not in stream.stalled[:FEW]:
        yield "waits for", _last_heartbeat(lagging, stream.now)
    for stall in stream.stalled[:FEW]:
        yield (
            "stalled",
            f"{_last_heartbeat(stall, stream.now)}; if its producer has ended for good, close it",
        )
    if stream.undeclared:
        yield "undeclared", summarize_names(stream.undeclared)
    if stream.late:
        yield (
            "late",
            (
                f"{counted(stream.late, 'change')} came after the low watermark had passed their"
                " time. Tables have them, and a snapshot of that time changes with them"
            ),
        )
    if stream.ignored_claims:
        yield (
            "ignored claims",
            (f"{stream.ignored_claims:,}: they did not move the low watermark"),
        )
    yield from facts_of_checks(stream.checks, stream.now)
    yield from _incomplete(stream)
    letters = stream.dead_letters
    yield from stream.write_streams.facts(stream.now)
    if letters.count or letters.uncounted_tables or stream.rejected:
        yield "dead letters", _dead_letters(stream)
    if (kept := _maintained(stream.maintenance, stream.now)) is not None:
        yield "maintained", kept
    for hint in stream.hints:
        yield "hint", hint


def _incomplete(stream: StreamStatus) -> Iterator[tuple[str, str]]:
    for one in stream.transactions.incomplete[:FEW]:
        name = f"transaction {one.server_transaction_id} of {view_of_time(one.commit_timestamp)}"
        released = ", released" if one.is_released else ""
        yield "incomplete", f"{name}: {counted(one.missing, 'record')} missing{released}"


def _dead_letters(stream: StreamStatus) -> str:
    of = stream.dead_letters
    since = "" if of.since is None else f", the oldest {_ago(stream.now, of.since)}"
    known = f"{of.count:,} open" if of.is_known else f"at most {of.count:,} open"
    if of.uncounted_tables:
        known += " without those of tables that cannot be read"
    by_reason = ", ".join(
        f"{count:,} {reason}"
        for reason, count in sorted(stream.rejected.items(), key=lambda item: -item[1])
    )
    return f"{known}{since}" + (f"; rejected so far: {by_reason}" if by_reason else "")


def _print_tables(found: StatusReport) -> None:
    right = frozenset({"pending", "letters"})
    shown = table(
        "table",
        "complete below",
        "cut",
        "letters",
        "age",
        "bound",
        "can keep",
        "pending",
        "due",
        "last job",
        right=right,
    )
    for of in found.tables.values():
        shown.add_row(
            of.name,
            (
                ""
                if of.upsert_stream_apply_watermark is None
                else _to_the_second(of.upsert_stream_apply_watermark)
            ),
            _cut(of),
            f"{of.dead_letters.count:,}",
            "" if of.age_s is None else duration(of.age_s),
            "" if of.max_staleness_s is None else duration(of.max_staleness_s),
            (
                ""
                if of.recommended_max_staleness_s is None
                else duration(of.recommended_max_staleness_s)
            ),
            "unknown" if of.pending_batches is None else f"{of.pending_batches:,}",
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
    """The last maintenance and the bytes on disk after it; None: there was no maintenance."""
    parts = []
    for job in jobs:
        what = "fewer" if job.kind is JobKind.COMPACTION else f"removed, {_mib(job.bytes)} freed"
        did = "failed" if job.error else f"{counted(job.files, 'file')} {what}"
        parts.append(f"{job.kind.value.replace('_', '-')} {_ago(now, job.ended_at)}, {did}")
        if job.disk_bytes:
            parts.append(
                f"then {_mib(job.disk_bytes)} on disk, {_mib(job.live_bytes)} of the newest version"
            )
    return "; ".join(parts) or None


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _cut(of: TableStatus) -> str:
    if of.is_consistent_cut:
        return "yes"
    if not of.apply:
        return "nothing applied"
    since = (
        ""
        if of.inconsistent_since is None
        else f" for {duration((of.now - of.inconsistent_since) / 1_000_000)}"
    )
    blocked_rows = (
        ""
        if of.lagging_partition is None
        else f", delayed by {escaped(of.lagging_partition.stream_partition)}"
    )
    return f"no{since}{blocked_rows}"


def _due(of: TableStatus) -> str:
    if of.due_at is not None and of.due_at > of.now:
        return f"in {duration((of.due_at - of.now) / 1_000_000)}"
    return "now" if of.pending_batches else ""


def _to_the_second(timestamp: int) -> str:
    return str(view_of_time(timestamp - timestamp % 1_000_000)).replace(".000000", "")


def _job(job: Job, now: int) -> str:
    return (
        f"{job.kind.value.replace('_', ' ')} {_ago(now, job.ended_at)}, {job.duration_s:.1f} s"
        + (", failed" if job.error else "")
    )


def _last_heartbeat(stall: Stall, now: int) -> str:
    place = f"stream partition {stall.stream_partition} in Kafka partition {stall.kafka_partition}"
    since = duration(max(0, now - stall.since) / 1_000_000)
    if not stall.watermark:
        return f"{place}: no heartbeat yet, for {since}"
    complete = f"complete below {view_of_time(stall.watermark)}"
    return f"{place}: the last new heartbeat came {since} ago, {complete}"


def _ago(now: int, then: int) -> str:
    seconds = (now - then) / 1_000_000
    return f"{duration(seconds)} ago" if seconds >= 0 else f"{duration(-seconds)} in the future"

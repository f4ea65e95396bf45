"""`connector status`: the status of streams and tables, without a JVM (OPS-5, TBL-20).

Names of stream partitions, keys and reasons came from outside: all of it is escaped before it
reaches the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import click

from connector.cli.parameters import config_of, json_option
from connector.cli.remedies import command_line, command_of_reason
from connector.cli.terminal import (
    clear_screen,
    err,
    escaped,
    out,
    show_error,
    show_fact,
    show_table,
    show_text,
    table,
)
from connector.errors import ConnectorError
from connector.records.json_view import to_line
from connector.records.views import view_of_time
from connector.reports.headroom import least
from connector.reports.reasons import Reason, exit_code
from connector.reports.source_status import facts_of_checks
from connector.reports.stream_status import StreamStatus
from connector.reports.table_status import TableStatus
from connector.services.status import StatusReport, status
from connector.state.jobs import Job, JobKind
from connector.text import FEW, counted, duration, summarize_names
from connector.watermarks.frontier import Stall

WATCH_EVERY_S: Final = 2.0
_READING_S: Final = 10.0
"""The pipeline goes on while the command reads, so a job may end this much after its start."""


@click.command()
@json_option("Print one JSON object.")
@click.option(
    "--watch", is_flag=True, help=f"Refresh every {WATCH_EVERY_S:g} seconds until you press Ctrl-C."
)
@click.option(
    "--check",
    is_flag=True,
    help="Print only why a person is needed, a line for each reason. The exit code is 0 (nothing"
    " needs a person), 1 (something does) or 2 (it cannot be found out).",
)
@click.pass_context
def command(ctx: click.Context, *, as_json: bool, watch: bool, check: bool) -> int:
    """Show the progress of each stream, the age of each table, and open dead letters.

    The command reads the warehouse; the lag is from the last check of Kafka by ingest. The command
    asks Kafka only for the state of dead letters, for the headroom, and for the folder of a local
    broker. If a stream or table cannot be read, it shows the others and the error.
    """
    if check:
        return _check(ctx, as_json=as_json, watch=watch)
    if as_json and watch:
        raise click.UsageError(
            "use --watch without --json; run `connector status --json` again to refresh JSON"
        )
    config = config_of(ctx)
    while True:
        report = status(config)
        if as_json:
            out(to_line(report.to_json()))
        else:
            if watch:
                clear_screen()
            _print(report)
        if not watch:
            break
        time.sleep(WATCH_EVERY_S)
    if report.errors:
        raise next(iter(report.errors.values()))
    return 0


def _check(ctx: click.Context, *, as_json: bool, watch: bool) -> int:
    if watch:
        raise click.UsageError("use --check without --watch")
    try:
        report = status(config_of(ctx))
    except ConnectorError as error:
        show_error(error)
        return 2
    reasons = report.reasons
    if as_json:
        out(to_line(report.to_json()))
    else:
        _print_reasons(reasons)
        if not reasons:
            out("nothing needs a person")
    return exit_code(reasons)


def _print_reasons(reasons: Iterable[Reason]) -> None:
    for reason in reasons:
        show_text(escaped(reason.line), reason.code)


def _print(report: StatusReport) -> None:
    for name, text in pipelines(report):
        show_fact(name, text, 0)
    disks = {"warehouse": report.warehouse_free_bytes, "broker": report.broker_free_bytes}
    free = [
        f"{size / 2**30:,.1f} GiB for the {name}"
        for name, size in disks.items()
        if size is not None
    ]
    if free:
        show_fact("free space", ", ".join(free), 0)
    _print_reasons(report.reasons)
    out("")
    for stream in report.streams.values():
        out(f"stream {stream.name}")
        for name, fact in facts(stream):
            show_fact(name, fact, 14, "  ")
        out("")
    if report.tables:
        _print_tables(report)
    for fault in report.reload_refused:
        show_text(f"hint: the pipeline did not take the newest configuration: {escaped(fault)}")
    for command in commands(report):
        out(f"run: {command}")
    for path, error in report.errors.items():
        err(f"{path}: {error}")


def pipelines(report: StatusReport) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each pipeline: one may run several streams."""
    by_text: dict[str, list[str]] = {}
    for name, pipeline in report.pipelines.items():
        by_text.setdefault(pipeline.text, []).append(name)
    for text, of_streams in by_text.items():
        names = f" of {summarize_names(of_streams)}" if len(by_text) > 1 else ""
        yield f"pipeline{names}", text


def commands(report: StatusReport) -> list[str]:
    """The commands that help with the reasons and the hints, each once."""
    of_reasons = map(command_of_reason, report.reasons)
    stalled = [stream.name for stream in report.streams.values() if stream.stalled]
    # Also unverified ones.
    of_stalls = (command_line("partitions list", stream=name) for name in stalled)
    of_columns = (line for table in report.tables.values() for line in add_column(table))
    return list(dict.fromkeys([*of_reasons, *of_stalls, *of_columns]))


def add_column(status: TableStatus) -> list[str]:
    """The command that adds a column for unmapped cells."""
    if (column := status.column_to_add) is None:
        return []
    words = f"table alter {status.name} add-column {column.name} {column.type}"
    return [command_line(words, family=column.family)]


def facts(stream: StreamStatus) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each fact, which is not escaped."""
    if stream.bridge is not None:
        yield from stream.bridge.facts(stream.now)
        if transaction := stream.bridge.lacking:
            skip = command_line("bridge", stream=stream.name, skip_transaction=transaction)
            yield "to publish it", skip
    yield from _progress_facts(stream)
    yield from _partition_facts(stream)
    if stream.late:
        changes = counted(stream.late, "change")
        text = (
            f"{changes} came after the low watermark had passed their time. Tables have them, and a"
            " snapshot of that time changes with them"
        )
        yield "late", text
    if stream.ignored_claims:
        claims = f"{stream.ignored_claims:,}: they did not move the low watermark"
        yield "ignored claims", claims
    for decision in stream.losses:
        yield "lost records", decision.text
    yield from facts_of_checks(stream.checks, stream.now)
    yield from _incomplete(stream)
    yield from stream.write_streams.facts(stream.now)
    letters = stream.dead_letters
    if letters.count or letters.uncounted_tables or stream.rejected:
        yield "dead letters", _dead_letters(stream)
    if (maintained := _maintained(stream.maintenance, stream.now)) is not None:
        yield "maintained", maintained
    if (audit := stream.last_audit) is not None:
        yield "audited", f"{_ago(stream.now, audit.ended_at)}{', failed' if audit.error else ''}"
    if stream.other_commits:
        yield "others", _other_commits(stream.other_commits)
    for hint in stream.hints:
        yield "hint", hint


def _progress_facts(stream: StreamStatus) -> Iterator[tuple[str, str]]:
    text = counted(stream.changes, "change")
    if released := stream.write_streams.released_rows:
        text += f" and {counted(released, 'released row')}"
    text += f" by ingest batch {stream.ingest_batch:,}"
    if stream.unknown_tables:
        text += f", {stream.unknown_tables:,} of source tables without a table definition"
        if stream.undefined_sources:
            text += f" (of late: {summarize_names(stream.undefined_sources)})"
    yield "ingested", text
    if stream.topic_read_at is not None:
        offsets = counted(stream.lag or 0, "offset")
        read = _ago(stream.now, stream.topic_read_at)
        yield "lag", f"{offsets} at the last check of Kafka, {read}"
    if (first := least(stream.headroom or ())) is not None:
        kept = duration(first.left_s(stream.now))
        where = f"offset {first.offset} of Kafka partition {first.kafka_partition}"
        yield "headroom", f"{kept} until Kafka may delete {where}, which ingest lacks"
    if (low := stream.low_watermark) is not None:
        yield "complete below", f"{view_of_time(low)}, {_ago(stream.now, low)}"
    if stream.horizon:
        effect = "older changes are rejected, and older deletes may be forgotten"
        yield "horizon", f"{view_of_time(stream.horizon)}: {effect}"


def _partition_facts(stream: StreamStatus) -> Iterator[tuple[str, str]]:
    lagging = stream.lagging_partition
    if lagging is not None and lagging not in stream.stalled[:FEW]:
        yield "waits for", _last_heartbeat(lagging, stream.now)
    for stall in stream.stalled[:FEW]:
        heartbeat = _last_heartbeat(stall, stream.now)
        yield "stalled", f"{heartbeat}; if its producer has ended for good, close it"
    if stream.undeclared:
        yield "undeclared", summarize_names(stream.undeclared)


def _incomplete(stream: StreamStatus) -> Iterator[tuple[str, str]]:
    for transaction in stream.transactions.incomplete[:FEW]:
        at = view_of_time(transaction.commit_timestamp)
        missing = f"{counted(transaction.missing, 'record')} missing"
        released = ", released" if transaction.is_released else ""
        name = f"transaction {transaction.server_transaction_id} of {at}"
        yield "incomplete", f"{name}: {missing}{released}"


def _dead_letters(stream: StreamStatus) -> str:
    letters = stream.dead_letters
    text = f"{letters.count:,} open" if letters.is_known else f"at most {letters.count:,} open"
    if letters.uncounted_tables:
        text += " without those of tables that cannot be read"
    if letters.since is not None:
        text += f", the oldest {_ago(stream.now, letters.since)}"
    if stream.rejected:
        reasons = sorted(stream.rejected.items(), key=lambda item: -item[1])
        text += "; rejected so far: " + ", ".join(f"{count:,} {name}" for name, count in reasons)
    return text


def _print_tables(report: StatusReport) -> None:
    columns = ("table", "complete below", "cut", "letters", "age", "bound", "can keep", "pending")
    shown = table(*columns, "due", "last job", right=frozenset({"pending", "letters"}))
    for of_table in report.tables.values():
        below = of_table.upsert_stream_apply_watermark
        pending, job = of_table.pending_batches, of_table.last_job
        shown.add_row(
            of_table.name,
            "" if below is None else to_the_second(below),
            cut(of_table),
            f"{of_table.dead_letters.count:,}",
            _duration(of_table.age_s),
            _duration(of_table.max_staleness_s),
            _duration(of_table.recommended_max_staleness_s),
            "unknown" if pending is None else f"{pending:,}",
            _due(of_table),
            "" if job is None else escaped(_job(job, of_table.now)),
        )
    show_table(shown)
    for of_table in report.tables.values():
        if (maintained := _maintained(of_table.maintenance, of_table.now)) is not None:
            show_text(f"maintained: {of_table.name}: {maintained}")
        if of_table.other_commits:
            others = escaped(_other_commits(of_table.other_commits))
            show_text(f"others: {of_table.name}: {others}")
        for hint in of_table.hints:
            if "\n" in hint and hint in of_table.definition_hints:  # lines to paste
                pasted = escaped(hint, "\n")
                out(f"hint: {of_table.name}: {pasted}")
            else:
                show_text(f"hint: {of_table.name}: {escaped(hint)}")


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _maintained(jobs: Iterable[Job], now: int) -> str | None:
    """The last maintenance and the bytes on disk after it; None: there was no maintenance."""
    parts = []
    for job in jobs:
        effect = "fewer" if job.kind is JobKind.COMPACTION else f"removed, {_mib(job.bytes)} freed"
        result = "failed" if job.error else f"{counted(job.files, 'file')} {effect}"
        parts.append(f"{job.kind.value.replace('_', '-')} {_ago(now, job.ended_at)}, {result}")
        if job.disk_bytes:
            parts.append(
                f"then {_mib(job.disk_bytes)} on disk, {_mib(job.live_bytes)} of the newest version"
            )
    return "; ".join(parts) or None


def _other_commits(operations: Sequence[str]) -> str:
    """The commits of other programs that changed no row (RUN-3)."""
    commits = counted(len(operations), "commit")
    return f"{commits} of other programs changed no row: {summarize_names(operations)}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def cut(status: TableStatus) -> str:
    """Whether a table is a consistent cut, or how long it has not been one."""
    if status.is_consistent_cut:
        return "yes"
    if not status.apply:
        return "nothing applied"
    text, lagging = "no", status.lagging_partition
    if status.inconsistent_since is not None:
        text += f" for {duration((status.now - status.inconsistent_since) / 1_000_000)}"
    if lagging is not None:
        text += f", delayed by {escaped(lagging.stream_partition)}"
    return text


def _due(status: TableStatus) -> str:
    if status.due_at is not None and status.due_at > status.now:
        return f"in {duration((status.due_at - status.now) / 1_000_000)}"
    return "now" if status.pending_batches else ""


def to_the_second(timestamp: int) -> str:
    return str(view_of_time(timestamp - timestamp % 1_000_000)).replace(".000000", "")


def _job(job: Job, now: int) -> str:
    return (
        f"{job.kind.value.replace('_', ' ')} {_ago(now, job.ended_at)}, {job.duration_s:.1f} s"
        + (", failed" if job.error else "")
    )


def _last_heartbeat(stall: Stall, now: int) -> str:
    name = f"stream partition {stall.stream_partition} in Kafka partition {stall.kafka_partition}"
    since = duration(max(0, now - stall.since) / 1_000_000)
    if not stall.watermark:
        return f"{name}: no heartbeat yet, for {since}"
    complete = f"complete below {view_of_time(stall.watermark)}"
    return f"{name}: the last new heartbeat came {since} ago, {complete}"


def _ago(now: int, then: int) -> str:
    seconds = (now - then) / 1_000_000
    if seconds < -_READING_S:
        return f"{duration(-seconds)} in the future"
    return f"{duration(max(0, seconds))} ago"

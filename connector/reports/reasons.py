"""The reasons why streams and tables need a person, the most urgent first (RUN-1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from connector.errors import TableError
from connector.records.views import Hidden, Viewed
from connector.reports.headroom import least_low
from connector.reports.pipeline_status import PipelineStatus
from connector.reports.source_status import recent_two_producers
from connector.reports.stream_status import StreamStatus
from connector.reports.table_status import TableStatus
from connector.state.jobs import failed_maintenance
from connector.state.process import Failure
from connector.state.stream_progress import NORMAL_US
from connector.text import counted, duration, summarize_names

WAITS_LONG_US: Final = 300_000_000
"""A pipeline that has waited for Kafka, a registry or a store for so long needs a person."""

CODES: Final = (
    *("HEADROOM", "PIPELINE_DOWN", "UNREADABLE", "TABLE_STOPPED", "PIPELINE_WAITS"),
    *("BRIDGE_DOWN", "RECORDS_HIDDEN", "TABLE_STALE", "WATERMARK_STALLED", "WATERMARK_UNKNOWN"),
    *("KEY_RANGE_UNCOVERED", "UNDECLARED", "NEVER_SEEN", "CHANGES_WAIT", "BRIDGE_WAITS"),
    *("DEAD_LETTERS", "LOSS_UNCONFIRMED", "ROWS_BLOCKED", "RELEASES_WITHHELD"),
    *("ERASURE_UNFINISHED", "TRANSACTIONS_INCOMPLETE", "AUDIT_FAILED", "JOB_FAILED"),
    "MAINTENANCE_FAILED",
    *("RELOAD_REFUSED", "TWO_PRODUCERS"),
    *("PIPELINE_UNKNOWN", "STORE_UNREACHABLE", "LETTERS_UNKNOWN"),
)
"""The codes of all reasons, the most urgent first."""
UNKNOWN: Final = frozenset({"PIPELINE_UNKNOWN", "STORE_UNREACHABLE", "LETTERS_UNKNOWN"})
"""Those that say only that something cannot be found out."""


@dataclass(frozen=True, slots=True)
class Reason(Viewed):
    """A reason to look at a stream or table, for example `DEAD_LETTERS` of `stream orders`. `text`
    may have names from outside.

    `fields` has the names of the `stream` and the `table`, and the code of the `error`, if there
    are such. Of several streams it has the first.
    """

    code: str
    subject: str
    text: str
    fields: Hidden[Mapping[str, str]] = field(default_factory=dict, compare=False)

    @property
    def line(self) -> str:
        return f"{self.code} {self.subject}: {self.text}"


def exit_code(reasons: Iterable[Reason]) -> int:
    """Return 0 if nothing needs a person, 1 if something does, 2 if it cannot be found out."""
    codes = {reason.code for reason in reasons}
    return 1 if codes - UNKNOWN else 2 if codes else 0


def reasons_of(
    pipelines: Mapping[str, PipelineStatus],
    streams: Mapping[str, StreamStatus],
    tables: Mapping[str, TableStatus],
    errors: Mapping[str, TableError],
    reload_refused: Iterable[str],
) -> list[Reason]:
    """Return the reasons, the most urgent first.

    Args:
        pipelines: The pipeline of each stream.
        streams: The streams that could be read.
        tables: The tables that could be read.
        errors: By path, why a stream or table cannot be read.
        reload_refused: Why the pipeline did not take its newest configuration.
    """
    stopped = {
        name: why
        for pipeline in pipelines.values()
        for name, why in pipeline.stopped.items()
        if not _is_repaired(pipeline, why, tables.get(name))
    }
    unnamed = {
        path: error for path, error in errors.items() if path.removeprefix("tables.") not in stopped
    }
    reasons = [
        *_of_pipelines(pipelines),
        *_of_errors(unnamed),
        *(
            Reason(
                *("TABLE_STOPPED", f"table {name}", f"{why.code}: {why.text}"),
                {"table": name, "error": why.code},
            )
            for name, why in stopped.items()
        ),
        *(Reason("RELOAD_REFUSED", "configuration", fault) for fault in reload_refused),
    ]
    for name, stream in streams.items():
        of_stream = (*_of_watermark(stream), *_of_records(stream), *_of_bridge(stream))
        fields = {"stream": name}
        reasons += [Reason(code, f"stream {name}", text, fields) for code, text in of_stream]
    for name, table in tables.items():
        fields = {"stream": table.stream, "table": name}
        reasons += [Reason(code, f"table {name}", text, fields) for code, text in _of_table(table)]
    return sorted(reasons, key=lambda reason: CODES.index(reason.code))


def _of_pipelines(pipelines: Mapping[str, PipelineStatus]) -> Iterator[Reason]:
    by_code: dict[tuple[str, str], list[str]] = {}
    for stream, pipeline in pipelines.items():
        if pipeline.is_running is None:
            by_code.setdefault(("PIPELINE_UNKNOWN", pipeline.problem), []).append(stream)
        elif not pipeline.is_running and not pipeline.is_done:
            by_code.setdefault(("PIPELINE_DOWN", pipeline.text), []).append(stream)
        elif text := _waits_long(pipeline):
            by_code.setdefault(("PIPELINE_WAITS", text), []).append(stream)
    for (code, text), names in by_code.items():
        kind = "stream" if len(names) == 1 else "streams"
        yield Reason(code, f"{kind} {summarize_names(names)}", text, {"stream": names[0]})


def _is_repaired(pipeline: PipelineStatus, why: Failure, table: TableStatus | None) -> bool:
    """Return whether a table can be applied again, though the pipeline that stopped it has ended:
    it was rebuilt since.
    """
    job = None if pipeline.is_running or table is None else table.last_job
    return job is not None and not job.error and job.ended_at > why.at


def _waits_long(process: PipelineStatus) -> str:
    """Return why it has waited for long, and the remedy. Empty: it has not."""
    waiting = process.waiting
    if waiting is None or process.now - waiting.at < WAITS_LONG_US:
        return ""
    return f"{waiting.code}: {waiting.text}"


def _of_errors(errors: Mapping[str, TableError]) -> Iterator[Reason]:
    away = [path for path, error in errors.items() if error.code == "STORE_UNREACHABLE"]
    if away:
        fields = _fields_of(away[0])
        yield Reason("STORE_UNREACHABLE", summarize_names(away), errors[away[0]].problem, fields)
    for path, error in errors.items():
        if path not in away:
            text = f"{error.code}: {error.problem}"
            yield Reason("UNREADABLE", path, text, {**_fields_of(path), "error": error.code})


def _fields_of(path: str) -> dict[str, str]:
    kind, _, name = path.partition(".")
    return {kind.removesuffix("s"): name} if name else {}


def _of_watermark(stream: StreamStatus) -> Iterator[tuple[str, str]]:
    """If ingest has not asked Kafka since a stall, the producer may be in order."""
    if stream.stalled and not stream.stalls_unverified:
        names = summarize_names([stall.stream_partition for stall in stream.stalled])
        since = _ago(stream.now, stream.stalled[0].since)
        yield "WATERMARK_STALLED", f"no heartbeat of {names} has moved it for {since}"
    if stream.ingest_batch and stream.low_watermark is None:
        yield "WATERMARK_UNKNOWN", "stream partitions were not announced, or have sent nothing"
    if stream.uncovered is not None:
        root, keys = stream.uncovered
        yield "KEY_RANGE_UNCOVERED", f"the root {root} has a hole or an overlap in {keys}"
    if stream.undeclared:
        yield "UNDECLARED", f"no announcement names {summarize_names(stream.undeclared)}"
    if stream.ingest_batch and stream.never_seen:
        yield "NEVER_SEEN", f"no record came from {summarize_names(stream.never_seen)}"


def _of_records(stream: StreamStatus) -> Iterator[tuple[str, str]]:
    low = least_low(stream.headroom or (), stream.now)
    if low is not None:
        yield "HEADROOM", low.describe(stream.now)
    letters = stream.dead_letters
    if letters.count and letters.is_known:
        since = stream.now if letters.since is None else letters.since
        count = counted(letters.count, "dead letter")
        yield "DEAD_LETTERS", f"{count} open, the oldest for {_ago(stream.now, since)}"
    elif letters.count:
        yield "LETTERS_UNKNOWN", f"Kafka does not say which of {letters.count:,} are open"
    if stream.last_audit is not None and stream.last_audit.error:
        yield "AUDIT_FAILED", stream.last_audit.error
    if stream.write_streams.is_withheld:
        yield "RELEASES_WITHHELD", "rows of write streams stay invisible"
    for erasure in stream.unfinished_erasures:
        yield "ERASURE_UNFINISHED", erasure
    for transaction in stream.open_transactions:
        if stream.now - transaction.since >= NORMAL_US:
            yield "RECORDS_HIDDEN", transaction.describe(stream.now)
    if incomplete := sum(not gap.is_released for gap in stream.transactions.incomplete):
        count = counted(incomplete, "transaction lacks", "transactions lack")
        yield "TRANSACTIONS_INCOMPLETE", f"{count} records"
    for name in recent_two_producers(stream.checks, stream.now):
        yield "TWO_PRODUCERS", f"two producers write stream partition {name}"
    for text in failed_maintenance(stream.maintenance):
        yield "MAINTENANCE_FAILED", text


def _of_bridge(stream: StreamStatus) -> Iterator[tuple[str, str]]:
    bridge = stream.bridge
    if bridge is None:
        return
    if why := bridge.down(stream.now):
        yield "BRIDGE_DOWN", why
    if bridge.lacking:
        yield "BRIDGE_WAITS", bridge.waiting
    process = bridge.process
    # A record that a killed bridge has left does not change any more.
    if process is not None and process.is_running is not False and (text := _waits_long(process)):
        yield "BRIDGE_WAITS", text


def _of_table(table: TableStatus) -> Iterator[tuple[str, str]]:
    if table.is_older_than_its_bound and table.pending_batches is not None:
        age = "of unknown age" if table.age_s is None else f"{duration(max(0, table.age_s))} old"
        yield "TABLE_STALE", f"{age}, and its bound is {duration(table.max_staleness_s or 0)}"
    if table.is_waiting and table.lagging_partition is not None:
        changes = counted(table.waiting_changes, "change waits", "changes wait")
        name = table.lagging_partition.stream_partition
        yield "CHANGES_WAIT", f"{changes} for a heartbeat of stream partition {name}"
    if table.lacks_lost_records:
        yield "LOSS_UNCONFIRMED", "Kafka deleted records of its stream unread"
    if table.blocked_rows:
        rows = counted(table.blocked_rows, "row waits", "rows wait")
        yield "ROWS_BLOCKED", f"{rows} for dead letters"
    if table.failed_job is not None:
        yield "JOB_FAILED", table.failed_job.error
    for text in failed_maintenance(table.maintenance):
        yield "MAINTENANCE_FAILED", text


def _ago(now: int, then: int) -> str:
    return duration(max(0, now - then) / 1_000_000)

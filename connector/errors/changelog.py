"""Changelogs and ingest."""

from __future__ import annotations

from connector.errors import ConnectorError, TableError, WriterConflictError


def changelog_replaced(table: str, batch: int, state: str) -> TableError:
    return TableError(
        "CHANGELOG_REPLACED",
        f"Table {table} contains the changelog up to batch {batch}, but the changelog was {state}",
        "The changelog was moved or restored without the table",
        "Put the changelog back. Or move the folder of the table away, so that lowmark builds the"
        " table again from the whole changelog",
        table=table,
    )


def frontier_missing(path: str, stream: str, ingest_batch: int) -> TableError:
    return TableError(
        "CHANGELOG_REPLACED",
        f"The changelog {path} has no frontier of batch {ingest_batch}",
        "Another program deleted rows or files of the changelog",
        "Restore the changelog to the last version that lowmark committed (RESTORE TABLE … TO"
        " VERSION AS OF)",
        stream=stream,
        path=path,
    )


def already_running(work: str, other: str, stream: str) -> WriterConflictError:
    return WriterConflictError(
        "ALREADY_RUNNING",
        f"{work} cannot start",
        f"Another call in this process {other}",
        "Wait until that call has returned. It goes on unharmed",
        stream=stream,
    )


def pipeline_running(work: str, pipeline: str, stream: str) -> WriterConflictError:
    return WriterConflictError(
        "ALREADY_RUNNING",
        f"{work} cannot start",
        f"The pipeline of stream {stream} {pipeline}",
        "Stop the pipeline, and call this again. Then start the pipeline",
        stream=stream,
    )


def erasure_running(stream: str, erasure: str) -> WriterConflictError:
    return WriterConflictError(
        "ERASURE_RUNNING",
        f"The pipeline of stream {stream} cannot start beside an erasure",
        f"The erasure {erasure}. An erasure would stop without an end if the pipeline wrote to the"
        " same tables",
        "Start the pipeline when the erasure has ended. If you stop the erasure, run it again"
        " later",
        stream=stream,
    )


def audit_failed(stream: str, faults: str) -> ConnectorError:
    return ConnectorError(
        "AUDIT_FAILED",
        f"Stream {stream} breaks {faults}",
        "Another program wrote to the changelog, to a table or to the dead-letter topic, or ingest"
        " skipped records",
        'Stop ingest, raise the retention of the topic, and read "A failed audit" in'
        " docs/howto/repair-what-stopped.md",
        stream=stream,
    )


def freshness_unknown(table: str, bound: str, cause: str, remedy: str) -> TableError:
    return TableError(
        "CHANGELOG_REPLACED",
        f"It is not known whether table {table} {bound}",
        cause,
        f"{remedy}. Until then, read the table as it is (allow_stale)",
        table=table,
    )


def changelog_missing(stream: str, warehouse: str) -> TableError:
    return TableError(
        "CHANGELOG_EMPTY",
        f"There is no changelog of stream {stream} in {warehouse}",
        "The stream was not ingested yet, or its name or the warehouse is another one",
        "Check both, or ingest the stream first",
        stream=stream,
    )


def changelog_of_another_stream(stream: str, path: str) -> TableError:
    return TableError(
        "CHANGELOG_EMPTY",
        f"No commit of {path} belongs to stream {stream}",
        "Another table is in this folder, or its Delta log was shortened",
        "Look at the history of the table (DESCRIBE HISTORY), and name the warehouse into which the"
        " stream was ingested",
        stream=stream,
        path=path,
    )


def changelog_trimmed(
    table: str, stream: str, needed: int, first: int, bases: str = ""
) -> TableError:
    remedy = "Send a backfill to a stream with another name, and declare a table on that stream"
    if bases:
        remedy = (
            "Let the table start from a table that has these changes (start_from, or a rebuild):"
            f" {bases}"
        )
    return TableError(
        "CHANGELOG_TRIMMED",
        f"Table {table} needs the changelog from batch {needed} on, but the changes of the"
        f" changelog begin at batch {first}",
        "The older changes were deleted (`changelog_retention`). A new or rebuilt table needs all"
        " changes",
        remedy,
        table=table,
        stream=stream,
    )


def low_watermark_unknown(stream: str) -> TableError:
    return TableError(
        "LOW_WATERMARK_UNKNOWN",
        f"It is not known up to which time stream {stream} is complete",
        "Not all stream partitions were announced in each Kafka partition",
        "Let the producers send heartbeats, or read the changes with complete=False",
        stream=stream,
    )


def checkpoint_foreign(problem: str, cause: str) -> WriterConflictError:
    return WriterConflictError(
        "CHECKPOINT_FOREIGN",
        problem,
        cause,
        "Stop the other process, if it runs. If it does not, delete the checkpoint folder of"
        " the stream: ingest continues from the changelog",
    )


def rejected_ratio_exceeded(
    stream: str, batch: int, records: int, rejected: int, reason: str, count: int
) -> ConnectorError:
    return ConnectorError(
        "REJECTED_RATIO_EXCEEDED",
        f"{rejected} of {records} records of batch {batch} of stream {stream} were rejected, most"
        f" of them ({count}) as {reason}",
        "The stream stopped, because the records may have a common cause. Nothing is lost: each"
        " record has a dead letter",
        "Look at the dead letters, remove the cause, and start ingest again. Then replay the dead"
        " letters of the batch",
        stream=stream,
        ingest_batch=batch,
        reason=reason,
    )

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

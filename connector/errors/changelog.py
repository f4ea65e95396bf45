"""Changelogs and ingest."""

from __future__ import annotations

from connector.errors import TableError


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

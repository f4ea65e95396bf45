"""Tables, reads and object stores."""

from __future__ import annotations

from connector.errors import TableError


def cut_missing(tables: str, table: str | None = None) -> TableError:
    return TableError(
        "CUT_MISSING",
        f"There is no consistent cut of {tables}",
        "The low watermark of the stream is not known yet, or a table of the stream is not at a"
        " consistent cut",
        "Check the status of the stream. Until then, read the table without a snapshot",
        table=table,
    )


def cut_expired(table: str, low_watermark: str, cause: str) -> TableError:
    return TableError(
        "CUT_MISSING",
        f"The cut of table {table} at {low_watermark} cannot be read",
        cause,
        "Read a newer cut, or the table without a snapshot. To keep cuts longer, set a longer"
        " snapshot_retention",
        table=table,
    )

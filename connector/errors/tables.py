"""Tables, reads and object stores."""

from __future__ import annotations

from connector.errors import TableError, WriterConflictError


def table_missing(path: str, table: str) -> TableError:
    return TableError(
        "TABLE_MISSING",
        f"There is no table at {path}",
        "No change was applied to it yet, or another table is in this folder",
        "Start the pipeline, which fills the table from the changelog",
        table=table,
        path=path,
    )


def table_changed(table: str, cause: str) -> WriterConflictError:
    return WriterConflictError(
        "TABLE_CHANGED",
        f"An apply changed table {table} during the read",
        cause,
        "Read the table again",
        table=table,
    )


def table_rebuilt(table: str) -> WriterConflictError:
    return WriterConflictError(
        "TABLE_CHANGED",
        f"Table {table} was rebuilt in the meantime",
        "A rebuild replaced the table by a new one",
        "Start again. Nothing was written to the new table",
        table=table,
    )


def table_changed_during_rebuild(table: str) -> WriterConflictError:
    return WriterConflictError(
        "TABLE_CHANGED",
        f"Another process committed to table {table} during the rebuild",
        "The pipeline applies changes to the table",
        "Stop the pipeline and rebuild the table again. This rebuild has changed nothing",
        table=table,
    )


def files_changed(path: str) -> WriterConflictError:
    return WriterConflictError(
        "TABLE_CHANGED",
        f"The files of {path} changed during a compaction",
        "Another process wrote to the Delta table",
        "Do nothing: this compaction has changed nothing, and it will be repeated",
        path=path,
    )


def concurrent_write(what: str) -> WriterConflictError:
    return WriterConflictError(
        "CONCURRENT_WRITE",
        f"Another process wrote to {what} at the same time",
        "Two processes use the same warehouse",
        "Stop one of the two processes. This one has changed nothing",
    )


def table_unreadable(table: str, cause: str) -> TableError:
    return TableError(
        "TABLE_UNREADABLE",
        f"Table {table} could not be read",
        cause,
        "Remove the cause and read again. The read changed nothing",
        table=table,
    )


def files_unreadable(path: str, use: str, cause: str, otherwise: str) -> TableError:
    return TableError(
        "TABLE_UNREADABLE",
        f"The table at {path} cannot be {use}",
        cause,
        "Look at the cause, which a library found. If it names a file, restore the file from a"
        f" backup{otherwise}",
        path=path,
    )


def entry_unknown(kind: str) -> TableError:
    return TableError(
        "COMMIT_UNREADABLE",
        "The changelog has an entry that this release does not know",
        f"The kind of the entry is {kind}",
        "Use the release of lowmark that wrote the commit",
    )


def blocking_letters_too_many(table: str, limit: str) -> TableError:
    return TableError(
        "ROWS_BLOCKED",
        f"More than {limit} dead letters block rows of table {table}",
        "Each dead letter blocks the row of its key (block_rows)",
        "Repair and replay the dead letters, or discard them, or set block_rows = false",
        table=table,
    )


def cut_missing(tables: str, table: str | None = None) -> TableError:
    return TableError(
        "CUT_MISSING",
        f"There is no consistent cut of {tables}",
        "The tables belong to several streams, or the low watermark is not known yet, or a table is"
        " not at a consistent cut, or the cut has expired",
        "Check the status of the stream. Until there is a cut, read each table without a snapshot."
        " To keep cuts longer, set a longer snapshot_retention",
        table=table,
    )


def cut_expired(table: str, low_watermark: str | int, cause: str) -> TableError:
    return TableError(
        "CUT_MISSING",
        f"The cut of table {table} at {low_watermark} cannot be read",
        cause,
        "Read a newer cut, or the table without a snapshot. To keep cuts longer, set a longer"
        " snapshot_retention",
        table=table,
    )


def warehouse_has_file(path: str, file: str) -> TableError:
    return TableError(
        "WAREHOUSE_UNUSABLE",
        f"{path} cannot be a table",
        f"{file} is not a folder",
        "Move this file away, or set warehouse to another path",
        path=path,
    )


def changelog_removed(path: str, batch: int) -> TableError:
    return TableError(
        "WAREHOUSE_UNUSABLE",
        f"The changelog {path} was removed while batch {batch} was written",
        "Another program removed its folder, or the file system is not mounted any more",
        "Restore the folder, then start ingest again",
        path=path,
    )


def disk_full(what: str) -> TableError:
    return TableError(
        "DISK_FULL",
        f"No more data can be written for {what}",
        "The disk is full",
        "Free some space and start again. Nothing is lost: lowmark continues where it stopped",
    )


def file_too_large(what: str) -> TableError:
    return TableError(
        "DISK_FULL",
        f"No more data can be written for {what}",
        "A file has reached the size limit of the process (ulimit -f) or of the file system",
        "Raise the limit and start again. Nothing is lost: lowmark continues where it stopped",
    )

"""Tables, reads and object stores."""

from __future__ import annotations

from connector.errors import StaleTableError, TableError, WriterConflictError


def table_missing(path: str, table: str) -> TableError:
    return TableError(
        "TABLE_MISSING",
        f"There is no table at {path}",
        "No change was applied to it yet, or another table is in this folder",
        "Start the pipeline, which fills the table from the changelog",
        table=table,
        path=path,
    )


def table_removed(path: str, table: str) -> TableError:
    return TableError(
        "TABLE_REMOVED",
        f"The folder of table {table} is gone",
        f"Another program removed {path}, or the file system is not mounted any more",
        "Mount the file system, or restore the folder from a backup. Otherwise a pipeline makes the"
        " table again from the changelog",
        table=table,
        path=path,
    )


def base_unfit(table: str, base: str, cause: str) -> TableError:
    return TableError(
        "BASE_UNFIT",
        f"Table {table} cannot start from table {base}",
        cause,
        "Name another table, or change the definition. The table is unchanged",
        table=table,
    )


def base_behind(table: str, base: str) -> TableError:
    return TableError(
        "BASE_UNFIT",
        f"Table {table} cannot start from table {base}",
        f"{base} lacks changes that {table} has",
        f"Apply the changes to {base}, and try again. The table is unchanged",
        table=table,
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


def columns_altered(table: str) -> WriterConflictError:
    return WriterConflictError(
        "TABLE_CHANGED",
        f"The columns of table {table} were changed in the meantime",
        "The pipeline added or dropped a column",
        "Start again. Nothing was written to the table",
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
        "An apply, or another process, wrote to the Delta table",
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


def table_undeletable(table: str, cause: str) -> TableError:
    return TableError(
        "TABLE_UNDELETABLE",
        f"Table {table} could not be deleted",
        cause,
        "Remove the cause and drop the table again. Some of its files may be gone already",
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


def table_rejects_changes(
    table: str, stream: str, changes: int, rejected: int, cause: str
) -> TableError:
    return TableError(
        "TABLE_REJECTS_CHANGES",
        f"Table {table} cannot hold {rejected} of the next {changes} changes",
        f"The commonest cause is {cause}. The definition of the table may be wrong. Nothing was"
        " applied, and no dead letter was published",
        "Correct the definition, and rebuild the table. If the changes are wrong, raise"
        f" max_dead_letter_ratio of stream {stream}: they then become dead letters",
        table=table,
        stream=stream,
    )


def blocking_letters_too_many(table: str, stream: str, limit: str) -> TableError:
    return TableError(
        "ROWS_BLOCKED",
        f"More than {limit} dead letters block rows of table {table}",
        "Each dead letter blocks the row of its key (block_rows)",
        "Repair and replay the dead letters, or discard them, or set block_rows = false",
        table=table,
        stream=stream,
    )


def cut_missing(tables: str, table: str | None = None) -> TableError:
    return TableError(
        "CUT_MISSING",
        f"There is no consistent cut of {tables}",
        "The tables belong to several streams, or the low watermark is not known yet, or a table is"
        " not at a consistent cut, or the cut has expired, or an erasure of a row removed all cuts"
        " from before, and no pipeline has run since",
        "Check the status of the stream. If the pipeline does not run, start it: it records a new"
        " cut. Until then, read each table without a snapshot. To keep cuts longer, set a longer"
        " snapshot_retention",
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


def disk_full(problem: str, cause: str, **fields: str) -> TableError:
    return TableError(
        "DISK_FULL",
        problem,
        cause,
        "Free some space, or raise the limit, and try again. Nothing is lost",
        **fields,
    )


def commit_unreadable(path: str, what: str, cause: str, otherwise: str) -> TableError:
    return TableError(
        "COMMIT_UNREADABLE",
        f"{what} of {path} cannot be read",
        cause,
        "Use the release of lowmark that wrote the commit, or restore the Delta table to the last"
        f" version that can be read{otherwise}",
        path=path,
    )


def commit_foreign(
    path: str,
    commit: str,
    owner: str,
    otherwise: str,
    last_good: int | None = None,
    **fields: str,
) -> TableError:
    """`last_good` is the last version whose rows are those of lowmark. None: it is not known."""
    version = "the last version that lowmark committed" if last_good is None else f"{last_good}"
    return TableError(
        "COMMIT_FOREIGN",
        f"The newest commit of {path}{commit} does not belong to {owner}",
        "Another program changed rows or columns of the Delta table, or another table is in this"
        " folder. Only lowmark may do that",
        f"Restore the Delta table to {'' if last_good is None else 'version '}{version} (RESTORE"
        f" TABLE … TO VERSION AS OF{'' if last_good is None else f' {last_good}'}){otherwise}",
        path=path,
        last_good=last_good,
        **fields,
    )


def tables_stopped(tables: str, causes: str, remedies: str) -> TableError:
    return TableError("TABLES_STOPPED", f"Several tables are stopped: {tables}", causes, remedies)


def columns_foreign(path: str, cause: str, otherwise: str) -> TableError:
    return TableError(
        "COMMIT_FOREIGN",
        f"The table at {path} is not one of lowmark, or another program changed its columns",
        cause,
        f"Restore the last version that lowmark committed{otherwise}",
        path=path,
    )


def checkpoint_lost(path: str, cause: str) -> TableError:
    return TableError(
        "TABLE_DAMAGED",
        f"The Delta log of {path} is damaged",
        cause,
        f"If its commits are there from the newest checkpoint on, delete"
        f" {path}/_delta_log/_last_checkpoint: it only helps to read the log. Otherwise restore"
        " _delta_log from a backup",
        path=path,
    )


def file_damaged(
    problem: str, path: str, file: str, what: str, remedy: str, **table: str
) -> TableError:
    return TableError(
        "TABLE_DAMAGED", problem, f"{file} {what}", remedy, path=path, file=file, **table
    )


def delta_log_missing(path: str, otherwise: str) -> TableError:
    return TableError(
        "TABLE_DAMAGED",
        f"{path} is not empty, and is not a Delta table",
        "Its folder _delta_log is missing or empty. A program removed it, or the files belong to"
        " another program",
        f"Restore _delta_log from a backup{otherwise}",
        path=path,
    )


def tombstones_unusable(path: str, table: str, what: str) -> TableError:
    return TableError(
        "TABLE_DAMAGED",
        f"The tombstone table of {table} {what}",
        "It remembers the deleted rows. Without it, late changes would bring them back",
        f"Restore {path} to its last state, or rebuild the table",
        table=table,
        path=path,
    )


def table_access_refused(path: str, use: str, cause: str) -> TableError:
    return TableError(
        "WAREHOUSE_UNUSABLE",
        f"The table at {path} cannot be {use}",
        f"The operating system refuses it: {cause}",
        "Give the user of this process access to the folder, or mount the file system for writing",
        path=path,
    )


def links_unsupported(path: str, use: str) -> TableError:
    return TableError(
        "WAREHOUSE_UNUSABLE",
        f"The table at {path} cannot be {use}",
        "The file system has no hard links. Without them, a commit can replace that of another"
        " writer",
        "Copy the warehouse to a file system with hard links, for example ext4, XFS, APFS or NTFS,"
        " or to an object store",
        path=path,
    )


def table_stale(table: str, age: str, bound: str, cause: str, as_of: int | None) -> StaleTableError:
    return StaleTableError(
        "TABLE_STALE",
        f"Table {table} is {age}, even with all ingested changes, but the bound is {bound} s",
        cause,
        "Check that ingest runs and keeps up, or read the table as it is (allow_stale)",
        table=table,
        as_of=as_of,
    )


def table_stale_blocked(
    table: str, stream: str, age: str, bound: str, since: str, as_of: int | None
) -> StaleTableError:
    return StaleTableError(
        "ROWS_BLOCKED",
        f"Table {table} is {age}, even with all ingested changes, but the bound is {bound} s",
        f"Rows of the table wait for dead letters (block_rows). The oldest one waits since {since}",
        "Repair and replay the dead letters, or discard them, or read the table as it is"
        " (allow_stale)",
        table=table,
        stream=stream,
        as_of=as_of,
    )


def erasure_secret_missing(path: str) -> TableError:
    return TableError(
        "ERASURE_SECRET_MISSING",
        f"The secret of the erased rows, {path}, is missing",
        "Rows were erased with it. Without it, ingest cannot refuse late changes of these rows",
        "Restore the file from a backup",
        path=path,
    )


def batch_incomplete(stream: str, use: str) -> TableError:
    return TableError(
        "BATCH_INCOMPLETE",
        f"The newest batch of stream {stream} is not complete, so {use} cannot begin",
        "The pipeline was killed before it had counted the batch",
        "Start the pipeline, which completes the batch, stop it, and try again",
        stream=stream,
    )


def store_clock_different(problem: str, **fields: object) -> TableError:
    return TableError(
        "STORE_ACCESS_DENIED",
        problem,
        "The clock of this machine and that of the object store differ by more than 15 minutes",
        "Set the clock of this machine, for example with NTP",
        **fields,
    )


def store_credentials_refused(problem: str, cause: str, **fields: object) -> TableError:
    return TableError(
        "STORE_ACCESS_DENIED",
        problem,
        cause,
        "Correct the section [storage], or the variables CONNECTOR__STORAGE__*: access_key,"
        " secret_key, session_token, region. Without any, those of AWS's tools are used, such as"
        " AWS_ACCESS_KEY_ID, or the role of the machine",
        **fields,
    )


def store_access_denied(problem: str, **fields: object) -> TableError:
    return TableError(
        "STORE_ACCESS_DENIED",
        problem,
        "The credentials are valid, but do not allow it",
        "Allow this user to list the bucket, and to get, put and delete objects below the"
        " warehouse. A command that only reads needs to list and to get",
        **fields,
    )


def bucket_missing(problem: str, **fields: object) -> TableError:
    return TableError(
        "BUCKET_MISSING",
        problem,
        "The object store has no bucket of this name, or it is in another region",
        "Create the bucket, or correct warehouse, or set storage.region to the region of the"
        " bucket",
        **fields,
    )


def store_unreachable(problem: str, cause: str, **fields: object) -> TableError:
    return TableError(
        "STORE_UNREACHABLE",
        problem,
        cause,
        "Check the network and the store, and try again later. Correct storage.endpoint if it is"
        " that of another server. Nothing is lost: lowmark continues where it stopped",
        **fields,
    )


def store_untrusted(problem: str, host: str, **fields: object) -> TableError:
    return TableError(
        "STORE_UNREACHABLE",
        problem,
        f"The object store{host} cannot be reached: the certificate of the server has expired, is"
        " for another host, or is of an authority that this machine does not know",
        "Name the file of the authority's certificate in SSL_CERT_FILE, and in the trust store of"
        " Spark's JVM",
        **fields,
    )


def store_not_conditional(problem: str, **fields: object) -> TableError:
    return TableError(
        "STORE_NOT_CONDITIONAL",
        problem,
        "The object store does not know conditional PUTs (If-None-Match), so a second writer could"
        " replace a commit",
        "Use a store that knows them, for example Amazon S3, or a newer release of yours",
        **fields,
    )

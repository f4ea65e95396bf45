"""Tables, reads and object stores."""

from __future__ import annotations

from connector.errors import StaleTableError, StorageError, TableError


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


def commit_unreadable(path: str, what: str, cause: str, otherwise: str) -> TableError:
    return TableError(
        "COMMIT_UNREADABLE",
        f"{what} of {path} cannot be read",
        cause,
        "Use the release of lowmark that wrote the commit, or restore the Delta table to the last"
        f" version that can be read{otherwise}",
        path=path,
    )


def commit_foreign(path: str, commit: str, owner: str, otherwise: str, **fields: str) -> TableError:
    return TableError(
        "COMMIT_FOREIGN",
        f"The newest commit of {path}{commit} does not belong to {owner}",
        "Another program committed to the Delta table, or another table is in this folder. Only"
        " lowmark may commit",
        "Restore the Delta table to the last version that lowmark committed (RESTORE TABLE … TO"
        f" VERSION AS OF){otherwise}",
        path=path,
        **fields,
    )


def columns_foreign(path: str, cause: str, otherwise: str) -> TableError:
    return TableError(
        "COMMIT_FOREIGN",
        f"The table at {path} is not one of lowmark, or another program changed its columns",
        cause,
        f"Restore the last version that lowmark committed{otherwise}",
        path=path,
    )


def file_damaged(path: str, file: str, what: str, otherwise: str, **table: str) -> StorageError:
    return StorageError(
        "TABLE_DAMAGED",
        f"A data file of {path} is damaged or missing",
        f"{file} {what}",
        f"Restore the file from a backup{otherwise}",
        path=path,
        file=file,
        **table,
    )


def delta_log_damaged(path: str, file: str, what: str, remedy: str) -> StorageError:
    return StorageError(
        "TABLE_DAMAGED",
        f"The Delta log of {path} is damaged",
        f"{file} {what}",
        remedy,
        path=path,
        file=file,
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


def table_disk_full(path: str, use: str, cause: str) -> StorageError:
    return StorageError(
        "DISK_FULL",
        f"The table at {path} cannot be {use}",
        f"The disk is full: {cause}",
        "Free some space and try again. Nothing was changed",
        path=path,
    )


def table_file_too_large(path: str, use: str) -> StorageError:
    return StorageError(
        "DISK_FULL",
        f"The table at {path} cannot be {use}",
        "A file has reached the size limit of the process (ulimit -f) or of the file system",
        "Raise the limit and try again. Nothing was changed",
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


def cut_replaced(table: str, time: str, version: int) -> TableError:
    return TableError(
        "CUT_MISSING",
        f"Table {table} has no version at {time}",
        f"The table was made again after this cut was recorded: its version {version} is another"
        " state now",
        "Read the table without a snapshot until the next cut is recorded",
        table=table,
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
    table: str, age: str, bound: str, since: str, as_of: int | None
) -> StaleTableError:
    return StaleTableError(
        "ROWS_BLOCKED",
        f"Table {table} is {age}, even with all ingested changes, but the bound is {bound} s",
        f"Rows of the table wait for dead letters (block_rows). The oldest one waits since {since}",
        "Repair and replay the dead letters, or discard them, or read the table as it is"
        " (allow_stale)",
        table=table,
        as_of=as_of,
    )


def store_clock_different(problem: str, **fields: object) -> StorageError:
    return StorageError(
        "STORE_ACCESS_DENIED",
        problem,
        "The clock of this machine and that of the object store differ by more than 15 minutes",
        "Set the clock of this machine, for example with NTP",
        **fields,
    )


def store_credentials_missing(problem: str, **fields: object) -> StorageError:
    return StorageError(
        "STORE_ACCESS_DENIED",
        problem,
        "No credentials of the object store were found",
        "Set access_key and secret_key in [storage], or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        " in the environment, or give the machine a role",
        **fields,
    )


def store_credentials_refused(problem: str, reason: str, **fields: object) -> StorageError:
    return StorageError(
        "STORE_ACCESS_DENIED",
        problem,
        f"The object store refuses the credentials: {reason}",
        "Correct the section [storage], or the variables CONNECTOR__STORAGE__*: access_key,"
        " secret_key, session_token, region. Without any, those of AWS's tools are used, such as"
        " AWS_ACCESS_KEY_ID",
        **fields,
    )


def store_access_denied(problem: str, **fields: object) -> StorageError:
    return StorageError(
        "STORE_ACCESS_DENIED",
        problem,
        "The credentials are valid, but do not allow it",
        "Allow this user to list the bucket, and to get, put and delete objects below the"
        " warehouse. A command that only reads needs to list and to get",
        **fields,
    )


def bucket_missing(problem: str, **fields: object) -> StorageError:
    return StorageError(
        "BUCKET_MISSING",
        problem,
        "The object store has no bucket of this name, or it is in another region",
        "Create the bucket, or correct warehouse, or set storage.region to the region of the"
        " bucket",
        **fields,
    )


def store_busy(problem: str, answer: str, **fields: object) -> StorageError:
    return StorageError(
        "STORE_UNREACHABLE",
        problem,
        f"The object store answers with an error, also when asked again: {answer}",
        "Try again later. Nothing is lost: lowmark continues where it stopped",
        **fields,
    )


def store_is_other_server(problem: str, host: str, **fields: object) -> StorageError:
    return StorageError(
        "STORE_UNREACHABLE",
        problem,
        f"The server{host} does not answer as an object store does",
        "Correct storage.endpoint. It may be the port of another server",
        **fields,
    )


def store_unreachable(problem: str, host: str, reason: str, **fields: object) -> StorageError:
    return StorageError(
        "STORE_UNREACHABLE",
        problem,
        f"The object store{host} cannot be reached: {reason}",
        "Check the network and the store. Correct the section [storage] if its endpoint is wrong."
        " Nothing is lost: lowmark continues where it stopped",
        **fields,
    )


def store_untrusted(problem: str, host: str, **fields: object) -> StorageError:
    return StorageError(
        "STORE_UNREACHABLE",
        problem,
        f"The object store{host} cannot be reached: the certificate of the server has expired, is"
        " for another host, or is of an authority that this machine does not know",
        "Name the file of the authority's certificate in SSL_CERT_FILE, and in the trust store of"
        " Spark's JVM",
        **fields,
    )


def store_not_conditional(problem: str, **fields: object) -> StorageError:
    return StorageError(
        "STORE_NOT_CONDITIONAL",
        problem,
        "The object store does not know conditional PUTs (If-None-Match), so a second writer could"
        " replace a commit",
        "Use a store that knows them, for example Amazon S3, or a newer release of yours",
        **fields,
    )

"""Records as JSON, files of rows, and loads."""

from __future__ import annotations

from connector.errors import ConnectorError, JsonViewError


def line_refused(number: int, problem: str, delivered: str) -> ConnectorError:
    return ConnectorError(
        "LINE_REFUSED",
        f"Line {number}: {problem}",
        f"Delivered before this line: {delivered}",
        "Repair the line, then publish the file from this line on. Save it as UTF-8. Sending a"
        " record twice does no harm",
    )


def file_unreadable(path: str, cause: str) -> ConnectorError:
    remedy = "Check that it is a file, and that you can read it"
    return ConnectorError("FILE_UNREADABLE", f"{path} cannot be read", cause, remedy, path=path)


def file_format_unknown(path: str, cause: str, formats: str) -> ConnectorError:
    remedy, problem = f"Name the format: one of {formats}", f"The format of {path} is not known"
    return ConnectorError("FILE_UNREADABLE", problem, cause, remedy, path=path)


def file_unwritable(path: str, cause: str) -> ConnectorError:
    remedy = "Name a file in a folder in which you can write, with enough free space"
    return ConnectorError("FILE_UNWRITABLE", f"{path} cannot be written", cause, remedy, path=path)


def file_malformed(path: str, location: str, cause: str) -> ConnectorError:
    return ConnectorError(
        "FILE_INVALID",
        f"{path}, {location}: {cause}",
        "The rows after this location cannot be told apart. Nothing was committed",
        "Correct the file, or export it again. Then repeat the call",
        path=path,
    )


def file_changed(path: str) -> ConnectorError:
    return ConnectorError(
        "FILE_INVALID",
        f"{path} was changed while it was read",
        "Some of its rows may be from before the change and others from after it. Nothing was"
        " committed",
        "Repeat the call once the file is complete",
        path=path,
    )


def file_columns_unsuitable(path: str, problem: str, cause: str) -> ConnectorError:
    return ConnectorError(
        "FILE_INVALID",
        f"{path} {problem}",
        cause,
        "Export the rows with the column names and the types of the table",
        path=path,
    )


def row_not_comparable(where: str, column: str, cause: str) -> ConnectorError:
    column = f", column {column}" if column else ""
    return ConnectorError(
        "FILE_INVALID",
        f"{where}{column}: the table cannot have such a row",
        cause,
        "Correct the row in the copy, or leave it out, and compare again",
    )


def rows_rejected(table: str, rejected: int, rows: str, examples: str) -> ConnectorError:
    return ConnectorError(
        "ROWS_REJECTED",
        f"{rows} cannot be published. Nothing was committed",
        examples,
        "Correct these rows in the files and load all of it again. Or load the same files"
        " without these rows (`skip_rejected`), and load them later once they are corrected",
        table=table,
        rejected=rejected,
    )


def source_table_truncated(table: str, record: str) -> ConnectorError:
    return ConnectorError(
        "ROWS_REJECTED",
        f"The source truncated {table}, and on_truncate is stop",
        f"It is in the foreign record {record}",
        'To delete the rows, set on_truncate = "delete" for this source. Start the bridge again',
        table=table,
    )


def source_value_missing(table: str, columns: str, record: str) -> ConnectorError:
    return ConnectorError(
        "ROWS_REJECTED",
        f"A row of {table} has no value for {columns}, and on_missing_value is stop",
        "PostgreSQL does not send a large value that did not change. The foreign record is"
        f" {record}",
        'Set on_missing_value = "letter" or "null" for this source. Start the bridge again. With'
        f" REPLICA IDENTITY FULL for {table}, PostgreSQL sends such values",
        table=table,
    )


def table_not_loadable(table: str) -> ConnectorError:
    return ConnectorError(
        "TABLE_NOT_LOADABLE",
        f"{table} is ordered by change sequence numbers",
        "Rows of a file have no such numbers, so it is not known which changes are newer",
        "Publish the rows as changes, each with its change sequence number",
        table=table,
    )


def table_not_empty(table: str, cause: str) -> ConnectorError:
    return ConnectorError(
        "TABLE_NOT_EMPTY",
        f"{table} is not empty, and the time of the rows is not given",
        f"{cause}. Without the time of the export, the rows would replace newer changes",
        "Give the time at which the rows were exported (`as_of`)",
        table=table,
    )


def as_of_too_old(stream: str, as_of: str, horizon: str) -> ConnectorError:
    return ConnectorError(
        "AS_OF_TOO_OLD",
        f"The rows are of {as_of}, which is below the horizon of {stream}",
        f"The horizon is {horizon}. Deletes before it may be forgotten, so rows that were deleted"
        " since the export could come back",
        "Export the rows again, and load them before the horizon passes the new time",
        stream=stream,
    )


def load_ended(table: str, write_stream: str, cause: str) -> ConnectorError:
    return ConnectorError(
        "LOAD_ENDED",
        f"An earlier load of these rows, {write_stream}, cannot be continued",
        cause,
        "Load the files with another name of the session. It begins with the first row",
        table=table,
        write_stream=write_stream,
    )


def json_invalid(cause: str) -> JsonViewError:
    return JsonViewError(
        "JSON_INVALID", "This line is not JSON", cause, "Write one JSON object per line"
    )


def field_invalid(field: str, problem: str, remedy: str = "") -> JsonViewError:
    return JsonViewError("FIELD_INVALID", problem, "", remedy, field=field)

"""Definitions of tables."""

from __future__ import annotations

from connector.errors import ConfigError, TableError


def column_name_invalid(what: str, name: str) -> ConfigError:
    return ConfigError(
        "COLUMN_NAME_INVALID",
        f"A {what} has the name {name!r}",
        "A column name has at most 300 ASCII characters. The first one is a letter, because names"
        " that begin with _ are reserved. The others are letters, digits or _",
        "Choose another name",
    )


def column_name_repeated(what: str, name: str, other: str) -> ConfigError:
    return ConfigError(
        "COLUMN_NAME_INVALID",
        f"Two {what} have the names {other} and {name}",
        "Each name can be used once. Spark does not distinguish upper and lower case",
        "Rename one of them",
    )


def source_name_invalid(what: str, given: str, allowed: str) -> ConfigError:
    return ConfigError(
        "SOURCE_NAME_INVALID",
        f"{what} is {given}",
        f"It must have {allowed}",
        "Use the name that it has in the source",
    )


def column_encoding_invalid(column: str, type_: str) -> ConfigError:
    return ConfigError(
        "COLUMN_TYPE_INVALID",
        f"Column {column} has the type {type_} and a binary encoding",
        f"{type_} has no binary form",
        'Set encoding = "text", or type = "BYTES"',
    )


def type_invalid(text: str, cause: str) -> ConfigError:
    return ConfigError(
        "COLUMN_TYPE_INVALID",
        f"{text!r} is not a type of a column",
        cause,
        "Write for example INT64, ARRAY<INT64>, RECORD<name STRING, since DATE> or RANGE<DATE>",
    )


def column_default_invalid(column: str, expected: str, default: str) -> ConfigError:
    return ConfigError(
        "COLUMN_TYPE_INVALID",
        f"The default of column {column} is {default!r}",
        f"It must be {expected}",
        "Write the value in this form, or remove the default",
    )


def columns_too_many(table: str, count: int, limit: int) -> ConfigError:
    return ConfigError(
        "COLUMNS_INVALID",
        f"tables.{table} has {count} columns",
        f"A table has at most {limit} columns, including key columns",
        "Remove some columns. With keep_unmapped, the table keeps their cells",
    )


def cell_of_mark(table: str, column: str) -> ConfigError:
    return ConfigError(
        "COLUMNS_INVALID",
        f"tables.{table}.columns: {column} shows the presence mark of the rows",
        "The cells with the qualifier \\x00row say that a row exists. They are in no column",
        "Remove the column",
    )


def cell_repeated(table: str, column: str, other: str, cell: str) -> ConfigError:
    return ConfigError(
        "COLUMNS_INVALID",
        f"tables.{table}.columns: {other} and {column} both show the cell {cell}",
        "Only one column can show a cell",
        "Remove one of them, or declare a second table on the same source",
    )


def column_exists(table: str, column: str) -> ConfigError:
    return ConfigError(
        "COLUMNS_INVALID",
        f"Table {table} has a column {column}",
        "A column that exists cannot be added",
        "Choose another name, or set the default of this column",
    )


def key_columns_invalid(count: int, limit: int) -> ConfigError:
    return ConfigError(
        "KEY_INVALID",
        f"The key has {count} columns",
        f"A key has 1 to {limit} columns",
        "Declare a key column, or join some of the columns in the source",
    )


def key_type_invalid(column: str, type_: str, types: str) -> ConfigError:
    return ConfigError(
        "KEY_INVALID",
        f"Key column {column} has the type {type_}",
        "Row keys have no form for the values of this type",
        f"Declare the column as {types}",
    )


def row_key_invalid(columns: str, forms: str) -> ConfigError:
    return ConfigError(
        "KEY_INVALID",
        f"The row key is declared as {columns}",
        "In the form row_key, the key is one column of the type BYTES or STRING",
        f"Set form = {forms}",
    )


def delimiter_invalid(delimiter: str, cause: str, remedy: str) -> ConfigError:
    return ConfigError("KEY_INVALID", f"The delimiter of the key is {delimiter!r}", cause, remedy)


def definition_different(table: str, differences: str) -> TableError:
    return TableError(
        "TABLE_DEFINITION_DIFFERENT",
        f"Table {table} exists with another definition: {differences}",
        "Its rows were written with the old definition",
        "Undo the change. For another type, cell, encoding or name of a column, drop the column"
        " from the table, and add one with another name. For another key, source, order or"
        " versions, declare a table with another name",
        table=table,
    )


def columns_changed(table: str) -> TableError:
    return TableError(
        "TABLE_COLUMNS_CHANGED",
        f"Only a rebuild can give table {table} the declared columns",
        "Its keep_unmapped is false, or has changed, so it does not have the cells of all columns",
        "Rebuild the table from the changelog, or undo the change",
        table=table,
    )


def column_lost(table: str, column: str) -> TableError:
    return TableError(
        "TABLE_COLUMN_LOST",
        f"The configuration of table {table} has no column {column}, and the table has one",
        "A missing line of the configuration drops no column, because it may be a mistake",
        "Declare the column again, or drop it from the table",
        table=table,
        column=column,
    )


def column_name_taken(table: str, column: str, type_: str) -> TableError:
    return TableError(
        "COLUMN_NAME_TAKEN",
        f"Table {table} had a column {column} of the type {type_}, which was dropped",
        "Files of the table still have a column of this name and type",
        "Choose another name for the column, or rebuild the table",
        table=table,
    )


def column_unknown(table: str, column: str, columns: str, remedy: str) -> ConfigError:
    return ConfigError(
        "COLUMN_UNKNOWN",
        f"Table {table} has no column {column}",
        f"Its columns are {columns}",
        remedy,
        table=table,
    )


def definition_unreadable(cause: str) -> TableError:
    return TableError(
        "TABLE_DEFINITION_UNREADABLE",
        "The properties of the table have no readable definition",
        f"Another program or a later release of lowmark created the table ({cause})",
        "Use another table or warehouse, or the release that created the table",
    )

"""Sentences about values of a source that may not be those of the database (SRC-8)."""

from __future__ import annotations

from collections.abc import Collection

from connector.text import summarize_names


def hidden_values(table: str, fields: Collection[str]) -> str:
    """The updates of a table do not have the row before."""
    return (
        f"{table} has no REPLICA IDENTITY FULL. In an UPDATE, null for"
        f" {summarize_names(sorted(fields))} is NULL, or a large value that did not change: such a"
        " row is a dead letter, or as on_missing_value says. Set REPLICA IDENTITY FULL for the"
        " table. For text[], int[] and a few more types, column.propagate.source.type in Debezium"
        " is enough"
    )


def missing_fields(table: str, fields: Collection[str]) -> str:
    """Rows of PostgreSQL lack fields that the table has."""
    return (
        f"rows of {table} have no {summarize_names([*fields])}, so it is NULL in them. It was"
        " dropped, or it is a generated column, which PostgreSQL does not send: leave it out with"
        " column.exclude.list in Debezium"
    )


def unsigned_number(column: str) -> str:
    """A column of MySQL may be BIGINT UNSIGNED, and has a negative number."""
    return (
        f"{column} has a negative number. If the column is BIGINT UNSIGNED, it is another number:"
        f" Debezium sends 18446744073709551615 as -1. {_SET_PRECISE}"
    )


def unsigned_columns(columns: Collection[str]) -> str:
    """Columns of MySQL may be BIGINT UNSIGNED."""
    return (
        f"if a column of these is BIGINT UNSIGNED, numbers from 9223372036854775808 on become"
        f" negative: {summarize_names([*columns])}. {_SET_PRECISE}"
    )


def numbers_without_schema() -> str:
    """The records of MySQL have no schema."""
    return (
        "the records of MySQL have no schema, so a negative number may be a large BIGINT UNSIGNED:"
        " Debezium sends 18446744073709551615 as -1. Set value.converter.schemas.enable = true, or"
        " use Avro"
    )


_SET_PRECISE = (
    "Set bigint.unsigned.handling.mode = precise in Debezium, or column.propagate.source.type = .*"
)


def iso_time(column: str) -> str:
    """A time of MySQL comes as a text."""
    return (
        f"{column} is a TIME of MySQL with time.precision.mode = isostring: Debezium sends null for"
        " a time below 0 and beyond a day, and 00:00 for 24:00. Leave time.precision.mode out"
    )


def deleted_rows(table: str) -> str:
    """A transform of Debezium has written deleted rows as rows."""
    return (
        f"{table} has rows with __deleted = true. They stay, unless a record without a value"
        " follows. Set delete.tombstone.handling.mode = tombstone for the transform, or follow"
        " Debezium's own records, without it"
    )


def keys_in_quotes(table: str) -> str:
    """An upsert topic has keys that are JSON texts, and keys that are no JSON."""
    return (
        f'{table} has keys such as "abc", in quotes, and keys such as abc. They were one row so'
        " far. From here on, the keys in quotes are dead letters. Write keys with one serializer"
    )


def replaced_nulls(columns: Collection[str]) -> str:
    """Columns can be NULL, have a default, and no record shows a NULL."""
    return (
        f"NULL may come as the default of its column in {summarize_names([*columns])}: Kafka"
        " Connect's converters write it so. In Debezium's connector, set"
        " value.converter.replace.null.with.default = false, or with Confluent's Avro converter,"
        " value.converter.ignore.default.for.nullables = true"
    )


def read_again(table: str) -> str:
    """A snapshot sends rows of a table after changes of it."""
    return (
        f"Debezium reads {table} again in a new snapshot. If it has not read the log in between,"
        " rows that were deleted then are in no event, and stay in the table: compare the table"
        " with an export of the source"
    )


def old_version(version: str) -> str:
    """Records are of a Debezium before 3.6.1."""
    return (
        f"Debezium {version} is older than 3.6.1. After a restart within a transaction, it counts"
        " the events of that transaction again from 1. The bridge then waits, and status says what"
        " to do"
    )

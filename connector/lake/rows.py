"""Rows of small Delta tables, kept and read without a JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from connector.errors import TableError

COMPACT_EVERY: Final = 200
"""After so many commits the small files become one."""


def append(path: str, rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> None:
    """Append rows of these columns (`string` or `int64`) in one commit; the table is made with its first. Raises `TableError`."""
    from deltalake import DeltaTable, write_deltalake
    from deltalake.exceptions import DeltaError

    try:
        write_deltalake(path, as_arrow(rows, types), mode="append")
        table = DeltaTable(path)
        if table.version() % COMPACT_EVERY == COMPACT_EVERY - 1:
            table.optimize.compact()
            table.vacuum(dry_run=False)
    except (DeltaError, OSError, ValueError) as error:
        raise trouble(path, "written", error) from error


def select(path: str, condition: str, columns: str = "*") -> list[dict[str, Any]]:
    """The rows of the table for which `condition` holds, in SQL; none where there is no table. Raises `TableError`."""
    from deltalake import DeltaTable, QueryBuilder
    from deltalake.exceptions import TableNotFoundError

    try:
        query = f"SELECT {columns} FROM t WHERE {condition}"  # noqa: S608, names are quoted
        return [row for batch in QueryBuilder().register("t", DeltaTable(path)).execute(query) for row in _of_batch(batch)]
    except TableNotFoundError:
        return []
    except Exception as error:  # of a damaged file nothing narrower is raised
        raise trouble(path, "read", error) from error


def as_arrow(rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> Any:
    """Rows as Arrow's table; a column that a row lacks is null."""
    from arro3.core import Array, DataType, Table

    of = {"string": DataType.string(), "int64": DataType.int64()}
    columns: dict[str, Any] = {name: Array([row.get(name) for row in rows], of[type_]) for name, type_ in types.items()}
    return Table.from_pydict(columns)


def quoted(text: str) -> str:
    """A text in SQL."""
    return "'{}'".format(text.replace("'", "''"))


def trouble(path: str, what: str, error: Exception) -> TableError:
    """The error of a small table that could not be `what`."""
    cause = str(error).partition("\n")[0]
    return TableError(f"{path} cannot be {what}", cause, "Check the path, the rights on it and the space on the disk, and try again")


def _of_batch(batch: Any) -> list[dict[str, Any]]:
    columns = [batch.column(place).to_pylist() for place in range(batch.num_columns)]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]

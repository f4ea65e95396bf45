"""Small Delta tables of our own, under `_connector/` in the warehouse: rows are added and looked up, never changed (TBL-22).

Every function raises `TableError` where the table cannot be written or read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from connector.errors import TableError

COMPACT_EVERY: Final = 200
"""After so many commits the small files become one."""


def append(path: str, rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> None:
    """Add rows in one commit, and make the table where there is none. `types`: column -> `string` or `int64`."""
    from arro3.core import Array, DataType, Table
    from deltalake import DeltaTable, write_deltalake
    from deltalake.exceptions import DeltaError

    of = {"string": DataType.string(), "int64": DataType.int64()}
    columns: dict[str, Any] = {name: Array([row[name] for row in rows], of[type_]) for name, type_ in types.items()}
    try:
        rows_as_arrow: Any = Table.from_pydict(columns)
        write_deltalake(path, rows_as_arrow, mode="append")
        table = DeltaTable(path)
        if table.version() % COMPACT_EVERY == COMPACT_EVERY - 1:
            table.optimize.compact()
            table.vacuum(dry_run=False)
    except (DeltaError, OSError, ValueError) as error:
        raise _trouble(path, "written", error) from error


def rows_of(path: str, condition: str) -> list[dict[str, Any]]:
    """The rows for which an SQL condition holds; it may have an ORDER BY behind it. None where there is no table."""
    from deltalake import DeltaTable, QueryBuilder
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        query = QueryBuilder().register("t", DeltaTable(path)).execute(f"SELECT * FROM t WHERE {condition}")  # noqa: S608, names are quoted
        return [row for batch in query for row in _of_batch(batch)]
    except TableNotFoundError:
        return []
    except (DeltaError, OSError, ValueError) as error:
        raise _trouble(path, "read", error) from error


def _of_batch(batch: Any) -> list[dict[str, Any]]:
    columns = [batch.column(place).to_pylist() for place in range(batch.num_columns)]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def quoted(text: str) -> str:
    """As an SQL literal."""
    return "'{}'".format(text.replace("'", "''"))


def _trouble(path: str, what: str, error: Exception) -> TableError:
    cause = str(error).partition("\n")[0]
    return TableError(f"{path} cannot be {what}", cause, "Check the path, the rights on it and the space on the disk, and try again")

"""Rows of small Delta tables, written and read without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from connector.lake.checks import (
    check_missing,
    check_writable,
    explaining,
    open_existing,
    opened,
    table_error,
)
from connector.lake.plain_table import batches, rows_in, stored_of
from connector.lake.stores import options_of
from connector.state.damage import foreign_table

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, Field

TIDY_EVERY: Final = 200
"""After this many commits, the small files are merged into one, and old rows are removed."""
OLD_VERSIONS_KEPT_H: Final = 1
"""For readers that read the table at the same time."""
_KEPT: Final = {
    "delta.deletedFileRetentionDuration": f"interval {OLD_VERSIONS_KEPT_H} hours",
    "delta.logRetentionDuration": f"interval {OLD_VERSIONS_KEPT_H} hours",
}
ATTEMPTS: Final = 5

Following = Callable[[Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]
"""Makes a row and the metadata of its commit from the metadata of the newest commit."""


def append(
    path: str,
    rows: Sequence[Mapping[str, Any]],
    types: Mapping[str, str],
    forget: Callable[[], str | None] = lambda: None,
    *,
    added: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Append rows with these columns (`string` or `int64`) in one commit, to a new table if
    necessary. Raises `TableError`, also if the table lacks one of `types`. A table that lacks one
    of the columns `added` gets it.

    After every `TIDY_EVERY` commits, `tidy` removes the rows for which the SQL of `forget` is true
    (TBL-23).
    """
    from deltalake import write_deltalake

    check_writable(path)
    with explaining(path, "written"):
        table = _existing(path) or _made(path, {**types, **added}, configuration=_KEPT)
        names = {field.name for field in table.schema().fields}
        if lacking := sorted(set(types) - names):
            raise foreign_table(path, f"It lacks the columns {', '.join(lacking)}")
        if missing := [name for name in added if name not in names]:
            table.alter.add_columns(_fields({name: added[name] for name in missing}))
        write_deltalake(table, as_arrow(rows, {**types, **added}), mode="append")
        table = opened(path)
        if table.version() % TIDY_EVERY == TIDY_EVERY - 1:
            tidy(table, forget())


def _existing(path: str) -> DeltaTable | None:
    from deltalake import DeltaTable

    return opened(path) if DeltaTable.is_deltatable(path, options_of(path)) else None


def _made(
    path: str,
    types: Mapping[str, str],
    *,
    configuration: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> DeltaTable:
    """A new table without rows, or the one that another process made meanwhile."""
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError

    check_missing(path)
    try:
        return DeltaTable.create(
            path,
            Schema(_fields(types)),
            configuration=dict(configuration or {}),
            storage_options=options_of(path),
            commit_properties=None if metadata is None else _with_metadata(metadata),
        )
    except DeltaError:
        made = _existing(path)
        if made is None:
            raise
        return made


def _fields(types: Mapping[str, str]) -> list[Field]:
    from deltalake import Field
    from deltalake.schema import PrimitiveType

    delta_types = {"string": "string", "int64": "long"}
    return [Field(name, PrimitiveType(delta_types[type_])) for name, type_ in types.items()]


def _with_metadata(metadata: Mapping[str, Any]) -> CommitProperties:
    from deltalake import CommitProperties

    return CommitProperties(
        custom_metadata={"userMetadata": json.dumps({"lowmark": metadata})}, max_commit_retries=0
    )


def tidy(table: DeltaTable, forget: str | None = None) -> None:
    """Merge small files, and remove old files, old parts of the log, and rows to `forget`."""
    if any(table.metadata().configuration.get(name) != text for name, text in _KEPT.items()):
        table.alter.set_table_properties(dict(_KEPT))
    if forget is not None:
        table.delete(forget)
    table.optimize.compact()
    table.vacuum(
        retention_hours=OLD_VERSIONS_KEPT_H, enforce_retention_duration=False, dry_run=False
    )
    table.create_checkpoint()
    table.cleanup_metadata()


def delete(path: str, condition: str) -> None:
    """Remove the rows for which an SQL condition is true. Raises `TableError`."""
    check_writable(path)
    if (delta := open_existing(path)) is not None:
        with explaining(path, "written"):
            delta.delete(condition)


def append_next(
    path: str, types: Mapping[str, str], following: Following, *, empty: Mapping[str, Any]
) -> None:
    """Append the row that `following` makes from the newest commit, with its metadata, in one step.
    If there is no table, it is made first, with `empty` as the metadata. Raises `TableError`.

    If another process commits first, `following` is called again with the metadata of that commit.
    """
    from deltalake import write_deltalake
    from deltalake.exceptions import DeltaError

    check_writable(path)
    for attempt in range(ATTEMPTS):
        try:
            table = _existing(path) or _made(path, types, metadata=empty)
            row, metadata = following(stored_of(table))
            write_deltalake(
                table,
                as_arrow([row], types),
                mode="append",
                commit_properties=_with_metadata(metadata),
            )
        except (DeltaError, OSError, ValueError) as error:
            if attempt == ATTEMPTS - 1:
                raise table_error(path, "written", error) from error
        else:
            return


def select(path: str, condition: str, columns: str = "*") -> list[dict[str, Any]]:
    """The rows of the table for which the SQL `condition` is true. The list is empty if there is no
    table.

    Raises `TableError`, also if only the log of the table is missing.
    """
    delta = open_existing(path)
    if delta is None:
        return []
    return [
        dict(zip(batch.schema.names, row, strict=True))
        for batch in batches(delta, f"SELECT {columns} FROM t WHERE {condition}")  # noqa: S608, names are quoted
        for row in rows_in(batch)
    ]


def as_arrow(rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> Any:
    """Rows as an Arrow table. A missing column is null."""
    from arro3.core import Array, DataType, Table

    arrow_types = {"string": DataType.string(), "int64": DataType.int64()}
    columns: dict[str, Any] = {
        name: Array([row.get(name) for row in rows], arrow_types[type_])
        for name, type_ in types.items()
    }
    return Table.from_pydict(columns)


def quoted(text: str) -> str:
    """A text as an SQL literal."""
    return "'{}'".format(text.replace("'", "''"))

"""Reads one version of a table (TBL-18), without a JVM and in bounded memory. Internal columns are
left out (TBL-22). Values are Python's, but times are integers (microseconds, and days for a DATE),
so that every year is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

from connector.errors.tables import table_missing
from connector.lake.checks import explaining, open_existing, table_error
from connector.lake.stores import reader_of
from connector.state.commits import Commit, Commits
from connector.state.damage import Foreign
from connector.tables.column_names import BOOKKEEPING

if TYPE_CHECKING:
    from deltalake import DeltaTable

_Read = TypeVar("_Read")

_CASTS: Final = {"timestamp": "Int64", "timestamp_ntz": "Int64", "date": "Int32"}
"""Delta's primitive types that are read as numbers, and Arrow's type of the number."""


@dataclass(frozen=True, slots=True)
class PlainTable:
    """One version of a Delta table. `types` has Delta's type for each column that readers see, in
    order. `stored` is the metadata of its commit, empty if that is not one of lowmark.
    """

    version: int
    types: Mapping[str, str]
    stored: Mapping[str, Any]
    _delta: DeltaTable

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows, in no order, as tuples of the columns in `types`. A map is a list of pairs."""
        yield from self.select(self.types)

    def select(
        self, columns: Iterable[str], where: str = "true", *internal: str
    ) -> Iterator[tuple[Any, ...]]:
        """These columns of the rows for which the SQL is true, as in `rows`, then internal ones."""
        selected = [*(_selected(name, self.types[name]) for name in columns), *internal]
        yield from self.query(f"SELECT {', '.join(selected)} FROM t WHERE {where}")  # noqa: S608, names are quoted

    def query(self, query: str) -> Iterator[tuple[Any, ...]]:
        """The result of an SQL query of `t`, which is this table. Raises `TableError`."""
        return query_rows(self._delta, query)

    def arrow_schema(self) -> Any:
        """The columns in `types`, as a schema of pyarrow."""
        import pyarrow as pa

        schema = pa.schema(self._delta.schema())
        return pa.schema([schema.field(name) for name in self.types])

    def commits(self) -> Iterator[Commit]:
        """The commits up to this version, the newest first, as far as the log has them."""
        try:
            yield from commits_of(self._delta).back_from(self.version)
        except OSError as error:
            raise table_error(self.path, "read", error, self._delta) from error

    @property
    def path(self) -> str:
        """The path of a local table, or the URI of another one."""
        return _path_of(self._delta)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return {
            name: value
            for name, value in self._delta.metadata().configuration.items()
            if value is not None
        }


def batches(delta: DeltaTable, query: str) -> Iterator[Any]:
    """The result of an SQL query of `t`, the table, as Arrow batches. Raises `TableError`."""
    from deltalake import QueryBuilder

    try:
        yield from QueryBuilder().register("t", delta).execute(query)
    except Exception as error:  # a damaged file raises no narrower type
        raise table_error(_path_of(delta), "read", error, delta) from error


def _path_of(delta: DeltaTable) -> str:
    """The path of a local table, or the URI of another one."""
    uri = delta.table_uri.rstrip("/")
    return unquote(uri.removeprefix("file://")) if uri.startswith("file:///") else uri


def query_rows(delta: DeltaTable, query: str) -> Iterator[tuple[Any, ...]]:
    """The rows of `batches`."""
    for batch in batches(delta, query):
        yield from rows_in(batch)


def rows_in(batch: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of an Arrow batch as Python values."""
    return zip(
        *(batch.column(number).to_pylist() for number in range(batch.num_columns)), strict=True
    )


def newest_stored(path: str) -> Mapping[str, Any] | None:
    """The metadata in force at the newest commit of a Delta table. Empty: no metadata is. None:
    there is no table. Raises `TableError` if it cannot be read, or only its log is missing.
    """
    delta = open_existing(path)
    if delta is None:
        return None
    with explaining(path, "read"):
        return stored_of(delta)


def stored_of(delta: DeltaTable) -> Mapping[str, Any]:
    """The metadata in force at the version that is open. It is empty if another program changed
    rows, or the log does not have the commit any more. Raises `OSError` if it cannot be read.
    """
    commit = commits_of(delta).at(delta.version())
    return {} if commit is None else commit.stored or {}


def newest_foreign(path: str) -> Foreign | None:
    """The commit that changed rows, if that is why the newest version has no metadata. Raises
    `TableError`.
    """
    return _of_newest(path, Commits.foreign)


def other_commits(path: str) -> tuple[str, ...]:
    """The operations of other programs since the newest commit of lowmark, which changed no row.
    Raises `TableError`.
    """

    def operations(commits: Commits, version: int) -> list[str]:
        others = takewhile(lambda commit: not commit.is_own, commits.back_from(version))
        return [commit.operation for commit in others]

    return tuple(reversed(_of_newest(path, operations) or ()))


def newest_own_version(path: str) -> int | None:
    """The newest version of lowmark. None: it committed nothing. Raises `TableError`."""
    newest = _of_newest(path, lambda commits, version: next(commits.of_lowmark(version), None))
    return None if newest is None else newest.version


def _of_newest(path: str, read: Callable[[Commits, int], _Read]) -> _Read | None:
    """The result of `read` for the newest version. None: there is no table."""
    delta = open_existing(path)
    if delta is None:
        return None
    with explaining(path, "read"):
        return read(commits_of(delta), delta.version())


def commits_of(delta: DeltaTable) -> Commits:
    """The commits of a table. For the newest one, deltalake would list the whole log."""
    path = _path_of(delta)
    return Commits(path, reader_of(f"{path}/_delta_log"))


def open_table(path: str, version: int | None = None, *, table: str = "") -> PlainTable:
    """The table at a path or URI, in its newest or a given version. Raises `TableError` if there is
    no table, or only its log is missing, or it cannot be read. `table` is its name, for that error.
    """
    delta = open_existing(path, version)
    if delta is None:
        raise table_missing(path, table)
    with explaining(path, "read"):
        stored, fields = stored_of(delta), delta.schema().fields
    types = {
        field.name: str(getattr(field.type, "type", "map"))
        for field in fields
        if field.name not in BOOKKEEPING
    }
    return PlainTable(delta.version(), types, stored, delta)


def _selected(name: str, type_: str) -> str:
    quoted = '"{}"'.format(name.replace('"', '""'))
    return f"arrow_cast({quoted}, '{_CASTS[type_]}') AS {quoted}" if type_ in _CASTS else quoted

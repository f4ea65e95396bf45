"""A plain read: a table as its newest commit left it (TBL-18), without a JVM and in bounded memory.

The rows are those of one version of the table, whatever is committed meanwhile. Bookkeeping columns are left out (TBL-22).
Values come as Python has them, except that times are integers (microseconds, and days for a DATE), so that no year is too
far for them. What is in the table is all there is: changes that were not applied yet are not looked for (TBL-16).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from connector.errors import TableError
from connector.tables.column_names import BOOKKEEPING

if TYPE_CHECKING:
    from deltalake import DeltaTable

_CASTS: Final = {"timestamp": "Int64", "timestamp_ntz": "Int64", "date": "Int32"}
"""Delta's primitive types that are read as numbers, and as which of Arrow's."""


@dataclass(frozen=True, slots=True)
class PlainTable:
    """One version of a Delta table. `types` has Delta's type for each column that readers see, in their order.

    `table_state` is what the newest commit says of itself (TBL-10); empty if that commit is not ours.
    """

    version: int
    types: Mapping[str, str]
    table_state: Mapping[str, Any]
    _delta: DeltaTable

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows, in no particular order, each as a tuple of the columns in `types`; a map is a list of pairs."""
        yield from self.select(self.types)

    def select(self, columns: Iterable[str], where: str = "true", *table_state: str) -> Iterator[tuple[Any, ...]]:
        """These columns of the rows that a condition in SQL holds for, as in `rows`; behind them columns of the bookkeeping."""
        selected = [*(_selected(name, self.types[name]) for name in columns), *table_state]
        yield from self.query(f"SELECT {', '.join(selected)} FROM t WHERE {where}")  # noqa: S608, names are quoted

    def query(self, query: str) -> Iterator[tuple[Any, ...]]:
        """What a query in SQL of `t`, this table, yields. Raises `TableError` if the table cannot be read."""
        for batch in batches(self._delta, query):
            yield from rows_in(batch)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return {name: value for name, value in self._delta.metadata().configuration.items() if value is not None}


def batches(delta: DeltaTable, query: str) -> Iterator[Any]:
    """Arrow's batches of what a query of `t`, the table, yields. Raises `TableError` if the table cannot be read."""
    from deltalake import QueryBuilder

    try:
        yield from QueryBuilder().register("t", delta).execute(query)
    except Exception as error:  # of a damaged file nothing narrower is raised
        raise trouble(delta.table_uri, "read", error) from error


def rows_in(batch: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of an Arrow batch, as Python has them."""
    return zip(*(batch.column(place).to_pylist() for place in range(batch.num_columns)), strict=True)


def newest_stored(path: str) -> Mapping[str, Any] | None:
    """What the newest commit of a Delta table says of itself; empty if it is not ours, None if there is no table."""
    delta_table, not_found, unreadable = _deltalake()
    try:
        newest = delta_table(path).history(1)
    except not_found:
        return None
    except unreadable as error:
        raise trouble(path, "read", error) from error
    return table_state_of(newest[0]) if newest else {}


def open_table(path: str, version: int | None = None) -> PlainTable:
    """The table at a path or URI, as of now or in a version. Raises `TableError` if there is none, or none that can be read."""
    delta_table, not_found, unreadable = _deltalake()
    try:
        delta = delta_table(path, version=version)
        newest = delta.history(1)
        fields = delta.schema().fields
    except not_found as error:
        raise TableError(
            f"There is no table at {path}", "nothing was applied to it yet", "run the pipeline: connector run --once"
        ) from error
    except unreadable as error:
        raise trouble(path, "read", error) from error
    types = {field.name: str(getattr(field.type, "type", "map")) for field in fields if field.name not in BOOKKEEPING}
    return PlainTable(delta.version(), types, table_state_of(newest[0]) if newest else {}, delta)


def _deltalake() -> tuple[type[DeltaTable], type[Exception], tuple[type[Exception], ...]]:
    """Its table, what it raises where there is none, and where there is one that cannot be read."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
    except ImportError as error:
        remedy = "install it: pip install 'lowmark[lake]'"
        raise TableError("Tables cannot be read without the deltalake package", str(error), remedy) from error
    return DeltaTable, TableNotFoundError, (DeltaError, OSError, ValueError)


def _selected(name: str, type_: str) -> str:
    quoted = '"{}"'.format(name.replace('"', '""'))
    return f"arrow_cast({quoted}, '{_CASTS[type_]}') AS {quoted}" if type_ in _CASTS else quoted


def table_state_of(commit: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a commit in a table's history says of itself; empty if it is not ours."""
    user_metadata = commit.get("userMetadata")
    try:
        said = json.loads(user_metadata) if isinstance(user_metadata, str) else {}
    except ValueError:
        return {}
    ours = said.get("lowmark") if isinstance(said, dict) else None
    return ours if isinstance(ours, dict) else {}


def trouble(path: str, what: str, error: Exception) -> TableError:
    """The error of a table that cannot be `what`."""
    cause = str(error).partition("\n")[0]
    remedy = "Check the path, the rights on it, its files and the space on the disk, and try again"
    return TableError(f"The table at {path} cannot be {what}", cause, remedy)

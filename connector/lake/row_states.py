"""The canonical state of some rows of a table, without a JVM (DLQ-9, DLQ-10, DLQ-13).

A state is computed from the row in the table, its tombstones, and the ingested changes that are not
applied yet. It is canonical (`connector.tables.row`). Decisions 0005 and 0013 define how
a state is stored: registers by column and by family, and a residual for everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

from connector import warehouse as paths
from connector.errors import TableError
from connector.errors.tables import tombstones_unusable
from connector.lake.changelog_changes import (
    CHANGE_COLUMNS,
    bytes_literal,
    change_of,
    truncations_of,
    visible_changes,
)
from connector.lake.plain_table import PlainTable, newest_stored, open_table
from connector.lake.small_tables import quoted
from connector.lake.state_reader import state_of_version
from connector.records.ordering import Rank, rank_of
from connector.records.rejection import Rejection
from connector.records.views import EPOCH, MICROSECOND
from connector.state.damage import reading
from connector.state.table_state import TableState
from connector.stored import from_stored
from connector.tables.column_names import STATE
from connector.tables.definition import TableDefinition, Versions
from connector.tables.merge import EMPTY, RowState, greatest, join, truncate
from connector.tables.nested import ArrayType, RangeType, RecordType, ValueType
from connector.tables.row import RowReader, read_change, state_of
from connector.tables.stored_definition import REBUILD_PROPERTY, ColumnIds, from_properties
from connector.tables.stored_state import StateForm
from connector.tables.values import DataType, Unreadable


class RowStates:
    """The states of rows of the table that `definition` declares, in the newest versions of the
    table and the changelog. `definition` is then that of the table. Without an apply, there is no
    `table`.
    """

    def __init__(self, warehouse: str, definition: TableDefinition) -> None:
        """Raises `TableError` if the table or the changelog cannot be read, or if the table was not
        made from this changelog. A table without an apply has no rows.
        """
        folder = paths.table_folder(warehouse, definition.name)
        self.definition, self.table_state = definition, TableState()
        self._ids: ColumnIds | None = None
        self.table: PlainTable | None = None
        self._tombstones: PlainTable | None = None
        if newest_stored(paths.data(folder)) is not None:
            self.table = open_table(paths.data(folder), table=definition.name)
            self.definition, self._ids = from_properties(self.table.properties)
            self.table_state = state_of_version(
                warehouse, definition.stream, definition.name, self.table
            )
            if self.table_state.has_tombstones:
                self._tombstones = _tombstones(folder, self.table)
        changelog = paths.changelog(warehouse, definition.stream)
        self.changelog = None if newest_stored(changelog) is None else open_table(changelog)
        batch, changelog_id = _newest_batch(changelog, self.changelog)
        self.table_state.check_changelog(definition.name, batch, changelog_id)

    def states_of(self, row_keys: Iterable[bytes]) -> dict[bytes, RowState]:
        """The state of each of these rows: `EMPTY` for an unknown row, or an unreadable key."""
        return self.with_pending(self.applied(row_keys))

    def applied(self, row_keys: Iterable[bytes]) -> dict[bytes, RowState]:
        """The same as the last apply left it."""
        read = {row_key: self.definition.key.read_key(row_key) for row_key in row_keys}
        by_key = {key: row_key for row_key, key in read.items() if not isinstance(key, Unreadable)}
        states = dict.fromkeys(read, EMPTY)
        for key, state in self._stored(list(by_key)) if by_key else ():
            if key in by_key:
                states[by_key[key]] = join(states[by_key[key]], state)
        return states

    def with_pending(self, applied: Mapping[bytes, RowState]) -> dict[bytes, RowState]:
        """The states with the ingested changes and truncations that are not applied yet."""
        states = dict(applied)
        for row_key, state in self._pending(states) if states else ():
            states[row_key] = join(states[row_key], state)
        return {row_key: truncate(state, self.truncated) for row_key, state in states.items()}

    @cached_property
    def truncated(self) -> Rank | None:
        """The rank of the greatest truncation that was ingested. None: there was none (EVO-13)."""
        rank, after = self.table_state.truncated, self.table_state.complete_to_batch
        if self.changelog is None:
            return rank
        pending = truncations_of(self.changelog, self.definition.source, after=after)
        return greatest(rank, *(rank_of(each, self.definition.order) for each in pending))

    def _stored(
        self, keys: list[tuple[object, ...]]
    ) -> Iterator[tuple[tuple[object, ...], RowState]]:
        parts = self.definition.key.parts
        # The first key part limits the search enough. The result may have other rows too.
        first = (
            f'"{parts[0].name}" IN'
            f" ({', '.join(sorted({_literal(parts[0].type, key[0]) for key in keys}))})"
        )
        names = [part.name for part in parts]
        columns = (
            [column.name for column in self.definition.columns]
            if self.definition.versions is Versions.LATEST
            else []
        )
        if self.table is not None:
            for row in self.table.select([*names, *columns], first, STATE):
                yield self._key(row), self._state(row[-1], row[len(names) : -1])
        if self._tombstones is not None:
            named = "".join(
                f" OR (_apply_number = {apply} AND _attempt_id = {quoted(attempt)})"
                for apply, attempt in self.table_state.attempt_ids.items()
            )
            for row in self._tombstones.select(
                names,
                f"{first} AND (_apply_number <= {self.table_state.vacuumed_to}{named})",
                STATE,
            ):
                yield self._key(row), self._state(row[-1], [None] * len(columns))

    def _key(self, row: tuple[Any, ...]) -> tuple[object, ...]:
        return tuple(
            _plain(part.type, value)
            for part, value in zip(self.definition.key.parts, row, strict=False)
        )

    def _state(self, stored: Mapping[str, Any], values: Iterable[Any]) -> RowState:
        columns = self.definition.columns
        plain = [_plain(column.type, value) for column, value in zip(columns, values, strict=False)]
        form = StateForm(self.definition, self._ids)
        return RowReader(self.definition).canonical(form.read(stored, plain))

    def _pending(self, row_keys: Iterable[bytes]) -> Iterator[tuple[bytes, RowState]]:
        """The states from ingested changes. Those of changes that are applied add nothing."""
        if self.changelog is None:
            return
        keys = ", ".join(bytes_literal(row_key) for row_key in row_keys)
        after, source = self.table_state.complete_to_batch, self.definition.source
        is_pending = f"ingest_batch > {after} AND row_key IN ({keys})"
        for row in visible_changes(self.changelog, CHANGE_COLUMNS, source, is_pending):
            change, position = change_of(row)
            if not isinstance(read_change(self.definition, change), Rejection):
                yield change.row_key, state_of(self.definition, [(change, position)])


def _newest_batch(path: str, changelog: PlainTable | None) -> tuple[int, str | None]:
    """The newest batch of a changelog, and its id. Commits of other programs are ignored."""
    if changelog is None:
        return 0, None
    stored = changelog.stored or next(
        (commit.stored for commit in changelog.commits() if commit.stored), changelog.stored
    )
    with reading(path):
        batch, changelog_id = stored["ingest_batch"], stored["changelog_id"]
        return from_stored(int, batch), from_stored(str, changelog_id)


def _tombstones(folder: str, table: PlainTable) -> PlainTable:
    path = paths.tombstones(folder, table.properties.get(REBUILD_PROPERTY, ""))
    try:
        return open_table(path)
    except TableError as error:
        if error.code != "TABLE_MISSING":
            raise
        raise tombstones_unusable(path, paths.table_of(folder), "is missing") from error


def _plain(type_: ValueType, value: Any) -> Any:
    """A value as in `connector.tables.values`. Delta stores days and decimals in its own form."""
    match type_:
        case _ if value is None:
            return None
        case ArrayType():
            return [_plain(type_.element, item) for item in value]
        case RecordType():
            return {name: _plain(part, value[name]) for name, part in type_.fields}
        case RangeType():
            return _plain(type_.record, value)
        case DataType.DATE if isinstance(value, int):
            return EPOCH.date() + timedelta(days=value)
        case DataType.TIMESTAMP if isinstance(value, datetime):
            return (value - EPOCH) // MICROSECOND
        case DataType.DATETIME if isinstance(value, datetime):
            return (value.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
        case DataType.BYTES:
            return bytes(value)
        case _:
            return value


def _literal(type_: DataType, value: Any) -> str:
    """A value of a key as SQL."""
    match value:
        case bytes():
            return bytes_literal(value)
        case bool():
            return str(value).lower()
        case int() if type_ is DataType.TIMESTAMP:
            return f"""arrow_cast({value}, 'Timestamp(Microsecond, Some("UTC"))')"""
        case int():
            return str(value)
        case date():
            return f"DATE '{value.isoformat()}'"
        case Decimal():
            return f"CAST('{value:f}' AS DECIMAL(38, 9))"
        case float():
            return f"CAST('{value!r}' AS DOUBLE)"
        case _:
            return quoted(str(value))

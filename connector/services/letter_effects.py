"""The effect of a replay on rows as they are now, and a new change with the effect of a late one
(DLQ-9, DLQ-10, DLQ-13).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from connector.dead_letters.effect import Effect, at_low_watermark, difference, effect
from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.replay import Decision, in_batches
from connector.errors import InvalidChangeError, TableError
from connector.events import OnEvent, log_event, warning
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import DataChange
from connector.records.ordering import OrderPosition
from connector.records.views import Json
from connector.services.warehouses import warehouse_of
from connector.tables.definition import TableDefinition
from connector.tables.merge import EMPTY, RowState, visible
from connector.tables.row import read_change, row_of, view_of_row
from connector.validation import size_of

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.lake.row_states import RowStates

AT_ONCE: Final = 2000
AT_ONCE_BYTES: Final = 64 * 2**20
"""The rows of at most so many letters, of so many bytes, are read together."""


class Effects:
    """The effect of changes on the rows of the tables of one stream, as these are when read."""

    def __init__(
        self, warehouse: str, tables: Mapping[str, TableDefinition], low_watermark: int | None
    ) -> None:
        self._warehouse, self._tables, self._low_watermark = warehouse, tables, low_watermark
        self._opened: dict[str, RowStates] = {}
        self._rows: dict[tuple[str, bytes], RowState] = {}

    @staticmethod
    def open(
        config: ConnectorConfig, stream: StreamConfig, on_event: OnEvent = log_event
    ) -> Effects | None:
        """Open the tables of a stream. None, and a warning, if the warehouse cannot be read."""
        try:
            from connector.lake.state_reader import progress_of

            tables = config.tables_of(stream.name)
            progress = progress_of(warehouse_of(config), stream.name, with_frontier=True)
            effects = Effects(warehouse_of(config), tables, progress.low_watermark)
            for name in tables:
                effects._states(name)
        except (ModuleNotFoundError, TableError) as error:
            on_event(warning("EFFECTS_UNKNOWN", f"the effect on the rows is unknown ({error})"))
            return None
        return effects

    def of_each(
        self, decisions: Iterable[Decision], schemas: Schemas
    ) -> Iterator[tuple[Decision, Mapping[str, Effect]]]:
        """The effect of each decision, by table; empty if nothing would be applied."""
        for batch in in_batches(decisions, _size, at_most=AT_ONCE, at_most_bytes=AT_ONCE_BYTES):
            changes = {id(decision): _change_in(decision, schemas) for decision in batch}
            self._rows.clear()
            self._read([change for change in changes.values() if change is not None])
            for decision in batch:
                change = changes[id(decision)]
                yield decision, {} if change is None else self._effects(decision, change)

    def rows_of(self, change: DataChange) -> dict[str, Json | None]:
        """The row by table, as `connector read` prints it now; None: there is no such row."""
        self._read([change])
        rows: dict[str, Json | None] = {}
        for name, table in self._readable_in(change):
            row = row_of(table, change.row_key, visible(self._rows[name, change.row_key]))
            rows[name] = None if row is None else view_of_row(table, row)
        return rows

    def new_change(self, letter: DeadLetter, change: DataChange) -> DataChange | str:
        """Return a new change with the effect that the change of a letter would have on its row
        now, or a sentence that says why no such change exists.
        """
        if self._low_watermark is None:
            return "the low watermark is not known"
        self._read([change])
        position = _position(letter, letter.attempt + 1)
        entries = {
            name: difference(
                table,
                self._rows[name, change.row_key],
                change,
                position,
                self._states(name).truncated,
            )
            for name, table in self._readable_in(change)
        }
        if not entries:
            return "no table of its stream can read it"
        if not any(entries.values()):
            return "it would change nothing: the row has newer values"
        if len(set(entries.values())) > 1:
            return f"its tables need different changes: {', '.join(entries)} read the same source"
        try:
            return at_low_watermark(change, next(iter(entries.values())), self._low_watermark)
        except InvalidChangeError as error:
            return f"the difference is not a valid change: {error}"

    def _effects(self, decision: Decision, change: DataChange) -> dict[str, Effect]:
        position = _position(decision.letter, decision.attempt)
        return {
            name: effect(
                table,
                self._rows[name, change.row_key],
                change,
                position,
                self._states(name).truncated,
            )
            for name, table in self._readable_in(change)
        }

    def _readable_in(self, change: DataChange) -> Iterator[tuple[str, TableDefinition]]:
        for name, table in self._tables.items():
            definition = self._states(name).definition
            if table.source == change.table and read_change(definition, change) is None:
                yield name, definition

    def _read(self, changes: list[DataChange]) -> None:
        for name, table in self._tables.items():
            keys = {change.row_key for change in changes if change.table == table.source}
            if keys:
                states = self._states(name).states_of(keys)
                self._rows |= {(name, key): states.get(key, EMPTY) for key in keys}

    def _states(self, name: str) -> RowStates:
        from connector.lake.row_states import RowStates

        if name not in self._opened:
            self._opened[name] = RowStates(self._warehouse, self._tables[name])
        return self._opened[name]


def _size(decision: Decision) -> int:
    return size_of(decision.letter.key, decision.letter.value, decision.letter.headers)


def _change_in(decision: Decision, schemas: Schemas) -> DataChange | None:
    if decision.content is None:
        return None
    decoded = decode(decision.content.value, schemas)
    record = decoded.record if isinstance(decoded, ChangeRecord) else None
    return record if isinstance(record, DataChange) else None


def _position(letter: DeadLetter, attempt: int) -> OrderPosition:
    return OrderPosition.of_letter(letter.order_position)._replace(attempt=attempt)

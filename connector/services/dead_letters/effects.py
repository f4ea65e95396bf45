"""The effect of a replay on rows as they are now, and the change that a forced replay sends (DLQ-9,
DLQ-10, DLQ-13).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from connector.dead_letters.batching import in_batches
from connector.dead_letters.effect import Effect, as_of_today, difference, effect
from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.replay import Decision
from connector.errors import InvalidChangeError, TableError
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import DataChange
from connector.records.ordering import OrderPosition
from connector.records.sizes import size_of
from connector.services.events import OnEvent, log_event, warning
from connector.services.warehouses import warehouse_of
from connector.tables.definition import TableDefinition
from connector.tables.merge import EMPTY, RowState, join, visible
from connector.tables.row import read_change, row_of, state_of

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.lake.row_states import RowStates

AT_ONCE: Final = 2000
AT_ONCE_BYTES: Final = 64 * 2**20
"""So many letters' rows are looked for together, of so many bytes."""
_BEHIND_ALL: Final = 2**62
"""The ingest batch of a letter that others wrote: behind all that is there, as ingest will place
it.
"""


class Effects:
    """The rows of the tables of one stream, as they were when first asked for, with what was forced
    upon them since.
    """

    def __init__(
        self, warehouse: str, tables: Mapping[str, TableDefinition], low_watermark: int | None
    ) -> None:
        self._warehouse, self._tables, self._low_watermark = warehouse, tables, low_watermark
        self._stored: dict[str, RowStates] = {}
        self._known: dict[tuple[str, bytes], RowState] = {}
        self._forced = 0

    @staticmethod
    def of(
        config: ConnectorConfig, stream: StreamConfig, on_event: OnEvent = log_event
    ) -> Effects | None:
        """None, and a warning, where the warehouse cannot be read from here."""
        try:
            from connector.lake.state_reader import progress_of

            tables = {
                name: table for name, table in config.tables.items() if table.stream == stream.name
            }
            found = Effects(
                warehouse_of(config),
                tables,
                progress_of(warehouse_of(config), stream.name).low_watermark,
            )
            for name in tables:
                found._states(name)
        except (ModuleNotFoundError, TableError) as error:
            on_event(warning("EFFECTS_UNKNOWN", f"the effect on the rows is unknown ({error})"))
            return None
        return found

    def of_each(
        self, decisions: Iterable[Decision], schemas: Schemas
    ) -> Iterator[tuple[Decision, Mapping[str, Effect]]]:
        """The effect of each of them, by table; empty if it is not replayed, or is no change of a
        declared table.
        """
        for some in in_batches(decisions, _size, at_most=AT_ONCE, at_most_bytes=AT_ONCE_BYTES):
            changes = {id(decision): _change_in(decision, schemas) for decision in some}
            self._known.clear()
            self._look([change for change in changes.values() if change is not None])
            for decision in some:
                change = changes[id(decision)]
                yield decision, {} if change is None else self._effects(decision, change)

    def rows_of(self, change: DataChange) -> dict[str, dict[str, object] | None]:
        """The row of a change by table, as readers see it now; None: the table has no such row."""
        self._look([change])
        return {
            name: row_of(table, change.row_key, visible(self._known[name, change.row_key]))
            for name, table in self._readable_in(change)
        }

    def forced(self, letter: DeadLetter, change: DataChange) -> DataChange | str:
        """A change that has the effect today that a late one would have had, or a sentence that
        says why not; see `replay.Force`.
        """
        if self._low_watermark is None:
            return "the low watermark is not known"
        if any((name, change.row_key) not in self._known for name, _ in self._readable_in(change)):
            self._look([change])
        position = self._position(letter, letter.attempt + 1)
        wanted = {
            name: difference(table, self._known[name, change.row_key], change, position)
            for name, table in self._readable_in(change)
        }
        if not wanted:
            return "no table of its stream can read it"
        if not any(wanted.values()):
            return (
                "it would change nothing: the row has newer values, or values that were forced"
                " later"
            )
        if len(set(wanted.values())) > 1:
            return f"its tables need different changes: {', '.join(wanted)} read the same source"
        try:
            today = as_of_today(change, next(iter(wanted.values())), self._low_watermark)
        except InvalidChangeError as error:
            return f"the difference is not a valid change: {error}"
        for name, table in self._readable_in(change):
            known = self._known[name, change.row_key]
            # With its own order: of two that are forced, the one that is newer at the source is
            # sent as the newer one.
            self._known[name, change.row_key] = join(known, state_of(table, [(change, position)]))
        self._forced += 1
        return today

    def _effects(self, decision: Decision, change: DataChange) -> dict[str, Effect]:
        position = self._position(decision.letter, decision.attempt)
        return {
            name: effect(table, self._known[name, change.row_key], change, position)
            for name, table in self._readable_in(change)
        }

    def _position(self, letter: DeadLetter, attempt: int) -> OrderPosition:
        try:
            return OrderPosition.parse(letter.order_position)._replace(attempt=attempt)
        except ValueError:
            return OrderPosition(_BEHIND_ALL, 0, self._forced)

    def _readable_in(self, change: DataChange) -> Iterator[tuple[str, TableDefinition]]:
        for name, table in self._tables.items():
            definition = self._states(name).definition
            if table.source == change.table and read_change(definition, change) is None:
                yield name, definition

    def _look(self, changes: list[DataChange]) -> None:
        for name, table in self._tables.items():
            keys = {change.row_key for change in changes if change.table == table.source}
            if keys:
                found = self._states(name).of(keys)
                self._known |= {(name, key): found.get(key, EMPTY) for key in keys}

    def _states(self, name: str) -> RowStates:
        from connector.lake.row_states import RowStates

        if name not in self._stored:
            self._stored[name] = RowStates(self._warehouse, self._tables[name])
        return self._stored[name]


def _size(decision: Decision) -> int:
    return size_of(decision.letter.key, decision.letter.value, decision.letter.headers)


def _change_in(decision: Decision, schemas: Schemas) -> DataChange | None:
    if decision.content is None:
        return None
    found = decode(decision.content.value, schemas)
    return (
        found.record
        if isinstance(found, ChangeRecord) and isinstance(found.record, DataChange)
        else None
    )

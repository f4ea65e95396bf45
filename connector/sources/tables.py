"""The tables that a decoder has met (SRC-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from connector.sources.columns import Merged, Shown, SourceTable, merged
from connector.tables.definition import TableDefinition


class KnownTables:
    """The tables of a source.

    - `unsigned` names columns of MySQL that may be BIGINT UNSIGNED.
    - `defaults` has the cells of each table that can be NULL and have a default.

    Args:
        tables: The tables that are known, for example those that were published.
        declared: The definitions of the configuration. They name key columns, and only they say
            that the text of a field without a schema is base64.
        only_declared: Rows of other tables are left out.
        overridden: Returns the definition of a table that a section without a key overrides, or
            None.
    """

    def __init__(
        self,
        tables: Iterable[SourceTable] = (),
        declared: Iterable[TableDefinition] = (),
        *,
        only_declared: bool = False,
        overridden: Callable[[SourceTable], TableDefinition | None] = lambda table: None,
    ) -> None:
        self.tables = {table.source: table for table in tables}
        self.declared = {definition.source: definition for definition in declared}
        self._only_declared = only_declared
        self._news: dict[str, Merged] = {}
        self._doubts: list[str] = []
        self.unsigned: dict[str, None] = {}
        self.defaults: dict[str, dict[str, None]] = {}
        self._warned = set[str]()
        self._overridden = overridden
        for table in self.tables.values():
            self._override(table)

    def _override(self, table: SourceTable) -> None:
        if (definition := self._overridden(table)) is not None:
            self.declared[table.source] = definition

    def is_left_out(self, source: str) -> bool:
        """Whether rows of this table are left out."""
        return self._only_declared and source not in self.declared

    def meet(self, source: str, key: Iterable[Shown], fields: Iterable[Shown]) -> SourceTable:
        """Return the table with the columns of these fields."""
        old = self.tables.get(source)
        new = merged(old, source, key, fields)
        warnings = tuple(text for text in new.warnings if text not in self._warned)
        if new.table != old or warnings:
            self._warned.update(warnings)
            self.tables[source] = new.table
            self._override(new.table)
            earlier = self._news.get(source, Merged(new.table))
            self._news[source] = Merged(
                new.table,
                (*earlier.warnings, *warnings),
                (*earlier.with_default, *new.with_default),
            )
        return new.table

    def take_news(self) -> list[Merged]:
        """Return the tables with new columns, or with warnings, and forget that they are new. They
        are published before the events that were decoded since.
        """
        news, self._news = list(self._news.values()), {}
        return news

    def doubt(self, text: str) -> None:
        """Keep a sentence about values that may not be those of the source."""
        if text not in self._warned:
            self._warned.add(text)
            self._doubts.append(text)

    def take_doubts(self) -> list[str]:
        """Return what was doubted since the last call. Each sentence is returned once."""
        doubts, self._doubts = self._doubts, []
        return doubts

"""The tables that a decoder has met (SRC-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from connector.sources.columns import Merged, Shown, SourceTable, merged
from connector.tables.definition import TableDefinition
from connector.tables.values import DataType


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """The settings of a table of the source that a decoder needs.

    - `key` has the types of the key columns by name.
    - `bytes_fields` names the fields that are BYTES: without a schema, their text is base64.
    """

    key: Mapping[str, DataType]
    bytes_fields: frozenset[str]

    @classmethod
    def from_definition(cls, definition: TableDefinition) -> DeclaredTable:
        key = {part.name: part.type for part in definition.key.parts}
        names = [name for name, type_ in key.items() if type_ is DataType.BYTES]
        for column in definition.columns:
            if column.type is DataType.BYTES:
                names += [column.name, column.qualifier.decode("utf-8", "replace")]
        return cls(key, frozenset(names))

    def key_name(self, name: str) -> str:
        """Return the declared name of a key column. The only one may have any name."""
        return next(iter(self.key)) if len(self.key) == 1 else name


class KnownTables:
    """The tables of a source. `news` has what is new since it was taken.

    Args:
        tables: The tables that are known, for example those that were published.
        declared: The definitions of the configuration. Only they say that a text is base64.
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
        self.declared = {
            definition.source: DeclaredTable.from_definition(definition) for definition in declared
        }
        self._only_declared = only_declared
        self._news: dict[str, Merged] = {}
        self._warned = set[str]()
        self._overridden = overridden
        for table in self.tables.values():
            self._override(table)

    def _override(self, table: SourceTable) -> None:
        if (definition := self._overridden(table)) is not None:
            self.declared[table.source] = DeclaredTable.from_definition(definition)

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

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def take_news(self) -> list[Merged]:
        """Return the tables with new columns, or with warnings, and forget that they are new. They
        are published before the events that were decoded since.
        """
        news, self._news = list(self._news.values()), {}
        return news

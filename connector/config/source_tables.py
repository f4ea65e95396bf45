"""Tables whose definitions follow from their source (SRC-5).

A table of the source is the same as a section `[tables.NAME]` of the configuration. A section of
the user has priority: its settings replace those of the source one by one, and its columns those of
the same cells.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

from connector.config.parse import parse_tables
from connector.config.settings import ConnectorConfig, StreamConfig
from connector.errors import ConfigError
from connector.errors.settings import setting_invalid
from connector.sources.columns import FAMILY, SourceTable, column_name, table_name
from connector.tables.published import DAMAGES

_COLUMNS: Final = "columns"


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """A table of a source, as its bridge publishes it.

    - `name` is the name of the table that follows it. The bridge chooses it once.
    - `section` is the section `[tables.NAME]` without `stream`.
    - `with_default` are the fields that were added with a default at the source. Older rows get no
      event.
    """

    name: str
    section: Mapping[str, Any]
    with_default: tuple[str, ...] = ()

    def to_value(self) -> bytes:
        """Return the value of the record. `from_value` is the inverse."""
        stored = {"name": self.name, "section": self.section, "with_default": self.with_default}
        return json.dumps(stored, separators=(",", ":")).encode()

    @staticmethod
    def from_value(value: bytes | str) -> FollowedTable:
        """Return the table of a value that any program may have written. Raises `ValueError` if no
        bridge makes such a value.
        """
        try:
            stored = json.loads(value)
            name, section = str(stored["name"]), dict(stored["section"])
            fields = tuple(str(field) for field in stored["with_default"])
            SourceTable.from_section(section)
            parse_tables(
                {name: {**section, "stream": "s"}}, {"s": StreamConfig(name="s", topic="s")}
            )
        except (*DAMAGES, ConfigError) as error:
            raise ValueError(str(error)) from None
        return FollowedTable(name, section, fields)


BySource = Mapping[str, FollowedTable]
"""Tables by their names at the source."""


def new_name(
    config: ConnectorConfig, stream: str, source: str, taken: Iterable[str], *, wanted: str = ""
) -> str:
    """Return the name of the table that follows a new table of a source. It differs from every
    other name in more than case.

    Args:
        config: The configuration. Names that it gives to other tables are left out.
        stream: The stream of the source.
        source: The name of the table at the source.
        taken: The names of the tables that follow others.
        wanted: The name, if it is free.
    """
    others = {name.lower() for name in taken} | _names_of_others(config, stream, source)
    return wanted if wanted and wanted.lower() not in others else table_name(source, others)


def _names_of_others(config: ConnectorConfig, stream: str, source: str) -> set[str]:
    """The names, in lower case, that the configuration gives to other tables than this one."""
    names = set[str]()
    for name, table in config.tables.items():
        if not _follows(config.streams[table.stream]):
            names.add(name.lower())
    for other in config.streams.values():
        for name, own in _sections(other).items():
            if other.name != stream or own.get("source", source) != source:
                names.add(name.lower())
    return names


def _follows(stream: StreamConfig) -> bool:
    return stream.source is not None and stream.source.follows_tables


def _sections(stream: StreamConfig) -> Mapping[str, Mapping[str, object]]:
    return {} if stream.source is None else stream.source.sections


def own_sections(stream: StreamConfig, table: FollowedTable) -> dict[str, Mapping[str, object]]:
    """Return the sections of the configuration for a table of a source, by the names of the tables
    that it feeds: those that name it, and the one of its name, in any case, that names none.
    """
    source, name = table.section["source"], table.name
    own: dict[str, Mapping[str, object]] = {}
    for given, section in _sections(stream).items():
        if "source" not in section and given.lower() == name.lower():
            own[name] = section
        elif section.get("source") == source:
            own[given] = section
    return own


def with_own_names(tables: Mapping[str, BySource]) -> dict[str, dict[str, FollowedTable]]:
    """Return tables by stream, with names that differ in more than case. Of several with one name,
    the first source of the first stream keeps it.
    """
    made = {stream: dict(of_stream) for stream, of_stream in sorted(tables.items())}
    taken = {table.name.lower() for of_stream in made.values() for table in of_stream.values()}
    met = set[str]()
    for of_stream in made.values():
        for source, table in sorted(of_stream.items()):
            if table.name.lower() in met:
                of_stream[source] = replace(table, name=table_name(source, taken))
                taken.add(of_stream[source].name.lower())
            met.add(table.name.lower())
    return made


def with_published(
    config: ConnectorConfig, stored: Mapping[str, BySource], published: Mapping[str, BySource]
) -> dict[str, dict[str, FollowedTable]]:
    """Return the stored tables of sources, with what was published about them since, and with new
    ones. A stored table keeps its name. A new one has its published name if that is free: bridges
    of several streams choose their names alone.
    """
    made = {stream: dict(tables) for stream, tables in stored.items()}
    taken = [table.name for tables in made.values() for table in tables.values()]
    for stream in sorted(published):
        of_stream = made.setdefault(stream, {})
        for source, table in sorted(published[stream].items()):
            if (before := of_stream.get(source)) is not None:
                name = before.name
            else:
                name = new_name(config, stream, source, taken, wanted=table.name)
                taken.append(name)
            of_stream[source] = replace(table, name=name)
    return made


def with_source_tables(
    config: ConnectorConfig, tables: Mapping[str, Iterable[FollowedTable]]
) -> ConnectorConfig:
    """Return a configuration with the tables of its sources.

    `tables` has them by stream, with names as `with_own_names` returns them. Those of a stream that
    does not follow its source are left out. Raises `ConfigError` if a section of the user is not
    valid together with its table, or has the name of another table.
    """
    merged: dict[str, Mapping[str, object]] = {}
    for stream in filter(_follows, config.streams.values()):
        for table in tables.get(stream.name, ()):
            name, section = table.name, table.section
            given = own_sections(stream, table)
            others = _names_of_others(config, stream.name, section["source"])
            if not given and name.lower() in others:
                raise setting_invalid(
                    f"tables.{name}",
                    f"a table of the source of stream {stream.name}, {section['source']}",
                    "a name that no other table has",
                    f'Add a section [tables.OTHER] with stream = "{stream.name}" and source ='
                    f' "{section["source"]}"',
                )
            # A source may feed several tables. Without a section, it feeds the one of its own name.
            for other, own in (given or {name: {}}).items():
                merged[other] = _merged(stream.name, section, own)
    names = {name.lower() for name in merged}
    kept = {name: table for name, table in config.tables.items() if name.lower() not in names}
    return replace(config, tables=kept | parse_tables(merged, config.streams))


def _merged(
    stream: str, section: Mapping[str, Any], own: Mapping[str, Any]
) -> Mapping[str, object]:
    """The section of a table, with the settings of the user in their places."""
    merged = {**section, **own, "stream": stream}
    return {**merged, _COLUMNS: _columns(section, own, merged.get("presence_family", FAMILY))}


def _columns(section: Mapping[str, Any], given: Mapping[str, Any], family: object) -> Any:
    """The columns of the source with those of the user in their places, then the others.

    Without a schema, the source may show these later, in this family. One without a type waits. A
    column of the source whose name the user gives to another one gets a number.
    """
    of_source, own = section.get(_COLUMNS, ()), given.get(_COLUMNS, ())
    if not _are_sections(own):
        return own  # a fault that the parser reports
    key = given.get("key", section["key"])
    of_key = key.get(_COLUMNS) if isinstance(key, Mapping) else ()
    shown = (*own, *(of_key if _are_sections(of_key) else ()))
    names = {str(column["name"]).lower() for column in shown if "name" in column}
    left = list(own)
    columns = []
    for column in of_source:
        override = next((given for given in left if _is_same_cell(column, given)), None)
        if override is not None:
            left.remove(override)
        if "name" not in (override or {}):
            name = column_name(column["name"], names)
            names.add(name.lower())
            if name != column["name"]:
                column = {"qualifier": column["name"], **column, "name": name}
        columns.append({**column, **(override or {})})
    has_schema = any("on_unreadable" not in column for column in of_source)
    left = [column for column in left if has_schema or "type" in column]
    return columns + [{"family": family, **column} for column in left]


def _are_sections(given: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return isinstance(given, list | tuple) and all(
        isinstance(section, Mapping) for section in given
    )


def _is_same_cell(column: Mapping[str, object], given: Mapping[str, object]) -> bool:
    qualifier = given.get("qualifier", given.get("name"))
    family = given.get("family", column["family"])
    return (column["family"], column.get("qualifier", column["name"])) == (family, qualifier)

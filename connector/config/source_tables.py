"""Tables whose definitions follow from their source (SRC-5).

A table of the source is the same as a section `[tables.NAME]` of the configuration. A section of
the user has priority: its settings replace those of the source one by one, and its columns those of
the same cells.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from connector.config.parse import parse_tables
from connector.config.settings import ConnectorConfig, SourceConfig, StreamConfig
from connector.errors import ConfigError
from connector.errors.settings import setting_invalid
from connector.sources.columns import FAMILY, SourceTable
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


def with_source_tables(
    config: ConnectorConfig, tables: Mapping[str, Iterable[FollowedTable]]
) -> ConnectorConfig:
    """Return a configuration with the tables of its sources.

    `tables` has them by stream. Those of a stream that does not follow its source are left out.
    Raises `ConfigError` if a merged section is not valid.
    """
    merged: dict[str, Mapping[str, object]] = {}
    for stream in config.streams.values():
        if stream.source is None or not stream.source.follows_tables:
            continue
        for name, section in _merged(stream.name, stream.source, tables.get(stream.name, ())):
            other = config.tables.get(name)
            if name in merged or (other is not None and other.stream != stream.name):
                raise setting_invalid(
                    f"tables.{name}",
                    f"a table of the source of stream {stream.name}, {section['source']}",
                    "a name that no other table has",
                    f'Add a section [tables.OTHER] with stream = "{stream.name}" and source ='
                    f' "{section["source"]}"',
                )
            merged[name] = section
    return replace(config, tables={**config.tables, **parse_tables(merged, config.streams)})


def _merged(
    stream: str, source: SourceConfig, tables: Iterable[FollowedTable]
) -> Iterator[tuple[str, Mapping[str, object]]]:
    for table in tables:
        name, section = table.name, table.section
        given = {
            other: own
            for other, own in source.sections.items()
            if own.get("source", section["source"] if other == name else None) == section["source"]
        }
        # A source may feed several tables. Without a section, it feeds the one of its own name.
        for other, own in (given or {name: {}}).items():
            family = {**section, **own}.get("presence_family", FAMILY)
            columns = _columns(section.get(_COLUMNS, ()), own.get(_COLUMNS, ()), family)
            yield other, {**section, **own, "stream": stream, _COLUMNS: columns}


def _columns(of_source: Any, own: Any, family: object) -> list[Any]:
    """The columns of the source with those of the user in their places, then the others.

    Without a schema, the source may show these later, in this family. One without a type waits.
    """
    if not isinstance(own, list | tuple) or not all(isinstance(column, Mapping) for column in own):
        return own  # type: ignore[no-any-return]  # a fault that the parser reports
    left = list(own)
    columns = []
    for column in of_source:
        override = next((given for given in left if _is_same_cell(column, given)), None)
        if override is not None:
            left.remove(override)
        columns.append({**column, **(override or {})})
    has_schema = any("on_unreadable" not in column for column in of_source)
    left = [column for column in left if has_schema or "type" in column]
    return columns + [{"family": family, **column} for column in left]


def _is_same_cell(column: Mapping[str, object], given: Mapping[str, object]) -> bool:
    qualifier = given.get("qualifier", given.get("name"))
    family = given.get("family", column["family"])
    return (column["family"], column.get("qualifier", column["name"])) == (family, qualifier)

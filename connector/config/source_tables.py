"""Tables whose definitions follow from their source (SRC-5).

A table of the source is the same as a section `[tables.NAME]` of the configuration. A section of
the user has priority: its settings replace those of the source one by one, and its columns those of
the same cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from connector.config.parse import parse_tables
from connector.config.settings import ConnectorConfig, SourceConfig
from connector.errors.settings import setting_invalid

Sections = Mapping[str, Mapping[str, Any]]
"""Sections of tables by name, as the document has them below `tables`."""

_COLUMNS: Final = "columns"


def with_source_tables(config: ConnectorConfig, tables: Mapping[str, Sections]) -> ConnectorConfig:
    """Return a configuration with the tables of its sources.

    `tables` has the sections by stream. Those of a stream that does not follow its source are left
    out. Raises `ConfigError` if a merged section is not valid.
    """
    merged: dict[str, Mapping[str, object]] = {}
    for stream in config.streams.values():
        if stream.source is None or not stream.source.follows_tables:
            continue
        for name, section in _merged(stream.name, stream.source, tables.get(stream.name, {})):
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
    stream: str, source: SourceConfig, tables: Sections
) -> Iterator[tuple[str, Mapping[str, object]]]:
    for name, section in tables.items():
        given = {
            other: own
            for other, own in source.sections.items()
            if own.get("source", section["source"] if other == name else None) == section["source"]
        }
        # A source may feed several tables. Without a section, it feeds the one of its own name.
        for other, own in (given or {name: {}}).items():
            columns = _columns(section.get(_COLUMNS, ()), own.get(_COLUMNS, ()))
            yield other, {**section, **own, "stream": stream, _COLUMNS: columns}


def _columns(of_source: Any, own: Any) -> list[Any]:
    """The columns of the source with those of the user in their places, then the others."""
    if not isinstance(own, list | tuple) or not all(isinstance(column, Mapping) for column in own):
        return own  # type: ignore[no-any-return]  # a fault that the parser reports
    left = list(own)
    columns = []
    for column in of_source:
        override = next((given for given in left if _is_same_cell(column, given)), None)
        if override is not None:
            left.remove(override)
        columns.append({**column, **(override or {})})
    return columns + left


def _is_same_cell(column: Mapping[str, object], given: Mapping[str, object]) -> bool:
    qualifier = given.get("qualifier", given.get("name"))
    family = given.get("family", column["family"])
    return (column["family"], column.get("qualifier", column["name"])) == (family, qualifier)

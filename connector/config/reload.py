"""Which differences of a configuration a running pipeline takes (EVO-8)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, Final

from connector.config.settings import ConnectorConfig
from connector.errors import ConfigError, ConnectorError, TableError
from connector.errors.settings import reload_refused
from connector.tables.alterations import ColumnOverride, declared_alteration, with_overrides
from connector.tables.definition import TableDefinition, compatible
from connector.tables.stored_definition import ColumnIds

_TAKEN: Final = frozenset(
    {"columns", "max_staleness_s", "apply_every_s", "on_unreadable", "start_from"}
)
"""The settings of a table that may change."""
_BELOW: Final = frozenset({"streams", "tables"})


def reload_faults(
    running: ConnectorConfig,
    new: ConnectorConfig,
    existing: Mapping[str, tuple[TableDefinition, ColumnIds]],
    overrides: Mapping[str, Sequence[ColumnOverride]],
) -> list[ConnectorError]:
    """Return why a running pipeline cannot take a configuration: an error for each setting. An
    empty list: it can. It takes new tables of existing streams, new columns, bounds and paces, and
    a definition that fits its table where the running one does not.

    `existing` has the tables of the warehouse, and `overrides` the columns of operators, by table.
    """
    of_tables = {
        name: _of_table(table, new, existing.get(name)) for name, table in running.tables.items()
    }
    faults = [*_faults(running, new), *chain.from_iterable(of_tables.values())]
    for name, table in new.tables.items():
        if not of_tables.get(name):
            try:
                _check_columns(table, existing.get(name), overrides.get(name, ()))
            except (ConfigError, TableError) as error:
                faults.append(error)
    return faults


def _check_columns(
    declared: TableDefinition,
    existing: tuple[TableDefinition, ColumnIds] | None,
    overrides: Sequence[ColumnOverride],
) -> None:
    if existing is None:
        with_overrides(declared, overrides)
    else:
        declared_alteration(*existing, declared, overrides)


def _faults(running: ConnectorConfig, new: ConnectorConfig) -> Iterator[ConnectorError]:
    for name in _different(running, new, _BELOW):
        yield reload_refused(name)
    for kind in sorted(_BELOW):
        before, after = getattr(running, kind), getattr(new, kind)
        for name in before.keys() - after.keys():
            yield reload_refused(f"{kind}.{name}", "was removed")
    for name in new.streams.keys() - running.streams.keys():
        yield reload_refused(f"streams.{name}", "is new")
    for name, stream in running.streams.items():
        if name in new.streams:
            for setting in _different(stream, new.streams[name]):
                yield reload_refused(f"streams.{name}.{setting.removesuffix('_s')}")


def _of_table(
    running: TableDefinition,
    new: ConnectorConfig,
    existing: tuple[TableDefinition, ColumnIds] | None,
) -> list[ConnectorError]:
    if (table := new.tables.get(running.name)) is None:
        return []
    if existing and compatible(existing[0], running) and not compatible(existing[0], table):
        return []  # the table is stopped, and the new definition fits it
    settings = _different(running, table, _TAKEN)
    return [reload_refused(f"tables.{running.name}.{setting}") for setting in settings]


def _different(first: Any, second: Any, but: Collection[str] = ()) -> Iterator[str]:
    """The names of the fields that differ. Their values may be secret."""
    for field in fields(first):
        name = field.name
        if name not in but and getattr(first, name) != getattr(second, name):
            yield name

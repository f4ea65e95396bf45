"""Keeps the columns of tables as the configuration and operators declare them (EVO-2, EVO-3).

A table is altered between two applies. A definition that cannot be followed stops only its table,
until it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from connector.errors import (
    BrokerError,
    ConfigError,
    ConnectorError,
    DeliveryError,
    TableError,
    TopicError,
)
from connector.events import Event, OnEvent, info, warning
from connector.spark.apply.alter import Survey, alter
from connector.spark.storage.table import Table
from connector.tables.alterations import Alteration, ColumnOverride, declared_alteration
from connector.tables.definition import TableDefinition
from connector.tables.published import PublishedTable
from connector.text import counted, one_of

Overrides = Mapping[str, Sequence[ColumnOverride]]


@dataclass(frozen=True, slots=True)
class DefinitionPorts:
    """Functions that read the column overrides of operators by table, and remove those that the
    configuration agrees with. They are those of `lake.overrides.Overrides`. `publish` publishes
    definitions for producers, and returns the errors of those that it refuses (EVO-1).
    """

    columns: Callable[[], Overrides] = dict
    settle: Callable[[Sequence[ColumnOverride]], None] = lambda overrides: None
    publish: Callable[[Sequence[PublishedTable]], Mapping[str, ConnectorError]] | None = None


class Definitions:
    """The wanted columns of the tables of one pipeline. Any thread may call the methods, but of one
    table only one at a time.
    """

    def __init__(
        self,
        declared: Mapping[str, TableDefinition],
        ports: DefinitionPorts,
        on_event: OnEvent,
        on_stopped: Callable[[str, ConnectorError], None] = lambda name, error: None,
    ) -> None:
        self._declared, self._ports, self._on_event = declared, ports, on_event
        self._on_stopped = on_stopped
        self.refused: dict[str, ConfigError | TableError] = {}
        """The errors of the tables that are stopped."""
        self._published: dict[str, int] = {}
        self._unpublished: dict[str, str] = {}

    def changed(self, tables: Mapping[str, Table]) -> list[str]:
        """The tables with other columns than wanted, and those that are stopped."""
        overrides = self._ports.columns()
        return [name for name, table in tables.items() if self._differs(table, name, overrides)]

    def _differs(self, table: Table, name: str, overrides: Overrides) -> bool:
        try:
            return self._wanted(table, name, overrides.get(name, ()), 0) is not None
        except (ConfigError, TableError):
            return name not in self.refused

    def follow(
        self,
        name: str,
        table: Table,
        newest_batch: Callable[[], int],
        on_step: Callable[[str], None] = lambda step: None,
        at_work: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> bool:
        """Alter the table, `at_work`, if its columns differ from the wanted ones. Returns whether
        it may be applied. Raises `TableError` and `WriterConflictError` as `alter` does.
        """
        overrides = self._ports.columns().get(name, ())
        try:
            wanted = self._wanted(table, name, overrides, 0)
            if wanted is not None:
                wanted = self._wanted(table, name, overrides, newest_batch())
        except (ConfigError, TableError) as error:
            self.refused[name] = error
            self._on_stopped(name, error)
            return False
        self.refused.pop(name, None)
        if wanted is not None:
            with at_work():
                survey = alter(table, wanted, on_step=on_step)
            self._on_event(_altered(name, wanted, survey))
        settled = [o for o in overrides if o.agrees_with(self._declared[name])]
        if settled:
            self._ports.settle(settled)
        return True

    def unpublished(self, tables: Mapping[str, Table]) -> list[PublishedTable]:
        """The definitions that this process has not published yet, if it shall publish some."""
        if self._ports.publish is None:
            return []
        definitions = [
            PublishedTable(
                table.table_id,
                1 if (ids := table.layout.ids) is None else ids.version,
                table.layout.definition,
            )
            for table in tables.values()
        ]
        return [d for d in definitions if self._published.get(d.definition.name) != d.version]

    def publish(self, definitions: Sequence[PublishedTable]) -> None:
        """Publish definitions (EVO-1). Those that Kafka does not take stay unpublished."""
        if not definitions or self._ports.publish is None:
            return
        names = [definition.definition.name for definition in definitions]
        try:
            refused: Mapping[str, ConnectorError] = self._ports.publish(definitions)
        except (BrokerError, DeliveryError, TopicError) as error:
            refused = dict.fromkeys(names, error)
        for name, definition in zip(names, definitions, strict=True):
            if (failure := refused.get(name)) is None:
                self._published[name] = definition.version
            elif self._unpublished.get(name) != failure.problem:
                self._unpublished[name] = failure.problem
                text = f"{failure.problem}. {failure.cause}. {failure.remedy}"
                text = f"its definition is not published: {text}"
                self._on_event(warning(failure.code, text, table=name))

    def _wanted(
        self, table: Table, name: str, overrides: Sequence[ColumnOverride], batch: int
    ) -> Alteration | None:
        layout = table.layout
        assert layout.ids is not None, "a table on disk has ids"
        return declared_alteration(
            layout.definition, layout.ids, self._declared[name], overrides, batch
        )


def _altered(name: str, made: Alteration, survey: Survey) -> Event:
    """The event of an alteration."""
    done = [
        f"{what} {one_of([column.name for column in columns])}"
        for what, columns in (("added", made.added), ("dropped", made.dropped))
        if columns
    ]
    text = ", ".join(done) or "settings of columns changed"
    if survey.rows:
        text += f"; {counted(survey.rows, 'row')} written again"
    if misfits := sum(survey.misfits.values()):
        text += f"; {counted(misfits, 'value')} do not fit, and stay in _unmapped"
    return info("TABLE_ALTERED", text, table=name, rows=survey.rows, misfits=misfits)

"""Add and drop columns of a table while the pipeline runs, and publish its definition (EVO-1 to
EVO-3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from connector import warehouse as paths
from connector.clock import now_us
from connector.config.settings import find_table
from connector.errors import argument_invalid
from connector.events import OnEvent, log_event, warning
from connector.services.load_config import who
from connector.services.local_spark import session_of
from connector.services.warehouses import warehouse_of
from connector.tables.alterations import (
    Alteration,
    ColumnOverride,
    check_is_new,
    column_named,
    overridden_columns,
    override_alteration,
)
from connector.tables.definition import Column, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connector.config.settings import ConnectorConfig


@dataclass(frozen=True, slots=True)
class AlterReport:
    """The columns that a table gets, and what the change would do.

    Attributes:
        columns: The columns that the table will have.
        rows: The number of rows that are written again.
        size: Their size, in about as many bytes.
        values: How many values each added column gets.
        misfits: How many values do not fit an added column. They stay in `_unmapped`.
        reader_features: The features of Delta that readers of the table must know, and need not
            know today.

    All numbers are 0 unless they were asked for (`dry_run`).
    """

    columns: tuple[Column, ...]
    rows: int = 0
    size: int = 0
    values: Mapping[str, int] = field(default_factory=dict)
    misfits: Mapping[str, int] = field(default_factory=dict)
    reader_features: tuple[str, ...] = ()


def alter_table(
    config: ConnectorConfig,
    table: str,
    *,
    add: Column | None = None,
    drop: str | None = None,
    default: tuple[str, str | None] | None = None,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    on_event: OnEvent = log_event,
) -> AlterReport:
    """Add a column, drop one, or set the default of one, while the pipeline runs.

    The change has priority over the configuration until that says the same. The pipeline takes it
    before the next apply of the table, and within 30 seconds. For example:
    `alter_table(config, "orders", add=Column("note", "f", b"note", DataType.STRING))`.

    Args:
        config: It has the table.
        table: The name of the table.
        add: The new column. It gets the values that the table has of its cell.
        drop: The name of a column. Its values return to `_unmapped`.
        default: The name of a column, and the default that writers of rows use. None: NULL.
        dry_run: Change nothing, and count what the change would do. It needs Spark.
        spark: Your own session for a dry run. None: a local session.
        on_event: Receives events.

    Returns:
        An `AlterReport`.

    Raises:
        ConfigError: There is no such table or column, or not exactly one change.
        TableError: Only a rebuild or another table can have these columns.
        ConnectorError: The warehouse cannot be used.
    """
    from connector.lake.overrides import Overrides
    from connector.lake.state_reader import definition_of

    declared = find_table(config, table)
    if sum(change is not None for change in (add, drop, default)) != 1:
        raise argument_invalid("add, drop, default", (add, drop, default), "exactly one of them")
    overrides = Overrides(warehouse_of(config))
    earlier = overrides.columns().get(table, ())
    before, stored = (
        overridden_columns(declared, earlier),
        definition_of(overrides.warehouse, table),
    )
    name, column = _column(table, before, stored and stored[0], add, drop, default)
    only_default = default is not None and _is_as_declared(declared, earlier, name)
    override = ColumnOverride(table, name, column, now_us(), who(), only_default)
    wanted, change = override_alteration(declared, stored, earlier, override)
    columns = wanted.columns if change is None else change.definition.columns
    if not dry_run:
        overrides.alter(override)
    if not dry_run or change is None:
        return AlterReport(columns)
    return replace(_survey(config, change, spark, on_event), columns=columns)


def _column(
    table: str,
    before: Sequence[Column],
    stored: TableDefinition | None,
    add: Column | None,
    drop: str | None,
    default: tuple[str, str | None] | None,
) -> tuple[str, Column | None]:
    if add is not None:
        check_is_new(table, before, add.name)
        return add.name, add
    if drop is not None:
        # The configuration may have lost a column that the table has.
        columns = (*(stored.columns if stored else ()), *before)
        return column_named(table, columns, drop).name, None
    assert default is not None
    column = replace(column_named(table, before, default[0]), default=default[1])
    return column.name, column


def _is_as_declared(
    declared: TableDefinition, overrides: Iterable[ColumnOverride], name: str
) -> bool:
    """Whether the configuration says what a column is, and no override."""
    names = {column.name.lower() for column in declared.columns}
    names -= {override.name.lower() for override in overrides if not override.only_default}
    return name.lower() in names


def _survey(
    config: ConnectorConfig, change: Alteration, spark: SparkSession | None, on_event: OnEvent
) -> AlterReport:
    from connector.spark.apply.alter import new_reader_features, survey
    from connector.spark.storage.table import Table

    with ExitStack() as stack:
        session = session_of(config, spark, stack, on_event)
        path = paths.table_folder(warehouse_of(config), change.definition.name)
        table = Table.existing(session, path)
        counted, features = survey(table, change), new_reader_features(table, change)
    return AlterReport(
        *(change.definition.columns, counted.rows, counted.size, counted.values, counted.misfits),
        reader_features=features,
    )


def publish_table(
    config: ConnectorConfig, table: str, *, take_over: bool = False, on_event: OnEvent = log_event
) -> None:
    """Publish the definition of a table for producers, as `run` does (EVO-1). If the topic has this
    version, nothing is published.

    For example: `publish_table(config, "orders", take_over=True)` after a warehouse was made again.

    Args:
        config: It has the table.
        table: The name of the table, which the pipeline has made.
        take_over: Replace the definition of a table of this name in another warehouse.
        on_event: Receives a warning for each record of the topic that cannot be read.

    Raises:
        ConfigError: There is no such table.
        TableError: The pipeline has not made the table yet, or it cannot be read.
        TopicError: The topic has a definition of a table of another warehouse.
        DeliveryError, BrokerError: It was not published.
    """
    from connector.kafka.tables import publish_tables
    from connector.lake.plain_table import open_table
    from connector.tables.published import PublishedTable
    from connector.tables.stored_definition import TABLE_ID_PROPERTY, from_properties

    stream = config.streams[find_table(config, table).stream]
    path = paths.table(warehouse_of(config), table)
    properties = open_table(path, table=table).properties
    definition, ids = from_properties(properties)
    published = PublishedTable(properties.get(TABLE_ID_PROPERTY, ""), ids.version, definition)
    refused = publish_tables(
        *(config.kafka, stream.topic, [published]),
        take_over=take_over,
        on_unreadable=lambda error: on_event(warning(error.code, str(error), table=table)),
    )
    if table in refused:
        raise refused[table]

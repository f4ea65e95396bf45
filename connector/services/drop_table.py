"""Delete tables that the configuration does not have any more (OPR-3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector import warehouse as paths
from connector.clock import now_us
from connector.errors.changelog import pipeline_running
from connector.errors.settings import table_configured, table_unknown
from connector.errors.tables import table_undeletable
from connector.services.load_config import who
from connector.services.process import status_of_pipeline
from connector.services.warehouses import warehouse_of
from connector.state.overrides import APPLY_EVERY, MAX_STALENESS, Override
from connector.text import nearest, one_of

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig


@dataclass(frozen=True, slots=True)
class OrphanedTable:
    """A folder of a table that the configuration does not have, with the size of all its files."""

    name: str
    files: int
    bytes: int


def orphaned_tables(config: ConnectorConfig) -> list[OrphanedTable]:
    """Return the tables of the warehouse that the configuration does not have, by name.

    Raises:
        TableError: The warehouse cannot be read.
    """
    from pyarrow.fs import FileSelector, FileType

    from connector.lake.checks import table_error
    from connector.lake.stores import files_at

    folder = paths.tables_folder(warehouse_of(config))
    files: dict[str, list[int]] = {}
    try:
        below = FileSelector("", allow_not_found=True, recursive=True)
        for info in files_at(folder).get_file_info(below):
            if info.type == FileType.File and (name := info.path.lstrip("/").partition("/")[0]):
                files.setdefault(name, []).append(info.size)
    except OSError as error:
        raise table_error(folder, "read", error) from error
    return [
        OrphanedTable(name, len(sizes), sum(sizes))
        for name, sizes in sorted(files.items())
        if name not in config.tables
    ]


def drop_table(config: ConnectorConfig, table: str) -> OrphanedTable:
    """Delete a table that the configuration does not have, with its versions, and the settings that
    operators made for it. The changelog keeps its changes.

    If the process dies, call it again. For example: `drop_table(config, "orders").bytes`.

    Raises:
        ConfigError: The configuration has the table, or the warehouse does not.
        WriterConflictError: A pipeline runs that began with the table.
        TableError: The files cannot be deleted.
    """
    from connector.lake.overrides import Overrides
    from connector.lake.stores import files_at

    if table in config.tables:
        raise table_configured(table)
    for stream in config.streams:
        pipeline = status_of_pipeline(config, stream, now_us())
        if pipeline.is_running and table in pipeline.tables:
            raise pipeline_running(f"The drop of table {table}", pipeline.text_of_rival(), stream)
    orphans = {orphan.name: orphan for orphan in orphaned_tables(config)}
    if table not in orphans:
        remedy = nearest(table, orphans) or "Name one of these tables"
        names = one_of(orphans) if orphans else "no table without a section"
        raise table_unknown(table, f"no such table, and the warehouse has {names}", remedy)
    overrides, now = Overrides(warehouse_of(config)), now_us()
    for setting, values in (
        (MAX_STALENESS, overrides.bounds()),
        (APPLY_EVERY, overrides.paces()),
    ):
        if table in values:
            overrides.set(Override(setting, table, None, now, who()))
    if columns := overrides.columns().get(table):
        overrides.settle(columns, now, who())
    try:
        files_at(paths.tables_folder(warehouse_of(config))).delete_dir(table)
    except OSError as error:
        raise table_undeletable(table, str(error)) from error
    return orphans[table]

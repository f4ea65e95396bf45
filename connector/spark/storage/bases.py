"""Which tables qualify as the base of another one (EVO-9)."""

from __future__ import annotations

from connector.errors import TableError
from connector.spark.storage.hadoop import names_in
from connector.spark.storage.table import Table
from connector.tables.definition import TableDefinition, base_faults


def faults_of(base: Table, wanted: TableDefinition) -> list[str]:
    """Why the newest version of a table does not qualify as the base of `wanted`."""
    state = base.table_state()
    faults = list(base_faults(base.layout.definition, wanted))
    if not state.apply_number:
        faults.append("nothing was applied to it yet")
    if state.blocked_rows:
        faults.append("it has blocked rows")
    if state.letters:
        faults.append("changes of it became dead letters")
    return faults


def bases_of(table: Table) -> list[str]:
    """The names of the other tables of the warehouse that qualify as the base of a table."""
    folder, name = table.folder.rpartition("/")[0], table.layout.definition.name
    qualified = []
    for other in names_in(table.spark, folder, folders=True):
        try:
            base = Table.existing(table.spark, f"{folder}/{other}")
            is_fit = other != name and not faults_of(base, table.layout.definition)
        except TableError:  # another command reports it
            continue
        if is_fit:
            qualified.append(other)
    return sorted(qualified)

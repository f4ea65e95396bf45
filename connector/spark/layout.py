"""How the state of a row is laid out in columns: which register is whose, and the types of what is kept (TBL-12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connector.spark.typed import SPARK_TYPE
from connector.tables import BUCKET, STATE, UNMAPPED, Column, TableDefinition

CHANGE_ORDER_TYPE: Final = (
    "struct<commit_timestamp: bigint, tie_breaker: bigint, record_sequence: bigint, ingest_batch: bigint, "
    "kafka_partition: int, offset: bigint, attempt: int>"
)
ORDER_TYPE: Final = f"struct<change: {CHANGE_ORDER_TYPE}, entry_index: int>"
REST_TYPE: Final = (
    "array<struct<family: string, qualifier: binary, range_start: bigint, range_end: bigint, "
    f"order: {ORDER_TYPE}, cell_timestamp: bigint, value: binary>>"
)
STATE_TYPE: Final = (
    f"struct<orders: array<{CHANGE_ORDER_TYPE}>, writers: array<int>, entry_indexes: array<int>, cell_timestamps: array<bigint>, "
    f"deleters: array<int>, deletion_indexes: array<int>, rest: {REST_TYPE}>"
)
"""`orders` are those of the changes that wrote the row: one, if all its columns were written together. `writers` says by column
which of them it was, and `entry_indexes` which of its entries; `deleters` and `deletion_indexes` say it by family.
"""
NO_REST: Final = f"cast(array() AS {REST_TYPE})"


@dataclass(frozen=True, slots=True)
class Layout:
    """Which register is whose: columns in their order, families in the order in which columns first name them.

    `since` has the last ingest batch before each column was defined, 0 for one that was there from the start. What a batch up to
    there sets in it and it cannot hold is no fault of the change: it stays unmapped (TBL-8).
    """

    definition: TableDefinition
    buckets: int
    since: tuple[int, ...] = ()

    @property
    def keys(self) -> list[str]:
        """Names of the key columns, quoted for SQL."""
        return [f"`{part.name}`" for part in self.definition.key.parts]

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.definition.columns

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(column.family for column in self.columns))

    @property
    def registers(self) -> range:
        """A register for each of `columns`."""
        return range(len(self.columns))

    @property
    def late(self) -> list[tuple[int, Column, int]]:
        """The columns that were defined when there were changes already: register, column, and the last batch before."""
        return [(n, self.columns[n], batch) for n, batch in enumerate(self.since) if batch]

    @property
    def deletions(self) -> range:
        """The last deletion of each of `families`."""
        return range(len(self.families))

    @property
    def column_types(self) -> list[tuple[str, str]]:
        """All columns of the table on disk, with their Spark types, in order (TBL-22)."""
        keys = [(part.name, SPARK_TYPE[part.type]) for part in self.definition.key.parts]
        columns = [(column.name, SPARK_TYPE[column.type]) for column in self.columns]
        return [*keys, *columns, (UNMAPPED, "map<string, binary>"), (STATE, STATE_TYPE), (BUCKET, "int")]


def order(index: str, change: str) -> str:
    """The order of an entry, as SQL, from its index and the order of its change."""
    return f"named_struct('change', {change}, 'entry_index', {index})"


def nothing(type_: str) -> str:
    """A null of that type."""
    return f"cast(null AS {type_})"

"""The columns that store the state of a row, and their types (TBL-12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connector.records.ordering import OrderBy
from connector.spark.sql import SPARK_TYPE
from connector.tables.column_names import BOOKKEEPING, BUCKET, STATE, UNMAPPED
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.stored_definition import NO_IDS, ColumnIds, assign_ids

_RANK_TYPES: Final = {
    OrderBy.COMMIT: "commit_timestamp: bigint, tie_breaker: bigint, record_sequence: bigint",
    OrderBy.SEQUENCE_NUMBER: "sequence_number: binary",
}
"""The fields of a change's order that come from the source. A sequence number is stored as its four
sections of eight bytes, so that bytes sort as sections do.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The registers of a table: columns in their order, and families as columns first name them.
    `ids` has the position of each in a stored state (None: those of a new table), and the last
    ingest batch before a column was added. A value of a change up to that batch may not fit: it
    stays in `_unmapped` (TBL-8).
    """

    definition: TableDefinition
    buckets: int
    ids: ColumnIds | None = None

    @property
    def since(self) -> tuple[int, ...]:
        """For each column the last ingest batch before it was defined (0: from the start)."""
        since = {} if self.ids is None else self.ids.since
        return tuple(since.get(column.name, 0) for column in self.columns)

    @property
    def column_slots(self) -> list[int]:
        """The position of each column with a register in the arrays of a stored state."""
        columns = self.columns if self.registered else ()
        return [self._all_ids.by_name[column.name] for column in columns]

    @property
    def family_slots(self) -> list[int]:
        """The same of each of `families`."""
        return [self._all_ids.families[family] for family in self.families]

    @property
    def _all_ids(self) -> ColumnIds:
        return self.ids or assign_ids(NO_IDS, self.definition)

    @property
    def keys(self) -> list[str]:
        """The names of the key columns, quoted for SQL."""
        return [f"`{name}`" for name in self.key_names]

    @property
    def key_names(self) -> list[str]:
        return [part.name for part in self.definition.key.parts]

    @property
    def spread(self) -> list[str]:
        """The columns by which rows are distributed to tasks: the bucket, if there are several."""
        return [BUCKET] if self.buckets > 1 else self.keys

    @property
    def shown(self) -> list[str]:
        """The names of the columns that readers see, in order, quoted for SQL."""
        return [f"`{name}`" for name, _ in self.column_types if name not in BOOKKEEPING]

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.definition.columns

    @property
    def registered(self) -> tuple[Column, ...]:
        """The columns that have registers: none if all versions are kept, in `rest`."""
        return self.columns if self.definition.versions is Versions.LATEST else ()

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(column.family for column in self.registered))

    @property
    def registers(self) -> range:
        """The numbers of the registers, one for each of `registered`."""
        return range(len(self.registered))

    @property
    def late(self) -> list[tuple[int, Column, int]]:
        """The columns that were added later: register, column, and the last batch before."""
        return [(n, self.columns[n], batch) for n, batch in enumerate(self.since) if batch]

    @property
    def deletions(self) -> range:
        """The numbers of the deletions, one for each of `families`."""
        return range(len(self.families))

    @property
    def change_order_type(self) -> str:
        """The type of a change's order."""
        rank = _RANK_TYPES[self.definition.order]
        return (
            f"struct<{rank}, ingest_batch: bigint, kafka_partition: int, offset: bigint, attempt:"
            " int>"
        )

    @property
    def age(self) -> str:
        """The field of a change's order that retention uses (MRG-10, MRG-12)."""
        return "commit_timestamp" if self.definition.order is OrderBy.COMMIT else "ingest_batch"

    @property
    def rest_name(self) -> list[str]:
        """The fields that identify an element of `rest`, with the time for `ALL` (MRG-7)."""
        version = ["cell_timestamp"] if self.definition.versions is Versions.ALL else []
        return ["family", "qualifier", "range_start", "range_end", *version]

    @property
    def rest_fields(self) -> list[str]:
        """The fields of an element of `rest`: its name, then its order, to sort the newest last."""
        return [
            *self.rest_name,
            "order",
            *(name for name in ("cell_timestamp", "value") if name not in self.rest_name),
        ]

    @property
    def rest_type(self) -> str:
        """The type of the residual."""
        types = {"family": "string", "qualifier": "binary", "value": "binary"}
        types["order"] = f"struct<change: {self.change_order_type}, entry_index: int>"
        fields = (f"{name}: {types.get(name, 'bigint')}" for name in self.rest_fields)
        return f"array<struct<{', '.join(fields)}>>"

    @property
    def no_rest(self) -> str:
        return f"cast(array() AS {self.rest_type})"

    @property
    def state_type(self) -> str:
        """The type of the stored state of a row. `orders` are those of the changes that wrote the
        row, or one for all. At the position of each column, `column_orders` has the index of the
        order, and `column_entries` the entry index. `family_orders` and `family_entries` are the
        same for families.
        """
        return (
            f"struct<orders: array<{self.change_order_type}>, column_orders: array<int>,"
            " column_entries: array<int>, cell_timestamps: array<bigint>, family_orders:"
            f" array<int>, family_entries: array<int>, residual: {self.rest_type}>"
        )

    @property
    def column_types(self) -> list[tuple[str, str]]:
        """All columns of the table on disk, with their Spark types, in order (TBL-22)."""
        keys = [(part.name, SPARK_TYPE[part.type]) for part in self.definition.key.parts]
        columns = [(column.name, SPARK_TYPE[column.type]) for column in self.columns]
        return [
            *keys,
            *columns,
            (UNMAPPED, "map<string, binary>"),
            (STATE, self.state_type),
            (BUCKET, "int"),
        ]


def order(index: str, change: str) -> str:
    """The order of an entry, as SQL, from its index and the order of its change."""
    return f"named_struct('change', {change}, 'entry_index', {index})"


def nothing(type_: str) -> str:
    """A null of a type, as SQL."""
    return f"cast(null AS {type_})"

"""The columns that store the state of a row, and their types (TBL-12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connector.records.ordering import SECTIONS, OrderBy, Rank
from connector.spark.sql import spark_type
from connector.spark.storage.deletion_vectors import ENABLED
from connector.spark.storage.transaction import CHECKPOINTS
from connector.tables.column_names import BOOKKEEPING, BUCKET, STATE, UNMAPPED
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.stored_definition import (
    NO_IDS,
    ColumnIds,
    assign_ids,
    families_of,
    to_properties,
    tolerated,
)
from connector.tables.values import DataType

BUCKETS_PROPERTY: Final = "lowmark.buckets"

_RANK_TYPES: Final = {
    OrderBy.COMMIT: "commit_timestamp: bigint, tie_breaker: bigint, record_sequence: bigint",
    OrderBy.SEQUENCE_NUMBER: "sequence_number: binary",
}
"""The fields of a change's order that come from the source. A sequence number is stored as its four
sections of eight bytes, so that bytes sort as sections do.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The registers of a table: those of its columns in their order, of the presence mark, and of
    the families. `ids` has the position of each in a stored state. None: those of a new table.
    """

    definition: TableDefinition
    buckets: int
    ids: ColumnIds | None = None

    @property
    def since(self) -> tuple[int, ...]:
        """The last batch of which each column may lack a value: `stored_definition.tolerated`."""
        return tolerated(self.definition, self.ids or NO_IDS)

    @property
    def column_slots(self) -> list[int]:
        """The position of each column with a register in the arrays of a stored state."""
        ids = self._all_ids
        return [ids.by_name[column.name] for column in self.registered[:-1]]

    @property
    def family_slots(self) -> list[int]:
        """The same of each of `families`."""
        ids = self._all_ids
        return [ids.families[family] for family in self.families]

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
        """The cells that have registers: the columns, then the presence mark. There are none if all
        versions are kept, in `rest`.
        """
        return self.definition.registered

    @property
    def families(self) -> list[str]:
        return families_of(self.definition) if self.registered else []

    @property
    def registers(self) -> range:
        """The numbers of the registers, one for each of `registered`."""
        return range(len(self.registered))

    @property
    def tolerant(self) -> list[tuple[int, Column, int]]:
        """The columns with values that may not fit: number, column, and the last such batch."""
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
        same for families, and `mark_order` and `mark_entry` for the presence mark. The mark is
        there if `mark_timestamp` is.
        """
        return (
            f"struct<orders: array<{self.change_order_type}>, column_orders: array<int>,"
            " column_entries: array<int>, cell_timestamps: array<bigint>, mark_order: int,"
            " mark_entry: int, mark_timestamp: bigint, family_orders:"
            f" array<int>, family_entries: array<int>, residual: {self.rest_type}>"
        )

    @property
    def column_types(self) -> list[tuple[str, str]]:
        """All columns of the table on disk, with their Spark types, in order (TBL-22)."""
        keys = [(part.name, spark_type(part.type)) for part in self.definition.key.parts]
        columns = [(column.name, spark_type(column.type)) for column in self.columns]
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


def is_older(change: str, rank: Rank) -> str:
    """Whether the order of a change, a struct, is below a rank, as SQL. It is null without a number
    to order by.
    """
    if len(rank) == SECTIONS:
        number = b"".join(section.to_bytes(8, "big") for section in rank)
        return f"({change}.sequence_number < X'{number.hex()}')"
    time, tie, record = (f"cast({part} AS bigint)" for part in rank)
    return (
        f"({change}.commit_timestamp < {time} OR ({change}.commit_timestamp = {time}"
        f" AND ({change}.tie_breaker < {tie} OR ({change}.tie_breaker = {tie}"
        f" AND {change}.record_sequence < {record}))))"
    )


def nothing(type_: str) -> str:
    """A null of a type, as SQL."""
    return f"cast(null AS {type_})"


def layout_of(definition: TableDefinition, ids: ColumnIds, buckets: int | None = None) -> Layout:
    """The layout of a table with these columns. `buckets` None: that of a new table."""
    return Layout(definition, buckets or definition.buckets, ids)


def new_properties(definition: TableDefinition, ids: ColumnIds) -> dict[str, str]:
    """The properties of a new table."""
    return {
        **to_properties(definition, ids),
        BUCKETS_PROPERTY: str(definition.buckets),
        ENABLED: str(definition.deletion_vectors).lower(),
        **_statistics(definition),
        **CHECKPOINTS,
    }


def _statistics(definition: TableDefinition) -> dict[str, str]:
    """Delta keeps statistics of the key columns only. It has no statistics for BYTES and BOOL."""
    keys = [
        f"`{part.name}`"
        for part in definition.key.parts
        if part.type not in (DataType.BYTES, DataType.BOOL)
    ]
    return (
        {"delta.dataSkippingStatsColumns": ",".join(keys)}
        if keys
        else {"delta.dataSkippingNumIndexedCols": "0"}
    )

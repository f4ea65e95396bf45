"""How the state of a row is laid out in columns: which register is whose, and the types of what is kept (TBL-12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connector.records.ordering import OrderBy
from connector.spark.storage.typed import SPARK_TYPE
from connector.tables.column_names import BOOKKEEPING, BUCKET, STATE, UNMAPPED
from connector.tables.definition import Column, TableDefinition, Versions

_RANK_TYPES: Final = {
    OrderBy.COMMIT: "commit_timestamp: bigint, tie_breaker: bigint, record_sequence: bigint",
    OrderBy.SEQUENCE_NUMBER: "sequence_number: binary",
}
"""What the source says of a change's order. A number is its four sections of eight bytes, so that bytes compare as sections do."""


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
        return [f"`{name}`" for name in self.key_names]

    @property
    def key_names(self) -> list[str]:
        return [part.name for part in self.definition.key.parts]

    @property
    def spread(self) -> list[str]:
        """By what rows are spread over tasks so that those of one key meet: by bucket, where there are several."""
        return [BUCKET] if self.buckets > 1 else self.keys

    @property
    def shown(self) -> list[str]:
        """Names of the columns that readers see, in order, quoted for SQL."""
        return [f"`{name}`" for name, _ in self.column_types if name not in BOOKKEEPING]

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.definition.columns

    @property
    def registered(self) -> tuple[Column, ...]:
        """The columns that have registers: all, or none in a table that keeps all versions, where every cell lies in `rest`."""
        return self.columns if self.definition.versions is Versions.LATEST else ()

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(column.family for column in self.registered))

    @property
    def registers(self) -> range:
        """A register for each of `registered`."""
        return range(len(self.registered))

    @property
    def late(self) -> list[tuple[int, Column, int]]:
        """The columns that were defined when there were changes already: register, column, and the last batch before."""
        return [(n, self.columns[n], batch) for n, batch in enumerate(self.since) if batch]

    @property
    def deletions(self) -> range:
        """The last deletion of each of `families`."""
        return range(len(self.families))

    @property
    def change_order_type(self) -> str:
        """The order of a change."""
        rank = _RANK_TYPES[self.definition.order]
        return f"struct<{rank}, ingest_batch: bigint, kafka_partition: int, offset: bigint, attempt: int>"

    @property
    def age(self) -> str:
        """What of the order of a change the retention counts (MRG-10, MRG-12)."""
        return "commit_timestamp" if self.definition.order is OrderBy.COMMIT else "ingest_batch"

    @property
    def rest_name(self) -> list[str]:
        """The fields that name an element of `rest`. The cell timestamp is one of them where all versions are kept (MRG-7)."""
        version = ["cell_timestamp"] if self.definition.versions is Versions.ALL else []
        return ["family", "qualifier", "range_start", "range_end", *version]

    @property
    def rest_fields(self) -> list[str]:
        """The fields of an element of `rest`: its name, then its order, so that of sorted elements with one name the newest is the last."""
        return [*self.rest_name, "order", *(name for name in ("cell_timestamp", "value") if name not in self.rest_name)]

    @property
    def rest_type(self) -> str:
        """What has no register."""
        types = {"family": "string", "qualifier": "binary", "value": "binary"}
        types["order"] = f"struct<change: {self.change_order_type}, entry_index: int>"
        fields = (f"{name}: {types.get(name, 'bigint')}" for name in self.rest_fields)
        return f"array<struct<{', '.join(fields)}>>"

    @property
    def no_rest(self) -> str:
        return f"cast(array() AS {self.rest_type})"

    @property
    def state_type(self) -> str:
        """`orders` are those of the changes that wrote the row: one, if all its columns were written together. `column_orders` says by
        column which of them it was, and `column_entries` which of its entries; `family_orders` and `family_entries` say it by family.
        """
        return (
            f"struct<orders: array<{self.change_order_type}>, column_orders: array<int>, column_entries: array<int>, "
            f"cell_timestamps: array<bigint>, family_orders: array<int>, family_entries: array<int>, residual: {self.rest_type}>"
        )

    @property
    def column_types(self) -> list[tuple[str, str]]:
        """All columns of the table on disk, with their Spark types, in order (TBL-22)."""
        keys = [(part.name, SPARK_TYPE[part.type]) for part in self.definition.key.parts]
        columns = [(column.name, SPARK_TYPE[column.type]) for column in self.columns]
        return [*keys, *columns, (UNMAPPED, "map<string, binary>"), (STATE, self.state_type), (BUCKET, "int")]


def order(index: str, change: str) -> str:
    """The order of an entry, as SQL, from its index and the order of its change."""
    return f"named_struct('change', {change}, 'entry_index', {index})"


def nothing(type_: str) -> str:
    """A null of that type."""
    return f"cast(null AS {type_})"

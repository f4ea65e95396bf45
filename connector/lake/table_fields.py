"""The columns of the files of a table, as Arrow has them."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from connector.records.ordering import OrderBy
from connector.tables.column_names import STATE, UNMAPPED
from connector.tables.definition import TableDefinition
from connector.tables.values import DataType

Numbers = NDArray[np.int64]

ARROW_TYPES: Final = {
    DataType.STRING: pa.string(),
    DataType.BYTES: pa.binary(),
    DataType.BOOL: pa.bool_(),
    DataType.INT64: pa.int64(),
    DataType.FLOAT64: pa.float64(),
    DataType.NUMERIC: pa.decimal128(38, 9),
    DataType.DATE: pa.date32(),
    DataType.TIMESTAMP: pa.timestamp("us", "UTC"),
    DataType.JSON: pa.string(),
}


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column, or an array, whose times are microseconds."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return column


def fields_of(definition: TableDefinition) -> list[pa.Field]:
    """The columns of a file of the table, as Arrow has them."""
    rank = (
        [(name, pa.int64()) for name in ("commit_timestamp", "tie_breaker", "record_sequence")]
        if definition.order is OrderBy.COMMIT
        else [("sequence_number", pa.binary())]
    )
    position = [("ingest_batch", pa.int64()), ("kafka_partition", pa.int32())]
    position += [("offset", pa.int64()), ("attempt", pa.int32())]
    change = pa.struct([*rank, *position])
    element = pa.struct(
        [
            ("family", pa.string()),
            ("qualifier", pa.binary()),
            ("range_start", pa.int64()),
            ("range_end", pa.int64()),
            ("order", pa.struct([("change", change), ("entry_index", pa.int32())])),
            ("cell_timestamp", pa.int64()),
            ("value", pa.binary()),
        ]
    )
    state = pa.struct(
        [
            ("orders", pa.list_(change)),
            ("column_orders", pa.list_(pa.int32())),
            ("column_entries", pa.list_(pa.int32())),
            ("cell_timestamps", pa.list_(pa.int64())),
            ("family_orders", pa.list_(pa.int32())),
            ("family_entries", pa.list_(pa.int32())),
            ("residual", pa.list_(element)),
        ]
    )
    return [
        *(pa.field(part.name, ARROW_TYPES[part.type]) for part in definition.key.parts),
        *(pa.field(column.name, ARROW_TYPES[column.type]) for column in definition.columns),
        pa.field(UNMAPPED, pa.map_(pa.string(), pa.binary())),
        pa.field(STATE, state),
    ]

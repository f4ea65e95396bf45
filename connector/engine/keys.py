"""Finds the rows of a file that have one of a few keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.engine.values import Numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BYTES_OF_ROW: Final = 4


def join_keys(columns: Sequence[pa.Array]) -> pa.Array:
    """The keys of rows, as one array that can be sorted. Two keys are equal if all their columns
    are. A key with a null is null.

    `columns` are those of `KEY_TYPES` with times as numbers. A single number or text stays as it
    is. Otherwise a key is bytes: the numbers and the length of each text, and then the texts.
    """
    columns = [_as_numbers(column) for column in columns]
    if len(columns) == 1 and not pa.types.is_decimal128(columns[0].type):
        return columns[0]
    fixed, texts = list[pa.Array](), list[pa.Array]()
    for column in columns:
        if pa.types.is_binary(column.type):
            fixed.append(_as_bytes(pc.binary_length(column)))
            texts.append(column)
        else:
            fixed.append(_as_bytes(column))
    return pc.binary_join_element_wise(*fixed, *texts, b"")


def _as_numbers(column: pa.Array) -> pa.Array:
    """A column of 64-bit integers, decimals or bytes."""
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return column.cast(pa.binary())
    if pa.types.is_decimal128(type_):
        return column
    return (column.cast(pa.int32()) if pa.types.is_date32(type_) else column).cast(pa.int64())


def _as_bytes(column: pa.Array) -> pa.Array:
    width = pa.binary(column.type.bit_width // 8)
    buffers = column.buffers()
    return pa.Array.from_buffers(width, len(column), buffers, offset=column.offset).cast("binary")


class FileKeys:
    """The keys of all rows of a file, as `join_keys` has them.

    The second search sorts them, because a sort takes as long as many searches without it. Several
    threads may search at once.
    """

    def __init__(self, keys: pa.Array) -> None:
        self._keys: tuple[pa.Array, NDArray[np.int32] | None] = keys, None
        self._is_searched = False
        self.nbytes: int = keys.nbytes + _BYTES_OF_ROW * len(keys)

    def rows_of(self, wanted: pa.Array) -> tuple[Numbers, Numbers]:
        """The numbers of the rows with one of these keys, in order, and the numbers of the keys.

        The keys are different ones, without a null.
        """
        keys, rows = self._keys
        if rows is None and not self._is_searched:
            self._is_searched = True
            indexes = pc.index_in(keys, wanted)
            numbers = pc.indices_nonzero(pc.is_valid(indexes))
            return _numbers(numbers), _numbers(indexes.take(numbers))
        if rows is None:
            order = pc.sort_indices(keys)[: len(keys) - keys.null_count]
            keys, rows = keys.take(order), np.asarray(order.to_numpy(), np.int32)
            self._keys = keys, rows
        first, end = (_numbers(pc.search_sorted(keys, wanted, side=s)) for s in ("left", "right"))
        count = end - first
        start = np.cumsum(count) - count
        at = rows[np.repeat(first - start, count) + np.arange(count.sum())].astype(np.int64)
        line = np.argsort(at, kind="stable")
        return at[line], np.repeat(np.arange(len(wanted)), count)[line]


def _numbers(array: pa.Array) -> Numbers:
    return np.asarray(array.to_numpy(zero_copy_only=False), np.int64)

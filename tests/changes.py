"""Changes for tests, on one line. Only the fields that a case tests must be given."""

from __future__ import annotations

from typing import Any

from connector.records.model import (
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    SetCell,
    Transaction,
)


def change(
    *entries: Entry,
    at: int = 1,
    row_key: bytes = b"row",
    record_sequence: int | None = None,
    **others: Any,
) -> DataChange:
    """A change committed at `at`. Without entries it sets the cell f:q to its commit timestamp."""
    transaction = (
        None if record_sequence is None else Transaction("tx", record_sequence=record_sequence)
    )
    fields = {
        "stream_partition": "p",
        "table": "t",
        "row_key": row_key,
        "commit_timestamp": at,
        "transaction": transaction,
        **others,
    }
    return DataChange(entries=entries or (put(str(at)),), **fields)


def part(
    at: int, key: bytes = b"k", *, id_: str = "", sequence: int = 0, of: int = 1
) -> DataChange:
    """A change at `at`, which is one of `of` of the transaction `id_`, if it has an id."""
    whole = Transaction(id_, sequence, number_of_records_in_transaction=of) if id_ else None
    return change(put("v", cell_timestamp=1), at=at, row_key=key, transaction=whole)


def put(
    value: str, family: str = "f", qualifier: bytes = b"q", *, cell_timestamp: int = 0
) -> SetCell:
    return SetCell(family, qualifier, value.encode(), cell_timestamp)


def delete_cells(
    start: int = 0, end: int = 0, family: str = "f", qualifier: bytes = b"q"
) -> DeleteCells:
    return DeleteCells(family, qualifier, start, end)


def delete_family(family: str = "f") -> DeleteFamily:
    return DeleteFamily(family)

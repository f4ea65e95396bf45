"""Changes for tests, on one line. Only the fields that a case tests must be given."""

from __future__ import annotations

import json
import re
from io import BytesIO
from typing import Any

import fastavro

from connector.records.codec import SCHEMA, frame
from connector.records.model import (
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Record,
    SetCell,
    Transaction,
)
from connector.tables.column_names import unmapped_name
from tests.fastavro_encoder import to_datum


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


def _newer_schema() -> str:
    schema = json.loads(SCHEMA)
    (change_schema,) = (
        field["type"][1] for field in schema["fields"] if field["name"] == "data_change"
    )
    change_schema["fields"].append({"name": "colour", "type": "string", "default": ""})
    schema["fields"].append({"name": "note", "type": "string", "default": ""})
    return json.dumps(schema)


NEWER_SCHEMA = _newer_schema()
"""A writer schema with the fields `ChangeRecord.note` and `DataChange.colour` (EVO-10)."""
_NEWER = fastavro.parse_schema(json.loads(NEWER_SCHEMA))


def in_newer_schema(record: Record, kafka_partitions: int, schema_id: int) -> bytes:
    """The framed value of a record in `NEWER_SCHEMA`."""
    body = BytesIO()
    datum = {**to_datum(record, kafka_partitions), "note": "new"}
    if isinstance(record, DataChange):
        datum["data_change"]["colour"] = "red"
    fastavro.schemaless_writer(body, _NEWER, datum)
    return frame(body.getvalue(), schema_id)


def unmapped_cell(name: str) -> tuple[str, bytes]:
    """The inverse of `unmapped_name` (TBL-22). Raises `ValueError` for any other text."""
    family, colon, rest = name.partition(":")
    qualifier = re.sub(
        rb"%([0-9A-F]{2})", lambda code: bytes.fromhex(code[1].decode()), rest.encode()
    )
    if not colon or unmapped_name(family, qualifier) != name:
        raise ValueError(f"{name!r} is not the name of a cell")
    return family, qualifier

"""The topics of a real Debezium, recorded as files of JSON lines (SRC-10).
`tests/record_debezium.py` makes them.

- `NAME.jsonl` has a header, and the records in the order of their Kafka timestamps.
- `NAME.truth.jsonl` has the rows of PostgreSQL after each transaction.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connector.sources.model import ForeignRecord

FOLDER = Path(__file__).parent / "golden" / "debezium"
_PAYLOAD = b',"payload":'

Texts = dict[str, str | None]
"""A row: its columns by name, as the texts of PostgreSQL. NULL is None. Times are in UTC, bytes in
hexadecimal digits, intervals as ISO 8601 writes them.
"""
Key = tuple[str | None, ...]
Tables = dict[str, dict[Key, Texts]]
"""The rows of each table by its key, for example `tables["public.words"][("a",)]`."""


@dataclass(frozen=True, slots=True)
class State:
    """What PostgreSQL had after a step.

    - `transaction` is the number of the transaction. Empty: the step has no event, for example
      `ALTER TABLE`, or rows that were there before Debezium.
    - `what` describes the step.
    - `keys` has the key columns of each table. Tables without a key are left out everywhere.
    - `columns` has the columns of each table.
    """

    transaction: str
    what: str
    tables: Tables
    keys: Mapping[str, Sequence[str]] = field(repr=False)
    columns: Mapping[str, Sequence[str]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Recording:
    """The records of all topics, the schemas of a registry by id (of Avro), and the settings of
    Debezium that decide how a value looks.
    """

    records: list[ForeignRecord]
    registry: dict[int, str]
    settings: dict[str, str]


def recording(name: str) -> Recording:
    """Read a recording, for example "json", "json-schema" or "avro"."""
    header, *lines = _lines(f"{name}.jsonl")
    schemas = [schema.encode() for schema in header["json_schemas"]]
    records = [
        ForeignRecord(
            line["topic"],
            line["partition"],
            line["offset"],
            line["timestamp"],
            _unpack(line["key"], schemas),
            _unpack(line["value"], schemas),
        )
        for line in lines
    ]
    registry = {int(number): schema for number, schema in header["registry"].items()}
    return Recording(records, registry, header["settings"])


def states(name: str) -> Iterator[State]:
    """What PostgreSQL had after each step, in order. The last one is the end."""
    tables: Tables = {}
    keys: dict[str, list[str]] = {}
    columns: dict[str, list[str]] = {}
    for line in _lines(f"{name}.truth.jsonl"):
        keys, columns = line.get("keys", keys), line.get("columns", columns)
        for table, changed in line["tables"].items():
            rows = tables.setdefault(table, {})
            for key in changed["deleted"]:
                del rows[tuple(key)]
            rows |= {key_of(row, keys[table]): row for row in changed["written"]}
        copied = {table: dict(rows) for table, rows in tables.items()}
        yield State(line["transaction"], line["what"], copied, keys, columns)


def key_of(row: Texts, columns: Sequence[str]) -> Key:
    return tuple(row[column] for column in columns)


def write_recording(name: str, recorded: Recording) -> None:
    schemas: dict[bytes, int] = {}
    lines = [
        {
            "topic": record.topic,
            "partition": record.kafka_partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _pack(record.key, schemas),
            "value": _pack(record.value, schemas),
        }
        for record in recorded.records
    ]
    header = {
        "settings": recorded.settings,
        "registry": recorded.registry,
        "json_schemas": [schema.decode() for schema in schemas],
    }
    _write(f"{name}.jsonl", [header, *lines])


def write_states(name: str, recorded: Sequence[State]) -> None:
    """Each line has what differs from the state before."""
    lines: list[dict[str, object]] = []
    before: Tables = {}
    columns: object = None
    for state in recorded:
        tables = {
            table: changed
            for table, rows in state.tables.items()
            if any((changed := _difference(before.get(table, {}), rows)).values())
        }
        line: dict[str, object]
        line = {"transaction": state.transaction, "what": state.what, "tables": tables}
        if state.columns != columns:
            line |= {"keys": state.keys, "columns": state.columns}
        lines.append(line)
        before, columns = state.tables, state.columns
    _write(f"{name}.truth.jsonl", lines)


def _difference(before: dict[Key, Texts], after: dict[Key, Texts]) -> dict[str, list[object]]:
    return {
        "deleted": [key for key in before if key not in after],
        "written": [row for key, row in after.items() if before.get(key) != row],
    }


def _pack(data: bytes | None, schemas: dict[bytes, int]) -> object:
    """Text, or a schema that many records share and the text behind it, or base64."""
    if data is None:
        return None
    if data.startswith(b'{"schema":{') and _PAYLOAD in data:
        schema, _, payload = data.partition(_PAYLOAD)
        return [schemas.setdefault(schema, len(schemas)), payload.decode()]
    if data.startswith(b"{"):
        return data.decode()
    return {"base64": base64.b64encode(data).decode()}


def _unpack(packed: Any, schemas: Sequence[bytes]) -> bytes | None:
    match packed:
        case None:
            return None
        case str():
            return packed.encode()
        case [number, payload]:
            return bytes(schemas[number] + _PAYLOAD + payload.encode())
        case _:
            return base64.b64decode(packed["base64"])


def _lines(name: str) -> list[dict[str, Any]]:
    with (FOLDER / name).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _write(name: str, lines: Sequence[object]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / name).open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")

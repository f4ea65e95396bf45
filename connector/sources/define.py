"""Definitions of tables from records or schemas in a file (SRC-5)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from connector.records.avro_plan import UnreadableSchemaError
from connector.sources.columns import FAMILY, SourceTable, source_name, table_name
from connector.sources.records import KEY, VALUE, Fields, JsonFormat, Schema
from connector.sources.rows import RowReader
from connector.sources.schemas import Field, avro_type, connect_field
from connector.sources.tables import KnownTables

_ENVELOPE: Final = "Envelope"


def tables_of(lines: Iterable[str], key: Sequence[str] = ()) -> list[SourceTable]:
    """Return the tables that JSON lines describe. A table has no key columns if none
    are known.

    A line is a schema of Connect or of Avro, a value (of Debezium, or a row), or an object with
    `key` and `value` or `payload` (as kcat -J writes records), and perhaps `topic`. A key and a
    value may have their schemas.

    Args:
        lines: The lines. Empty ones are left out.
        key: The names of the key columns, for lines that do not have them.

    Raises:
        ValueError: A line is something else. The text has its number.
    """
    definer = _Definer(key)
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                definer.add(line)
            except (ValueError, RecursionError, UnreadableSchemaError) as error:
                raise ValueError(f"line {number}: {error}") from None
    return list(definer.tables.tables.values())


def toml_of(table: SourceTable, stream: str, taken: Iterable[str] = ()) -> str:
    """Return a table as a section of connector.toml, to edit. `taken` has names of other tables."""
    section = table.section()
    at = f"tables.{table_name(table.source, taken)}"
    lines = [f"[{at}]", f"stream = {_text(stream)}", f"source = {_text(table.source)}"]
    lines.append(f"presence_family = {_text(FAMILY)}")
    lines += ["", f"[{at}.key]", f"form = {_text(section['key']['form'])}"]
    for path, columns in ((f"{at}.key", section["key"]["columns"]), (at, section["columns"])):
        for column in columns:
            lines += ["", f"[[{path}.columns]]"]
            lines += [f"{name} = {_text(value)}" for name, value in column.items()]
    if any(column.is_guess for column in table.columns):
        lines.insert(1, "# Without a schema, types follow from the values that were shown.")
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """A basic string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class _Definer:
    def __init__(self, key: Sequence[str]) -> None:
        self.tables = KnownTables()
        self._key = tuple(key)
        self._json = JsonFormat()

    def add(self, line: str) -> None:
        node = json.loads(line)
        if not isinstance(node, dict):
            raise ValueError("it is not an object of JSON")
        if (field := _schema(node, line)) is not None:
            part = field.part("source")
            connector = "" if part is None else part.logical.removesuffix(".Source").split(".")[-1]
            self._add(*_name_of(field, node), Fields({}, Schema(field)), None, connector)
            return
        topic, key = "table", None
        value: Any = node
        if "key" in node and "schema" not in node and not _VALUES.isdisjoint(node):
            topic, key = str(node.get("topic", topic)), self._json.fields(_bytes(node["key"]), KEY)
            value = node.get("value", node.get("payload"))
        if (row := self._json.fields(_bytes(value), VALUE)) is None:
            return
        source = json.loads(bytes(row.values.get("source", b"null")))
        if not isinstance(source, dict) or "op" not in row.values:
            self._add(source_name(topic), False, row, key)
            return
        space, name = source.get("schema") or source.get("db") or "", source.get("table") or ""
        rows = (self._json.fields(bytes(row.values.get(n, b"null")), VALUE) for n in _ROWS)
        values = next((fields.values for fields in rows if fields is not None), {})
        table, connector = source_name(str(space), str(name)), str(source.get("connector", ""))
        self._add(table, True, Fields(values, row.schema), key, connector)

    def _add(
        self, table: str, is_debezium: bool, row: Fields, key: Fields | None, connector: str = ""
    ) -> None:
        schema = row.schema
        if schema is not None and schema.field.part("op") and (after := schema.field.part("after")):
            schema = Schema(after)
        if key is None or not key.values:
            key = Fields({name: row.values.get(name, b"null") for name in self._key}, schema)
        if not key.values:
            self.tables.meet(table, (), ())
            return
        reader = RowReader(self._json, self.tables, has_zone=not is_debezium)
        reader.cells(table, row.values, reader.plan(table, key, schema, "", connector))


_VALUES: Final = frozenset({"value", "payload"})
_ROWS: Final = ("after", "before")


def _schema(node: Mapping[str, Any], line: str) -> Field | None:
    """The schema that a line is. None: it is a record."""
    if node.get("type") == "struct" and "fields" in node:
        return connect_field(node)
    return avro_type(line).field if node.get("type") == "record" and "fields" in node else None


def _name_of(field: Field, node: Mapping[str, Any]) -> tuple[str, bool]:
    """The name of the table of a schema, and whether it is of Debezium. The names of Debezium's
    schemas begin with the prefix of its topics.
    """
    name = field.logical or f"{node.get('namespace', '')}.{node.get('name', '')}".strip(".")
    parts = name.split(".")
    is_debezium = len(parts) > 2 and parts[-1] in (_ENVELOPE, "Value")
    table = ".".join(parts[1:-1] if is_debezium else parts)
    return source_name(table or "table"), is_debezium


def _bytes(given: Any) -> bytes:
    """A key or a value as its bytes: a text is them, and other JSON is written."""
    return (given if isinstance(given, str) else json.dumps(given)).encode()

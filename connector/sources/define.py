"""Definitions of tables from records or schemas in a file (SRC-5)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from connector.records.avro_plan import UnreadableSchemaError
from connector.sources.columns import FAMILY, Shown, SourceTable, source_name, table_name
from connector.sources.records import JsonFormat
from connector.sources.schemas import Field, avro_type, connect_field
from connector.sources.tables import KnownTables
from connector.sources.values import kind_of
from connector.tables.values import DataType

_ENVELOPE: Final = "Envelope"
_Fields = tuple[Mapping[str, Any], Field | None]


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
            name, is_debezium = _name_of(field, node)
            self._add(name, {}, field, ({}, None), has_zone=not is_debezium)
            return
        value = node.get("value", node.get("payload")) if "schema" not in node else None
        if "key" not in node or value is None:
            self._add_value("", node, ({}, None))
            return
        key = _unframed(_parsed(node["key"]))
        self._add_value(str(node.get("topic", "")), _parsed(value), key)

    def _add_value(self, topic: str, value: Any, key: _Fields) -> None:
        payload, field = _unframed(value)
        source = payload.get("source")
        is_debezium = isinstance(source, dict) and "op" in payload
        if isinstance(source, dict) and is_debezium:
            space = source.get("schema") or source.get("db") or ""
            topic = source_name(str(space), str(source.get("table") or ""))
            row = payload.get("after") or payload.get("before") or {}
            field = None if field is None else field.part("after")
        else:
            topic, row = source_name(topic or "table"), payload
        self._add(topic, row, field, key, has_zone=not is_debezium)

    def _add(
        self,
        source: str,
        row: Mapping[str, Any],
        field: Field | None,
        key: _Fields,
        *,
        has_zone: bool,
    ) -> None:
        key_values, key_field = key
        if field is not None and (after := field.part("after")) is not None and field.part("op"):
            field = after
        if not key_values:
            key_field, key_values = field, {name: row.get(name) for name in self._key}

        def shown(name: str, value: Any, struct: Field | None) -> Shown | None:
            declared = None if struct is None else struct.part(name)
            if declared is not None:
                return Shown(name, kind_of(declared, has_zone=has_zone).type)
            return self._guess(name, value)

        parts = [shown(name, value, key_field) for name, value in key_values.items()]
        names = row if field is None else [part.name for part in field.parts]
        columns = [shown(n, row.get(n), field) for n in names if n not in key_values]
        self.tables.meet(source, filter(None, parts), list(filter(None, columns)))

    def _guess(self, name: str, value: Any) -> Shown | None:
        if value is None:
            is_key = name in self._key
            return Shown(name, DataType.STRING, is_guess=True) if is_key else None
        return self._json.shown(name, json.dumps(value).encode())


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


def _parsed(given: Any) -> Any:
    """A key or a value: JSON, or a text that is JSON."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return given


def _unframed(given: Any) -> _Fields:
    """The fields of a record, and its schema. A value without fields has one name."""
    field = None
    if isinstance(given, dict) and isinstance(given.get("schema"), dict) and "payload" in given:
        field, given = connect_field(given["schema"]), given["payload"]
    if isinstance(given, dict):
        return given, field
    return ({} if given is None else {"key": given}), None

"""Records of foreign topics, written by hand as Debezium and Connect write them."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro

from connector.config.parse import parse_tables
from connector.config.settings import StreamConfig
from connector.sources.columns import SourceTable
from connector.sources.model import ForeignRecord
from connector.tables.definition import TableDefinition

TIME = 1_764_000_000_000_000
LSN = 24_023_136


def definition_of(table: SourceTable, name: str = "t", stream: str = "s") -> TableDefinition:
    """The definition of a table of a stream with the columns of its source."""
    section = {**table.section(), "stream": stream}
    return parse_tables({name: section}, {stream: StreamConfig(name=stream, topic=stream)})[name]


@dataclass(frozen=True)
class Typed:
    """A field with its type in Connect and in Avro, and a value as each of them has it."""

    name: str
    connect: dict[str, Any]
    avro: Any
    json: Any
    raw: Any = None

    @property
    def avro_value(self) -> Any:
        return self.json if self.raw is None else self.raw


def text(name: str, value: str | None, logical: str = "") -> Typed:
    named = {"name": logical} if logical else {}
    avro: Any = {"type": "string", "connect.name": logical} if logical else "string"
    return Typed(name, {"type": "string", **named}, avro, value)


def number(name: str, value: int | None, logical: str = "", bits: int = 64) -> Typed:
    named = {"name": logical} if logical else {}
    plain = "long" if bits == 64 else "int"
    avro: Any = {"type": plain, "connect.name": logical} if logical else plain
    return Typed(name, {"type": f"int{bits}", **named}, avro, value)


def raw(
    name: str, value: bytes, logical: str = "", parameters: Mapping[str, str] | None = None
) -> Typed:
    more = {"parameters": dict(parameters)} if parameters else {}
    avro_more = {"connect.parameters": dict(parameters)} if parameters else {}
    named = {"name": logical, **more} if logical else more
    avro = {"type": "bytes", **({"connect.name": logical} if logical else {}), **avro_more}
    in_json = base64.b64encode(value).decode()
    return Typed(name, {"type": "bytes", **named}, avro, in_json, value)


def decimal(name: str, unscaled: int, precision: int, scale: int) -> Typed:
    value = unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return raw(name, value, "org.apache.kafka.connect.data.Decimal", parameters)


@dataclass
class Registry:
    """Schemas by id."""

    texts: list[str] = field(default_factory=list)

    def id_of(self, schema: Any) -> int:
        text = json.dumps(schema)
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1

    def schema_of(self, schema_id: int) -> str | None:
        return self.texts[schema_id - 1] if 1 <= schema_id <= len(self.texts) else None

    def framed(self, schema: Any, datum: Any) -> bytes:
        """The datum in Confluent's framing. Logical types are not for the writer."""
        out = io.BytesIO()
        plain = json.loads(json.dumps(schema).replace('"logicalType"', '"was"'))
        fastavro.schemaless_writer(out, fastavro.parse_schema(plain), datum)
        return b"\x00" + struct.pack(">I", self.id_of(schema)) + out.getvalue()


def source(table: str = "customers", **more: Any) -> dict[str, Any]:
    return {
        "version": "3.6.1.Final",
        "connector": "postgresql",
        "name": "dbz",
        "ts_ms": TIME // 1000,
        "snapshot": "false",
        "db": "shop",
        "sequence": f'["{LSN - 8}","{LSN}"]',
        "ts_us": TIME,
        "ts_ns": TIME * 1000,
        "schema": "public",
        "table": table,
        "txId": 571,
        "lsn": LSN,
        "xmin": None,
    } | more


TRANSACTION = {"id": f"571:{LSN}", "total_order": 1, "data_collection_order": 1}
_SOURCE_SCHEMA = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        {"name": name, "type": type_}
        for name, type_ in {
            **dict.fromkeys(("version", "connector", "name"), "string"),
            "ts_ms": "long",
            "snapshot": [
                {
                    "type": "string",
                    "connect.name": "io.debezium.data.Enum",
                },
                "null",
            ],
            "db": "string",
            "sequence": ["null", "string"],
            **{name: ["null", "long"] for name in ("ts_us", "ts_ns")},
            **dict.fromkeys(("schema", "table"), "string"),
            **{name: ["null", "long"] for name in ("txId", "lsn", "xmin")},
        }.items()
    ],
}


def payload(
    op: str,
    after: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None = None,
    transaction: Mapping[str, Any] | None = TRANSACTION,
    **of_source: Any,
) -> dict[str, Any]:
    return {
        "before": before,
        "after": after,
        "source": source(**of_source),
        "transaction": transaction,
        "op": op,
        "ts_ms": TIME // 1000 + 5,
    }


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def connect_struct(fields: list[Typed], **more: Any) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [{**f.connect, "optional": True, "field": f.name} for f in fields],
        **more,
    }


def avro_record(name: str, fields: list[Typed]) -> dict[str, Any]:
    declared = [{"name": f.name, "type": ["null", f.avro], "default": None} for f in fields]
    return {"type": "record", "name": name, "namespace": "dbz.public.t", "fields": declared}


def avro_envelope(fields: list[Typed]) -> dict[str, Any]:
    block = {
        "type": "record",
        "name": "block",
        "namespace": "event",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "total_order", "type": "long"},
            {"name": "data_collection_order", "type": "long"},
        ],
    }
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "dbz.public.t",
        "fields": [
            {"name": "before", "type": ["null", avro_record("Value", fields)]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": _SOURCE_SCHEMA},
            {"name": "transaction", "type": ["null", block]},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"]},
        ],
    }


@dataclass
class Writer:
    """Writes events of a table in one format: `json`, `json with schema` or `avro`."""

    format: str
    key: list[Typed]
    fields: list[Typed]
    topic: str = "dbz.public.customers"
    registry: Registry = field(default_factory=Registry)
    offset: int = 0

    def event(
        self, op: str, changed: Mapping[str, Any] | None = None, **more: Any
    ) -> ForeignRecord:
        """A record of this operation. `changed` has other values than those of the fields."""
        is_avro = self.format == "avro"
        row: dict[str, Any] | None = {
            f.name: f.avro_value if is_avro else f.json for f in self.fields
        }
        if op == "d":
            row, more = None, {"before": row, **more}
        elif row is not None:
            row |= changed or {}
        value = payload(op, row, **more)
        return self.record(self._key(), self._framed(value))

    def record(self, key: bytes | None, value: bytes | None) -> ForeignRecord:
        self.offset += 1
        return ForeignRecord(self.topic, 0, self.offset, TIME + 9, key, value)

    def _key(self) -> bytes:
        if self.format == "avro":
            key = {f.name: f.avro_value for f in self.key}
            return self.registry.framed(avro_record("Key", self.key), key)
        key = {f.name: f.json for f in self.key}
        if self.format == "json":
            return to_json(key)
        return to_json({"schema": connect_struct(self.key), "payload": key})

    def _framed(self, value: Mapping[str, Any]) -> bytes:
        if self.format == "avro":
            return self.registry.framed(avro_envelope(self.fields), value)
        if self.format == "json":
            return to_json(value)
        schema = {
            "type": "struct",
            "fields": [
                connect_struct(self.fields, field="before", optional=True),
                connect_struct(self.fields, field="after", optional=True),
                {"type": "struct", "field": "source", "fields": []},
                {"type": "string", "field": "op"},
            ],
            "name": "dbz.public.t.Envelope",
        }
        return to_json({"schema": schema, "payload": value})

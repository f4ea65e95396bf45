"""Record what Debezium sends for a large value that an UPDATE does not touch (SRC-3):

    python -m tests.record_large_values

It tries each type of PostgreSQL whose values can be kept outside of their row (TOAST), in all three
formats, and writes `tests/golden/debezium/large-values.json`: by type, the schemas of its field,
and what was sent. A type that Debezium leaves out has nothing. With `REPLICA IDENTITY FULL`, it
checks that the value itself was sent.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import fastavro

from connector.jars import JarStore
from connector.kafka import LocalBroker
from connector.sources.model import ForeignRecord
from tests import postgres
from tests.apicurio import running_apicurio
from tests.debezium import Debezium, Format
from tests.record_debezium import DEADLINE_S, read_topics, registered
from tests.recorded_topics import FOLDER

PATH = FOLDER / "large-values.json"
TYPES = """
CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION ltree;
CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN dtext AS text; CREATE DOMAIN djson AS jsonb; CREATE DOMAIN dbytes AS bytea;
CREATE DOMAIN dnumeric AS numeric; CREATE DOMAIN dbits AS varbit; CREATE DOMAIN dint AS int;
CREATE DOMAIN dtexts AS text[]; CREATE DOMAIN dints AS int[]; CREATE DOMAIN duuids AS uuid[];
CREATE TABLE beat (id int PRIMARY KEY, at timestamptz NOT NULL);
"""
_LETTERS, _BITS = "repeat('x', 3000)", "repeat('01', 12000)"
_JSON = f"json_build_object('a', {_LETTERS})"
_POINTS = "(1,2)" + ",(1,2)" * 200
SCALARS = {
    **dict.fromkeys(("text", "varchar", "varchar(4000)", "citext", "dtext"), _LETTERS),
    "char(4000)": "'x'",
    **dict.fromkeys(("bytea", "dbytes"), "decode(repeat('01ff', 2000), 'hex')"),
    "json": _JSON,
    **dict.fromkeys(("jsonb", "djson"), f"{_JSON}::jsonb"),
    "xml": f"('<a>' || {_LETTERS} || '</a>')::xml",
    **dict.fromkeys(("numeric", "dnumeric"), "repeat('7', 9000)::numeric"),
    "bit(24000)": f"{_BITS}::bit(24000)",
    **dict.fromkeys(("varbit", "varbit(50000)", "dbits"), f"{_BITS}::varbit"),
    "hstore": f"hstore('a', {_LETTERS})",
    "ltree": "(repeat('x', 200) || repeat('.' || repeat('x', 200), 20))::ltree",
    "tsvector": "(SELECT string_agg('w' || i, ' ') FROM generate_series(1, 900) i)::tsvector",
    "path": f"'[{_POINTS}]'",
    "polygon": f"'({_POINTS})'",
    "int4multirange": "(SELECT range_agg(int4range(i*3, i*3+1)) FROM generate_series(1, 500) i)",
    "numrange": "numrange(0, repeat('7', 9000)::numeric)",
    "pair": f"ROW(1, {_LETTERS})::pair",
    "jsonpath": f"('$.' || {_LETTERS})::jsonpath",
    "dtexts": "array_fill('a'::text, ARRAY[900])",
    "dints": "array_fill(7, ARRAY[900])",
    "duuids": "array_fill('00000000-0000-4000-8000-000000000001'::uuid, ARRAY[900])",
    "text[][]": "array_fill('a'::text, ARRAY[30, 30])",
    "int[][]": "array_fill(7, ARRAY[30, 30])",
}
_NUMBERS = (
    "smallint",
    "int",
    "bigint",
    "real",
    "float8",
    "numeric",
    "numeric(10,2)",
    "oid",
    "dint",
)
_WORDS = (
    "text",
    "varchar(20)",
    "char(5)",
    "citext",
    "name",
    '"char"',
    "dtext",
    "ltree",
    "tsvector",
)
_DAYS = "[2020-01-01,2020-01-02)"
ELEMENTS = {
    "bool": "true",
    "money": "1.5",
    **dict.fromkeys(_NUMBERS, "7"),
    **dict.fromkeys(_WORDS, "'a'"),
    "bytea": "'\\x01ff'",
    "uuid": "'00000000-0000-4000-8000-000000000001'",
    "date": "'2020-01-02'",
    **dict.fromkeys(("time", "timetz"), "'10:11:12'"),
    **dict.fromkeys(("timestamp", "timestamptz"), "'2020-01-02 03:04:05'"),
    "interval": "'1 day'",
    **dict.fromkeys(("json", "jsonb"), "'{}'"),
    "xml": "'<a/>'",
    "inet": "'192.0.2.1'",
    "cidr": "'192.0.2.0/24'",
    **dict.fromkeys(("macaddr", "macaddr8"), "'08:00:2b:01:02:03'"),
    "point": "'(1,2)'",
    "box": "'(1,2),(3,4)'",
    "mood": "'ok'",
    **dict.fromkeys(("int4range", "int8range", "numrange"), "'[1,5)'"),
    **dict.fromkeys(("tsrange", "tstzrange", "daterange"), f"'{_DAYS}'"),
    **dict.fromkeys(("bit(3)", "varbit"), "B'101'"),
    "hstore": "'a=>1'",
    "pair": "ROW(1,'a')",
}
VALUES = SCALARS | {f"{t}[]": f"array_fill({v}::{t}, ARRAY[2500])" for t, v in ELEMENTS.items()}


def record(form: Format, folder: Path) -> tuple[list[ForeignRecord], dict[int, str]]:
    """The records of a connector that saw an INSERT and an UPDATE of each type."""
    store = JarStore.from_environment(os.environ)
    with ExitStack() as stack:
        server = stack.enter_context(postgres.started())
        server.run(TYPES)
        for number, type_ in enumerate(VALUES):
            statements = []
            for name in (f"plain{number}", f"full{number}"):
                external = f"ALTER TABLE {name} ALTER v SET STORAGE EXTERNAL"
                statements += [
                    f"CREATE TABLE {name} (id int PRIMARY KEY, n int, v {type_})",
                    f"DO $$ BEGIN {external}; EXCEPTION WHEN OTHERS THEN NULL; END $$",
                ]
            server.run("; ".join([*statements, f"ALTER TABLE full{number} REPLICA IDENTITY FULL"]))
        broker = stack.enter_context(LocalBroker.start(folder / "broker", store))
        registry = stack.enter_context(running_apicurio(folder)) if form == "avro" else ""
        debezium = Debezium(
            folder / "connect",
            store,
            broker.bootstrap_servers,
            server.port,
            form,
            registry.replace("ccompat/v7", "registry/v2"),
            {"topic.creation.default.partitions": "1"},
        )
        stack.callback(debezium.kill)
        debezium.start()
        for number, value in enumerate(VALUES.values()):
            server.run(
                "; ".join(
                    f"INSERT INTO {name} VALUES (1, 1, {value}); UPDATE {name} SET n = 2"
                    for name in (f"plain{number}", f"full{number}")
                )
            )
        deadline = time.monotonic() + DEADLINE_S
        last = f"dbz.public.full{len(VALUES) - 1}"
        while len(read_topics(broker.bootstrap_servers, last)) < 2:
            assert time.monotonic() < deadline, f"{last} has no update"
            time.sleep(1)
        records = read_topics(broker.bootstrap_servers)
        schemas = registered(registry, records) if registry else {}
        debezium.stop()
        return records, schemas


class Sent:
    """What was sent for a table: the field of the column, and the row of its INSERT and UPDATE."""

    def __init__(self, records: list[ForeignRecord], schemas: dict[int, str], topic: str) -> None:
        values = [r.value for r in sorted(records, key=lambda r: r.offset) if r.topic == topic]
        self.field: Any = None
        self.events: list[dict[str, Any]] = []
        for value in values:
            assert value is not None
            if schemas:
                schema = json.loads(schemas[int.from_bytes(value[1:5], "big")])
                plain = json.loads(json.dumps(schema).replace('"logicalType"', '"was"'))
                read = fastavro.schemaless_reader(
                    io.BytesIO(value[5:]), fastavro.parse_schema(plain), None
                )
                self.events.append(read)  # type: ignore[arg-type]
                fields = schema["fields"][0]["type"][1]["fields"]
                self.field = next((f["type"] for f in fields if f["name"] == "v"), None)
                continue
            event = json.loads(value)
            self.events.append(event.get("payload", event))
            rows = [f for f in event.get("schema", {}).get("fields", ()) if f["field"] == "after"]
            fields = rows[0]["fields"] if rows else []
            self.field = next((f for f in fields if f["field"] == "v"), None)


def main() -> int:
    found: dict[str, Any] = {type_: {"sent": {}} for type_ in VALUES}
    for form in get_args(Format):
        with tempfile.TemporaryDirectory(prefix="lowmark-record-") as folder:
            records, schemas = record(form, Path(folder))
        for number, (type_, entry) in enumerate(found.items()):
            full = Sent(records, schemas, f"dbz.public.full{number}")
            inserted, updated = (event["after"].get("v") for event in full.events)
            assert full.events[1]["before"] is not None
            assert inserted == updated or type_ == "text[][]", type_
            plain = Sent(records, schemas, f"dbz.public.plain{number}")
            assert plain.events[1]["before"] is None
            if "v" not in plain.events[1]["after"]:
                found[type_] = {}
                continue
            if form == "json-schema":
                entry["connect"] = plain.field
            if form == "avro":
                entry["avro"] = plain.field
            value = plain.events[1]["after"]["v"]
            entry["sent"][form] = json.loads(json.dumps(value, default=lambda b: b.decode()))
    lines = ",\n".join(f"{json.dumps(t)}: {json.dumps(entry)}" for t, entry in found.items())
    PATH.write_text(f"{{\n{lines}\n}}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Record the topics of a real Debezium while a scripted shop works (SRC-10):

    python -m tests.record_debezium [json] [json-schema] [avro]

It starts PostgreSQL, a broker, Debezium and, for Avro, a registry, and writes the files that
`tests/recorded_topics.py` reads. All persons are invented.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

from confluent_kafka import Consumer, TopicPartition

from connector.jars import JarStore
from connector.kafka import LocalBroker
from connector.sources.model import ForeignRecord
from tests import postgres
from tests.apicurio import running_apicurio
from tests.debezium import PREFIX, TRANSACTIONS, Debezium, Format
from tests.recorded_topics import Recording, State, key_of, write_recording, write_states

SIGNALS = "public.signals"
EXACT = "-c IntervalStyle=iso_8601 -c extra_float_digits=1"
"""For the texts of the truth."""
DEADLINE_S = 120.0
FLUSH_MS = 8000
"""Long enough for a few transactions between a flush and the kill."""
BIG = 2500
"""A value of so many bytes that does not compress is kept outside of its row (TOAST)."""

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE beat (id int PRIMARY KEY, at timestamptz NOT NULL);
CREATE TABLE signals (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data text);
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, email varchar(200),
  credit numeric(12,2), ratio numeric, born date, created_at timestamptz NOT NULL,
  local_at timestamp, open_at time, active boolean, score double precision, weight real,
  small smallint, tags text[], numbers int[], prefs jsonb, raw json, photo bytea, mood mood,
  ref uuid, bio text, net inet, dur interval, code char(5));
ALTER TABLE customers ALTER bio SET STORAGE EXTERNAL, ALTER photo SET STORAGE EXTERNAL,
  ALTER prefs SET STORAGE EXTERNAL, ALTER tags SET STORAGE EXTERNAL;
CREATE TABLE accounts (id int PRIMARY KEY, customer_id bigint REFERENCES customers
  ON UPDATE CASCADE ON DELETE SET NULL, balance numeric(14,2) NOT NULL);
CREATE TABLE transfers (id uuid PRIMARY KEY, src int REFERENCES accounts,
  dst int REFERENCES accounts, amount numeric(14,2) NOT NULL, at timestamptz);
CREATE TABLE order_lines (order_id bigint, line_no int, sku text, qty int,
  price numeric(10,4), PRIMARY KEY (order_id, line_no));
CREATE TABLE labels (customer_id bigint, label text, PRIMARY KEY (customer_id, label));
CREATE TABLE words (word text PRIMARY KEY, n int);
CREATE TABLE logs (at timestamptz, line text);
ALTER TABLE logs REPLICA IDENTITY FULL;
CREATE TABLE wiped (id int PRIMARY KEY, v text);
CREATE TABLE notes (id int PRIMARY KEY, title text, body text);
ALTER TABLE notes ALTER body SET STORAGE EXTERNAL;
ALTER TABLE notes REPLICA IDENTITY FULL;
"""
COLUMNS = """
SELECT a.attrelid::regclass::text, a.attname, COALESCE(a.attnum = ANY(i.indkey), false)
FROM pg_attribute a
LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attrelid IN (
  SELECT oid FROM pg_class
  WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
  AND relname NOT IN ('beat', 'signals')
)
ORDER BY 1, a.attnum
"""
"""Table, column, and whether it is a part of the key."""

ORDINARY = {
    "id": "1",
    "name": "'Ada Example'",
    "email": "'ada@example.org'",
    "credit": "1234.50",
    "ratio": "0.125",
    "born": "'1980-02-29'",
    "created_at": "'2026-03-04 05:06:07.123456+02'",
    "local_at": "'2026-03-04 05:06:07.5'",
    "open_at": "'08:30:00.25'",
    "active": "true",
    "score": "0.1",
    "weight": "2.5",
    "small": "7",
    "tags": "'{red,green}'",
    "numbers": "'{1,2,3}'",
    "prefs": """'{"lang": "en", "n": 1}'""",
    "raw": """'{"b": 1,  "a": [true, null]}'""",
    "photo": "'\\x00ff10'",
    "mood": "'ok'",
    "ref": "'00000000-0000-4000-8000-000000000001'",
    "bio": "'short'",
    "net": "'192.0.2.1'",
    "dur": "'1 day 02:03:04.5'",
    "code": "'ab'",
}
HOSTILE: tuple[tuple[str, dict[str, str]], ...] = (
    (
        "NULL in every column that can have it",
        {n: "NULL" for n in ORDINARY if n not in ("id", "name", "created_at")},
    ),
    ("NaN", {"credit": "'NaN'", "ratio": "'NaN'", "score": "'NaN'", "weight": "'NaN'"}),
    (
        "infinity",
        {"ratio": "'Infinity'", "born": "'infinity'", "created_at": "'infinity'"}
        | {"local_at": "'-infinity'", "score": "'Infinity'", "weight": "'-Infinity'"},
    ),
    (
        "years BC, and far in the future",
        {"born": "'0044-03-15 BC'", "created_at": "'0099-01-01 00:00:00+00 BC'"}
        | {"local_at": "'20000-01-02 03:04:05'"},
    ),
    (
        "numbers of many digits",
        {"ratio": "123456789012345678901234567890.123456789", "credit": "-9999999999.99"}
        | {"score": "5e-324", "weight": "1e-45", "small": "-32768"},
    ),
    (
        "odd texts",
        {"name": "''", "email": "'é'", "bio": "E'a\\tb\\nc \"quoted\" \\\\ \\x01'", "code": "''"}
        | {"tags": """'{"a,b",NULL,"","\\"q\\"",é}'""", "numbers": "'{1,NULL,-2147483648}'"}
        | {"raw": """'{"a":1,"a":2}'""", "prefs": """'{"big":123456789012345678901234567890}'"""},
    ),
    (
        "edges",
        {"open_at": "'24:00:00'", "dur": "'-1 year 2 mons -3 days 04:05:06.789'", "net": "'::1/64'"}
        | {"tags": "'{}'", "photo": "''", "prefs": "'null'", "raw": "'\"text\"'", "score": "'-0'"}
        | {"name": "U&'\\+01F600'", "active": "false", "mood": "'happy'", "ratio": "1e-30"},
    ),
)


class Shop:
    """Runs the statements of the script, and records what PostgreSQL has after each step."""

    def __init__(self, server: postgres.Postgres) -> None:
        self.server = server
        self.states: list[State] = []

    def look(self, transaction: str, what: str) -> None:
        """Record the rows of all tables."""
        keys: dict[str, list[str]] = {}
        columns: dict[str, list[str]] = {}
        for name, column, in_key in self.server.rows(COLUMNS):
            assert column is not None
            table = f"public.{name}"
            columns.setdefault(table, []).append(column)
            if in_key == "t":
                keys.setdefault(table, []).append(column)
        tables = {}
        for table, key in keys.items():
            names = columns[table]
            texts = ", ".join(f'"{name}"::text' for name in names)
            rows = [
                dict(zip(names, row, strict=True))
                for row in self.server.rows(f"SELECT {texts} FROM {table}", EXACT)
            ]
            tables[table] = {key_of(row, key): row for row in rows}
        self.states.append(
            State(transaction, what, tables, keys, {table: columns[table] for table in keys})
        )

    def commit(self, what: str, *statements: str) -> str:
        """Run the statements in one transaction. Returns its number."""
        with self.server.session() as session:
            self.begin(session, *statements)
            return self.end(session, what)

    def begin(self, session: postgres.Session, *statements: str) -> None:
        session.run("BEGIN")
        for statement in statements:
            session.run(statement)

    def end(self, session: postgres.Session, what: str) -> str:
        """Commit the transaction of a session."""
        number = session.run("SELECT pg_current_xact_id()")
        session.run("COMMIT")
        self.look(number, what)
        return number

    def alter(self, what: str, *statements: str) -> None:
        """Run statements without an event."""
        self.server.run(*statements)
        self.look("", what)


def customer(number: int, **values: str) -> str:
    """An INSERT of an ordinary customer with other values."""
    row = {**ORDINARY, "id": str(number), **values}
    return f"INSERT INTO customers ({', '.join(row)}) VALUES ({', '.join(row.values())})"


def big(seed: str) -> str:
    """An expression for a text of `BIG` bytes that does not compress well."""
    return f"substr(repeat(md5('{seed}'), {BIG // 32 + 1}), 1, {BIG})"


def before_debezium(shop: Shop) -> None:
    """The rows of the initial snapshot."""
    shop.server.run(SCHEMA)
    rows = [customer(1)]
    rows += [customer(2 + n, **values) for n, (_, values) in enumerate(HOSTILE)]
    rows += [customer(20, bio=big("a"))]
    rows += [f"INSERT INTO accounts VALUES ({n}, {1 if n < 4 else 20}, 1000)" for n in range(1, 6)]
    rows += ["INSERT INTO words VALUES ('', 0), (' ', NULL), ('é', 1), ('a#b', 2)"]
    rows += ["INSERT INTO labels VALUES (1, 'vip'), (1, ''), (2, 'a#b'), (2, 'é')"]
    rows += ["INSERT INTO order_lines VALUES (1, 1, 'pen', 2, 1.25), (1, 2, NULL, NULL, NULL)"]
    rows += ["INSERT INTO wiped SELECT n, 'v' || n FROM generate_series(1, 8) n"]
    rows += ["INSERT INTO logs VALUES (now(), 'before')"]
    rows += [f"INSERT INTO notes VALUES (1, 'one', {big('n')}), (2, 'two', 'small')"]
    shop.server.run(*rows)
    shop.look("", "before Debezium")


def hostile_values(shop: Shop) -> None:
    shop.commit("an ordinary row", customer(101))
    for number, (what, values) in enumerate(HOSTILE, 102):
        shop.commit(what, customer(number, **values))
    shop.commit("a hostile row changes", "UPDATE customers SET small = 8 WHERE id = 103")
    shop.commit(
        "a row gets NULLs",
        "UPDATE customers SET name = 'N', email = NULL, bio = NULL,"
        " tags = NULL, prefs = NULL, credit = NULL WHERE id = 101",
    )


def big_values(shop: Shop) -> None:
    """TOAST: a value that an UPDATE does not touch is in no event."""
    everything = {
        "bio": big("b"),
        "photo": f"convert_to({big('p')}, 'UTF8')",
        "prefs": f"jsonb_build_object('long', {big('j')})",
        "tags": f"ARRAY[{big('t')}, 'end']",
    }
    shop.commit("a row with large values", customer(120, **everything))
    shop.commit("large values are not touched", "UPDATE customers SET small = 1 WHERE id = 120")
    shop.commit(
        "one becomes NULL, another column, too",
        "UPDATE customers SET photo = NULL, email = NULL WHERE id = 120",
    )
    shop.commit("a large value changes", f"UPDATE customers SET bio = {big('c')} WHERE id = 120")
    shop.commit(
        "a large value of the snapshot is not touched",
        "UPDATE customers SET small = 2 WHERE id = 20",
    )
    shop.commit("FULL: large values are not touched", "UPDATE notes SET title = 'uno' WHERE id = 1")


def key_changes(shop: Shop) -> None:
    shop.commit("a key changes, its accounts follow", "UPDATE customers SET id = 201 WHERE id = 1")
    shop.commit(
        "a key changes, a large value is not touched", "UPDATE customers SET id = 220 WHERE id = 20"
    )
    shop.commit(
        "FULL: a key changes, a large value is not touched", "UPDATE notes SET id = 11 WHERE id = 1"
    )
    shop.commit(
        "two rows exchange their keys",
        "UPDATE order_lines SET line_no = -1 WHERE order_id = 1 AND line_no = 1",
        "UPDATE order_lines SET line_no = 1 WHERE order_id = 1 AND line_no = 2",
        "UPDATE order_lines SET line_no = 2 WHERE order_id = 1 AND line_no = -1",
    )
    shop.commit("a label is another one", "UPDATE labels SET label = 'gold' WHERE label = 'vip'")


def transactions(shop: Shop, first: int, count: int) -> None:
    """Transfers, each over three tables, two of them open at once."""
    for number in range(first, first + count, 2):
        with shop.server.session() as one, shop.server.session() as other:
            shop.begin(one, *_transfer(number, 1, 2))
            shop.begin(other, *_transfer(number + 1, 3, 4))
            shop.end(other, f"transfer {number + 1}")
            one.run(f"UPDATE order_lines SET qty = 9 WHERE order_id = {700 + number}")
            shop.end(one, f"transfer {number}, which began before")


def _transfer(number: int, source: int, target: int) -> Iterator[str]:
    amount = f"{number}.25"
    yield f"UPDATE accounts SET balance = balance - {amount} WHERE id = {source}"
    yield f"UPDATE accounts SET balance = balance + {amount} WHERE id = {target}"
    yield (
        f"INSERT INTO transfers VALUES ('00000000-0000-4000-9000-{number:012}', {source},"
        f" {target}, {amount}, clock_timestamp())"
    )
    columns = "order_id, line_no, sku, qty"
    yield f"INSERT INTO order_lines ({columns}) VALUES ({700 + number}, 1, 'fee', 1)"


def deletes(shop: Shop) -> None:
    shop.commit(
        "delete and insert",
        "DELETE FROM words WHERE word = 'é'",
        "INSERT INTO words VALUES ('é', NULL)",
    )
    shop.commit(
        "insert and delete",
        "INSERT INTO words VALUES ('gone', 1)",
        "DELETE FROM words WHERE word = 'gone'",
    )
    shop.commit(
        "the same row three times",
        "UPDATE words SET n = 5 WHERE word = ''",
        "UPDATE words SET n = NULL WHERE word = ''",
        "UPDATE words SET n = 6 WHERE word = ''",
    )
    shop.commit(
        "deletes in two tables",
        "DELETE FROM labels WHERE label = 'é'",
        "DELETE FROM customers WHERE id = 108",
    )
    shop.commit(
        "a table without key",
        "INSERT INTO logs VALUES (now(), 'a')",
        "UPDATE logs SET line = 'b' WHERE line = 'a'",
        "INSERT INTO words VALUES ('log', 1)",
    )
    with shop.server.session() as session:
        shop.begin(session, "DELETE FROM words")
        session.run("ROLLBACK")


def changed_tables(shop: Shop) -> None:
    shop.commit(
        "truncate",
        "INSERT INTO wiped VALUES (50, 'before')",
        "TRUNCATE wiped",
        "INSERT INTO wiped VALUES (51, 'after')",
    )
    shop.alter("a column is added", "ALTER TABLE transfers ADD COLUMN memo text")
    shop.commit("a row with it", "UPDATE transfers SET memo = 'é' WHERE amount < 3")
    shop.alter(
        "a column with a default is added", "ALTER TABLE words ADD COLUMN note text DEFAULT 'dflt'"
    )
    shop.commit("a row with the default", "INSERT INTO words VALUES ('new', 1)")
    shop.alter("a column is dropped", "ALTER TABLE order_lines DROP COLUMN price")
    shop.commit("a row without it", "INSERT INTO order_lines VALUES (900, 1, 'pen', 1)")
    shop.commit("truncate again", "TRUNCATE wiped")
    shop.alter("a column has another type", "ALTER TABLE wiped ALTER v TYPE int USING v::int")
    shop.commit("a row of that type", "INSERT INTO wiped VALUES (60, 42)")
    shop.alter("a new table", "CREATE TABLE coupons (code text PRIMARY KEY, percent numeric(5,2))")
    shop.commit("its first rows", "INSERT INTO coupons VALUES ('MAY', 12.5), ('JUNE', NULL)")


def incremental_snapshot(shop: Shop, table: str) -> None:
    """Signal it, and write to the table until it is done."""
    data = json.dumps({"data-collections": [table], "type": "incremental"})
    shop.server.run(
        f"INSERT INTO signals VALUES ('snap-{table}', 'execute-snapshot', '{data}')",
    )
    for number in range(6):
        shop.commit(
            "beside an incremental snapshot",
            f"INSERT INTO words VALUES ('live-{number}', {number})",
        )
        time.sleep(0.3)


def record(form: Format, folder: Path) -> None:
    """Run the script once, and write both files of a format."""
    store = JarStore.from_environment(os.environ)
    with ExitStack() as stack:
        server = stack.enter_context(postgres.started())
        broker = stack.enter_context(LocalBroker.start(folder / "broker", store))
        registry = stack.enter_context(running_apicurio(folder)) if form == "avro" else ""
        debezium = Debezium(
            folder / "connect",
            store,
            broker.bootstrap_servers,
            server.port,
            form,
            registry.replace("ccompat/v7", "registry/v2"),
            {"signal.data.collection": SIGNALS, "heartbeat.interval.ms": "3000"},
            flush_ms=FLUSH_MS,
        )
        stack.callback(debezium.kill)
        shop = Shop(server)
        before_debezium(shop)
        debezium.start()
        wait_for(broker.bootstrap_servers, shop.commit("the first one", *_transfer(1, 4, 5)))
        hostile_values(shop)
        big_values(shop)
        key_changes(shop)
        transactions(shop, 2, 6)
        deletes(shop)
        wait_for_flush(debezium)
        transactions(shop, 14, 2)
        last = shop.commit("the last one before the kill", "INSERT INTO words VALUES ('kill', 1)")
        wait_for(broker.bootstrap_servers, last)
        debezium.kill()
        transactions(shop, 8, 2)
        debezium.start()
        transactions(shop, 10, 2)
        changed_tables(shop)
        wait_for(
            broker.bootstrap_servers, shop.commit("bye", "DELETE FROM words WHERE word = 'kill'")
        )
        incremental_snapshot(shop, "public.words")
        time.sleep(5)
        wait_for(broker.bootstrap_servers, shop.commit("the end", *_transfer(20, 1, 5)))
        debezium.stop()
        records = sorted(read_topics(broker.bootstrap_servers), key=lambda each: each.timestamp)
        schemas = registered(registry, records) if registry else {}
        shown = {name: value for name, value in debezium.connector().items() if ".mode" in name}
        write_recording(form, Recording(records, schemas, shown))
        write_states(form, shop.states)


def read_topics(servers: str, only: str = "") -> list[ForeignRecord]:
    """All records of Debezium's topics, or of one topic, up to their present ends."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "recorder"})
    try:
        topics = consumer.list_topics(timeout=30).topics
        ends: dict[tuple[str, int], int] = {}
        for name in topics:
            if name == only or (not only and name.startswith(f"{PREFIX}.")):
                for number in topics[name].partitions:
                    _, end = consumer.get_watermark_offsets(TopicPartition(name, number), 30)
                    if end:
                        ends[name, number] = end
        consumer.assign([TopicPartition(name, number, 0) for name, number in ends])
        records = []
        while ends:
            message = consumer.poll(DEADLINE_S)
            assert message is not None, f"not read up to {ends}"
            assert message.error() is None, message.error()
            place = (message.topic(), message.partition())
            milliseconds = message.timestamp()[1]
            records.append(
                ForeignRecord(
                    *place, message.offset(), milliseconds * 1000, message.key(), message.value()
                )
            )
            if message.offset() + 1 >= ends.get(place, 0):
                ends.pop(place, None)
        return records
    finally:
        consumer.close()


def wait_for(servers: str, transaction: str) -> None:
    """Wait until the topic of transactions has the END of one."""
    deadline = time.monotonic() + DEADLINE_S
    while not any(
        b"END" in record.value and f"{transaction}:".encode() in record.value
        for record in read_topics(servers, TRANSACTIONS)
        if record.value is not None
    ):
        assert time.monotonic() < deadline, f"transaction {transaction} does not come"
        time.sleep(0.5)


def wait_for_flush(debezium: Debezium) -> None:
    """Wait until Debezium stores its position. What it sends after that is sent again when it is
    killed.
    """
    before = _changed_at(debezium.offsets)
    deadline = time.monotonic() + DEADLINE_S
    while _changed_at(debezium.offsets) == before:
        assert time.monotonic() < deadline, "no position was stored"
        time.sleep(0.1)


def _changed_at(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def registered(url: str, records: Sequence[ForeignRecord]) -> dict[int, str]:
    """The schemas of the registry that records have in their framing, by id."""
    schemas = {}
    data = [each for record in records for each in (record.key, record.value) if each is not None]
    for number in sorted({int.from_bytes(each[1:5], "big") for each in data}):
        with urllib.request.urlopen(f"{url}/schemas/ids/{number}", timeout=10) as answer:
            schemas[number] = json.load(answer)["schema"]
    return schemas


def main(names: Sequence[str]) -> int:
    for form in get_args(Format):
        if not names or form in names:
            with tempfile.TemporaryDirectory(prefix="lowmark-record-") as folder:
                began = time.monotonic()
                record(form, Path(folder))
                print(f"{form}: {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A running pipeline follows the columns that operators and the configuration declare, on a real
broker (EVO-1, EVO-2, EVO-3, EVO-8).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Self

import pytest
from pyspark.sql import SparkSession

from connector import KafkaConfig
from connector.clock import now_us
from connector.errors import ConnectorError, TableError
from connector.events import Event
from connector.kafka import ChangeProducer, published_tables
from connector.lake.overrides import Overrides
from connector.lake.plain_table import open_table
from connector.services import ConfigFile, alter_table, load_config, run, status
from connector.tables.definition import Column
from connector.tables.values import DataType
from connector.warehouse import table as table_path
from tests.broker import NewTopic
from tests.spark.live import Live, beside
from tests.spark.streams import account

pytestmark = pytest.mark.systems

NOTE = Column("note", "f", b"note", DataType.STRING)
AMOUNT = Column("amount", "f", b"amount", DataType.INT64)
ROUND = Column("round", "f", b"round", DataType.INT64)
WAIT_S = 240
CONFIG = """
warehouse = "warehouse"
[kafka]
bootstrap_servers = "{servers}"
[streams.s]
topic = "{topic}"
trigger = "{trigger}"
"""
TABLE = """
[tables.{name}]
stream = "s"
source = "t"
apply_every = "1s"
key = {{ columns = [{{ name = "id", type = "STRING" }}] }}
columns = [{columns}]
"""


def table_in_file(name: str, *columns: Column) -> str:
    listed = (f'{{ name = "{c.name}", family = "{c.family}", type = "{c.type}" }}' for c in columns)
    return TABLE.format(name=name, columns=", ".join(listed))


@pytest.fixture
def live(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> Iterator[Live]:
    with ExitStack() as stack:
        yield Live(spark, kafka, new_topic(kafka_partitions=1).topic, tmp_path / "warehouse", stack)


class Reader:
    """Reads the table again and again. No read may lack a value of a row."""

    def __init__(self, path: str) -> None:
        self._path, self._stop = path, threading.Event()
        self.columns: list[set[str]] = []
        self.faults: list[object] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            try:
                table = open_table(self._path)
            except TableError:
                continue  # the pipeline has not made it yet
            names = list(table.types)
            rows = [dict(zip(names, row, strict=True)) for row in table.rows()]
            self.columns.append(set(names))
            self.faults += [(names, row) for row in rows if not is_whole(row)]


def is_whole(row: dict[str, object]) -> bool:
    """Whether the row has both values of its key, each in its column or in `_unmapped`."""
    unmapped = dict(row["_unmapped"] or ())  # type: ignore[call-overload]
    number = str(row["id"])[1:]
    in_column = {"note": f"n{number}", "amount": int(number)}
    return all(
        row.get(name) == value and f"f:{name}" not in unmapped
        if name in row
        else bytes(unmapped[f"f:{name}"]) == str(value).encode()
        for name, value in in_column.items()
    )


def running(file: Path, live: Live, events: list[Event]) -> AbstractContextManager[None]:
    return beside(
        lambda stop: run(ConfigFile(file, {}), spark=live.spark, stop=stop, on_event=events.append),
        WAIT_S,
    )


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except ConnectorError:
            pass
        time.sleep(0.2)
    raise AssertionError(what)


def test_columns_change_while_a_reader_reads(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVO-1, EVO-2, EVO-3, EVO-8, nothing_lost: a column is added, one is dropped and added again,
    and the configuration gets a table: no read lacks a value.
    """
    monkeypatch.setattr(import_module("connector.services.run"), "READ_EVERY_S", 0.5)
    monkeypatch.setattr("connector.spark.apply_loop.look_every_s", lambda _: 0.5)
    file, events = tmp_path / "connector.toml", list[Event]()
    head = CONFIG.format(servers=live.kafka.bootstrap_servers, topic=live.topic, trigger="500ms")
    file.write_text(head + table_in_file("accounts", AMOUNT))
    config = load_config(file, {})
    path = table_path(config.warehouse, "accounts")

    def columns(name: str = "accounts") -> set[str]:
        return set(open_table(table_path(config.warehouse, name)).types)

    live.publish(*(account(f"r{n}", n + 1, note=f"n{n}", amount=str(n)) for n in range(8)))
    with Reader(path) as reader, running(file, live, events):
        wait_until(lambda: len(list(open_table(path).rows())) == 8, "applied")
        alter_table(config, "accounts", add=NOTE)
        wait_until(lambda: "note" in columns(), "added")
        live.publish(*(account(f"r{n}", n + 1, note=f"n{n}", amount=str(n)) for n in range(8, 12)))
        alter_table(config, "accounts", drop="amount")
        wait_until(lambda: "amount" not in columns(), "dropped")
        hints = status(config).tables["accounts"].hints
        assert any("set the column note" in hint for hint in hints), hints
        assert any("dropped the column amount" in hint for hint in hints), hints
        alter_table(config, "accounts", add=AMOUNT)
        wait_until(lambda: "amount" in columns(), "added again")

        file.write_text(
            head + table_in_file("accounts", AMOUNT, NOTE) + table_in_file("copies", NOTE)
        )
        wait_until(
            lambda: len(list(open_table(table_path(config.warehouse, "copies")).rows())) == 12,
            "a new table",
        )
        wait_until(lambda: not Overrides(config.warehouse).columns(), "overrides are settled")
        wait_until(lambda: len(list(open_table(path).rows())) == 12, "the later rows")

        file.write_text(head.replace("500ms", "700ms") + table_in_file("accounts", NOTE))
        wait_until(lambda: len(status(config).reload_refused) == 3, "the reload is refused")
        refused = " ".join(status(config).reload_refused)
        assert all(part in refused for part in ("streams.s.trigger", "tables.copies", "amount"))
        assert {"amount", "note"} <= columns()
        wait_until(
            lambda: published_tables(live.kafka, live.topic)["accounts"].version == 4, "published"
        )
    assert reader.faults == []
    assert {"note"} < reader.columns[-1]
    assert len({frozenset(seen) for seen in reader.columns}) >= 3
    published = published_tables(live.kafka, live.topic)
    assert [column.name for column in published["accounts"].definition.columns] == [
        "note",
        "amount",
    ]
    assert published["copies"].version == 1
    assert "RELOADED" in {event.code for event in events}


class Load:
    """Sends 1,000 changes a second of random rows. `newest` is the newest round of each row."""

    def __init__(self, kafka: KafkaConfig, topic: str, random: Random) -> None:
        self._kafka, self._topic, self._random = kafka, topic, random
        self.newest: dict[int, int] = {}
        self.sent, self.seconds = 0, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        begun, timestamp = time.monotonic(), 0
        with ChangeProducer(self._kafka, self._topic) as producer:
            while not self._stop.is_set():
                for _ in range(100):
                    n, timestamp = self._random.randrange(5_000), max(now_us(), timestamp + 1)
                    cells = {"note": f"n{n}", "amount": str(n), "round": str(self.sent)}
                    producer.send(account(f"r{n}", timestamp, **cells))
                    self.newest[n] = self.sent
                    self.sent += 1
                producer.reached("p", timestamp)
                self._stop.wait(self.sent / 1_000 - (time.monotonic() - begun))
        self.seconds = time.monotonic() - begun


@pytest.mark.long
@pytest.mark.timeout(900)
def test_columns_change_at_a_thousand_changes_a_second(
    live: Live, tmp_path: Path, seed: int
) -> None:
    """EVO-1, EVO-2, EVO-3, EVO-8, nothing_lost, newest_wins: a column is added, one is dropped and
    added again, and the configuration gets a table. No read lacks a value, and at the end the
    tables are equal to what was sent.
    """
    file, events = tmp_path / "connector.toml", list[Event]()
    head = CONFIG.format(servers=live.kafka.bootstrap_servers, topic=live.topic, trigger="1s")
    file.write_text(head + table_in_file("accounts", AMOUNT, ROUND))
    config = load_config(file, {})

    def columns(name: str) -> set[str]:
        return set(open_table(table_path(config.warehouse, name)).types)

    def rounds(name: str) -> dict[int, int]:
        table = open_table(table_path(config.warehouse, name))
        names = list(table.types)
        rows = [dict(zip(names, row, strict=True)) for row in table.rows()]
        return {int(str(row["id"])[1:]): row["round"] for row in rows}  # type: ignore[misc]

    with (
        Load(live.kafka, live.topic, Random(seed)) as load,
        Reader(table_path(config.warehouse, "accounts")) as reader,
        running(file, live, events),
    ):
        wait_until(lambda: len(rounds("accounts")) > 4_000, "applied")
        alter_table(config, "accounts", add=NOTE)
        wait_until(lambda: "note" in columns("accounts"), "added")
        alter_table(config, "accounts", drop="amount")
        wait_until(lambda: "amount" not in columns("accounts"), "dropped")
        alter_table(config, "accounts", add=AMOUNT)
        wait_until(lambda: "amount" in columns("accounts"), "added again")
        both = table_in_file("accounts", AMOUNT, ROUND, NOTE) + table_in_file("copies", ROUND)
        file.write_text(head + both)
        wait_until(lambda: len(rounds("copies")) == 5_000, "a new table")
        load.__exit__()
        print(f"{load.sent} changes, {load.sent / load.seconds:.0f}/s")
        for name in ("accounts", "copies"):
            wait_until(lambda name=name: rounds(name) == load.newest, name)
    assert reader.faults == []
    assert load.sent > 800 * load.seconds


def test_a_lost_column_stops_its_table_only(live: Live, tmp_path: Path) -> None:
    """EVO-2: the other table is applied, and the error has the remedy."""
    file = tmp_path / "connector.toml"
    head = CONFIG.format(servers=live.kafka.bootstrap_servers, topic=live.topic, trigger="1s")
    file.write_text(head + table_in_file("accounts", AMOUNT, NOTE) + table_in_file("copies", NOTE))
    live.publish(account("r1", 1, note="n1", amount="1"))
    run(load_config(file, {}), spark=live.spark, once=True)
    file.write_text(head + table_in_file("accounts", NOTE) + table_in_file("copies", NOTE))
    live.publish(account("r2", 2, note="n2", amount="2"))
    config = load_config(file, {})
    with pytest.raises(TableError, match="no column amount"):
        run(config, spark=live.spark, once=True)
    rows = {
        name: len(list(open_table(table_path(config.warehouse, name)).rows()))
        for name in ("accounts", "copies")
    }
    assert rows == {"accounts": 1, "copies": 2}
    alter_table(config, "accounts", drop="amount")
    run(config, spark=live.spark, once=True)
    assert len(list(open_table(table_path(config.warehouse, "accounts")).rows())) == 2
    assert Overrides(config.warehouse).columns() == {}


def test_a_reload_with_which_no_pipeline_can_begin_changes_nothing(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVO-8, EVO-2, EVO-9: a base that does not qualify, and a column on the cell of an override.
    The old configuration stays, and its tables go on. The override can be taken back.
    """
    monkeypatch.setattr(import_module("connector.services.run"), "READ_EVERY_S", 0.5)
    monkeypatch.setattr("connector.spark.apply_loop.look_every_s", lambda _: 0.5)
    file, events = tmp_path / "connector.toml", list[Event]()
    head = CONFIG.format(servers=live.kafka.bootstrap_servers, topic=live.topic, trigger="500ms")
    accounts = table_in_file("accounts", AMOUNT)
    file.write_text(head + accounts)
    config = load_config(file, {})
    path = table_path(config.warehouse, "accounts")

    def has_rows(number: int) -> bool:
        return len(list(open_table(path).rows())) == number

    remark = '{ name = "remark", family = "f", qualifier = "note", type = "STRING" }'
    with_remark = accounts.replace("columns = [{", f"columns = [{remark}, {{", 2).replace(
        f"key = {{ columns = [{remark}, ", "key = { columns = ["
    )
    live.publish(account("r1", 1, note="n1", amount="1"))
    with running(file, live, events):
        wait_until(lambda: has_rows(1), "applied")
        alter_table(config, "accounts", add=NOTE)
        wait_until(lambda: "note" in open_table(path).types, "added")

        unfit = table_in_file("unfit", AMOUNT).replace('source = "t"', 'source = "other"')
        file.write_text(
            head + table_in_file("first", NOTE) + accounts + unfit + 'start_from = "accounts"\n'
        )
        wait_until(lambda: bool(status(config).reload_refused), "the base is refused")
        (text,) = status(config).reload_refused
        assert "Table unfit cannot start from table accounts. its source is t;" in text
        live.publish(account("r2", 2, note="n2", amount="2"))
        wait_until(lambda: has_rows(2), "the table goes on")
        assert not (tmp_path / "warehouse" / "tables" / "unfit").exists()
        assert not (tmp_path / "warehouse" / "tables" / "first").exists()

        file.write_text(head + with_remark)
        wait_until(lambda: "both show" in str(status(config).reload_refused), "it is refused")
        shown = status(load_config(file, {})).tables["accounts"]
        assert any("drop a column that an operator set: note" in hint for hint in shown.hints)
        alter_table(load_config(file, {}), "accounts", drop="note")
        wait_until(lambda: "note" not in open_table(path).types, "taken back")
        file.write_text(head + with_remark + "# again\n")
        wait_until(lambda: "remark" in open_table(path).types, "the column of the file")
        rows = list(open_table(path).rows())
        at = list(open_table(path).types).index("remark")
        assert sorted(str(row[at]) for row in rows) == ["n1", "n2"]
    codes = [event.code for event in events]
    assert (codes.count("RELOAD_REFUSED"), codes.count("RELOADED")) == (2, 1)

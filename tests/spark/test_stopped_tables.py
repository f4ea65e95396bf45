"""A table that cannot be used stops alone (RUN-3): what other programs did to it before a run and
during one, and a definition that does not fit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector import warehouse as paths
from connector.config.settings import KafkaConfig
from connector.errors import ConnectorError, TableError
from connector.events import Event
from connector.lake.jobs import History
from connector.lake.state_reader import progress_of, table_state_of
from connector.records import codec
from connector.records.model import ChildPartition, ChildPartitions, Heartbeat, kafka_key
from connector.services.read import read
from connector.services.run import run
from connector.services.status import status
from connector.spark import open_tables
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType
from tests.broker import NewTopic
from tests.spark.live import Live
from tests.spark.streams import account, definition, versions

ACCOUNTS, COPIES, OTHERS = definition(), definition("copies"), definition("others")


@pytest.fixture
def live(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> Iterator[Live]:
    with ExitStack() as stack:
        topic = new_topic(kafka_partitions=1).topic
        made = Live(spark, kafka, topic, tmp_path / "warehouse", stack)
        made.tables = tuple(replace(t, apply_every_s=1) for t in (ACCOUNTS, COPIES, OTHERS))
        yield made


def once(live: Live) -> tuple[ConnectorError | None, list[Event]]:
    """The error of a run, and the events about stopped tables."""
    events, error = list[Event](), None
    try:
        run(live.config, spark=live.spark, once=True, on_event=events.append)
    except ConnectorError as raised:
        error = raised
    return error, [event for event in events if event.code.startswith("TABLE_")]


def path_of(live: Live, name: str) -> str:
    return paths.table(str(live.warehouse), name)


def ids(live: Live, name: str, *, snapshot: bool = False) -> set[object]:
    with read(
        live.config, name, snapshot=snapshot, allow_stale=True, max_staleness_s=10**6
    ) as found:
        return {dict(zip(found.columns, row, strict=True))["id"] for row in found.rows}


def applied_to(live: Live, name: str) -> int:
    return table_state_of(str(live.warehouse), "s", name).to_batch


def heartbeat(live: Live, at: int) -> None:
    """Make the stream complete up to a time."""
    announced = ChildPartitions("p", 1, 0, (ChildPartition("p"),))
    records = (announced, Heartbeat("p", at))
    live.send((0, kafka_key(record), codec.framed(record, 1)) for record in records)


def delete_in(live: Live, name: str) -> None:
    live.spark.sql(f"DELETE FROM delta.`{path_of(live, name)}` WHERE id = 'a'")


def restore(live: Live, name: str, version: int) -> None:
    path = path_of(live, name)
    live.spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")


def test_a_bad_table_stops_alone_until_it_is_repaired(live: Live) -> None:
    """RUN-3, cut_is_consistent: ingest and the other tables go on, and the error is raised at the
    end. No cut is recorded meanwhile, and readers of the others are not hurt.
    """
    live.publish(account("a", 1, name="Ada"))
    assert once(live) == (None, [])
    good = versions(live.spark, path_of(live, "accounts"))
    delete_in(live, "accounts")
    live.publish(account("b", 2, name="Bob"))
    error, events = once(live)
    assert isinstance(error, TableError)
    assert (error.code, error.fields["last_good"]) == ("COMMIT_FOREIGN", good)
    (event,) = events
    assert (event.level, event.code) == ("warning", "TABLE_STOPPED")
    assert (event.fields["table"], event.fields["last_good"]) == ("accounts", good)
    first, second = (reason.line for reason in status(live.config).reasons[:2])
    assert first.startswith("PIPELINE_DOWN stream s: not running since "), "RUN-1"
    assert "last error COMMIT_FOREIGN: " in first
    assert second.startswith("TABLE_STOPPED table accounts: COMMIT_FOREIGN: ")
    assert progress_of(str(live.warehouse), "s").ingest_batch == 2
    assert [applied_to(live, name) for name in ("copies", "others")] == [2, 2]
    assert ids(live, "copies") == {"a", "b"}

    delete_in(live, "copies")
    error, events = once(live)
    assert error is not None
    assert error.code == "TABLES_STOPPED"
    assert error.problem.endswith(": accounts, copies")
    assert {event.fields["table"] for event in events} == {"accounts", "copies"}

    restore(live, "accounts", good)
    restore(live, "copies", versions(live.spark, path_of(live, "copies")) - 1)
    assert once(live) == (None, [])
    pipeline = status(live.config).pipelines["s"]
    assert (pipeline.is_done, pipeline.stopped) == (True, {})
    assert [ids(live, table.name) for table in live.tables] == [{"a", "b"}] * 3


def test_a_table_that_cannot_be_opened_stops_alone(live: Live) -> None:
    """RUN-3: a damaged log, and a definition that does not fit, at the start. A new table beside
    them is made.
    """
    live.publish(account("a", 1, name="Ada"))
    live.tables = live.tables[:2]
    assert once(live) == (None, [])
    log = Path(path_of(live, "accounts"), "_delta_log")
    max(log.glob("*.json")).write_bytes(b"")
    other_key = Key((KeyPart("id", DataType.BYTES),), KeyForm.ROW_KEY)
    live.tables = (*live.tables[:1], replace(COPIES, key=other_key), OTHERS)
    live.publish(account("b", 2, name="Bob"))
    error, events = once(live)
    assert error is not None
    assert error.problem.endswith(": accounts, copies")
    codes = {event.fields["table"]: event.fields["error"] for event in events}
    assert codes == {"accounts": "TABLE_DAMAGED", "copies": "TABLE_DEFINITION_DIFFERENT"}
    assert ids(live, "others") == {"a", "b"}


@contextmanager
def running(live: Live) -> Iterator[tuple[list[Event], list[ConnectorError]]]:
    """A run in another thread, with its events and its error at the end."""
    stop, events, errors = threading.Event(), list[Event](), list[ConnectorError]()

    def work() -> None:
        try:
            run(live.config, spark=live.spark, stop=stop, on_event=events.append)
        except ConnectorError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield events, errors
    finally:
        stop.set()
        thread.join()


def until(is_so: Callable[[], bool], within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_table_that_goes_bad_during_a_run_goes_on_when_it_is_repaired(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RUN-3, nothing_lost: it is named once however often it is tried, and goes on without a
    restart. A cut is recorded again only then, and a table that a rebuild replaced goes on at once.
    """
    for name in ("_FIRST_PAUSE_S", "_LONGEST_PAUSE_S"):
        monkeypatch.setattr(open_tables, name, 1.0)
    history = History(str(live.warehouse))
    live.publish(account("a", 10, name="Ada"))
    heartbeat(live, 11)
    with running(live) as (events, errors):
        until(lambda: history.newest_cut("s") is not None)
        (cut,) = history.cuts("s")
        good = versions(live.spark, path_of(live, "accounts"))
        delete_in(live, "accounts")
        live.publish(account("b", 12, name="Bob"))
        heartbeat(live, 13)
        until(lambda: "TABLE_STOPPED" in {event.code for event in events})
        until(lambda: [applied_to(live, name) for name in ("copies", "others")] == [2, 2])
        live.publish(account("c", 14, name="Cid"))
        heartbeat(live, 15)
        until(lambda: ids(live, "copies") == {"a", "b", "c"})
        time.sleep(5)
        assert history.cuts("s") == [cut]
        pipeline = status(live.config).pipelines["s"]
        assert (pipeline.is_running, [*pipeline.stopped]) == (True, ["accounts"]), "RUN-1"
        assert "accounts" not in pipeline.applies
        assert ids(live, "others", snapshot=True) == {"a"}
        restore(live, "accounts", good)
        until(lambda: "TABLE_GOES_ON" in {event.code for event in events})
        until(lambda: len(history.cuts("s")) > 1)
        assert ids(live, "accounts", snapshot=True) == {"a", "b", "c"}
    assert errors == []
    stopped = [event for event in events if event.code == "TABLE_STOPPED"]
    assert [event.fields["table"] for event in stopped] == ["accounts"]

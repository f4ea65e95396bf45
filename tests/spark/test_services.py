"""Services as a Python program calls them, with its own Spark session, on a real broker (OPS-1,
OPS-4, OPS-5, JOB-1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector import KafkaConfig
from connector.dead_letters.ledger import LedgerWrite, LetterState
from connector.errors import ConfigError, ConnectorError, WriterConflictError
from connector.events import Event
from connector.kafka import LetterFilter
from connector.kafka.dead_letters import ledger_topic
from connector.kafka.dead_letters.ledger_topic import LedgerWriter
from connector.records.codec import framed
from connector.records.model import Heartbeat, SetCell, kafka_key
from connector.services import (
    DeadLetters,
    audit,
    close_partition,
    jobs,
    load_config,
    partitions,
    read,
    rebuild,
    run,
    set_apply_every,
    set_max_staleness,
    status,
    validate_config,
)
from connector.services.tables import RebuildReport
from connector.spark import check_session
from connector.spark.cluster import spending
from connector.state.jobs import JobKind
from tests.broker import NewTopic
from tests.changes import change
from tests.spark.live import Live
from tests.spark.streams import COLUMNS, CrashError, account, definition
from tests.spark.test_cut import ANNOUNCED

CONFIG = """
warehouse = "warehouse"
[kafka]
bootstrap_servers = "{servers}"
[streams.s]
topic = "{topic}"
[tables.accounts]
stream = "s"
source = "t"
max_staleness = "1h"
key = {{ columns = [{{ name = "id", type = "STRING" }}] }}
columns = [
  {{ name = "name", family = "f", type = "STRING" }},
  {{ name = "amount", family = "f", type = "INT64" }},
]
"""


@pytest.fixture
def live(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> Iterator[Live]:
    with ExitStack() as stack:
        yield Live(spark, kafka, new_topic(kafka_partitions=1).topic, tmp_path / "warehouse", stack)


def test_a_program_runs_reads_audits_and_operates_the_pipeline(live: Live, tmp_path: Path) -> None:
    """nothing_lost, newest_wins: each service returns values, its session goes on, and events
    replace output.
    """
    file = tmp_path / "connector.toml"
    file.write_text(CONFIG.format(servers=live.kafka.bootstrap_servers, topic=live.topic))
    config, events = load_config(file, {}), list[Event]()
    live.publish(account("a", 1, name="Ada", amount="1"), account("a", 2, name="Ann"))
    live.send([(0, b"x", b"rubbish")])

    report = run(config, spark=live.spark, once=True, on_event=events.append)
    assert (report.batches, report.dead_letters) == (1, 1)
    assert report.applies == 1
    shown = [event for event in events if event.level != "debug"]
    assert [(event.code, event.fields["batch"], event.fields["changes"]) for event in shown] == [
        ("BATCH_LOGGED", 1, 2),
        ("APPLIED", 1, 2),
    ], "LOG-1"
    (logged, applied) = shown
    assert (logged.fields["stream"], logged.fields["offsets"], logged.fields["rejected"]) == (
        *("s", 3),
        1,
    )
    assert applied.fields["table"] == "accounts"
    assert {"batch begun", "logged", "apply begun"} <= {
        event.text for event in events if event.code == "STEP"
    }

    counts = [event.fields["done"] for event in events if event.text == "tables applied"]
    assert (counts[0], counts[-1]) == (0, 1), "RUN-4"

    with read(config, "accounts", spark=live.spark) as found:
        rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
        assert [(row["id"], row["name"], row["amount"]) for row in rows] == [("a", "Ann", 1)]
        assert (found.to_batch, found.missing.count) == (1, 1)
    live.publish(account("b", 3, name="Bob"))
    assert run(config, spark=live.spark, once=True).batches == 1
    with read(config, "accounts", spark=live.spark, max_staleness_s=0) as found:
        assert sum(1 for _ in found.rows) == 2
    live.spark.range(1).collect()  # the session was not stopped

    found_status = status(config)
    assert found_status.errors == {}
    assert found_status.streams["s"].ingest_batch == 2
    assert found_status.tables["accounts"].max_staleness_s == 3600
    assert [stream.is_proved for stream in audit(config)] == [True]
    audited = status(config).streams["s"].last_audit
    assert audited is not None, "JOB-1: the history has the verdict"
    assert (audited.kind, audited.error, audited.to_batch) == ("audit", "", 2)
    assert audited.rows_read >= 3
    of_kind = {kind: [job for job in jobs(config) if job.kind is kind] for kind in JobKind}
    assert [(job.to_batch, job.changes, job.letters) for job in of_kind[JobKind.BATCH]] == [
        (2, 1, 0),
        (1, 2, 1),
    ]
    assert len(of_kind[JobKind.AUDIT]) == 1
    assert of_kind[JobKind.APPLY]
    for job in (*of_kind[JobKind.BATCH], *of_kind[JobKind.APPLY]):
        assert job.bytes_written > 0, job
        assert job.rows_written > 0, job
    for job in of_kind[JobKind.APPLY]:
        assert job.cpu_us > 0, job

    letters = DeadLetters(config, "s")
    ((letter, _),) = letters.list()
    shown = letters.show(letter.id)
    assert (shown.letter.value, shown.rows) == (b"rubbish", {})
    which = LetterFilter(ids=frozenset({letter.id}))
    assert [decision.letter.id for decision, _ in letters.plan(which)] == [letter.id]
    assert letters.discard(which, why="not ours")[0] == 1
    assert letters.reopen(which, why="it was")[0] == 1
    assert letters.park(which, why="later")[0] == 1
    assert [entry.why for entry in letters.show(letter.id).history] == [
        "not ours",
        "it was",
        "later",
    ]

    assert set_max_staleness(config, "accounts", 60).seconds == 60
    assert set_apply_every(config, "accounts", 7).seconds == 7
    assert (
        status(config).tables["accounts"].max_staleness_s,
        status(config).tables["accounts"].apply_every_s,
    ) == (60, 7)
    set_max_staleness(config, "accounts", None)
    assert status(config).tables["accounts"].max_staleness_s == 3600

    (one,) = partitions(config).partitions
    request, is_new = close_partition(config, "s", one.name, why="it was deleted", by="a test")
    assert is_new
    assert close_partition(config, "s", one.name, why="again") == (request, False)
    assert rebuild(config, "accounts", spark=live.spark).changes == 3
    assert jobs(config, "accounts", limit=1)[0].kind == "rebuild"
    assert [finding.text for finding in validate_config(config) if finding.level == "fault"] == []


def test_a_rebuild_closes_the_letters_that_it_covers_wherever_it_dies(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RUN-6: killed before or after the table's commit, or between two transactions of the ledger,
    no read calls the table more complete than it is. The next rebuild closes the rest.
    """
    live.send((0, kafka_key(mark), framed(mark, 1)) for mark in (ANNOUNCED, Heartbeat("p", 10)))
    live.publish(account("a", 1, amount="much"), account("b", 2, amount="more"))
    live.publish(account("c", 3, amount="3"))
    live.publish(change(SetCell("f", b"name", b"\xff", 0), at=4, row_key=b"d"))
    run(live.config, spark=live.spark, once=True)
    letters, later = DeadLetters(live.config), Heartbeat("p", 20)
    of_amount = [letter.id for letter, _ in letters.list() if letter.key in (b"a", b"b")]
    assert letters.park(LetterFilter(ids=frozenset(of_amount[:1])), why="a question")[0] == 1
    live.tables = (definition(columns=COLUMNS[:1], keep_unmapped=True),)

    def missing() -> int:
        with read(live.config, "accounts", spark=live.spark, max_staleness_s=0) as found:
            assert {row[0] for row in found.rows} <= {"a", "b", "c"}
            return found.missing.count

    def snapshot() -> tuple[set[object], int]:
        with read(live.config, "accounts", snapshot=True) as found:
            return {row[0] for row in found.rows}, found.missing.count

    def rebuilt(dies_at: str = "", commits: int = 9) -> RebuildReport:
        left, commit = count(commits, -1), LedgerWriter.commit

        def commit_or_die(writer: LedgerWriter, writes: Sequence[LedgerWrite]) -> None:
            if not next(left):
                raise CrashError
            commit(writer, writes)

        def on_event(event: Event) -> None:
            if event.text == dies_at:
                raise CrashError

        with monkeypatch.context() as patch:
            patch.setattr(LedgerWriter, "commit", commit_or_die)
            patch.setattr(ledger_topic, "MAX_WRITES", 1)
            return rebuild(live.config, "accounts", spark=live.spark, on_event=on_event)

    for dies_at, commits, left in (
        ("tombstones written", 9, 3),
        ("table committed", 9, 3),
        ("", 0, 3),
        ("", 1, 2),
    ):
        with pytest.raises(CrashError):
            rebuilt(dies_at, commits)
        assert missing() == left
    assert rebuilt().covered == 1
    assert (missing(), status(live.config).tables["accounts"].dead_letters.count) == (1, 1)
    assert rebuilt().covered == 0
    assert snapshot() == ({"c"}, 3), "the rows of before the rebuild"
    live.publish(account("b", 15, name="Bob"))
    live.send([(0, kafka_key(later), framed(later, 1))])
    run(live.config, spark=live.spark, once=True)
    assert (missing(), snapshot()) == (1, ({"a", "b", "c"}, 1))
    ((rejected, _),) = letters.list()
    assert rejected.key == b"d"
    for letter_id in of_amount:
        found = letters.find(letter_id)
        assert found[1].state is LetterState.COVERED
        assert (found[2][-1].by, "up to batch 1" in found[2][-1].why) == ("rebuild", True)
    assert len(live.letters()) == 3


def test_a_wrong_call_is_an_error_with_a_remedy(live: Live, tmp_path: Path) -> None:
    """OPS-1: nothing is started, and nothing is written."""
    with pytest.raises(ConfigError, match="There is no table"):
        read(live.config, "acounts")
    with pytest.raises(ConfigError, match="There is no stream"):
        DeadLetters(live.config, "nowhere")
    with pytest.raises(ConfigError, match=r"A section \[streams\.NAME\] is not set"):
        run(
            load_config(
                None,
                {
                    "CONNECTOR__KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
                    "CONNECTOR__WAREHOUSE": str(tmp_path),
                },
            )
        )
    assert not (tmp_path / "warehouse").exists()


def test_a_call_without_a_session_leaves_the_one_that_exists(live: Live) -> None:
    """OPS-4: `getOrCreate` would return your session, and the end of the call would stop it."""
    for call in (
        lambda: run(live.config, once=True),
        lambda: rebuild(live.config, "accounts"),
    ):
        with pytest.raises(ConnectorError) as caught:
            call()
        assert caught.value.code == "SPARK_SESSION_EXISTS"
    live.spark.range(1).collect()


def test_a_second_run_of_a_stream_is_refused_and_the_first_goes_on(live: Live) -> None:
    """nothing_lost: two queries of one stream in a process would share its checkpoint. A rebuild
    beside an apply would fail at its end.
    """
    live.publish(account("a", 1, name="Ada"))
    refused = list[str]()

    def try_again(event: Event) -> None:
        if event.code in {"BATCH_LOGGED", "APPLIED"}:
            for call in (
                lambda: run(live.config, spark=live.spark, once=True),
                lambda: rebuild(live.config, "accounts", spark=live.spark),
            ):
                with pytest.raises(WriterConflictError) as caught:
                    call()
                refused.append(caught.value.code)

    report = run(live.config, spark=live.spark, once=True, on_event=try_again)
    assert (report.batches, report.applies) == (1, 1)
    assert set(refused) == {"ALREADY_RUNNING"}
    assert run(live.config, spark=live.spark, once=True).batches == 0
    assert rebuild(live.config, "accounts", spark=live.spark).changes == 1


def test_a_session_of_ones_own_is_checked_and_left_alone(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TBL-3: the limits that bound the memory of a damaged record are the driver's."""
    check_session(spark, for_writing=True)
    system = spark._jvm.java.lang.System
    limit = system.clearProperty("org.apache.avro.limits.bytes.maxLength")
    try:
        with pytest.raises(ConnectorError, match="without limits"):
            check_session(spark, for_writing=True)
        check_session(spark)
    finally:
        system.setProperty("org.apache.avro.limits.bytes.maxLength", limit)


def test_the_processor_time_of_jobs_is_that_of_their_thread(live: Live) -> None:
    """JOB-1: jobs outside the block are not counted."""
    query = live.spark.range(2_000_000).selectExpr("sum(hash(id))")
    query.collect()
    with spending(live.spark) as spent:
        assert spent() == (0, 0)
        query.collect()
        within = spent()
    assert within.cpu_us > 1_000
    query.collect()
    with spending(live.spark) as spent:
        assert spent() == (0, 0)

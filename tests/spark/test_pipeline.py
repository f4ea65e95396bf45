"""The pipeline on a real broker and real streaming: what Kafka, the disk and the operator may do to
it between and during runs.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.cimpl import NewTopic as KafkaTopic
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from connector import cli, services
from connector.clock import now_us
from connector.config.settings import KafkaConfig, StreamConfig
from connector.errors import TableError, TopicError
from connector.events import Event
from connector.lake.jobs import History
from connector.lake.state_reader import progress_of, table_state_of
from connector.records import codec
from connector.records.model import Heartbeat, kafka_key
from connector.services import tables
from connector.spark.cluster import Pool
from connector.spark.ingest.source import forget_checkpoint
from connector.spark.stream_ingest import StreamIngest
from connector.state import maintenance_schedule
from connector.state.jobs import MAINTENANCE, Job
from connector.state.table_state import TableState
from tests.broker import NewTopic
from tests.spark.live import Live, beside
from tests.spark.streams import (
    CrashError,
    account,
    crash_at,
    definition,
    job_count,
    versions,
    with_retention,
)
from tests.spark.test_apply_steps import delete

DONE = ("reduced the number of files", "files of old versions were deleted")


@pytest.fixture
def live(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> Iterator[Live]:
    with ExitStack() as stack:
        yield Live(spark, kafka, new_topic(kafka_partitions=2).topic, tmp_path / "warehouse", stack)


def check(live: Live) -> None:
    assert live.logged_offsets() == live.offsets()
    assert live.table() == live.truth()


@pytest.mark.long
def test_resumable_with_and_without_a_checkpoint(live: Live) -> None:
    """TBL-1, TBL-5: run twice, nothing new changes no table; a lost checkpoint is nothing, ingest
    goes on from the changelog. By default, `tests/faults/test_faults.py` shows it.
    """
    live.publish(account("a", 1, name="Ada", amount="1"), account("b", 2, name="Bob"))
    live.send([(0, b"x", b"rubbish")])
    live.pipeline().run_once()
    check(live)
    path, table = f"{live.warehouse}/streams/s/changelog", f"{live.warehouse}/tables/accounts/data"
    before = versions(live.spark, path), versions(live.spark, table)

    live.pipeline().run_once()
    after = versions(live.spark, path), versions(live.spark, table)
    assert after == before, "a newer moment is no commit (TBL-24)"

    # As a process leaves it that was killed while it wrote the offsets of the first batch.
    checkpoint = live.warehouse / "streams" / "s" / "checkpoint"
    for name in ("offsets", "commits"):
        shutil.rmtree(checkpoint / name)
        (checkpoint / name).mkdir()
    (checkpoint / "offsets" / ".0.1f.tmp").write_text("v1\n{}")
    live.publish(account("c", 3, amount="3"))
    live.pipeline().run_once()
    check(live)

    shutil.rmtree(checkpoint)
    live.publish(account("a", 4, amount="2"))
    pipeline = live.pipeline()
    pipeline.run_once()
    check(live)
    assert len(live.letters()) == 1

    # A checkpoint alone is worth nothing either: without a changelog everything is read again.
    shutil.rmtree(live.warehouse / "streams" / "s" / "changelog")
    shutil.rmtree(live.warehouse / "tables")
    live.pipeline().run_once()
    check(live)


@pytest.mark.systems
def test_an_apply_that_committed_before_executors_were_lost_is_in_the_history(live: Live) -> None:
    """SCL-4, JOB-1: the second try finds nothing to do, and knows what the first one committed."""
    live.publish(account("a", 1, name="Ada"), account("b", 2, amount="no number"))
    lost = ["ExecutorLostFailure (executor 1 exited)"]

    def on_step(step: str) -> None:
        if step == "table accounts: table committed" and lost:
            raise PySparkException(lost.pop())

    live.pipeline(on_step).run_once()
    check(live)
    assert not lost
    (job,) = [job for job in History(str(live.warehouse)).jobs("accounts") if job.to_batch]
    state = table_state_of(str(live.warehouse), "s", "accounts")
    assert state is not None
    assert (job.error, job.to_batch, job.letters) == ("", state.to_batch, state.letters)
    assert job.watermark_after == state.apply_watermark


ACCOUNTS = """
[tables.accounts]
stream = "s"
source = "t"
key = { form = "row_key", columns = [{ name = "id", type = "STRING" }] }
columns = [
  { name = "name", family = "f", type = "STRING" },
  { name = "city", family = "f", type = "STRING" },
]
"""


@pytest.mark.long
def test_a_table_gets_a_column_by_the_command(
    live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TBL-8, TBL-19, TBL-21: `connector table rebuild` with a configuration that names other
    columns. By default, `test_s3_pipeline.py` shows it.
    """
    live.publish(
        account("a", 1, name="Ada", city="Rome", amount="1"),
        account("b", 2, name="Bob", amount="2"),
    )
    live.pipeline().run_once()
    file = write_config(live.warehouse.parent, live.kafka.bootstrap_servers, live.topic, ACCOUNTS)
    monkeypatch.setenv("CONNECTOR__WAREHOUSE", str(live.warehouse))
    monkeypatch.setattr(tables, "session_of", lambda *_, **__: live.spark)
    assert cli.invoke(["--config", str(file), "table", "rebuild", "accounts"]) == 0
    assert "accounts is rebuilt from 2 changes, up to batch 1" in capsys.readouterr().err

    assert cli.invoke(["--config", str(file), "read", "accounts", "--json", "--allow-stale"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["id"]: (row["name"], row["city"]) for row in rows} == {
        "a": ("Ada", "Rome"),
        "b": ("Bob", None),
    }
    listed = ["jobs", "--table", "accounts", "--json", "--limit", "1"]
    assert cli.invoke(["--config", str(file), *listed]) == 0
    job = json.loads(capsys.readouterr().out)
    assert (job["kind"], job["changes"], job["error"]) == ("rebuild", 2, None)


def test_nothing_invented_by_aborted_transactions_nothing_lost_by_new_kafka_partitions(
    live: Live, admin: AdminClient
) -> None:
    """TBL-1, TBL-5: offsets of aborted records and of markers are read past; a Kafka partition that
    was added is read from its start.
    """
    live.publish(account("a", 1, name="Ada"))
    live.abort(account("a", 9, name="Eve"), account("e", 9, name="Eve"))
    live.pipeline().run_once()
    check(live)
    admin.create_partitions([NewPartitions(live.topic, 3)])[live.topic].result(30)
    live.publish(account("c", 2, name="Cid"), at=2)
    live.publish(account("a", 3, amount="7"))
    live.pipeline().run_once()
    check(live)
    assert live.changelog().progress().ingest_batch == 2


@pytest.mark.long
def test_maintenance_between_applies_changes_nothing(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TBL-15, TBL-23, JOB-1: whatever is due is done behind the applies, said, and kept in the
    history.
    """
    for name, value in (
        ("GAIN", 1),
        ("GAIN_OF_LOG", 1),
        ("GAIN_PER_PARTITION", 0),
        ("TIER", 1_000_000),
        ("CLEAN_APART_US", 0),
    ):
        monkeypatch.setattr(maintenance_schedule, name, value)
    monkeypatch.setattr(Live, "stream", with_retention(live.stream, 2))
    said: list[str] = []
    for at in range(1, 5):
        gone = [delete(f"c{at - 1}", at)] if at > 1 else []
        live.publish(
            account("a", at, name=f"Ada {at}"),
            account("b", at, amount=str(at)),
            account(f"c{at}", at, name="Cid"),
            *gone,
        )
        live.pipeline(on_event=lambda event: said.append(event.line)).run_once()
        check(live)
        time.sleep(1)
    assert not [line for line in said if "failed" in line]
    for what in ("table accounts", "stream s"):
        for which in DONE:
            assert [line for line in said if line.startswith(f"{what}: ") and which in line], (
                what,
                which,
            )
    history = History(str(live.warehouse))
    for jobs in (history.maintenance(table="accounts"), history.maintenance(stream="s")):
        assert jobs.keys() == set(MAINTENANCE)
        assert all(job.files > 0 and not job.error for job in jobs.values())


@pytest.mark.long
def test_where_nothing_is_new_no_query_is_started_and_the_moment_is_renewed(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TBL-16, OPS-4: Kafka ends where the changelog does. A table defined since is made and filled;
    a record more is read. By default, `test_staleness_is_bounded_as_in_the_worked_example` shows
    it.
    """
    live.publish(account("a", 1, name="Ada"))
    live.pipeline().run_once()
    started: list[str] = []
    start = StreamIngest.start

    def heard(ingest: StreamIngest, *, once: bool) -> None:
        started.append("query")
        start(ingest, once=once)

    monkeypatch.setattr(StreamIngest, "start", heard)
    before = live.changelog().progress().freshness.newest
    live.tables = (*live.tables, definition("copy"))
    live.pipeline().run_once()
    after = live.changelog().progress()
    assert (started, after.ingest_batch) == ([], 1)
    assert before is not None
    assert after.freshness.newest is not None
    assert after.freshness.newest > before
    assert live.spark.read.format("delta").load(f"{live.warehouse}/tables/copy/data").count() == 1

    jobs = job_count(live.spark)
    live.pipeline().run_once()
    assert job_count(live.spark) == jobs, "the first Spark job of a process takes seconds"

    live.publish(account("b", 2, name="Bob"))
    live.pipeline().run_once()
    assert started == ["query"]
    check(live)


@pytest.mark.long
def test_letters_are_published_where_nothing_is_new_but_a_crash_came_between(live: Live) -> None:
    """TBL-2: what is left of the newest batch is done, though no query is started. By default,
    `test_resumable_at_every_step_of_ingest` shows it.
    """
    live.publish(account("a", 1, name="Ada"))
    live.send([(0, b"x", b"rubbish")])
    crashes = crash_at("stream s: logged")
    with pytest.raises(CrashError):
        live.pipeline(crashes).run_once()
    assert live.letters() == []
    live.pipeline().run_once()
    assert len(live.letters()) == 1
    assert live.changelog().progress().ingest_batch == 1
    check(live)


@pytest.mark.long
def test_each_table_is_applied_at_its_own_pace(live: Live) -> None:
    """JOB-2, TBL-10: a short pace makes no other table apply; the stop brings all to one
    cut.
    """
    live.tables = (definition(max_staleness_s=2), definition("rare", apply_every_s=3600))
    stop = threading.Event()

    def publish() -> None:
        deadline = time.monotonic() + 120
        for at in range(1, 1000):
            live.publish(account(f"r{at % 7}", at, name=f"n{at}"))
            if len(applies("accounts")) >= 4 or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        rare.extend(applies("rare"))
        stop.set()

    def applies(table: str) -> list[Job]:
        return History(str(live.warehouse)).jobs(table)

    rare: list[Job] = []
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        live.pipeline().run(stop)
    finally:
        publisher.join()
    often = [job.started_at for job in applies("accounts")][::-1]
    assert len(often) >= 4
    assert all(later - earlier >= 500_000 for earlier, later in pairwise(often[:-1]))
    assert len(rare) == 1, "with the first batch, and then in an hour"
    batches = {
        book.to_batch
        for book in (table_state_of(str(live.warehouse), "s", table.name) for table in live.tables)
    }
    assert batches == {live.changelog().progress().ingest_batch}


def test_a_run_gives_ingest_and_applies_their_pools(live: Live) -> None:
    """JOB-3"""
    pools = dict[str, str | None]()

    def on_step(step: str) -> None:
        pools[step] = live.spark.sparkContext.getLocalProperty("spark.scheduler.pool")

    live.publish(account("a", 1, name="Ada"))
    pipeline = live.pipeline(on_step)
    pipeline._applies._merge_few = None  # the apply is one of Spark
    pipeline.run_once()
    assert pools["stream s: logged"] == "ingest"
    assert pools["table accounts: table committed"] == "apply"


@pytest.mark.long
def test_a_batch_does_not_wait_for_an_apply(live: Live) -> None:
    """JOB-3: batches are logged before an apply that began earlier commits. In Spark, ingest gets a
    free core first. By default, `tests/unit/spark/test_apply_entry.py` shows it.
    """
    stop, logged = threading.Event(), list[int]()

    def newest() -> int:
        batch = live.changelog().newest()
        return 0 if batch is None else batch.ingest_batch

    def on_step(step: str) -> None:
        if step != "table accounts: tombstones written" or logged:
            return
        began = newest()
        deadline = time.monotonic() + 120
        for at in (2, 3):
            live.publish(account(f"r{at}", at, name="Bob"))
            while newest() < began + at - 1 and time.monotonic() < deadline:
                time.sleep(0.1)
        logged.extend((began, newest()))
        stop.set()

    live.publish(account("a", 1, name="Ada"))
    live.pipeline(on_step).run(stop)
    assert logged == [1, 3]
    check(live)
    context = live.spark.sparkContext._jsc.sc()  # type: ignore[union-attr]
    shares = [context.getPoolForName(pool).get().minShare() for pool in Pool]
    assert dict(zip(Pool, shares, strict=True)) == {pool: int(pool is Pool.INGEST) for pool in Pool}


@pytest.mark.long
def test_nothing_lost_or_doubled_by_a_stop(live: Live) -> None:
    """OPS-4, TBL-2: data keeps arriving, the stop waits for the batch in flight and applies what
    was ingested; the next run goes on. By default, `test_process.py` in `make test-systems` shows
    it.
    """
    stop = threading.Event()

    def publish() -> None:
        for at in range(1, 1000):
            live.publish(account(f"r{at % 7}", at, name=f"n{at}", amount=str(at)))
            newest = live.changelog().newest()
            if newest is not None and newest.ingest_batch >= 2:
                break
            time.sleep(0.05)
        stop.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        live.pipeline().run(stop)
    finally:
        publisher.join()
    logged, visible = live.logged_offsets(), live.offsets()
    assert set(logged) <= set(visible)
    assert len(logged) == len(set(logged)) > 0
    live.pipeline().run_once()
    check(live)


@pytest.mark.long
def test_a_batch_that_begins_after_the_stop_is_taken_at_the_next_start(live: Live) -> None:
    """OPS-4: it is neither done nor acknowledged, and the stop does not wait for it. By default,
    `test_process.py` shows it.
    """
    live.publish(account("a", 1, name="Ada"))
    pipeline = live.pipeline()
    ingest: StreamIngest = pipeline._streams["s"]
    ingest.start(once=False)
    ingest._stopping = True
    assert ingest._query is not None
    deadline = time.monotonic() + 60
    while ingest._query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    ingest.stop()
    ingest.check()
    assert live.changelog().newest() is None
    pipeline.run_once()
    check(live)


@pytest.mark.systems
def test_an_open_transaction_of_another_producer_is_named(live: Live) -> None:
    """OPS-5, OPS-4: acknowledged changes behind it are not ingested. `run --once` and the status
    say so, with the age of the transaction and its stream partition, and the lag is not 0.
    """
    live.publish(account("a", 1, name="Ada"), at=0)
    events: list[Event] = []
    hidden = account("h", 2, name="hidden")
    settings = {"transactional.id": f"{live.topic}-open", "transaction.timeout.ms": 600_000}
    producer = Producer({"bootstrap.servers": live.kafka.bootstrap_servers, **settings})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(live.topic, codec.framed(hidden, 2), kafka_key(hidden), 0)
    assert producer.flush(30) == 0
    live.publish(account("b", 3, name="Bob"), at=0)
    live.publish(account("c", 4, name="Cy"), at=1)

    def run() -> list[str]:
        events.clear()
        services.run(live.config, spark=live.spark, once=True, on_event=events.append)
        return [event.text for event in events if event.code == "OPEN_TRANSACTION"]

    text = "hides 2 offsets of Kafka partition 0: its first record, at offset 1"
    for _ in range(2):  # also where nothing else is new
        (told,) = run()
        assert text in told
        assert f"is of stream partition {hidden.stream_partition}" in told
    status = services.status(live.config, now=now_us() + 61_000_000).streams["s"]
    assert status.lag == 2
    assert [hint for hint in status.hints if text in hint]
    assert status.to_json()["open_transactions"][0]["kafka_partition"] == 0
    assert set(live.table()) == {"a", "c"}
    producer.abort_transaction(30)
    assert run() == []
    status = services.status(live.config).streams["s"]
    assert (status.lag, status.open_transactions) == (0, ())
    assert set(live.table()) == {"a", "b", "c"}


@pytest.mark.long
@pytest.mark.parametrize("kafka_partitions", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_topic_that_was_created_again_stops_the_pipeline(
    live: Live, admin: AdminClient, kafka_partitions: int
) -> None:
    """REC-4: also when the new topic has grown past what was read of the old one, or has fewer
    Kafka partitions; the table is left as it was. By default, `test_changelog_guards.py` shows it.
    """
    live.publish(account("a", 1, name="Ada"))
    live.pipeline().run_once()
    before = live.table()
    admin.delete_topics([live.topic])[live.topic].result(30)
    deadline = time.monotonic() + 30
    while live.topic in admin.list_topics(timeout=10).topics and time.monotonic() < deadline:
        time.sleep(0.05)
    again = KafkaTopic(live.topic, num_partitions=kafka_partitions)
    admin.create_topics([again])[live.topic].result(30)
    live.publish(*(account(row, at, name="new") for at, row in enumerate("abcdef", start=5)))
    with pytest.raises(TopicError, match="created again"):
        live.pipeline().run(threading.Event())
    with pytest.raises(TopicError, match="created again"):
        live.pipeline().run_once()
    assert live.table() == before


def test_records_that_retention_took_are_an_error(live: Live, admin: AdminClient) -> None:
    """TBL-1: nothing_lost: never a silent gap."""
    live.publish(account("a", 1, name="Ada"), at=0)
    live.pipeline().run_once()
    live.publish(*(account("a", at, name="Ada") for at in (2, 3)), at=0)
    admin.delete_records([TopicPartition(live.topic, 0, 2)])[
        TopicPartition(live.topic, 0, 2)
    ].result(30)
    with pytest.raises(TopicError, match="Kafka deleted records"):
        live.pipeline().run_once()
    assert live.logged_offsets() == [(0, 0)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no small file system can be mounted without the rights of root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.long
def test_nothing_lost_when_the_disk_is_full(live: Live, small_disk: Path) -> None:
    """TBL-2, TBL-5: resumable: a clear error, and everything is there once there is space again. By
    default, `test_nothing_lost_when_a_write_breaks_off` shows it.
    """
    live.warehouse = small_disk / "warehouse"
    live.publish(account("a", 1, name="Ada"))
    live.pipeline().run_once()
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"), ballast.open("wb") as file:
        while True:
            file.write(os.urandom(4096))
            file.flush()
    live.publish(*(account(row, 2, name=row * 2000) for row in "abcdefgh"))
    for _ in range(2):
        with pytest.raises(TableError, match="disk is full"):
            live.pipeline().run_once()
    ballast.unlink()
    live.pipeline().run_once()
    check(live)


@pytest.mark.skipif(
    not hasattr(resource, "prlimit"), reason="only Linux can limit the files of a running process"
)
def test_nothing_lost_when_a_write_breaks_off(live: Live) -> None:
    """TBL-2, TBL-5: resumable: no file may grow beyond 1,000 bytes: half of one is never read, and
    the error says what it is.
    """
    pid = int(live.spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr,operator]
    live.publish(account("a", 1, name="Ada"))
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(TableError, match="ulimit -f"):
            live.pipeline().run_once()
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
    live.pipeline().run_once()
    check(live)


def connector_run(file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `connector run --once` says when it refuses to start."""
    began = time.monotonic()
    assert cli.invoke(["--config", str(file), "run", "--once"]) == 1
    assert time.monotonic() - began < 15
    return capsys.readouterr().err


def write_config(folder: Path, servers: str, topic: str, more: str = "") -> Path:
    file = folder / "connector.toml"
    file.write_text(
        f'warehouse = "wh"\n[kafka]\nbootstrap_servers = "{servers}"\n[streams.s]\ntopic ='
        f' "{topic}"\n{more}'
    )
    return file


def test_a_compacted_topic_is_refused(
    kafka: KafkaConfig,
    new_topic: NewTopic,
    admin: AdminClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """REC-2: compaction would lose partial updates; nothing is started."""
    topic = f"{new_topic().topic}.compacted"
    compacted = KafkaTopic(topic, 1, 1, config={"cleanup.policy": "compact"})
    for created in admin.create_topics([compacted]).values():
        created.result(30)
    said = connector_run(write_config(tmp_path, kafka.bootstrap_servers, topic), capsys)
    assert "is compacted" in said
    assert [path.name for path in (tmp_path / "wh").rglob("*.*")] == ["process.json"], "RUN-1"


def test_a_run_that_cannot_start_names_the_cause(
    kafka: KafkaConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-1, OPS-10: an unreachable broker, a topic that is missing, a misspelt setting."""
    said = connector_run(write_config(tmp_path, "127.0.0.1:1", "t"), capsys)
    assert "No Kafka broker answers at 127.0.0.1:1" in said
    assert "There is no topic nowhere" in connector_run(
        write_config(tmp_path, kafka.bootstrap_servers, "nowhere"), capsys
    )
    said = connector_run(
        write_config(tmp_path, kafka.bootstrap_servers, "t", "halt_on_frist = true\n"), capsys
    )
    assert "halt_on_frist" in said
    assert "halt_on_first" in said


@pytest.mark.parametrize(
    ("offsets", "commits", "stays"),
    [((0, 1), (0, 1), True), ((0, 1), (0,), False), ((), (0,), False)],
)
def test_resumable_from_a_checkpoint_only_if_its_last_batch_is_in_both_logs(
    spark: SparkSession,
    tmp_path: Path,
    offsets: tuple[int, ...],
    commits: tuple[int, ...],
    stays: bool,
) -> None:
    """TBL-5: a checkpoint that a crash or a second process damaged would stop each start. The
    changelog has the offsets to continue from.
    """
    for name, numbers in (("offsets", offsets), ("commits", commits)):
        (tmp_path / "checkpoint" / name).mkdir(parents=True)
        for number in numbers:
            (tmp_path / "checkpoint" / name / str(number)).touch()
    forget_checkpoint(spark, str(tmp_path / "checkpoint"))
    assert (tmp_path / "checkpoint").exists() == stays


class Announced(Live):
    """With a stream partition that the configuration names, so the low watermark is known."""

    @property
    def stream(self) -> StreamConfig:
        return replace(super().stream, partitions=("p",))


@pytest.mark.parametrize("is_cut", [False, True])
def test_heartbeats_alone_make_no_batch_and_no_apply(live: Live, *, is_cut: bool) -> None:
    """TBL-24, TBL-16: and the table is as fresh as with them. A change ends the wait, and is
    in the table soon.
    """
    warehouse = str(live.warehouse)
    live.__class__ = Announced if is_cut else Live

    def state() -> TableState:
        return table_state_of(warehouse, "s", "accounts")

    def beat(until: Callable[[], bool], within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not until():
            assert time.monotonic() < deadline
            heartbeat = Heartbeat("p", now_us() - 1_000)
            value = codec.frame(codec.encode(heartbeat, 2), None)
            live.send((number, kafka_key(heartbeat), value) for number in (0, 1))
            time.sleep(0.3)

    def is_held(for_s: float) -> Callable[[], bool]:
        """Whether no batch and no apply was made for so long, and the table is fresh."""
        newest, since = (0, 0), time.monotonic()

        def held() -> bool:
            nonlocal newest, since
            progress, table = progress_of(warehouse, "s"), state()
            now = (progress.ingest_batch, table.apply_number)
            if now != newest:
                newest, since = now, time.monotonic()
            is_new = now_us() - (progress.as_of(table) or 0) < 5_000_000
            return is_new and table.is_consistent_cut is is_cut and time.monotonic() - since > for_s

        return held

    live.publish(account("a", now_us() - 10_000_000, name="Ada"))
    with beside(live.pipeline().run):
        beat(is_held(6), 90)
        live.publish(account("b", now_us(), name="Bob"))
        before = state().merged
        beat(lambda: state().merged > before and state().is_consistent_cut is is_cut, 40)
    assert live.table() == live.truth()

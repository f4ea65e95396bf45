"""EVO-13: a truncation deletes what is older, in every reader, whatever the order of arrival."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.kafka import ChangeProducer, TransactionConsumer, WholeTransaction
from connector.records.codec import framed
from connector.records.model import CONTROL_KEY, Heartbeat, Transaction, Truncate
from connector.records.ordering import OrderBy
from connector.records.rejection import Reason
from connector.services.read import read
from connector.services.rows.explain import explain
from connector.spark.apply import apply as apply_module
from connector.spark.apply import truncation
from connector.spark.apply.truncation import OlderRows
from connector.spark.changes import read_changes
from connector.spark.reader import read_table
from connector.spark.storage.logged_batch import BatchRange
from connector.tables.definition import TableDefinition, Versions
from connector.tables.explain import Outcome
from tests.broker import NewTopic
from tests.changes import change, put
from tests.examples import tries
from tests.spark.live import Live
from tests.spark.streams import (
    STREAM,
    CrashError,
    Stream,
    account,
    crash_at,
    definition,
    job_count,
    rows_by_key,
    shown,
    versions,
)
from tests.spark.test_cut import ANNOUNCED, S
from tests.spark.test_rebuild import rebuilt

T = 10 * S
LATEST_STEPS = ("letters published", "tombstones written", "table committed")


def truncate(at: int, table: str = "t", **others: object) -> Truncate:
    return Truncate("p", table, at, **others)  # type: ignore[arg-type]


def fresh(stream: Stream, wanted: TableDefinition | None = None) -> dict[object, dict[str, object]]:
    """The rows of a read that has everything."""
    read = read_table(
        stream.spark, str(stream.folder), "accounts", max_staleness_s=0, add_job=lambda job: None
    )
    return rows_by_key(read.rows, wanted)


def explained(stream: Stream, key: bytes) -> object:
    tables = {"accounts": definition()}
    config = ConnectorConfig(
        str(stream.folder), KafkaConfig("127.0.0.1:1"), None, {"s": STREAM}, tables
    )
    return explain(config, "accounts", key, ask_kafka=False)


@pytest.mark.long
def test_a_late_change_brings_no_row_of_a_truncated_table_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    """EVO-13, `deletes_stay_deleted`, worked example 5 of page 09: TRUNCATE at T; a late insert of
    T - 1 s arrives, then an insert of T + 1 s: one row. A rebuild gives the same. By default,
    the next tests show it.
    """
    stream = Stream(spark, tmp_path, without_spark=repeat(True))
    table = stream.table()
    stream.topic.send_everywhere(ANNOUNCED)
    stream.topic.send(*(account(row, T - 5 * S, name=row) for row in "abc"))
    stream.topic.send_everywhere(Heartbeat("p", T - 4 * S))
    stream.ingest()
    stream.apply(table)
    assert set(shown(table)) == {"a", "b", "c"}

    stream.topic.send_everywhere(truncate(T))
    stream.topic.send_everywhere(Heartbeat("p", T))
    assert stream.ingest().truncations.ranks() == {"t": (T, 0, 0)}
    assert fresh(stream) == {}
    before = versions(spark, table.path)
    assert stream.apply(table) is not None
    assert shown(table) == {}
    assert versions(spark, table.path) == before + 1, "rows and the table state are one commit"
    assert DeltaTable(table.path).file_uris() == []
    state = table.table_state()
    assert (state.truncated, state.is_consistent_cut, state.merged) == ((T, 0, 0), True, 4)

    stream.topic.send(account("a", T - S, name="late"))
    stream.ingest()
    jobs = job_count(spark)
    stream.apply(table)
    assert job_count(spark) == jobs, "a small apply knows the truncation"
    assert shown(table) == {}

    stream.topic.send(account("b", T + S, name="new"))
    stream.topic.send_everywhere(Heartbeat("p", T + 2 * S))
    stream.ingest()
    stream.apply(table)
    assert {key: row["name"] for key, row in shown(table).items()} == {"b": "new"}
    assert shown(table) == stream.truth()
    rebuilt(stream)
    again = stream.table()
    assert shown(again) == stream.truth()
    assert again.table_state().truncated == (T, 0, 0)
    assert stream.letters == []

    found = explained(stream, b"a")
    (column,) = found.explanation.columns  # type: ignore[attr-defined]
    assert [entry.outcome for entry in column.entries] == [Outcome.TRUNCATED] * 2
    (one,) = found.explanation.truncations  # type: ignore[attr-defined]
    assert (one.truncate, one.hides) == (truncate(T), 2)
    assert (found.row, found.applied_row, found.is_confirmed) == (None, None, True)  # type: ignore[attr-defined]
    assert read_changes(spark, str(tmp_path), "s").count() == 5, "the changes stay in the changelog"


def test_explain_names_no_letter_of_a_truncated_change(spark: SparkSession, tmp_path: Path) -> None:
    """EVO-13, SUB-6: a value that no column can hold, and a truncation after it in the same apply:
    there is no dead letter. Of an earlier apply there is one, and only Kafka knows it.
    """
    stream = Stream(spark, tmp_path)
    table = stream.table()
    for letters in (0, 1):
        at = T * (letters + 1)
        stream.topic.send(account("a", at - S, amount="much"))
        stream.topic.send_everywhere(Heartbeat("p", at - S + 1))
        stream.ingest()
        if letters:
            stream.apply(table)
        stream.topic.send_everywhere(truncate(at), Heartbeat("p", at + S))
        stream.ingest()
        stream.apply(table)
        assert len(stream.letters) == letters
    found = explained(stream, b"a")
    assert [each.dead_letter for each in found.changes] == [None, None]  # type: ignore[attr-defined]
    assert found.not_looked_at == ("The dead-letter topic: Kafka was not asked",)  # type: ignore[attr-defined]


def test_the_copies_are_one_and_a_heartbeat_waits_for_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    """EVO-13, `cut_is_consistent`: it counts from the first copy. In each Kafka partition, its copy
    is before the heartbeat. So the low watermark passes it after all copies. A producer that died
    sent only one.
    """
    stream = Stream(spark, tmp_path)
    table, topic = stream.table(), stream.topic
    topic.send_everywhere(ANNOUNCED)
    topic.send(account("a", 5, name="a"), account("b", 5, name="b"))
    topic.send_everywhere(Heartbeat("p", 8))
    stream.ingest()
    stream.apply(table)
    together = Transaction("tx", 1, number_of_records_in_transaction=2)
    copy = truncate(10, transaction=together)
    filled = change(put("c", qualifier=b"name"), at=10, row_key=b"c", record_sequence=2)
    topic.send_everywhere(copy)
    topic.send(filled)
    topic.send_everywhere(Heartbeat("p", 20))
    ends = topic.rest().end
    one = BatchRange(topic.read, {0: ends[0], 1: topic.read[1]})
    progress = stream.ingest(offsets=one)
    assert progress.truncations.last_batch("t") == 2
    assert progress.low_watermark == 9
    stream.apply(table)
    assert set(shown(table)) == {"a", "b"}, "the truncation is not below the low watermark"
    assert table.table_state().complete_to_batch == 1, "it waits"
    progress = stream.ingest()
    assert progress.low_watermark == 21
    stream.apply(table)
    assert set(shown(table)) == {"c"}, "at equality, the change wins"
    assert shown(table) == stream.truth()

    topic.raw(*[(CONTROL_KEY, value) for _, value in topic.records[0][-2:-1]], at=1)
    stream.ingest()
    stream.apply(table)
    assert shown(table) == stream.truth()
    assert stream.letters == []


@pytest.mark.parametrize(
    "wanted",
    [
        definition(),
        pytest.param(
            definition(deletion_vectors=False, keep_unmapped=False), marks=pytest.mark.long
        ),
        pytest.param(definition(versions=Versions.ALL), marks=pytest.mark.long),
        pytest.param(definition(order=OrderBy.SEQUENCE_NUMBER), marks=pytest.mark.long),
    ],
    ids=["vectors", "buckets", "all versions", "by number"],
)
def test_any_arrival_gives_the_rows_of_the_definition(
    spark: SparkSession,
    tmp_path: Path,
    seed: int,
    wanted: TableDefinition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """EVO-13, MRG-4, `newest_wins`, `resumable`: changes and truncations in any order, whole and
    partial, with a crash at some step of each apply. Fresh reads and a rebuild show the same.
    """
    rng = Random(seed)
    ways = any_way(rng, wanted, monkeypatch)
    stream = Stream(spark, tmp_path)
    table = stream.table(wanted)
    for _ in range(len(tries(6, quick=2))):
        for _ in range(rng.randint(1, 12)):
            send_something(stream, rng)
        stream.ingest()
        assert fresh(stream, wanted) == stream.truth(wanted)
        if rng.random() < 0.5:
            with pytest.raises(CrashError):
                stream.apply(table, crash_at(rng.choice(LATEST_STEPS)))
            table = stream.table(wanted)
        stream.apply(table)
        assert shown(table) == stream.truth(wanted)
    newer = (account(row, 60, name="x") for row in "abcdef")
    stream.topic.send(*(replace(change_, change_sequence_number="60") for change_ in newer))
    stream.topic.send(replace(account("a", 45, amount="1"), change_sequence_number="45"))
    stream.ingest()
    stream.apply(table)
    stream.topic.send_everywhere(truncate(50, change_sequence_number="50"))
    stream.ingest()
    assert fresh(stream, wanted) == stream.truth(wanted)
    stream.apply(table)
    assert shown(table) == stream.truth(wanted)
    assert any(count for count, _ in ways), "a truncation that keeps newer rows"
    made = rebuilt(stream, wanted)
    assert shown(stream.table(wanted)) == stream.truth(wanted)
    assert made.table_state.truncated == table_rank(stream, wanted)


def any_way(
    rng: Random, wanted: TableDefinition, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, bool]]:
    """Replace rows in any way that is possible. The list gets how many rows a truncation touched,
    and whether the apply replaced only these.
    """
    ways = list[tuple[int, bool]]()

    def older_rows(*arguments: Any) -> OlderRows:
        count = truncation.older_rows(*arguments).count
        ways.append((count, wanted.deletion_vectors and rng.random() < 0.5))
        return OlderRows(*ways[-1])

    def deletes_all(*arguments: Any) -> bool:
        return truncation_deletes_all(*arguments) and rng.random() < 0.3

    truncation_deletes_all = truncation.deletes_all
    monkeypatch.setattr(apply_module, "older_rows", older_rows)
    for module in (apply_module, truncation):
        monkeypatch.setattr(module, "deletes_all", deletes_all)
    return ways


def table_rank(stream: Stream, wanted: TableDefinition) -> tuple[int, ...] | None:
    ranks = stream.changelog().progress().truncations.ranks()
    if wanted.order is OrderBy.COMMIT or not ranks:
        return ranks.get("t")
    return stream.table(wanted).table_state().truncated


def send_something(stream: Stream, rng: Random) -> None:
    at, row = rng.randint(1, 40), rng.choice("abcdefgh")
    number = f"{rng.randint(0, 20):X}"
    if rng.random() < 0.15:
        one = truncate(at, tie_breaker=rng.randint(0, 1), change_sequence_number=number)
        stream.topic.send_everywhere(one)
        return
    change_ = account(row, at, **{rng.choice(("name", "amount", "more")): str(at)})
    if rng.random() < 0.2:
        change_ = account(row, at, name=str(at), amount="1")
    tie_breaker = rng.randint(0, 1)
    stream.topic.send(replace(change_, change_sequence_number=number, tie_breaker=tie_breaker))


def test_bad_truncations_are_dead_letters_and_their_copies_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    """EVO-13, REC-15, MRG-11, TBL-7, `poison_is_contained`: beyond the skew, too late, of an
    unknown table. A copy of an accepted truncation is no letter, however late it is.
    """
    config = replace(STREAM, delete_retention_s=10)
    stream = Stream(spark, tmp_path, config=config, reject_unknown_tables=True)
    table, topic, day = stream.table(), stream.topic, 86_400 * S
    arrival = 1_714_478_400_000_000
    topic.send_everywhere(ANNOUNCED)
    topic.send(account("a", day, name="a"))
    topic.send_everywhere(truncate(arrival + day), truncate(day, "other"))
    topic.raw((CONTROL_KEY, encoded(truncate(2 * day))), at=0)
    topic.send_everywhere(Heartbeat("p", 3 * day))
    progress = stream.ingest()
    reasons = [letter.reason for letter in stream.letters]
    assert sorted(reasons) == sorted(
        [*[Reason.COMMIT_TIMESTAMP_IN_FUTURE] * 2, *[Reason.UNKNOWN_TABLE] * 2]
    )
    assert progress.truncations.ranks() == {"t": (2 * day, 0, 0)}
    stream.letters.clear()
    topic.raw((CONTROL_KEY, encoded(truncate(2 * day))), at=1)
    topic.send_everywhere(truncate(2 * day, tie_breaker=1))
    stream.ingest()
    assert [letter.reason for letter in stream.letters] == [Reason.TOO_LATE] * 2
    assert all("the horizon was" in letter.detail for letter in stream.letters)
    topic.send(account("b", 4 * day, name="b"))
    stream.ingest()
    stream.apply(table, now=stream.clock + 10**15)
    assert set(shown(table)) == {"b"}
    assert table.table_state().truncated == (2 * day, 0, 0)


def test_a_truncation_without_a_number_is_a_dead_letter_of_a_table_by_number(
    spark: SparkSession, tmp_path: Path
) -> None:
    """EVO-13, MRG-2: of the table, as a change without a number is. The row stays."""
    wanted = definition(order=OrderBy.SEQUENCE_NUMBER)
    stream = Stream(spark, tmp_path)
    table = stream.table(wanted)
    stream.topic.send(replace(account("a", 5, name="a"), change_sequence_number="7"))
    stream.topic.send_everywhere(truncate(9))
    stream.ingest()
    applied = stream.apply(table)
    assert applied is not None
    assert (applied.changes, applied.letters) == (1, 2)
    letters = [(letter.reason, letter.table, letter.key) for letter in stream.letters]
    assert letters == [(Reason.MISSING_SEQUENCE_NUMBER, "accounts", CONTROL_KEY)] * 2
    assert set(shown(table)) == {"a"}
    assert table.table_state().letters == 2
    stream.topic.send_everywhere(truncate(9, change_sequence_number="8"))
    stream.ingest()
    stream.apply(table)
    assert shown(table) == {}
    assert len(stream.letters) == 2


def test_worked_example_5_with_a_broker(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """EVO-13, worked example 5 of page 09: a producer, the pipeline, and a reader of whole
    transactions. A transaction truncates a table and fills it.
    """
    now = time.time_ns() // 1_000
    emptied = Truncate("p", "t", now, transaction=Transaction("tx", 0, False, 2))
    filled = replace(
        account("new", now, name="new"), transaction=Transaction("tx", 1, True, 2), table="t"
    )
    with ExitStack() as stack:
        live = Live(spark, kafka, new_topic(kafka_partitions=2).topic, tmp_path / "w", stack)
        with ChangeProducer(kafka, live.topic, transactional_id=f"{live.topic}-1") as producer:
            for row in "abc":
                producer.send(account(row, now - 5 * S, name=row))
            producer.send(Heartbeat("p", now - 4 * S))
            live.pipeline().run_once()
            assert set(live.table()) == {"a", "b", "c"}
            with producer.transaction():
                producer.send(filled)
                producer.send(emptied)
            producer.send(Heartbeat("p", now))
            producer.send(replace(account("a", now - S, name="late"), stream_partition="late"))
            producer.send(Heartbeat("late", now))
            live.pipeline().run_once()
        assert {key: row["name"] for key, row in live.table().items()} == {"new": "new"}
        assert live.letters() == []
        with read(live.config, "accounts", spark=spark, max_staleness_s=0) as rows:
            assert [row[0] for row in rows.rows] == ["new"]
        with TransactionConsumer(kafka, live.topic, bounded=True) as consumer:
            whole = [item for item in consumer if isinstance(item, WholeTransaction)]
    assert [item.changes for item in whole][-1] == (emptied, filled)
    assert whole[-1].missing == 0


def encoded(record: Truncate) -> bytes:
    return framed(record, 2)


@pytest.mark.long
def test_an_apply_without_a_truncation_costs_what_it_did(
    spark: SparkSession, tmp_path: Path
) -> None:
    """EVO-13: the same Spark jobs and commits, also after the table was truncated. By
    default, `test_apply_steps.py` shows the first.
    """
    costs = []
    for truncates in (False, True):
        stream = Stream(spark, tmp_path / str(truncates), without_spark=repeat(False))
        table = stream.table()
        stream.topic.send(*(account(row, 5, name=row) for row in "abc"))
        stream.ingest()
        stream.apply(table)
        if truncates:
            stream.topic.send_everywhere(truncate(6))
        stream.topic.send(account("d", 7, name="d"))
        stream.ingest()
        stream.apply(table)
        stream.topic.send(account("e", 8, name="e"))
        stream.ingest()
        jobs, commits = job_count(spark), versions(spark, table.path)
        jobs = job_count(spark)
        stream.apply(table)
        costs.append((job_count(spark) - jobs, versions(spark, table.path) - commits))
        assert set(shown(table)) == ({"d", "e"} if truncates else set("abcde"))
    assert costs[0] == costs[1]

"""Four workers load rows in pending write streams and commit them together, while everything
breaks, in an order drawn from the seed. Then every promise is judged.

ROWS in the environment says how many rows are loaded (8,000 unless given), and EVENTS how many
faults happen meanwhile (one of each kind unless given). `make test-faults SEED=… ROWS=… EVENTS=…`
repeats a run, or makes a long one.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig
from connector.lake.plain_table import open_table
from connector.records import codec
from connector.records.model import DataChange, OffsetRange, Record, Release
from connector.services.audit import audit
from connector.services.tables import rebuild
from connector.tables.definition import TableDefinition
from tests.faults.applying import RELEASE_POINTS
from tests.faults.history import kept_on_failure
from tests.faults.loading import Load, loading
from tests.faults.validators import _commits
from tests.faults.write_stream_programs import TOPIC, WORKERS, names, read_source, row_key
from tests.spark.live import records, truth

KINDS = (
    "kill_worker",
    "kill_worker_at_a_line",
    "take_over",
    "restart_broker",
    "crash_pipeline",
    "kill_app",
)
ROWS = int(os.environ.get("ROWS", "8000"))
EVENTS = int(os.environ.get("EVENTS", len(KINDS)))

Rows = dict[object, dict[str, object]]


@pytest.mark.long
@pytest.mark.timeout(600 + 60 * EVENTS + ROWS // 100)
def test_all_rows_of_a_load_once_and_in_one_version_whatever_breaks(
    spark: SparkSession, seed: int
) -> None:
    """WRS-2, WRS-5 to WRS-8, WRS-13 to WRS-15, WRS-18, WRS-19: exactly_once, all_or_nothing,
    nothing_lost, newest_wins, resumable.
    """
    rng, began = Random(seed), time.monotonic()
    with kept_on_failure(seed) as history, loading(spark, rng, history, ROWS) as load:
        kinds: list[str] = []
        while len(kinds) < EVENTS:
            kinds += rng.sample(KINDS, len(KINDS))
        for number, kind in enumerate(kinds[:EVENTS]):
            history.note("event", kind=kind)
            getattr(load, kind)((number + 1) / (EVENTS + 1))
            load.applying.check()
        load.finalize()
        load.applying.rounds_done(1)
        load.applying.arm(rng.choice(RELEASE_POINTS), at_release=True)
        load.kill_committer()
        committed = load.commit()
        load.applying.wait_for_crash()
        load.applying.rounds_done(1)
        assert load.commit() == committed, "a repeated commit has the same answer"
        load.close()
        loaded_s = time.monotonic() - began
        evidence = collected(load, committed)
        judge(evidence)
        the_audit_passes(load.config)
        a_rebuild_equals_the_table(evidence, spark, load.config)
        print(
            f"seed {seed}: {load.rows * WORKERS} rows, {', '.join(kinds[:EVENTS])},"
            f" crashes at {load.applying.crashes}, {len(load.programs)} processes,"
            f" {len(evidence.source)} live changes, {len(evidence.versions)} versions,"
            f" {loaded_s:.0f} s and {time.monotonic() - began - loaded_s:.0f} s to judge"
        )


# ── the data at the end ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Answers:
    """The output of the starts of one worker about their appends: offset, rows and number of the
    start of those that were taken, and offset and number of those that were not.
    """

    taken: list[tuple[int, int, int]]
    not_taken: list[tuple[int, int]]


@dataclass(frozen=True)
class Evidence:
    """All data of a load. `topic` has the records of each Kafka partition, in order. `versions` are
    the rows of each version of the table, the oldest first.
    """

    definition: TableDefinition
    rows: int
    size: int
    committed: int
    said: list[int]
    topic: dict[int, list[Record]]
    answers: dict[str, Answers]
    source: list[DataChange]
    commits: list[Any]
    versions: list[Rows]

    def staged(self) -> dict[tuple[str, int], list[DataChange]]:
        """The rows at each offset of each write stream."""
        found = defaultdict(list)
        for of_partition in self.topic.values():
            for one in of_partition:
                if isinstance(one, DataChange) and one.write_stream is not None:
                    found[one.write_stream.stream, one.write_stream.offset].append(one)
        return found


def collected(load: Load, committed: int) -> Evidence:
    topic: dict[int, list[Record]] = defaultdict(list)
    for number, _, message in records(load.kafka, TOPIC):
        decoded = codec.decode(message.value(), codec.Schemas())
        assert isinstance(decoded, codec.ChangeRecord), decoded
        topic[number].append(decoded.record)
    answers = {}
    for number, starts in load.starts.items():
        answers[names()[number]] = Answers(
            [
                (one["offset"], one["rows"], start)
                for start, program in enumerate(starts)
                for one in program.said("taken")
            ],
            [
                (one["offset"], start)
                for start, program in enumerate(starts)
                for one in program.said("failed")
                if one["outcome"] == "not taken"
            ],
        )
    path = load.folder.table("rows")
    said = [
        one["commit_timestamp"] for program in load.programs for one in program.said("committed")
    ]
    return Evidence(
        load.config.tables["rows"],
        load.rows,
        load.size,
        committed,
        said,
        topic,
        answers,
        read_source(load.source),
        [said for _, said in _commits(load.folder.changelog("s"))],
        [table_rows(path, number) for number, _ in _commits(path)],
    )


def table_rows(path: str, version: int | None = None) -> Rows:
    table = open_table(path, version)
    found = [dict(zip(table.types, row, strict=True)) for row in table.rows()]
    by_key: Rows = {row["id"]: {"name": row["name"], "loaded": row["loaded"]} for row in found}
    assert len(by_key) == len(found), f"a key stands twice in version {version}"
    return by_key


# ── the promises ──────────────────────────────────────────────────────────────────────────────────


def each_row_is_in_the_topic_once(e: Evidence) -> None:
    staged = e.staged()
    wanted = {(name, offset) for name in names() for offset in range(e.rows)}
    assert set(staged) == wanted, sorted(set(staged) ^ wanted)[:10]
    assert [place for place, found in staged.items() if len(found) > 1] == []
    for (name, offset), (one,) in staged.items():
        assert one.row_key == row_key(name.partition("/")[0], offset)


def answers_are_true(e: Evidence) -> None:
    """The topic has the rows of each append that was taken, from the start that appended them, and
    of none that was not taken.
    """
    start_of = {
        (name, offset): int(_loaded(one).split()[2])
        for (name, offset), (one, *_) in e.staged().items()
    }
    for name, answers in e.answers.items():
        assert answers.taken
        for offset, rows, start in answers.taken:
            found = {start_of.get((name, n)) for n in range(offset, offset + rows)}
            assert found == {start}, (name, offset, start)
        for offset, start in answers.not_taken:
            found = {start_of.get((name, n)) for n in range(offset, offset + e.size)}
            assert start not in found, (name, offset, start)


def _loaded(one: DataChange) -> str:
    return one.entries[1].value.decode()  # type: ignore[union-attr]


def there_is_one_release(e: Evidence) -> None:
    """Each Kafka partition has a copy of it, and each answer is its commit timestamp."""
    ranges = tuple(OffsetRange(name, 0, e.rows) for name in names())
    for of_partition in e.topic.values():
        releases = [one for one in of_partition if isinstance(one, Release)]
        assert releases == [Release("p", e.committed, ranges)]
    assert set(e.said) == {e.committed}


def live_changes_are_in_the_topic(e: Evidence) -> None:
    known = {
        (one.row_key, one.commit_timestamp, one.entries)
        for of_partition in e.topic.values()
        for one in of_partition
        if isinstance(one, DataChange) and one.write_stream is None
    }
    assert known == {(one.row_key, one.commit_timestamp, one.entries) for one in e.source}


def rows_are_visible_in_one_version(e: Evidence) -> None:
    counts = [sum(row["loaded"] is not None for row in rows.values()) for rows in e.versions]
    assert counts == sorted(counts)
    assert set(counts) == {0, WORKERS * e.rows}, sorted(set(counts))
    assert counts.count(0) > 3, "live changes were applied before the release"


def newest_wins(e: Evidence) -> None:
    """The table has each row once, with the newest value of each column."""
    released = [replace(one, commit_timestamp=e.committed) for (one, *_) in e.staged().values()]
    wanted = table_truth(e.definition, [*e.source, *released])
    assert e.versions[-1] == wanted, _difference(e.versions[-1], wanted)
    names_of_shared = {str(row["name"])[:4] for row in wanted.values() if row["loaded"]}
    assert names_of_shared >= {"load", "live"}


def table_truth(definition: TableDefinition, changes: list[DataChange]) -> Rows:
    rows = truth(definition, changes)
    return {row["id"]: {"name": row["name"], "loaded": row["loaded"]} for row in rows}


def _difference(found: Rows, wanted: Rows) -> list[object]:
    keys = [key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)]
    return [(key, found.get(key), wanted.get(key)) for key in keys[:10]]


def the_low_watermark_advances(e: Evidence) -> None:
    """While staged rows wait for their release, and afterwards."""
    progress = [one["progress"] for one in e.commits if one["progress"].get("low_watermark")]
    low = [one["low_watermark"] for one in progress]
    assert all(before <= after for before, after in pairwise(low))
    waiting = {
        one["low_watermark"]
        for one in progress
        if one.get("staged") and one["low_watermark"] <= e.committed
    }
    assert len(waiting) > 3, waiting
    assert low[-1] > e.committed


PROMISES: dict[Callable[[Evidence], None], Callable[[Evidence], Evidence]] = {
    each_row_is_in_the_topic_once: lambda e: replace(e, topic={**e.topic, 0: 2 * e.topic[0]}),
    answers_are_true: lambda e: replace(
        e,
        answers={
            name: replace(one, taken=[(n, rows, start + 1) for n, rows, start in one.taken])
            for name, one in e.answers.items()
        },
    ),
    there_is_one_release: lambda e: replace(e, said=[*e.said, e.committed + 1]),
    live_changes_are_in_the_topic: lambda e: replace(e, source=e.source[:-1]),
    rows_are_visible_in_one_version: lambda e: replace(
        e, versions=[*e.versions[:-1], _without(e.versions[-1], "w0-0"), e.versions[-1]]
    ),
    newest_wins: lambda e: replace(
        e, versions=[{**e.versions[-1], "live-0": {"name": "older", "loaded": None}}]
    ),
    the_low_watermark_advances: lambda e: replace(e, commits=e.commits[-2:]),
}
"""The promises, and for each one wrong evidence that it must reject."""


def _without(rows: Rows, key: object) -> Rows:
    return {other: row for other, row in rows.items() if other != key}


def judge(e: Evidence) -> None:
    """Check every promise, and that each one rejects its wrong evidence."""
    for promise in PROMISES:
        promise(e)
    for promise, lie in PROMISES.items():
        wrong = lie(e)
        with pytest.raises(AssertionError):
            promise(wrong)


def the_audit_passes(config: ConnectorConfig) -> None:
    (found,) = audit(config)
    assert found.is_proved, found.fault()


def a_rebuild_equals_the_table(e: Evidence, spark: SparkSession, config: ConnectorConfig) -> None:
    rebuild(config, "rows", spark=spark)
    path = Path(config.warehouse) / "tables" / "rows" / "data"
    rebuilt = table_rows(path)
    assert rebuilt == e.versions[-1], _difference(rebuilt, e.versions[-1])

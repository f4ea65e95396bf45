"""Loads on a real broker: all rows once, all together, or none (PUB-6, PUB-7, WRS-15)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connector import cli
from connector.clock import now_us
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import ConnectorError
from connector.events import Event
from connector.kafka import ChangeProducer
from connector.kafka.write_streams.commit import commit_streams, discard_streams
from connector.records.model import DataChange, OffsetRange, Release
from connector.services import LoadOptions, load, load_config
from connector.services.rows.load import LoadReport
from connector.state.stream_progress import Progress
from connector.write_streams.model import StreamState
from tests.broker import NewTopic
from tests.integration.changes import change
from tests.integration.test_write_streams import of_kind, offsets, read, read_catalog
from tests.unit.warehouses import log_progress

ROOT = Path(__file__).parents[2]
SETTINGS = """
warehouse = "w"
[kafka]
bootstrap_servers = "{servers}"
[streams.s]
topic = "{topic}"
max_record_bytes = 1000
[tables.accounts]
stream = "s"
source = "t"
key = {{ columns = [{{ name = "id", type = "INT64" }}], form = "delimited" }}
columns = [{{ name = "name", family = "f", type = "STRING" }}]
"""


@pytest.fixture
def config(
    tmp_path: Path, kafka: KafkaConfig, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> ConnectorConfig:
    monkeypatch.chdir(tmp_path)
    topic = new_topic(kafka_partitions=2).topic
    settings = SETTINGS.format(servers=kafka.bootstrap_servers, topic=topic)
    (tmp_path / "connector.toml").write_text(settings)
    return load_config("connector.toml")


def topic_of(config: ConnectorConfig) -> str:
    return config.streams["s"].topic


def parquet(path: Path, first: int, count: int, without_key: tuple[int, ...] = ()) -> Path:
    numbers = range(first, first + count)
    ids = [None if number in without_key else number for number in numbers]
    names = [f"n{number}" for number in numbers]
    pq.write_table(pa.table({"id": ids, "name": names}), path, row_group_size=1_000)
    return path


def run(when: str, count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.integration.load_process", when, str(count), *arguments],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_rows_of_all_formats_are_one_release_at_the_time_of_the_export(
    config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path
) -> None:
    """PUB-6, WRS-15: the rows are in the order of the files. A second call does nothing."""
    (tmp_path / "a.csv").write_text("id,name\n1,a\n2,b\n")
    (tmp_path / "b.jsonl").write_text('{"id": 3, "name": "c"}\n')
    files = [tmp_path / "a.csv", tmp_path / "b.jsonl", parquet(tmp_path / "c.parquet", 4, 3)]
    as_of = now_us() - 60_000_000
    report = load(config, "accounts", files, as_of=as_of)
    stream = report.write_stream
    assert report == LoadReport("accounts", stream, 6, 0, 0, as_of)
    assert stream.startswith("load-accounts/")
    records = read(kafka, topic_of(config))
    assert offsets(records) == {stream: list(range(6))}
    rows = [one for part in of_kind(records, DataChange) for one in part]
    by_offset = sorted(rows, key=lambda row: row.write_stream.offset)  # type: ignore[union-attr]
    assert [row.row_key for row in by_offset] == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert {(row.table, row.commit_timestamp) for row in rows} == {("t", 0)}
    assert {row.entries[2].cell_timestamp for row in rows} == {as_of}  # type: ignore[union-attr]
    for part in of_kind(records, Release):
        assert [(one.commit_timestamp, one.ranges) for one in part] == [  # type: ignore[union-attr]
            (as_of, (OffsetRange(stream, 0, 6),))
        ]
    events: list[Event] = []
    again = load(config, "accounts", files, as_of=as_of, on_event=events.append)
    assert again == replace(report, repeated=6, was_committed=True)
    assert [event.code for event in events] == ["LOADED_BEFORE"]
    assert read(kafka, topic_of(config)) == records


@pytest.mark.parametrize(
    ("when", "count"),
    [
        pytest.param("after", 6, id="half of the rows"),
        pytest.param("after", 1, id="the session is open", marks=pytest.mark.systems),
        pytest.param("before", 6, id="rows, no reader sees them", marks=pytest.mark.long),
        pytest.param("after", 12, id="finalize", marks=pytest.mark.systems),
        pytest.param("after", 13, id="the commit", marks=pytest.mark.systems),
    ],
)
def test_a_load_that_is_killed_and_started_again_has_each_row_once(
    when: str, count: int, config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path
) -> None:
    """PUB-6, `resumable`, `exactly_once`: also when the file was moved meanwhile, and the first of
    the killed calls left rows out.
    """
    as_of = now_us() - 60_000_000
    parquet(tmp_path / "rows.parquet", 0, 1_002, without_key=(40, 700))
    options = ["accounts", "--as-of", str(as_of), "--skip-rejected"]
    killed = run(when, count, "load", *options, "rows.parquet")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    is_committed = count == 13
    assert any(of_kind(read(kafka, topic_of(config)), Release)) is is_committed
    (tmp_path / "rows.parquet").rename(tmp_path / "moved.parquet")
    ended = run("never", 0, "load", *options, "moved.parquet")
    assert ended.returncode == 0, ended.stderr
    records = read(kafka, topic_of(config))
    assert list(offsets(records).values()) == [list(range(1_000))]
    keys = {one.row_key for part in of_kind(records, DataChange) for one in part}  # type: ignore[union-attr]
    assert keys == {b"%d" % number for number in range(1_002)} - {b"40", b"700"}
    assert [len(part) for part in of_kind(records, Release)] == [1, 1]
    assert "committed to accounts at " in ended.stderr
    says = {1: "1,000 rows, 1,000 of them now", 6: "1,000 rows, 500 of them now"}
    if when == "after" and count in says:
        assert says[count] in ended.stderr
    if is_committed:
        assert "these rows were committed before" in ended.stderr


def test_rejected_rows_are_named_and_nothing_is_committed_until_you_skip_them(
    config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PUB-6: rows that do not fit the table, and one that is too large for a record."""
    lines = ["id,name", "1,a", "x,b", ",c", f"4,{'d' * 2_000}", "5,e"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    as_of = str(now_us() - 60_000_000)
    call = ["load", "accounts", "a.csv", "--as-of", as_of, "--rejected", "bad.jsonl"]
    assert cli.invoke(call) == 1
    said = capsys.readouterr().err
    assert "3 rows cannot be published. Nothing was committed" in said
    assert "rejected: a.csv, line 3, column id: expected INT64" in said
    assert "rejected: a.csv, line 4, column id: a key column has no value" in said
    assert of_kind(read(kafka, topic_of(config)), Release) == [[], []]
    assert cli.invoke([*call, "--skip-rejected"]) == 0
    assert "left out: 3 rows" in capsys.readouterr().err
    bad = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(one["file"], one["line"], one["column"]) for one in bad] == [
        ("a.csv", 3, "id"),
        ("a.csv", 4, "id"),
        ("a.csv", 5, ""),
    ]
    assert bad[0]["row"] == {"id": "x", "name": "b"}
    assert "must be at most 1000" in bad[2]["reason"]
    records = read(kafka, topic_of(config))
    assert list(offsets(records).values()) == [[0, 1]]
    assert [len(part) for part in of_kind(records, Release)] == [1, 1]
    written = (tmp_path / "bad.jsonl").read_bytes()
    assert cli.invoke([*call, "--skip-rejected"]) == 0
    assert "these rows were committed before" in capsys.readouterr().err
    assert (tmp_path / "bad.jsonl").read_bytes() == written
    (tmp_path / "none.csv").write_text("id,name\n")
    assert cli.invoke(["load", "accounts", "none.csv", "--as-of", as_of]) == 0
    assert "the files have no rows" in capsys.readouterr().err


def test_rows_that_were_left_out_before_are_named_again_before_the_commit(
    config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path
) -> None:
    """PUB-6: an earlier call finalized the write stream, and it was killed or had no commit."""
    file, as_of = tmp_path / "a.csv", now_us() - 60_000_000
    file.write_text(f"id,name\n1,a\nx,b\n3,{'c' * 2_000}\n4,d\n")
    part = load(
        config,
        "accounts",
        [file],
        as_of=as_of,
        options=LoadOptions(skip_rejected=True, commit=False),
    )
    assert (part.rows, part.rejected) == (2, 2)
    with pytest.raises(ConnectorError) as caught:
        load(config, "accounts", [file], as_of=as_of)
    assert caught.value.code == "ROWS_REJECTED"
    assert of_kind(read(kafka, topic_of(config)), Release) == [[], []]
    lines: list[int] = []
    report = load(
        config,
        "accounts",
        [file],
        as_of=as_of,
        options=LoadOptions(skip_rejected=True),
        on_rejected=lambda row: lines.append(row.line),
    )
    assert (report.rows, report.repeated, report.rejected, lines) == (2, 2, 2, [3, 4])
    assert [len(one) for one in of_kind(read(kafka, topic_of(config)), Release)] == [1, 1]


def test_a_row_that_was_too_large_is_there_after_the_limit_is_increased(
    config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path
) -> None:
    """PUB-6, `nothing_lost`: the rows behind it have other offsets now, so it is another load."""
    file, as_of = tmp_path / "a.csv", now_us() - 60_000_000
    file.write_text(f"id,name\n1,a\n2,{'b' * 2_000}\n3,c\n4,d\n")
    with pytest.raises(ConnectorError) as caught:
        load(config, "accounts", [file], as_of=as_of)
    assert caught.value.code == "ROWS_REJECTED"
    stream = config.streams["s"]
    limits = replace(stream.limits, max_record_bytes=10_000)
    larger = replace(config, streams={"s": replace(stream, limits=limits)})
    report = load(larger, "accounts", [file], as_of=as_of)
    assert (report.rows, report.repeated, report.rejected) == (4, 0, 0)
    rows = {
        one.row_key
        for part in of_kind(read(kafka, topic_of(config)), DataChange)
        for one in part
        if one.write_stream.stream == report.write_stream  # type: ignore[union-attr]
    }
    assert rows == {b"1", b"2", b"3", b"4"}


def test_a_place_that_cannot_be_read_commits_nothing(
    config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path
) -> None:
    """PUB-6: and the call with the corrected file says that an earlier load is not complete."""
    file, as_of = tmp_path / "a.jsonl", now_us() - 60_000_000
    rows = "".join(f'{{"id": {number}, "name": "a"}}\n' for number in range(1_500))
    file.write_text(f'{rows}{{"id": \n')
    with pytest.raises(ConnectorError, match="line 1501: it is not JSON") as caught:
        load(config, "accounts", [file], as_of=as_of)
    assert caught.value.code == "FILE_INVALID"
    file.write_text(rows)
    events: list[Event] = []
    assert load(config, "accounts", [file], as_of=as_of, on_event=events.append).repeated == 0
    assert [event.code for event in events] == ["LOAD_INCOMPLETE"]
    assert "it has 1,000 rows of before the change" in events[0].text
    releases = of_kind(read(kafka, topic_of(config)), Release)
    assert [len(part) for part in releases] == [1, 1]


def test_without_a_time_the_table_must_be_empty(
    config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path
) -> None:
    """PUB-6: changes that were not ingested yet count. Rows that are not released do not."""
    first, second = parquet(tmp_path / "a.parquet", 0, 5), parquet(tmp_path / "b.parquet", 5, 5)
    waiting = load(
        config, "accounts", [first], as_of=now_us(), options=LoadOptions(session="w", commit=False)
    )
    assert waiting.commit_timestamp is None
    report = load(config, "accounts", [first])
    assert report.commit_timestamp is not None
    assert now_us() - report.commit_timestamp < 60_000_000
    with pytest.raises(ConnectorError, match="about to be visible") as caught:
        load(config, "accounts", [second])
    assert caught.value.code == "TABLE_NOT_EMPTY"
    assert load(config, "accounts", [first]).was_committed
    with ChangeProducer(kafka, topic_of(config)) as producer:
        producer.send(change(5, timestamp=now_us()))
    with pytest.raises(ConnectorError, match="not ingested yet"):
        load(config, "accounts", [second])
    assert load(config, "accounts", [second], as_of=now_us()).rows == 5


def test_a_change_that_comes_during_the_load_is_not_overwritten(
    config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path
) -> None:
    """PUB-6: without a time, the table must still be empty at the commit."""
    file = parquet(tmp_path / "a.parquet", 0, 5)

    def send(progress: object) -> None:
        with ChangeProducer(kafka, topic_of(config)) as producer:
            producer.send(change(5, timestamp=now_us()))

    with pytest.raises(ConnectorError) as caught:
        load(config, "accounts", [file], on_progress=send)
    assert caught.value.code == "TABLE_NOT_EMPTY"
    assert of_kind(read(kafka, topic_of(config)), Release) == [[], []]


def test_a_time_below_the_horizon_is_refused_before_the_upload_and_at_the_commit(
    config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path
) -> None:
    """WRS-15."""
    file, as_of = parquet(tmp_path / "a.parquet", 0, 5), now_us() - 60_000_000
    warehouse = Path(config.warehouse)
    log_progress(warehouse, "s", Progress(ingest_batch=1, horizon=as_of))

    def pass_it(progress: object) -> None:
        log_progress(warehouse, "s", Progress(ingest_batch=2, horizon=as_of + 1))

    with pytest.raises(ConnectorError) as caught:
        load(config, "accounts", [file], as_of=as_of, on_progress=pass_it)
    assert caught.value.code == "AS_OF_TOO_OLD"
    assert [len(part) for part in of_kind(read(kafka, topic_of(config)), DataChange)] != [0, 0]
    other = parquet(tmp_path / "b.parquet", 5, 5)
    before = read(kafka, topic_of(config))
    with pytest.raises(ConnectorError, match="below the horizon of s"):
        load(config, "accounts", [other], as_of=as_of)
    assert read(kafka, topic_of(config)) == before
    assert of_kind(before, Release) == [[], []]


def test_workers_load_parts_and_one_commit_shows_them(
    config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path
) -> None:
    """PUB-6, WRS-14: a session for each worker, and a second call of each does nothing."""
    as_of, topic = now_us() - 60_000_000, topic_of(config)
    files = [parquet(tmp_path / f"{name}.parquet", n, 10) for n, name in ((0, "a"), (10, "b"))]
    parts = [
        load(
            config,
            "accounts",
            [file],
            as_of=as_of,
            options=LoadOptions(session=f"w{n}", commit=False),
        )
        for n, file in enumerate(files)
    ]
    again = load(
        config, "accounts", files[:1], as_of=as_of, options=LoadOptions(session="w0", commit=False)
    )
    assert again == replace(parts[0], repeated=10)
    assert of_kind(read(kafka, topic), Release) == [[], []]
    names = [part.write_stream for part in parts]
    assert commit_streams(kafka, topic, names, as_of=as_of) == as_of
    ranges = tuple(OffsetRange(name, 0, 10) for name in sorted(names))
    for part in of_kind(read(kafka, topic), Release):
        assert [one.ranges for one in part] == [ranges]  # type: ignore[union-attr]
    assert load(
        config, "accounts", files[1:], as_of=as_of, options=LoadOptions(session="w1")
    ).was_committed


def test_a_load_that_was_discarded_needs_another_session(
    config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path
) -> None:
    file, as_of, topic = parquet(tmp_path / "a.parquet", 0, 5), now_us(), topic_of(config)
    part = load(config, "accounts", [file], as_of=as_of, options=LoadOptions(commit=False))
    discard_streams(kafka, topic, [part.write_stream])
    with pytest.raises(ConnectorError, match="It was discarded") as caught:
        load(config, "accounts", [file], as_of=as_of)
    assert caught.value.code == "LOAD_ENDED"
    assert (
        load(config, "accounts", [file], as_of=as_of, options=LoadOptions(session="second")).rows
        == 5
    )
    streams = read_catalog(kafka, topic).streams
    assert [one.state for one in streams.values()] == [StreamState.DISCARDED, StreamState.COMMITTED]


def test_a_limit_spreads_the_rows_and_may_change_between_calls(
    config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path
) -> None:
    """PUB-7: appends of a tenth of a second. The next call makes other appends of the same rows."""
    file, as_of = parquet(tmp_path / "a.parquet", 0, 1_600), now_us()

    class StopError(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.rows >= 300:
            raise StopError

    began = time.monotonic()
    with pytest.raises(StopError):
        load(
            config,
            "accounts",
            [file],
            as_of=as_of,
            options=LoadOptions(max_changes_per_s=1_500),
            on_progress=stop,
        )
    assert time.monotonic() - began > 0.1
    report = load(config, "accounts", [file], as_of=as_of)
    assert (report.rows, report.repeated) == (1_600, 300)
    assert list(offsets(read(kafka, topic_of(config))).values()) == [list(range(1_600))]


def test_a_file_that_is_changed_meanwhile_commits_nothing(
    config: ConnectorConfig, kafka: KafkaConfig, tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id,name\n1,a\n")

    def grow(progress: object) -> None:
        file.write_text("id,name\n1,a\n2,b\n")

    with pytest.raises(ConnectorError) as caught:
        load(config, "accounts", [file], as_of=now_us(), on_progress=grow)
    assert caught.value.code == "FILE_INVALID"
    assert of_kind(read(kafka, topic_of(config)), Release) == [[], []]

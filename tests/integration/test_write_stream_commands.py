"""`connector write-streams` against a real broker (WRS-10, WRS-13, WRS-14, WRS-20, WRS-23).

What ingest knows is written as a changelog without rows.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from connector import cli
from connector.clock import now_us
from connector.config.settings import KafkaConfig
from connector.errors import (
    ConfigError,
    ConnectorError,
    WriterConflictError,
    WriteStreamError,
)
from connector.kafka import WriteSession
from connector.records.model import ChildPartition, ChildPartitions, OffsetRange, Release
from connector.services import (
    commit_write_streams,
    finalize_write_stream,
    list_write_streams,
    load_config,
    release_again,
)
from connector.state.stream_progress import Progress
from connector.watermarks.advance import advance
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    LineageRecord,
)
from connector.write_streams.releases import NO_RELEASES
from tests.broker import NewTopic
from tests.integration.test_write_streams import of_kind, read, read_catalog, rows
from tests.unit.warehouses import log_progress


@pytest.fixture
def topic(
    kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    topic = new_topic(kafka_partitions=2).topic
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(
        f'warehouse = "w"\n[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
        f'[streams.s]\ntopic = "{topic}"\nstaging_retention = "7d"\n'
    )
    return topic


def lost(kafka: KafkaConfig, topic: str, name: str, kind: str = "pending") -> WriteSession:
    """A session whose program goes on without it."""
    session = WriteSession(kafka, topic, name)
    stream = session.stream("rows", kind=kind)
    assert stream.append(rows(stream, 0, 5), 0).result(30).rows == 5
    return session


def test_a_lost_session_is_ended_before_its_write_stream_is_finalized(
    kafka: KafkaConfig, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """WRS-13: and repeated, it answers the row count and ends no session."""
    session = lost(kafka, topic, "w1")
    assert cli.invoke(["write-streams", "commit", "--stream", "s", "w1/rows"]) == 1
    assert "NOT_FINALIZED" in capsys.readouterr().err
    assert cli.invoke(["write-streams", "finalize", "--stream", "s", "w1/rows"]) == 0
    assert "with 5 rows" in capsys.readouterr().err
    stream = session.stream("rows", kind="pending")
    with pytest.raises(WriterConflictError):
        stream.append(rows(stream, 5, 1), 5).result(60)
    with pytest.raises(WriterConflictError):
        session.close()
    owner = read_catalog(kafka, topic).owner_of("w1")
    assert finalize_write_stream(load_config(), "s", "w1/rows") == 5
    assert read_catalog(kafka, topic).owner_of("w1") == owner
    with pytest.raises(WriteStreamError) as missing:
        finalize_write_stream(load_config(), "s", "w1/other")
    assert missing.value.code == "WRITE_STREAM_MISSING"
    assert list(read_catalog(kafka, topic).streams) == ["w1/rows"]


def test_a_committed_session_that_died_is_named_and_ended(
    kafka: KafkaConfig, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """WRS-10: the end of its stream partition is in every Kafka partition."""
    session = lost(kafka, topic, "job", "committed")
    name = session.stream_partition
    session.close(ends_partition=False)
    announced = ChildPartitions(name, 1, 0, (ChildPartition(name),))
    heard = BatchClaims(
        2, {name: {0: 50, 1: 50}}, tuple(LineageRecord(k, 0, announced) for k in (0, 1))
    )
    frontier = advance(UNKNOWN, heard, now=100, horizon=None, roots=frozenset(), ends=[])
    log_progress(tmp_path / "w", "s", Progress(ingest_batch=1, frontier=frontier))
    assert cli.invoke(["write-streams", "list"]) == 0
    said = capsys.readouterr().err
    assert f"session job has probably died: its stream partition {name}" in said
    assert "connector write-streams finalize --stream s job/rows" in said
    assert cli.invoke(["write-streams", "finalize", "--stream", "s", "job/rows"]) == 0
    for of_partition in of_kind(read(kafka, topic), ChildPartitions):
        last = of_partition[-1]
        assert isinstance(last, ChildPartitions)
        assert (last.stream_partition, last.children) == (name, ())
    assert list_write_streams(load_config(), "s").write_streams["job/rows"].state == "finalized"


def test_commit_list_show_and_discard(
    kafka: KafkaConfig, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """WRS-14, WRS-23: a repeated commit prints the same commit timestamp."""
    for name in ("w1", "w2", "w3"):
        lost(kafka, topic, name).stream("rows", kind="pending").finalize()
    capsys.readouterr()
    assert cli.invoke(["write-streams", "commit", "--stream", "s", "w1/rows", "w2/rows"]) == 0
    first = capsys.readouterr().out
    assert cli.invoke(["write-streams", "commit", "w2/rows", "w1/rows"]) == 0
    assert capsys.readouterr().out == first
    assert cli.invoke(["write-streams", "commit", "--stream", "s", "w1/rows"]) == 1
    assert "ALREADY_COMMITTED" in capsys.readouterr().err
    assert cli.invoke(["write-streams", "discard", "w3/rows"]) == 0
    assert cli.invoke(["write-streams", "discard", "--stream", "s", "w3/rows"]) == 0
    capsys.readouterr()
    assert cli.invoke(["write-streams", "list", "--stream", "s", "--json"]) == 0
    found = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [(one["write_stream"], one["kind"], one["state"], one["end"]) for one in found] == [
        ("w1/rows", "pending", "committed", 5),
        ("w2/rows", "pending", "committed", 5),
        ("w3/rows", "pending", "discarded", 5),
    ]
    assert found[0]["commit_timestamp"] == first.strip()
    assert cli.invoke(["write-streams", "show", "--stream", "s", "w1/rows"]) == 0
    assert json.loads(capsys.readouterr().out) == found[0]
    assert cli.invoke(["write-streams", "show", "--stream", "s", "w1/row"]) == 1
    assert "Did you mean w1/rows?" in capsys.readouterr().err
    assert cli.invoke(["write-streams", "list", "--stream", "s"]) == 0
    assert "w3/rows" in capsys.readouterr().out
    with pytest.raises(WriteStreamError) as late:
        commit_write_streams(load_config(), "s", ["w2/rows", "w1/rows"], wait=True, timeout_s=0.1)
    assert late.value.code == "ROWS_NOT_SHOWN", "no ingest runs"
    assert late.value.fields["kafka_partition"] in (0, 1)
    assert "of the Kafka partitions" in late.value.cause


def test_validate_names_the_catalog(
    topic: str, admin: AdminClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """WRS-3, WRS-23, OPS-1: a stream without write streams needs none."""
    assert cli.invoke(["validate"]) == 0
    assert f"streams.s: {topic}.write-streams is the catalog" in capsys.readouterr().out
    admin.delete_topics([f"{topic}.write-streams"])[f"{topic}.write-streams"].result(30)
    assert cli.invoke(["validate"]) == 0
    assert "write sessions cannot be opened" in capsys.readouterr().out
    assert cli.invoke(["write-streams", "list"]) == 1
    assert f"connector topic create --stream {topic}" in capsys.readouterr().err
    assert cli.invoke(["topic", "create", "--stream", "s", "--kafka-partitions", "2"]) == 0
    assert cli.invoke(["write-streams", "list"]) == 0
    assert "0 write streams of s" in capsys.readouterr().err


def test_a_backfill_below_the_horizon_is_not_committed(
    kafka: KafkaConfig, topic: str, tmp_path: Path
) -> None:
    """WRS-15"""
    lost(kafka, topic, "w1").stream("rows", kind="pending").finalize()
    as_of = now_us() - 1_000_000
    log_progress(tmp_path / "w", "s", Progress(ingest_batch=1, horizon=as_of + 1))
    with pytest.raises(ConnectorError, match="below the horizon"):
        commit_write_streams(load_config(), "s", ["w1/rows"], as_of=as_of)
    assert commit_write_streams(load_config(), "s", ["w1/rows"], as_of=as_of + 1) == as_of + 1


@pytest.mark.parametrize("is_dead_letter", [False, True])
def test_a_release_that_is_too_late_gets_a_new_commit_timestamp(
    kafka: KafkaConfig, topic: str, tmp_path: Path, is_dead_letter: bool
) -> None:
    """WRS-20: whether it is withheld, or became a dead letter when it arrived."""
    lost(kafka, topic, "w1").stream("rows", kind="pending").finalize()
    config = load_config()
    old = commit_write_streams(config, "s", ["w1/rows"])
    known, ranges = NO_RELEASES, (OffsetRange("w1/rows", 0, 5),)
    with pytest.raises(ConfigError) as too_soon:
        release_again(config, "s", "w1/rows")
    assert too_soon.value.code == "RELEASE_UNKNOWN"
    if not is_dead_letter:
        known = known.logged(1, old, ("w1/rows",), (Release("p", old, ranges),), {0: 1}, None)
        known, _ = known.completed(1, {0: 5}, {0: 1}, old + 1)
    progress = Progress(ingest_batch=1, horizon=old + 1, releases=known)
    log_progress(tmp_path / "w", "s", progress)
    new = release_again(config, "s", "w1/rows")
    assert old < new <= now_us()
    assert read_catalog(kafka, topic).streams["w1/rows"].commit_timestamp == new
    for of_partition in of_kind(read(kafka, topic), Release):
        assert [
            (one.commit_timestamp, one.ranges) for one in of_partition if isinstance(one, Release)
        ] == [(old, ranges), (new, ranges)]
    assert commit_write_streams(config, "s", ["w1/rows"]) == new
    if not is_dead_letter:
        assert release_again(config, "s", "w1/rows") == new, "nothing is sent again"


def test_two_loads_of_one_time_are_released_again_one_by_one(
    kafka: KafkaConfig, topic: str, tmp_path: Path
) -> None:
    """WRS-20: a commit is known by its write streams. Both releases became dead letters."""
    config, as_of = load_config(), now_us() - 1_000_000
    for name in ("w1", "w2"):
        lost(kafka, topic, name).stream("rows", kind="pending").finalize()
        assert commit_write_streams(config, "s", [f"{name}/rows"], as_of=as_of) == as_of
    log_progress(tmp_path / "w", "s", Progress(ingest_batch=1, horizon=as_of + 1))
    new = release_again(config, "s", "w1/rows")
    times = {name: one.commit_timestamp for name, one in read_catalog(kafka, topic).streams.items()}
    assert times == {"w1/rows": new, "w2/rows": as_of}
    with pytest.raises(ConfigError) as unknown:
        release_again(config, "s", "w2/rows", commit_timestamp=as_of - 1)
    assert unknown.value.code == "RELEASE_UNKNOWN"
    other = release_again(config, "s", "w2/rows", commit_timestamp=as_of)
    assert other > new
    for of_partition in of_kind(read(kafka, topic), Release):
        released = [one for one in of_partition if isinstance(one, Release)]
        assert [(one.commit_timestamp, one.ranges[0].stream) for one in released] == [
            *((as_of, "w1/rows"), (as_of, "w2/rows")),
            *((new, "w1/rows"), (other, "w2/rows")),
        ]

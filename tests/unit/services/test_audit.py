"""`connector audit` over changelogs on disk (TBL-6, nothing_lost). What a reader of the topic sees
is handed in as a function.

The changelogs are written by deltalake with the columns and the commit metadata of
`connector.spark.storage.changelog`; that one's own are audited in tests/spark/test_audit.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from connector import cli
from connector.dead_letters.envelope import DeadLetter
from connector.errors import TableError
from connector.lake.audit import STEP_ROWS, AuditLog, open_logged
from connector.records.rejection import Position, Reason
from connector.reports.audit import Range, Ranges, StreamAudit, TopicCheck, union_ranges
from connector.services.audit import KafkaSide, audit_stream

COLUMNS = pa.schema(
    [
        ("kind", pa.string()),
        ("ingest_batch", pa.int64()),
        ("kafka_partition", pa.int32()),
        ("offset", pa.int64()),
        ("letter_id", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("write_stream", pa.struct([("stream", pa.string()), ("offset", pa.int64())])),
    ]
)
HEADERS = (("origin", b"\xff"), ("origin", None))


@dataclass
class Stream:
    """A stream "s" whose topic, dead-letter topic and changelog are plain to see, and what the
    audit asked of Kafka.
    """

    warehouse: Path
    begin: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    batch: int = 0
    rows: int = 0
    visible: set[tuple[int, int]] = field(default_factory=set)
    first: dict[int, int] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    taken_letters: int = 0
    looked: list[tuple[int, Ranges]] = field(default_factory=list)
    letters_read: list[str] = field(default_factory=list)

    @property
    def changelog(self) -> str:
        return f"{self.warehouse}/streams/s/changelog"

    def ingest(
        self,
        end: Mapping[int, int],
        *,
        changes: Sequence[tuple[int, int]] = (),
        rejected: Sequence[tuple[int, int]] = (),
    ) -> None:
        """A batch up to `end` with these rows, its letters and its progress."""
        self.log(end, changes=changes, rejected=rejected)
        self.letters += [letter(self.batch, *place) for place in rejected]
        self.commit([], "progress", self.batch)

    def log(
        self,
        end: Mapping[int, int],
        *,
        changes: Sequence[tuple[int, int]] = (),
        rejected: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Only the commit of the rows, as if killed behind it."""
        self.batch += 1
        self.begin = {**{number: self.end.get(number, 0) for number in end}, **self.begin}
        self.end.update(end)
        self.visible |= {*changes, *rejected}
        rows = [row("change", self.batch, *place) for place in changes] + [
            row("rejected", self.batch, *place) for place in rejected
        ]
        self.commit(rows, "batch", self.batch - 1)

    def commit(self, rows: Sequence[dict[str, Any]], kind: str, settled: int) -> None:
        self.rows += len(rows)
        progress = {"ingest_batch": settled, "changes": self.rows, "control": 0, "rejected": {}}
        names = {
            "stream": "s",
            "changelog_id": "c",
            "topic_id": "id",
            "ingest_batch": self.batch,
            "commit": kind,
        }
        self.write(
            rows,
            {**names, "first_offsets": self.begin, "end_offsets": self.end, "progress": progress},
        )

    def write(self, rows: Sequence[dict[str, Any]], stored: dict[str, Any] | None) -> None:
        said = {} if stored is None else {"userMetadata": json.dumps({"lowmark": stored})}
        table = pa.Table.from_pylist(list(rows), COLUMNS)
        write_deltalake(
            self.changelog,
            table,
            mode="append",
            commit_properties=CommitProperties(custom_metadata=said),
        )

    def audit(self, step_rows: int = STEP_ROWS) -> StreamAudit:
        logged = open_logged(str(self.warehouse), "s", step_rows)
        assert logged is not None
        return audit_stream(
            "s",
            logged,
            AuditLog(str(self.warehouse), "s", "t", "c", "id"),
            KafkaSide(self._look, self._letters),
            now=lambda: 7,
        )

    def _look(self, places: Mapping[int, Ranges]) -> dict[int, TopicCheck]:
        self.looked += places.items()
        seen = {}
        for number, ranges in places.items():
            offsets = [offset for start, stop in ranges for offset in range(start, stop)]
            gone = [Range(o, o + 1) for o in offsets if o < self.first.get(number, 0)]
            there = [
                Range(o, o + 1)
                for o in offsets
                if o >= self.first.get(number, 0) and (number, o) in self.visible
            ]
            seen[number] = TopicCheck(union_ranges(there), union_ranges(gone))
        return seen

    def _letters(
        self, after: tuple[Position, ...]
    ) -> tuple[list[tuple[DeadLetter, Position]], bool]:
        begin = max([position.offset + 1 for position in after], default=0)
        places = list(enumerate(self.letters))[max(begin, self.taken_letters) :]
        self.letters_read = [found.id for _, found in places]
        return [
            (found, Position("t.dead-letters", "dlq", 0, place)) for place, found in places
        ], self.taken_letters <= begin


def row(kind: str, batch: int | None, number: int, offset: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": kind,
        "ingest_batch": batch,
        "kafka_partition": number,
        "offset": offset,
    }
    headers = [{"key": name, "value": value} for name, value in HEADERS]
    rejected = {
        "letter_id": f"id-{number}-{offset}",
        "key": b"k",
        "value": b"v%d" % offset,
        "headers": headers,
    }
    return {**found, **rejected} if kind == "rejected" else found


def letter(batch: int, number: int, offset: int) -> DeadLetter:
    return DeadLetter(
        position=Position("t", "id", number, offset),
        key=b"k",
        value=b"v%d" % offset,
        headers=HEADERS,
        reason=Reason.UNDECODABLE,
        detail="",
        first_failed_at=0,
        record_timestamp=0,
        ingest_batch=batch,
    )


def places(number: int, *offsets: int) -> list[tuple[int, int]]:
    return [(number, offset) for offset in offsets]


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Two batches of two Kafka partitions, the second one added later; offset 3 is a marker, 0/5
    and 1/1 were rejected.
    """
    stream = Stream(tmp_path)
    stream.ingest({0: 4}, changes=places(0, 0, 1, 2))
    stream.ingest(
        {0: 8, 1: 3}, changes=[*places(0, 4, 6, 7), *places(1, 0, 2)], rejected=[(0, 5), (1, 1)]
    )
    return stream


def test_nothing_lost_is_proved_and_the_next_audit_goes_on_from_it(stream: Stream) -> None:
    """TBL-6: what was seen is asked again neither of the topic nor of the dead-letter topic, and
    holds when both have forgotten.
    """
    found = stream.audit()
    assert found.is_proved
    assert (found.counted("rows"), found.counted("empty"), found.letters.compared) == (10, 1, 2)
    assert stream.looked == [(0, (Range(3, 4),))]

    stream.first, stream.taken_letters, stream.looked = {0: 8, 1: 3}, 2, []
    assert stream.audit().is_proved
    assert stream.looked == []

    stream.ingest({0: 11, 1: 3}, changes=places(0, 8), rejected=[(0, 10)])
    found = stream.audit()
    assert found.is_proved
    assert stream.looked == [(0, (Range(9, 10),))]
    assert (found.letters.compared, stream.letters_read) == (1, ["id-0-10"])


def test_a_lost_row_is_found_before_and_after_a_proof(stream: Stream) -> None:
    """nothing_lost: also a row that was removed after it was proved, and rows of whole batches."""
    assert stream.audit().is_proved
    DeltaTable(stream.changelog).delete('"offset" = 6')
    found = stream.audit()
    assert found.partitions[0].lost == (Range(6, 7),)
    assert found.fault() is not None

    DeltaTable(stream.changelog).delete("ingest_batch = 2 AND kafka_partition = 1")
    assert stream.audit().partitions[1].lost == (Range(0, 3),)

    stream.first = {0: 7}
    found = stream.audit()
    assert (found.partitions[0].lost, found.partitions[0].unverified) == ((), (Range(6, 7),))


def test_a_record_that_was_read_and_not_logged_is_lost(stream: Stream) -> None:
    """nothing_lost: in the middle of a batch and at its end, where no row comes behind."""
    stream.visible |= {(0, 9), (1, 4)}
    stream.ingest({0: 11, 1: 6}, changes=[*places(0, 8, 10), *places(1, 3)])
    found = stream.audit()
    assert (found.partitions[0].lost, found.partitions[1].lost) == ((Range(9, 10),), (Range(4, 5),))
    assert found.partitions[1].empty == 1


@pytest.mark.parametrize("step_rows", [1, STEP_ROWS])
@pytest.mark.parametrize("batch", [0, 1, 2, None])
def test_a_doubled_row_is_found_in_its_batch_and_in_another(
    stream: Stream, batch: int | None, step_rows: int
) -> None:
    """nothing_lost: also batch by batch, as a large changelog is read."""
    assert stream.audit(step_rows).is_proved
    stream.write([row("control", batch, 0, 1)], None)
    found = stream.audit(step_rows)
    assert found.partitions[0].duplicated == (Range(1, 2),)
    assert (found.partitions[0].rows, found.counted("lost"), found.unverified) == (8, 0, 0)


def test_rows_that_were_never_read_are_found(stream: Stream) -> None:
    stream.write(
        [row("change", 2, 0, 99), row("change", 2, 7, 0), row("something else", 2, 0, 1)], None
    )
    found = stream.audit()
    assert (found.partitions[0].unexpected, found.partitions[7].unexpected) == (
        (Range(99, 100),),
        (Range(0, 1),),
    )
    assert found.counted("duplicated") == 0


def test_reading_that_began_in_the_middle_owes_nothing_before(tmp_path: Path) -> None:
    stream = Stream(tmp_path, begin={0: 5})
    stream.ingest({0: 7}, changes=places(0, 5, 6))
    assert stream.audit().is_proved
    assert stream.looked == []


def test_a_gap_that_retention_took_first_is_unproved(stream: Stream) -> None:
    """TBL-6: said every time, and never taken for a proof."""
    stream.first = {0: 6}
    for _ in range(2):
        found = stream.audit()
        assert found.partitions[0].unverified == (Range(3, 4),)
        assert (found.unverified, found.is_proved, found.fault()) == (1, False, None)


def test_a_missing_or_altered_letter_is_found(stream: Stream) -> None:
    """nothing_lost, DLQ-1, DLQ-4: neither is taken for proved, so that the letter counts when it is
    published after all.
    """
    good = stream.letters
    stream.letters = [good[0]]
    found = stream.audit()
    assert found.letters.missing == ("id-1-1",)
    assert found.fault() is not None

    stream.letters = [good[0], replace(good[1], headers=HEADERS[:1])]
    assert stream.audit().letters.altered == ("id-1-1",)
    stream.letters.append(good[1])
    assert stream.audit().is_proved


def test_letters_that_retention_took_first_are_unproved(stream: Stream) -> None:
    stream.taken_letters = 1
    found = stream.audit()
    assert (found.letters.missing, found.letters.unverified) == ((), ("id-0-5",))
    assert found.fault() is None
    assert not found.is_proved


def test_a_batch_without_its_letters_is_not_audited_yet(stream: Stream) -> None:
    """TBL-2: they follow the commit; those that are there already are read again by the audit that
    needs them.
    """
    stream.log({0: 9, 1: 4}, rejected=[(0, 8), (1, 3)])
    stream.letters.append(letter(3, 0, 8))
    found = stream.audit()
    assert found.is_proved
    assert (found.to_batch, found.letters.compared) == (3, 2)

    stream.commit([], "progress", 3)
    assert stream.audit().letters.missing == ("id-1-3",)
    stream.letters.append(letter(3, 1, 3))
    found = stream.audit()
    assert found.is_proved
    assert stream.letters_read == ["id-0-8", "id-1-3"]


def test_a_stored_result_of_letters_names_the_topic_of_each_position(tmp_path: Path) -> None:
    """REC-4: a new dead-letter topic is not read from an offset of the old one. Other changelogs
    have their own offsets.
    """
    audit_log = AuditLog(str(tmp_path), "s", "t", "c", "id")
    assert audit_log.letters() == (0, ())
    read = [Position("t.dead-letters", "old", 0, 9), Position("t.dead-letters", "new", 1, 0)]
    audit_log.add_letters(3, read, 1)
    assert audit_log.letters()[0] == 3
    assert sorted(audit_log.letters()[1], key=lambda position: position.kafka_partition) == read
    assert replace(audit_log, changelog_id="another").letters() == (0, ())
    audit_log.add_letters(4, [], 2)
    assert audit_log.letters() == (4, ())


def test_batches_are_taken_as_many_at_a_time_as_memory_allows(stream: Stream) -> None:
    """TBL-6"""
    for step_rows, steps in ((1, 2), (STEP_ROWS, 1)):
        logged = open_logged(str(stream.warehouse), "s", step_rows)
        assert logged is not None
        assert len(list(logged.steps())) == steps


CONFIG = (
    'warehouse = "."\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[streams.s]\ntopic ='
    ' "t"\n[streams.new]\ntopic = "u"\n'
)


def connector(stream: Stream, *words: str) -> int:
    (stream.warehouse / "connector.toml").write_text(CONFIG)
    return cli.invoke(["--config", str(stream.warehouse / "connector.toml"), "audit", *words])


def test_the_command_asks_kafka_for_nothing_that_is_proved(
    stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-10: all streams; data on standard output, talk on standard error."""
    stream.audit()
    assert connector(stream) == 0
    said = capsys.readouterr()
    assert "s: no record is lost or duplicated: 11 offsets up to batch 2" in said.err
    assert "new: nothing was ingested yet" in said.err
    assert connector(stream, "--stream", "s", "--json") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["verdict"], found["kafka_partitions"][0]["end"]) == ("passed", 8)


def test_the_command_fails_with_problem_cause_and_remedy(
    stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-10: an audit also reports the commit of another program, and does not refuse it."""
    stream.audit()
    stream.write([row("change", 2, 0, 1)], None)
    assert connector(stream, "--stream", "s", "--json") == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"] == "failed"
    assert "1 commit of another program on top of its changelog" in said.err
    assert (
        "error:  Stream s breaks nothing_lost: 1 offset is in the changelog more than once"
        in said.err
    )
    assert "cause:" in said.err
    assert "remedy:" in said.err


def test_a_changelog_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.write([row("change", 1, 0, 0)], None)
    with pytest.raises(TableError, match="No commit of"):
        open_logged(str(tmp_path), "s")
    assert open_logged(str(tmp_path), "other") is None


def test_metadata_that_cannot_be_read_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """TBL-14."""
    Stream(tmp_path).write([row("change", 1, 0, 0)], {"stream": "s"})
    with pytest.raises(TableError, match="The key 'progress' is missing"):
        open_logged(str(tmp_path), "s")


@pytest.mark.parametrize("step_rows", [1, STEP_ROWS])
def test_doubles_and_gaps_of_write_streams_are_counted(tmp_path: Path, step_rows: int) -> None:
    """WRS-23: staged, committed and expired rows. Offsets that were trimmed are no gap."""
    stream = Stream(tmp_path)
    batches = [
        [("staged", "w/a", 0), ("staged", "w/a", 1), ("change", "w/b", 3)],
        [("staged", "w/a", 1), ("expired", "w/a", 4), ("change", "w/b", 4), ("control", "w/c", 9)],
    ]
    places = iter(range(100))
    for batch in batches:
        stream.ingest({0: 100})
        rows = [
            row(kind, stream.batch, 0, next(places))
            | {"write_stream": {"stream": name, "offset": offset}}
            for kind, name, offset in batch
        ]
        stream.commit(rows, "batch", stream.batch)
    logged = open_logged(str(tmp_path), "s", step_rows)
    assert logged is not None
    found = logged.write_streams()
    assert sorted(found) == ["w/a", "w/b"]
    assert (found["w/a"].rows, found["w/a"].doubled) == (4, (Range(1, 2),))
    assert found["w/a"].gaps == (Range(2, 4),)
    assert found["w/b"].gaps == (Range(0, 3),)
    trimmed = replace(logged, _trimmed_to=1).write_streams()
    assert trimmed["w/b"].gaps == ()
    assert trimmed["w/a"].gaps == (Range(2, 4),)

"""Reads the changelog for audits, and stores their results, without a JVM (TBL-6).

The audit log is a Delta table, `_connector/audit_log` (TBL-22). It has the results, because Kafka
deletes records:

- `empty`: a reader of committed transactions finds no record at the offsets `[start, stop)` of a
  Kafka partition.
- `letters`: each row that a changelog rejected up to `to_batch` has its dead letter. The next audit
  reads the dead-letter topic with the id `topic_id` from `stop` on.

A result is never removed. It was true at `passed_at` (microseconds) in the topic with that id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from connector import warehouse as paths
from connector.dead_letters.envelope import dead_letter_topic
from connector.errors.changelog import changelog_of_another_stream
from connector.lake.checks import explaining, open_existing, opened
from connector.lake.plain_table import commits_of, query_rows
from connector.lake.small_tables import append, quoted, select
from connector.records.rejection import Position
from connector.reports.audit import (
    Range,
    Ranges,
    Run,
    WriteStreamAudit,
    common,
    digest,
    union_ranges,
)
from connector.state.accepted_losses import AcceptLoss
from connector.state.damage import reading
from connector.state.incomplete_transactions import IncompleteTransaction, TransactionCheck
from connector.stored import from_stored

if TYPE_CHECKING:
    from deltalake import DeltaTable

STEP_ROWS: Final = 1_000_000
"""About this many rows are read together. A batch is never divided."""

_RUNS: Final = """
    WITH logged AS (
      SELECT kafka_partition, "offset" AS number, count(*) AS times FROM t
      WHERE kind IN ('change', 'staged', 'expired', 'erased', 'control', 'truncate', 'rejected')
          AND "offset" IS NOT NULL AND kafka_partition IS NOT NULL AND {batches}
      GROUP BY kafka_partition, "offset"),
    numbered AS (
      SELECT *, number - row_number() OVER (PARTITION BY kafka_partition,
      times ORDER BY number) AS island FROM logged)
    SELECT kafka_partition, min(number), max(number) + 1, times FROM numbered
    GROUP BY kafka_partition, times, island ORDER BY 1, 2
"""
_STREAM_RUNS: Final = """
    WITH logged AS (
      SELECT write_stream['stream'] AS stream, write_stream['offset'] AS number, count(*) AS times
      FROM t WHERE kind IN ('change', 'staged', 'expired', 'erased')
          AND write_stream['stream'] IS NOT NULL AND {batches}
      GROUP BY write_stream['stream'], write_stream['offset']),
    numbered AS (
      SELECT *, number - row_number() OVER (PARTITION BY stream, times ORDER BY number) AS island
      FROM logged)
    SELECT stream, min(number), max(number) + 1, times FROM numbered
    GROUP BY stream, times, island ORDER BY 1, 2
"""
_REJECTED: Final = """
    SELECT letter_id, "key", value, headers FROM t WHERE kind = 'rejected'
        AND ingest_batch > {after} AND ingest_batch <= {to}
"""


@dataclass(frozen=True, slots=True)
class Logged:
    """A changelog up to batch `to_batch`, with the metadata of its newest commit by lowmark.

    For each Kafka partition of the topic `topic_id`, the offsets from `begin` (0 if missing) up to,
    without, `end` were read and were not deleted since (TBL-15). The dead letters of batches up to
    `settled_batch` are published. `incomplete` are the transactions that lack records (ING-2),
    and `losses` the decisions about lost records (RUN-7).
    """

    changelog_id: str
    topic_id: str
    to_batch: int
    settled_batch: int
    begin: Mapping[int, int]
    end: Mapping[int, int]
    foreign_commits: int
    incomplete: tuple[IncompleteTransaction, ...]
    losses: tuple[AcceptLoss, ...]
    _trimmed_to: int
    _rows: int
    _step_rows: int
    _delta: DeltaTable

    def steps(self) -> Iterator[Mapping[int, Sequence[Run]]]:
        """The logged offsets, a few batches at a time: the runs of each Kafka partition."""
        for of_step in self._conditions():
            rows = query_rows(self._delta, _RUNS.format(batches=of_step))
            yield {
                number: [Run(*run) for _, *run in runs]
                for number, runs in groupby(rows, key=lambda row: row[0])
            }

    def write_streams(self) -> dict[str, WriteStreamAudit]:
        """The offsets of the write streams in the changelog, by name, as ranges."""
        audits: dict[str, WriteStreamAudit] = {}
        none = WriteStreamAudit(is_whole=not self._trimmed_to)
        for of_step in self._conditions():
            rows = query_rows(self._delta, _STREAM_RUNS.format(batches=of_step))
            for name, runs in groupby(rows, key=lambda row: row[0]):
                audits[name] = audits.get(name, none).logged(Run(*run) for _, *run in runs)
        return audits

    def _conditions(self) -> Iterator[str]:
        """The conditions of a few batches at a time."""
        at_a_time = max(1, self._step_rows * self.to_batch // max(1, self._rows))
        for after in range(self._trimmed_to, self.to_batch, at_a_time):
            to = min(after + at_a_time, self.to_batch)
            of_step = f"ingest_batch > {after} AND ingest_batch <= {to}"
            if after == self._trimmed_to:
                # Rows that other programs added may have no batch number of lowmark.
                of_step = f"({of_step} OR ingest_batch < 1 OR ingest_batch IS NULL)"
            yield of_step

    def rejected(self, after: int) -> Iterator[tuple[str, bytes]]:
        """The id and `audit.digest` of each rejected row after `after` with a published letter."""
        for letter_id, key, value, headers in query_rows(
            self._delta, _REJECTED.format(after=after, to=self.settled_batch)
        ):
            pairs = tuple((header["key"], header["value"]) for header in headers or ())
            yield letter_id or "(a rejected row without a letter id)", digest(key, value, pairs)


def open_logged(warehouse: str, stream: str, step_rows: int = STEP_ROWS) -> Logged | None:
    """The changelog of a stream. None: nothing was ingested yet.

    Raises `TableError` if it is not a changelog of this stream or cannot be read.
    """
    path = paths.changelog(warehouse, stream)
    first = open_existing(path)
    if first is None:
        return None
    with explaining(path, "read"):
        newest, foreign_commits = _newest_of_lowmark(first, stream)
        # Opened after the commit was read, so it contains all that the commit describes. Later
        # batches are excluded by their number.
        delta = opened(path)
    if newest is None:
        raise changelog_of_another_stream(stream, path)
    with reading(path):
        progress = newest["progress"]
        rejected = from_stored(dict[str, int], progress["rejected"])
        return Logged(
            changelog_id=from_stored(str, newest["changelog_id"]),
            topic_id=from_stored(str, newest["topic_id"]),
            to_batch=from_stored(int, newest["ingest_batch"]),
            settled_batch=from_stored(int, progress["ingest_batch"]),
            begin=from_stored(dict[int, int], newest.get("first_offsets", {})),
            end=from_stored(dict[int, int], newest["end_offsets"]),
            foreign_commits=foreign_commits,
            incomplete=from_stored(TransactionCheck, progress.get("transactions", {})).incomplete,
            losses=from_stored(tuple[AcceptLoss, ...], progress.get("losses", ())),
            _trimmed_to=from_stored(int, newest.get("trimmed_to", 0)),
            _rows=from_stored(int, progress["changes"])
            + from_stored(int, progress.get("staged", 0))
            + from_stored(int, progress["control"])
            + sum(rejected.values()),
            _step_rows=step_rows,
            _delta=delta,
        )


def _newest_of_lowmark(delta: DeltaTable, stream: str) -> tuple[Mapping[str, Any] | None, int]:
    """The metadata of the stream's newest commit, and the number of commits of other programs since
    that may have changed rows.
    """
    foreign_commits = 0
    for commit in commits_of(delta).back_from(delta.version()):
        if commit.is_own and commit.stored is not None and commit.stored.get("stream") == stream:
            return commit.stored, foreign_commits
        foreign_commits += not commit.keeps_rows
    return None, 0


RESULTS: Final = {
    **dict.fromkeys(("kind", "stream", "changelog_id", "topic_id"), "string"),
    **dict.fromkeys(("kafka_partition", "start", "stop", "to_batch", "passed_at"), "int64"),
}
"""The columns of the audit log."""


@dataclass(frozen=True, slots=True)
class AuditLog:
    """The audit results of one changelog, which was written from one topic.

    Every method raises `TableError` if the results cannot be written or read.
    """

    warehouse: str
    stream: str
    topic: str
    changelog_id: str
    topic_id: str

    def empty(self, gaps: Mapping[int, Ranges]) -> dict[int, Ranges]:
        """The parts of the gaps that are known to be empty, by Kafka partition."""
        bounds = [
            f"(kafka_partition = {number} AND stop > {ranges[0].start} AND start <"
            f" {ranges[-1].stop})"
            for number, ranges in gaps.items()
            if ranges
        ]
        if not bounds:
            return {}
        empty: dict[int, list[Range]] = defaultdict(list)
        for row in select(
            self._path,
            f"kind = 'empty' AND topic_id = {quoted(self.topic_id)} AND ({' OR '.join(bounds)})",
        ):
            empty[row["kafka_partition"]].append(Range(row["start"], row["stop"]))
        return {
            number: common(gaps[number], union_ranges(ranges)) for number, ranges in empty.items()
        }

    def add_empty(self, ranges: Mapping[int, Ranges], now: int) -> None:
        """Record that these offsets are empty. `now` is in microseconds."""
        results = [
            (self.topic_id, number, *offsets)
            for number, of_partition in ranges.items()
            for offsets in of_partition
        ]
        self._add("empty", results, 0, now)

    def letters(self) -> tuple[int, tuple[Position, ...]]:
        """The last batch whose dead letters were found (0: none), and where to read on."""
        of_changelog = (
            f"kind = 'letters' AND stream = {quoted(self.stream)} AND changelog_id ="
            f" {quoted(self.changelog_id)}"
        )
        rows = select(self._path, f"{of_changelog} ORDER BY to_batch DESC, passed_at DESC")
        newest = [
            row
            for row in rows
            if (row["to_batch"], row["passed_at"]) == (rows[0]["to_batch"], rows[0]["passed_at"])
        ]
        topic = dead_letter_topic(self.topic)
        positions = (
            Position(topic, row["topic_id"], row["kafka_partition"], row["stop"] - 1)
            for row in newest
            if row["stop"]
        )
        return newest[0]["to_batch"] if newest else 0, tuple(positions)

    def add_letters(self, to_batch: int, read: Iterable[Position], now: int) -> None:
        """Record that every dead letter up to `to_batch` was found. No dead letter of a later batch
        is before a record in `read`.
        """
        results = [
            (position.topic_id, position.kafka_partition, 0, position.offset + 1)
            for position in read
        ]
        # If every dead letter that was read belongs to a later batch too, only the batch is
        # recorded.
        self._add("letters", results or [("", 0, 0, 0)], to_batch, now)

    def _add(
        self, kind: str, results: Iterable[tuple[str, int, int, int]], to_batch: int, now: int
    ) -> None:
        rows = [
            {
                "kind": kind,
                "stream": self.stream,
                "changelog_id": self.changelog_id,
                "to_batch": to_batch,
                "passed_at": now,
                "topic_id": topic_id,
                "kafka_partition": number,
                "start": start,
                "stop": stop,
            }
            for topic_id, number, start, stop in results
        ]
        if rows:
            append(self._path, rows, RESULTS)

    @property
    def _path(self) -> str:
        return paths.audit_log(self.warehouse)

"""The results of audits, kept because Kafka deletes records. It is a Delta table in the warehouse:
`_connector/audit_log` (TBL-6, TBL-22).

- The kind `empty` says: a reader of committed transactions finds no record at the offsets `[start,
  stop)` of a Kafka partition.
- The kind `letters` says: each row that a changelog rejected up to `to_batch` has its dead letter.
  The next audit reads the dead-letter topic with the id `topic_id` from `stop` on.

A result is never removed. It was true at `passed_at` (microseconds) in the topic with that id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from connector import warehouse as places
from connector.dead_letters.envelope import dead_letter_topic
from connector.lake.small_tables import append, quoted, select
from connector.records.rejection import Position
from connector.reports.audit import Range, Ranges, common, union_ranges

_PROOFS: Final = {
    **dict.fromkeys(("kind", "stream", "changelog_id", "topic_id"), "string"),
    **dict.fromkeys(("kafka_partition", "start", "stop", "to_batch", "passed_at"), "int64"),
}


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
            f"(kafka_partition = {number} AND stop > {places[0].start} AND start <"
            f" {places[-1].stop})"
            for number, places in gaps.items()
            if places
        ]
        if not bounds:
            return {}
        found: dict[int, list[Range]] = defaultdict(list)
        for row in select(
            self._path,
            f"kind = 'empty' AND topic_id = {quoted(self.topic_id)} AND ({' OR '.join(bounds)})",
        ):
            found[row["kafka_partition"]].append(Range(row["start"], row["stop"]))
        return {
            number: common(gaps[number], union_ranges(places)) for number, places in found.items()
        }

    def add_empty(self, places: Mapping[int, Ranges], now: int) -> None:
        """Record that these offsets are empty. `now` is in microseconds."""
        self._add(
            "empty",
            [
                (self.topic_id, number, *found)
                for number, ranges in places.items()
                for found in ranges
            ],
            0,
            now,
        )

    def letters(self) -> tuple[int, tuple[Position, ...]]:
        """The last batch whose dead letters were found (0: none), and the last records of the
        dead-letter topic that need not be read again.
        """
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
        places = [
            (position.topic_id, position.kafka_partition, 0, position.offset + 1)
            for position in read
        ]
        # If every dead letter that was read belongs to a later batch too, only the batch is
        # recorded.
        self._add("letters", places or [("", 0, 0, 0)], to_batch, now)

    def _add(
        self, kind: str, places: Iterable[tuple[str, int, int, int]], to_batch: int, now: int
    ) -> None:
        of_changelog = {
            "kind": kind,
            "stream": self.stream,
            "changelog_id": self.changelog_id,
            "to_batch": to_batch,
            "passed_at": now,
        }
        rows = [
            {
                **of_changelog,
                "topic_id": topic_id,
                "kafka_partition": number,
                "start": start,
                "stop": stop,
            }
            for topic_id, number, start, stop in places
        ]
        if rows:
            append(self._path, rows, _PROOFS)

    @property
    def _path(self) -> str:
        return places.audit_log(self.warehouse)

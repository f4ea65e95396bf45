"""The messages of a session: rows, releases and control records, and their stream partitions
(WRS-10, WRS-15, WRS-16).

A session has two stream partitions: one for the rows of its committed write streams, and one for
the releases of its buffered write streams. Each is announced with its first record. The heartbeats
of the second are at the clock, because nothing but releases is in it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from confluent_kafka import murmur2

from connector.clock import now_us
from connector.kafka.produce.record_bytes import RecordBytes
from connector.kafka.transactions import HeaderList, TransactionMessage
from connector.records.avro_encoder import encode_row
from connector.records.codec import frame
from connector.records.model import CONTROL_KEY, ChildPartitions, Heartbeat, Release
from connector.watermarks.heartbeat_schedule import HeartbeatSchedule
from connector.watermarks.lineage import Announcements
from connector.watermarks.producer_epoch import ProducerEpoch
from connector.write_streams.model import (
    SessionEntry,
    release_partition_of,
    stream_partition_of,
)
from connector.write_streams.rules import release_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from connector.kafka.write_streams.queue import Job
    from connector.records.model import DataChange, Record


class Encoding(RecordBytes):
    """Encodes the messages of a session, or of a commit."""

    def row(
        self, change: DataChange, offset: int, server_time: int
    ) -> tuple[TransactionMessage, bytes]:
        """Return a row at an offset, and the bytes that its digest is of.

        Raises `InvalidChangeError` if it is too large or too old.
        """
        body, row = encode_row(change, offset, server_time, self.kafka_partitions)
        value = frame(body, self.schema_id)
        self.check_age(change)
        self.check_size(change.row_key, value, [])
        number = murmur2(change.row_key, self.kafka_partitions)
        return TransactionMessage(self.topic, change.row_key, value, number), row

    def everywhere(self, record: Record, headers: HeaderList) -> list[TransactionMessage]:
        """Return a control record for every Kafka partition. Raises as `row` does."""
        value = self.checked(record, CONTROL_KEY, headers)
        return [
            TransactionMessage(self.topic, CONTROL_KEY, value, number, headers)
            for number in range(self.kafka_partitions)
        ]


class SessionPartitions:
    """The stream partitions of one session.

    - `entry` is the record of the session, as it is after the messages that were made.
    - `rows` is the stream partition of committed rows.
    - `closed_to` is the time (µs) at or below which no committed row is taken.
    """

    def __init__(
        self,
        session: str,
        entry: SessionEntry,
        encoding: Encoding,
        retention: int,
        interval_s: float,
    ) -> None:
        self.entry, self._encoding = entry, encoding
        self.rows = stream_partition_of(session, entry.number)
        self._releases = release_partition_of(session, entry.number)
        self._announcements = Announcements(retention)
        self._epoch = ProducerEpoch(now_us())
        self._schedule = HeartbeatSchedule(interval_s)
        self.closed_to = self._newest_row = 0
        self._last_release = self._last_heartbeat = 0

    @property
    def heartbeats_at(self) -> float:
        """The time (monotonic) of the next heartbeats."""
        return self._schedule.next_at

    def reached(self, timestamp: int, resume_token: bytes, now: float) -> None:
        """Register a position of the application. It is not before the last one."""
        self.closed_to = timestamp
        self._schedule.reached(Heartbeat(self.rows, timestamp, resume_token), now)

    def before_rows(self, jobs: Iterable[Job]) -> list[TransactionMessage]:
        """Return the announcement that must be sent before the committed rows of these jobs."""
        messages: list[TransactionMessage] = []
        for job in jobs:
            if job.oldest:
                messages += self._announced(Heartbeat(self.rows, job.oldest))
                self._newest_row = max(self._newest_row, job.newest)
        return messages

    def release(self, job: Job) -> list[TransactionMessage]:
        """Return the messages of the release of a job."""
        assert job.release is not None
        if (producer_release := job.held) is not None:
            release = Release(
                producer_release.stream_partition, producer_release.commit_timestamp, (job.release,)
            )
            return self._encoding.everywhere(release, producer_release.headers)
        time = release_timestamp(now_us(), self._last_heartbeat, self._last_release)
        heartbeat = Heartbeat(self._releases, time)
        release = Release(self._releases, time, (job.release,))
        messages = [*self._announced(heartbeat), *self._everywhere(release)]
        self._last_release = self._last_heartbeat = time
        return [*messages, *self._everywhere(heartbeat)]

    def heartbeats(
        self, now: float, oldest_queued: int | None, *, is_last: bool
    ) -> list[TransactionMessage]:
        """Return the heartbeats and announcements that are due.

        `oldest_queued` is the least commit timestamp of the rows that are sent later, or None.
        """
        if not self._schedule.is_started:
            return []
        if self._last_release and not is_last:
            self._last_heartbeat = max(self._last_heartbeat, now_us())
            self._schedule.reached(Heartbeat(self._releases, self._last_heartbeat), now)
        messages: list[TransactionMessage] = []
        if self._schedule.announces(now):
            for announcement in self._announcements.repeated(now_us()):
                messages += self._everywhere(announcement)
        oldest = {self.rows: oldest_queued}
        due = self._schedule.last(oldest.get) if is_last else self._schedule.due(now, oldest.get)
        for heartbeat in due:
            messages += [*self._announced(heartbeat), *self._everywhere(heartbeat)]
            self._schedule.sent(heartbeat, now)
        return messages

    def ends(self) -> list[TransactionMessage]:
        """Return the ends of the stream partitions, and number the next ones."""
        messages: list[TransactionMessage] = []
        for name in self.entry.announced:
            times = (
                (self.closed_to, self._newest_row)
                if name == self.rows
                else (self._last_heartbeat, self._last_release)
            )
            # An earlier session may have announced it, so its times are not known.
            at = max(times) + 1 if any(times) else now_us()
            messages += self._everywhere(ChildPartitions(name, at, 0, ()))
        if messages:
            self.entry = replace(self.entry, number=self.entry.number + 1, announced=())
        return messages

    def _announced(self, record: Record) -> list[TransactionMessage]:
        """Return the announcements before a record."""
        messages: list[TransactionMessage] = []
        for announcement in self._announcements.due(record, now_us()):
            messages += self._everywhere(announcement)
        name = record.stream_partition
        if name not in self.entry.announced:
            self.entry = replace(self.entry, announced=(*self.entry.announced, name))
        if name == self._releases:
            self._schedule.is_started = True
        return messages

    def _everywhere(self, record: Record) -> list[TransactionMessage]:
        return self._encoding.everywhere(record, self._epoch.on([]))

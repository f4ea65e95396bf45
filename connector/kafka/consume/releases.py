"""Chooses the rows and releases of write streams that a reader hands out (WRS-22).

Theory. Each Kafka partition has a copy of a release, and a reader hands one of them out. Which one
must not depend on what was read before, because a reader that continues does not know it. So it is
that of one Kafka partition, which follows from the arguments of the reader.

A release is sent after its rows are in Kafka. So in each Kafka partition, the rows come before the
copy, and the copy before the heartbeat that follows the release. Therefore, when the low watermark
has passed the commit timestamp of a release, all its rows were read, and the copy, too.
"""

from __future__ import annotations

from collections.abc import Collection

from connector.kafka.consume.record import ConsumerRecord
from connector.records.model import DataChange, Release
from connector.watermarks.released import Released, Staged, released_of

Shown = ConsumerRecord | Released | Staged


class ReleaseCopies:
    """Chooses the records that a reader hands out.

    - Staged changes are `Staged`, or left out.
    - Of a release, the copy in Kafka partition 0 is `Released`. If the reader names its Kafka
      partitions, it is the copy in the least of them. The other copies are left out.
    - A release in the topic with the replays of a group is always `Released`.
    """

    def __init__(self, topic: str, kafka_partitions: Collection[int] | None, staged: bool) -> None:
        self._topic, self._staged = topic, staged
        self._place = min(kafka_partitions) if kafka_partitions else 0

    def shown(self, received: ConsumerRecord) -> Shown | None:
        """Return what is handed out for a record. None: nothing."""
        record = received.record
        if isinstance(record, DataChange):
            if not record.is_staged:
                return received
            return Staged(record, received.position) if self._staged else None
        if isinstance(record, Release):
            position = received.position
            is_it = position.kafka_partition == self._place or position.topic != self._topic
            return released_of(record, position) if is_it else None
        return received

"""Turns records into the items of a consumer: watermarks, ranges of commit time (SUB-1, SUB-2),
and whole transactions (SUB-3).
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Final

from connector.clock import now_us
from connector.dead_letters.envelope import REPLAY_HEADER
from connector.errors import ConnectorError
from connector.kafka.consume.decode import ConsumerRecord, ReleaseCopies
from connector.kafka.consume.options import CommitRange
from connector.kafka.consume.reader import RecordReader
from connector.kafka.consume.start_offsets import first_arrival
from connector.records.model import MAX_LONG, Mutation, Release, time_of
from connector.records.rejection import Position, Rejection
from connector.validation import Limits, size_of
from connector.watermarks.tracker import Watermark, WatermarkTracker
from connector.watermarks.transactions import (
    Item,
    Late,
    Rejected,
    Released,
    Staged,
    TransactionAssembler,
)

Timed = ConsumerRecord | Watermark | Late | Released | Staged
"""What a `WatermarkConsumer` yields."""

ADVANCE_EVERY_S: Final = 0.1
"""How often the low watermark is computed while records come. It costs more than a record."""


class WatermarkStage:
    """Takes records, and hands them out with the watermarks that they lead to.

    With a range, changes and control records outside it are left out, and changes behind the low
    watermark become `Late`. `copies` chooses what is handed out of write streams.

    - `unread` is a record that must be taken again. Only a stage with a bounded buffer has one.
    """

    unread: ConsumerRecord | None = None

    def __init__(
        self,
        reader: RecordReader,
        tracker: WatermarkTracker,
        copies: ReleaseCopies,
        limits: Limits,
        commits: CommitRange | None,
    ) -> None:
        self._reader, self._tracker, self._copies = reader, tracker, copies
        self._has_range = commits is not None
        self._first, self._last = (commits or CommitRange()).bounds
        # A record that arrived before is not in the range.
        self._first_arrival = first_arrival(reader.facts, limits, self._first)
        self._assignments = reader.assignments
        self._advanced_at = time.monotonic()
        self._out: deque[Timed] = deque()

    @property
    def is_past_end(self) -> bool:
        """Whether the low watermark has passed the range."""
        low = self._tracker.low_watermark
        return low is not None and low > self._last

    @property
    def is_finished(self) -> bool:
        """Whether everything was handed out, and nothing more is to come."""
        is_read = self._reader.finished or self.is_past_end
        return is_read and not self.has_items and self.unread is None

    @property
    def has_items(self) -> bool:
        """Whether `pop` returns an item."""
        return bool(self._out)

    def wait(self, timeout_s: float) -> None:
        """Take records until `pop` returns an item, nothing more is to come, or the time has
        passed. Raises as `poll` of a consumer does.
        """
        deadline = time.monotonic() + timeout_s
        while not self.has_items and not self.is_finished:
            left = max(0.0, deadline - time.monotonic())
            self._take(self.unread or self._reader.poll(min(left, self._until_advance())))
            if not left:
                return

    def pop(self) -> Timed | None:
        """Return the next item, or None."""
        return self._out.popleft() if self._out else None

    def _until_advance(self) -> float:
        """Return how long the next record may be waited for."""
        if not self._tracker.has_news:
            return MAX_LONG
        return max(0.0, self._advanced_at + ADVANCE_EVERY_S - time.monotonic())

    def _take(self, received: ConsumerRecord | None) -> None:
        """Take a record, or None if none came in time. Raises as `_put` does."""
        if self._reader.assignments != self._assignments:
            self._assignments = self._reader.assignments
            self._tracker.restart(frozenset(self._reader.next_offsets))
        if received is not None:
            self._add_claims(received)
            self._put(received)
        if (
            received is None
            or self._reader.finished
            or time.monotonic() >= self._advanced_at + ADVANCE_EVERY_S
        ):
            self._advance()

    def _add_claims(self, received: ConsumerRecord) -> None:
        if (
            isinstance(received.record, Rejection)
            or any(name == REPLAY_HEADER for name, _ in received.source.headers)
            or received.position.topic != self._reader.facts.topic
        ):
            return
        self._tracker.add(
            received.record,
            received.position.kafka_partition,
            received.kafka_partitions,
            received.record_timestamp,
        )

    def _put(self, received: ConsumerRecord) -> None:
        shown, record = self._copies.shown(received), received.record
        if shown is None:
            return
        if not self._has_range or isinstance(shown, Staged):
            self._out.append(shown)
        elif isinstance(shown, Released):
            if self._is_in_range(shown.commit_timestamp):
                self._out.append(replace(shown, is_late=self._is_passed(shown.commit_timestamp)))
        elif isinstance(record, Rejection):
            if received.record_timestamp >= self._first_arrival:
                self._out.append(received)
        elif not isinstance(record, Mutation):
            if self._is_in_range(time_of(record)):
                self._out.append(received)
        elif self._is_in_range(record.commit_timestamp):
            is_late = self._is_passed(record.commit_timestamp)
            self._out.append(Late(record, received.position) if is_late else received)

    def _is_in_range(self, time_us: int) -> bool:
        return self._first <= time_us <= self._last

    def _is_passed(self, time_us: int) -> bool:
        return time_us < (self._tracker.low_watermark or 0)

    def _advance(self) -> None:
        self._advanced_at = time.monotonic()
        watermark = self._tracker.advance(now_us(), self._reader.facts.kafka_partitions)
        if watermark is not None:
            self._out.append(watermark)


class TransactionStage(WatermarkStage):
    """Takes records, and hands out whole transactions, releases, late changes and rejections, with
    the watermarks that they lead to.
    """

    def __init__(
        self,
        reader: RecordReader,
        tracker: WatermarkTracker,
        copies: ReleaseCopies,
        limits: Limits,
        commits: CommitRange | None,
        assembler: TransactionAssembler,
    ) -> None:
        super().__init__(reader, tracker, copies, limits, commits)
        self._assembler = assembler
        self._replays: deque[tuple[int, Position]] = deque()
        self.replayed: dict[int, int] = {}
        self._acknowledged = self._stored = 0

    def pop_item(self) -> Item | Watermark | None:
        """Return the next item, or None. A watermark comes after the transactions below it."""
        if (item := self._assembler.pop()) is not None:
            return item
        watermark = self.pop()
        assert watermark is None or isinstance(watermark, Watermark), "the assembler has the rest"
        return watermark

    @property
    def is_past_end(self) -> bool:
        return super().is_past_end and not self._assembler.is_reading_again

    @property
    def has_items(self) -> bool:
        return self._assembler.has_items or super().has_items

    def acknowledge(self, item: Item) -> None:
        self._assembler.acknowledge(item)
        self._acknowledged = max(self._acknowledged, item.number)
        while self._replays and self._replays[0][0] <= item.number:
            position = self._replays.popleft()[1]
            self.replayed[position.kafka_partition] = position.offset + 1

    def stored(self) -> None:
        """Take that `state` was stored."""
        self._stored = self._acknowledged

    def unstored(self) -> int:
        """Return how many items were acknowledged since then."""
        return self._acknowledged - self._stored

    def state(self) -> bytes:
        self._advance()
        return self._assembler.state()

    def _put(self, received: ConsumerRecord) -> None:
        """Raises `ConnectorError`. Then `unread` is the record, which must be taken again."""
        record, position = received.record, received.position
        self.unread = None
        if position.topic != self._reader.facts.topic:
            if (item := self._replayed_item(received)) is not None:
                self._replays.append((self._assembler.pass_on(item), position))
            return
        shown = self._copies.shown(received)
        if isinstance(record, Rejection) and received.record_timestamp >= self._first_arrival:
            self._assembler.reject(record, position)
        elif isinstance(shown, Released | Staged) or (shown and isinstance(record, Mutation)):
            try:
                self._add(shown, received)
            except ConnectorError:
                self.unread = received
                self._advance()
                if not self._assembler.has_items:
                    raise
        else:
            self._assembler.reached(position.kafka_partition, position.offset + 1)

    def _add(self, shown: ConsumerRecord | Released | Staged, received: ConsumerRecord) -> None:
        record, source = received.record, received.source
        assert isinstance(record, Mutation | Release), "others have no place in the order"
        if isinstance(shown, Staged):
            self._assembler.add_staged(shown.change, shown.position)
        else:
            size = size_of(source.key, source.value, source.headers)
            self._assembler.add(record, received.position, size)

    def _replayed_item(
        self, received: ConsumerRecord
    ) -> Rejected | Late | Released | Staged | None:
        shown, record = self._copies.shown(received), received.record
        if isinstance(shown, Staged):
            return shown
        if isinstance(shown, Released):
            return replace(shown, is_late=True)
        if isinstance(record, Rejection):
            return Rejected(record, received.position)
        if isinstance(record, Mutation) and shown is not None:
            return Late(record, received.position)
        return None

    def _advance(self) -> None:
        super()._advance()
        if self.unread is None:
            # The end of a Kafka partition may be after its last visible record.
            for k, following in self._reader.next_offsets.items():
                self._assembler.reached(k, following)
        self._assembler.release()

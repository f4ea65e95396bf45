"""Turns records into the items of a consumer: watermarks, ranges of commit time (SUB-1,
SUB-2), and whole transactions (SUB-3).
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from connector.clock import now_us
from connector.dead_letters.envelope import REPLAY_HEADER
from connector.errors import BufferFullError
from connector.kafka.consume.reader import RecordReader
from connector.kafka.consume.record import ConsumerRecord
from connector.kafka.consume.releases import ReleaseCopies
from connector.records.model import MAX_LONG, DataChange, Release, time_of
from connector.records.rejection import Position, Rejection
from connector.records.sizes import size_of
from connector.watermarks.reader_state import ReaderState
from connector.watermarks.released import Released, Staged
from connector.watermarks.tracker import Watermark, WatermarkTracker
from connector.watermarks.transactions import (
    HeldBack,
    Item,
    Late,
    Rejected,
    TransactionAssembler,
    WholeTransaction,
)

Received = ConsumerRecord | Watermark | WholeTransaction | Late | Rejected | Released | Staged
"""What a `ChangeConsumer` yields. Without further arguments, it is `ConsumerRecord | Released`."""

ADVANCE_EVERY_S: Final = 0.1
"""How often the low watermark is computed while records come. It costs more than a record."""


@dataclass(frozen=True, slots=True)
class CommitRange:
    """Commit timestamps from `start` to `end` (µs), both included.

    A record with a smaller record timestamp than `first_arrival` is not in the range.
    """

    start: int = 0
    end: int = MAX_LONG
    first_arrival: int = 0

    def __contains__(self, time_us: int) -> bool:
        return self.start <= time_us <= self.end


class WatermarkStage:
    """Takes records, and hands them out with the watermarks that they lead to.

    With a range, changes and control records outside it are left out, and changes behind the low
    watermark become `Late`. `copies` chooses what is handed out of write streams.
    """

    def __init__(
        self,
        reader: RecordReader,
        tracker: WatermarkTracker,
        copies: ReleaseCopies,
        yields_watermarks: bool,
        commits: CommitRange | None = None,
    ) -> None:
        self._reader, self._tracker, self._copies = reader, tracker, copies
        self._yields_watermarks, self._commits = yields_watermarks, commits
        self._assignments = reader.assignments
        self._advanced_at = time.monotonic()
        self._out: deque[Received] = deque()
        self.unread: ConsumerRecord | None = None

    @property
    def is_past_end(self) -> bool:
        """Whether the low watermark has passed the range."""
        low = self._tracker.low_watermark
        return self._commits is not None and low is not None and low > self._commits.end

    @property
    def is_finished(self) -> bool:
        """Whether everything was handed out, and nothing more is to come."""
        return (self._reader.finished or self.is_past_end) and not self.has_items

    @property
    def has_items(self) -> bool:
        """Whether `pop` returns an item."""
        return bool(self._out)

    @property
    def wait_s(self) -> float:
        """How long the next record may be waited for."""
        if not self._tracker.has_news:
            return MAX_LONG
        return max(0.0, self._advanced_at + ADVANCE_EVERY_S - time.monotonic())

    def pop(self) -> Received | None:
        """Return the next item, or None."""
        return self._out.popleft() if self._out else None

    def take(self, received: ConsumerRecord | None) -> None:
        """Take a record, or None if none came in time. Raises as `_put` does."""
        if self._reader.assignments != self._assignments:
            self._assignments = self._reader.assignments
            self._tracker.restart(frozenset(self._reader.next_offsets))
        if received is not None:
            self._hear(received)
            self._put(received)
        if (
            received is None
            or self._reader.finished
            or time.monotonic() >= self._advanced_at + ADVANCE_EVERY_S
        ):
            self._advance()

    def _hear(self, received: ConsumerRecord) -> None:
        if (
            isinstance(received.record, Rejection)
            or any(name == REPLAY_HEADER for name, _ in received.source.headers)
            or received.position.topic != self._reader.facts.topic
        ):
            return
        self._tracker.hear(
            received.record,
            received.position.kafka_partition,
            received.kafka_partitions,
            received.record_timestamp,
        )

    def _put(self, received: ConsumerRecord) -> None:
        shown, record, commits = self._copies.shown(received), received.record, self._commits
        if shown is None:
            return
        if commits is None or isinstance(shown, Staged):
            self._out.append(shown)
        elif isinstance(shown, Released):
            if shown.commit_timestamp in commits:
                self._out.append(replace(shown, is_late=self._is_passed(shown.commit_timestamp)))
        elif isinstance(record, Rejection):
            if not self._is_before_range(received):
                self._out.append(received)
        elif not isinstance(record, DataChange):
            if time_of(record) in commits:
                self._out.append(received)
        elif record.commit_timestamp in commits:
            is_late = self._is_passed(record.commit_timestamp)
            self._out.append(Late(record, received.position) if is_late else received)

    def _is_passed(self, time_us: int) -> bool:
        return time_us < (self._tracker.low_watermark or 0)

    def _is_before_range(self, received: ConsumerRecord) -> bool:
        return self._commits is not None and received.record_timestamp < self._commits.first_arrival

    def _advance(self) -> None:
        self._advanced_at = time.monotonic()
        watermark = self._tracker.advance(now_us(), self._reader.facts.kafka_partitions)
        if watermark is not None and self._yields_watermarks:
            self._out.append(watermark)


class TransactionStage(WatermarkStage):
    """Takes records, and hands out whole transactions, releases, late changes and rejections."""

    def __init__(
        self,
        reader: RecordReader,
        tracker: WatermarkTracker,
        copies: ReleaseCopies,
        assembler: TransactionAssembler,
        yields_watermarks: bool,
        commits: CommitRange | None = None,
    ) -> None:
        super().__init__(reader, tracker, copies, yields_watermarks, commits)
        self._assembler = assembler
        self._replays: deque[tuple[int, Position]] = deque()
        self.replayed: dict[int, int] = {}
        self._acknowledged = self._stored = 0

    def pop(self) -> Received | None:
        # A watermark comes after the transactions that it releases.
        return self._assembler.pop() or super().pop()

    @property
    def is_past_end(self) -> bool:
        return super().is_past_end and not self._assembler.is_reading_again

    @property
    def has_items(self) -> bool:
        return self._assembler.has_items or self.unread is not None or super().has_items

    def acknowledge(self, item: Item) -> None:
        self._assembler.acknowledge(item)
        self._acknowledged = max(self._acknowledged, item.number)
        while self._replays and self._replays[0][0] <= item.number:
            position = self._replays.popleft()[1]
            self.replayed[position.kafka_partition] = position.offset + 1

    def is_acknowledged(self, item: Item) -> bool:
        return self._assembler.is_acknowledged(item)

    def stored(self) -> None:
        """Take that `state` was stored."""
        self._stored = self._acknowledged

    def unstored(self) -> int:
        """Return how many items were acknowledged since then."""
        return self._acknowledged - self._stored

    def held_back(self) -> HeldBack | None:
        return self._assembler.held_back()

    def oldest(self) -> dict[int, int]:
        return self._assembler.oldest()

    def state(self) -> bytes:
        self._advance()
        return self._assembler.state()

    def _put(self, received: ConsumerRecord) -> None:
        """Raises `BufferFullError`. Then `unread` is the record, which must be taken again."""
        record, position = received.record, received.position
        self.unread = None
        if position.topic != self._reader.facts.topic:
            if (item := self._replayed_item(received)) is not None:
                self._replays.append((self._assembler.pass_on(item), position))
            return
        shown = self._copies.shown(received)
        if isinstance(record, Rejection) and not self._is_before_range(received):
            self._assembler.reject(record, position)
        elif isinstance(shown, Released | Staged) or (shown and isinstance(record, DataChange)):
            try:
                self._add(shown, received)
            except BufferFullError:
                self.unread = received
                self._advance()
                if not self._assembler.has_items:
                    raise
        else:
            self._assembler.reached(position.kafka_partition, position.offset + 1)

    def _add(self, shown: ConsumerRecord | Released | Staged, received: ConsumerRecord) -> None:
        record, source = received.record, received.source
        assert isinstance(record, DataChange | Release), "others have no place in the order"
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
        if isinstance(record, DataChange) and shown is not None:
            return Late(record, received.position)
        return None

    def _advance(self) -> None:
        super()._advance()
        if self.unread is None:
            # The end of a Kafka partition may be after its last visible record.
            for k, following in self._reader.next_offsets.items():
                self._assembler.reached(k, following)
        self._assembler.release()


def transaction_stage(
    reader: RecordReader,
    tracker: WatermarkTracker,
    copies: ReleaseCopies,
    commits: CommitRange,
    state: ReaderState | None,
    max_buffered_bytes: int,
    yields_watermarks: bool,
) -> TransactionStage:
    """Return the stage of a reader of whole transactions, which continues from a state."""
    assembler = TransactionAssembler(
        tracker,
        reader.facts.topic,
        reader.facts.topic_id,
        max_buffered_bytes=max_buffered_bytes,
        start_commit=commits.start,
        end_commit=commits.end,
        state=state,
    )
    return TransactionStage(reader, tracker, copies, assembler, yields_watermarks, commits)

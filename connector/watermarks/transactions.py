"""Whole transactions in the order of their commits, from records in the order of their arrival
(SUB-3). docs/explanation/watermarks.md has the theory.

Transactions are released in the order of commit timestamp, transaction id and position. A release
of a write stream waits as a transaction without an id does (WRS-22). A record that was read is a
*part* of a transaction, or an *aside*: a rejection, a duplicate, or a change behind the low
watermark. Asides are released at once, after all that was released before.

A reader that continues releases nothing until all records up to the place that was reached before
have been read again, because the low watermark has passed them already. Staged rows are passed on
at once. Those of one Kafka partition are acknowledged in the order of their offsets, so one offset
says which of them were.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from connector.errors import ConnectorError
from connector.errors.kafka import buffer_full, transactions_unacknowledged
from connector.records.model import MAX_LONG, DataChange, Mutation, OffsetRange, Release, Truncate
from connector.records.rejection import Position, Rejection
from connector.watermarks.delivery import Multiset
from connector.watermarks.frontier import Stall
from connector.watermarks.reader_state import NOTHING, Aside, OrderPlace, ReaderState
from connector.watermarks.tracker import WatermarkTracker

DEFAULT_BUFFERED_BYTES: Final = 256 * 1024 * 1024
CHANGE_OVERHEAD_BYTES: Final = 1024
"""Memory of a decoded change besides its bytes, roughly."""

UNACKNOWLEDGED_BYTES: Final = 256
"""Memory of a record that was handed out and is not acknowledged: its position."""

_PRUNE_ABOVE: Final = 1000


@dataclass(frozen=True, slots=True)
class WholeTransaction:
    """All changes of one transaction of the source, in order.

    The name differs from `connector.Transaction`, which is the transaction field of one change.

    - `server_transaction_id` is empty for a change without a transaction. Such a change is a
      transaction of its own.
    - `changes` are ordered by `record_sequence`, each once. `positions` are those of their records.
      A truncation of a table is one of the changes (EVO-13).
    - `missing` is how many records did not come before the low watermark passed the transaction:
      they were rejected, or never sent.
    - `number` counts what the consumer has handed out. `acknowledge` uses it.
    """

    commit_timestamp: int
    server_transaction_id: str
    changes: tuple[Mutation, ...]
    missing: int = 0
    positions: tuple[Position, ...] = ()
    number: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Late:
    """A change or truncation that is not in a transaction, because the transaction has it or was
    released before.

    - `is_duplicate`: the transaction of the change has it, and comes later.
    - `number` is as in `WholeTransaction`.
    """

    change: Mutation
    position: Position
    is_duplicate: bool = False
    number: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that cannot be read. It may be a part of a transaction, which then lacks it.

    `number` is as in `WholeTransaction`.
    """

    rejection: Rejection
    position: Position
    number: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Released:
    """Staged rows of write streams got a commit timestamp. They are one transaction of the source.

    - `commit_timestamp` (µs) is that of the rows.
    - `ranges` are the offsets of the rows: of each write stream from `first` to `upto`, exclusive.
    - `stream_partition` is that of the release.
    - `position` is that of the copy that was handed out. Each Kafka partition has one.
    - `is_late`: it came behind the low watermark, as a `Late` does. Only a reader of whole
      transactions or of a range of commit time says so.
    - `number` is as in `WholeTransaction`.

    It does not mean that tables show the rows. For example, ingest withholds a release while one of
    its rows is a dead letter.
    """

    commit_timestamp: int
    ranges: tuple[OffsetRange, ...]
    stream_partition: str
    position: Position
    is_late: bool = False
    number: int = field(default=0, compare=False)

    @property
    def record(self) -> Release:
        """The release itself. So a program that looks at `record` only need not look at types."""
        return Release(self.stream_partition, self.commit_timestamp, self.ranges)


@dataclass(frozen=True, slots=True)
class Staged:
    """A row of a write stream that waits for its release.

    - `change` has the commit timestamp 0. Its `write_stream` names the write stream and the offset.
    - `number` is as in `WholeTransaction`.
    """

    change: DataChange
    position: Position
    number: int = field(default=0, compare=False)

    @property
    def record(self) -> DataChange:
        """The change, as that of a record which is not staged."""
        return self.change


def released_of(release: Release, position: Position) -> Released:
    """Return the item of a release that was read at a position."""
    return Released(release.commit_timestamp, release.ranges, release.stream_partition, position)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The transactions that a consumer has read and not handed out, because the low watermark has
    not passed them.

    - `transactions` and `changes` count what was read of them. A release of a write stream counts
      as a transaction without changes.
    - `oldest` is their least commit timestamp (µs).
    - `low_watermark` (µs). None: it is not known, since not all stream partitions were announced.
    - `lagging_partition` delays the low watermark. None: no stream partition is live.
    """

    transactions: int
    changes: int
    oldest: int
    low_watermark: int | None
    lagging_partition: Stall | None


Item = WholeTransaction | Late | Rejected | Released | Staged
"""What a reader of whole transactions hands out, and takes back in `acknowledge`."""


@dataclass(slots=True)
class _Group:
    """The parts of one transaction, by record sequence. A release is the only part of its group."""

    server_transaction_id: str
    size: int = 0
    declared: int = 1
    parts: dict[int, tuple[Mutation | Release, Position]] = field(default_factory=dict)

    @property
    def first(self) -> tuple[int, int]:
        return min(
            (position.kafka_partition, position.offset) for _, position in self.parts.values()
        )


class _HandedOut(NamedTuple):
    """An item that was released and is not acknowledged. `order_place` is that of a transaction."""

    number: int
    order_place: OrderPlace | None
    positions: tuple[Position, ...]
    is_staged: bool


class TransactionAssembler:
    """Assembles transactions, and knows which of them are acknowledged. No I/O.

    Give it each record with `add`, `add_staged`, `reject` or `reached`, in the order of each Kafka
    partition. Of a release or a truncation, give it one copy.
    Advance the tracker, call `release`, and take items with `pop` until it returns None.
    """

    def __init__(
        self,
        tracker: WatermarkTracker,
        topic: str,
        topic_id: str,
        *,
        max_buffered_bytes: int = DEFAULT_BUFFERED_BYTES,
        start_commit: int = 0,
        end_commit: int = MAX_LONG,
        state: ReaderState | None = None,
    ) -> None:
        """Start with nothing, or continue from a state. Then the tracker must begin with the
        frontier of the state.

        `max_buffered_bytes` is the bound for changes that were read and not handed out, and for
        positions that are not acknowledged. Changes with a commit timestamp outside of
        `start_commit` to `end_commit` are skipped.
        """
        self._tracker, self._topic, self._topic_id = tracker, topic, topic_id
        self._most, self._start, self._end = max_buffered_bytes, start_commit, end_commit
        self._passed = tracker.low_watermark or 0
        self._groups: dict[int, dict[Hashable, _Group]] = {}
        self._times: list[int] = []
        self._withheld: list[Late | Rejected | Released] = []
        self._out: deque[tuple[Item, int]] = deque()
        self._released: deque[_HandedOut] = deque()
        self._number = self._buffered = self._handed_out = 0
        self._open: dict[int, Multiset] = {}
        self._acknowledged = NOTHING if state is None else state.acknowledged
        self._next = {} if state is None else {k: at[0] for k, at in state.offsets.items()}
        self._before = {} if state is None else {k: at[1] for k, at in state.offsets.items()}
        self._again = {k for k, end in self._before.items() if self._next[k] < end}
        self._asides = {aside[:2]: aside for aside in (() if state is None else state.asides)}
        self._staged = {} if state is None else dict(state.staged)

    @property
    def is_reading_again(self) -> bool:
        """Whether records before the place that the state reached are still to be read."""
        return bool(self._again)

    @property
    def has_items(self) -> bool:
        """Whether `pop` returns an item."""
        return bool(self._out)

    def held_back(self) -> HeldBack | None:
        """Return what waits for the low watermark, or None if nothing does."""
        if not self._times:
            return None
        groups = [group for some in self._groups.values() for group in some.values()]
        return HeldBack(
            len(groups),
            sum(isinstance(part, Mutation) for g in groups for part, _ in g.parts.values()),
            self._times[0],
            self._tracker.low_watermark,
            self._tracker.lagging_partition,
        )

    def check_room(self, size: int) -> None:
        """Raise `ConnectorError` if a change of this size does not fit."""
        size += CHANGE_OVERHEAD_BYTES
        handed_out = self._handed_out * UNACKNOWLEDGED_BYTES
        if self._buffered + handed_out + size <= self._most or not (self._buffered or handed_out):
            return
        raise self._unacknowledged() if handed_out > self._buffered else self._full()

    def add(self, change: Mutation | Release, position: Position, size: int) -> None:
        """Take a change or a release. `size` is that of its record in bytes. Raises
        `ConnectorError`; then it was not taken.
        """
        self.check_room(size)
        k, offset = position.kafka_partition, position.offset
        is_again = offset < self._before.get(k, 0)
        aside = self._asides.get((k, offset))
        time = change.commit_timestamp
        if not self._start <= time <= self._end:
            pass
        elif is_again and aside is not None:
            if not aside.is_acknowledged:
                self._set_late(change, position, is_duplicate=aside.is_duplicate)
        elif is_again and self._is_acknowledged(change, position):
            pass
        elif time < self._passed and not is_again:
            self._set_late(change, position)
        elif not self._add_part(change, position, size + CHANGE_OVERHEAD_BYTES):
            self._set_late(change, position, is_duplicate=True)
        self.reached(k, offset + 1)

    def add_staged(self, change: DataChange, position: Position) -> None:
        """Take a staged row, and hand it out before all that is released later. Its bytes are not
        counted. Raises `ConnectorError`; then it was not taken.
        """
        k, offset = position.kafka_partition, position.offset
        if offset >= self._staged.get(k, 0):
            if (self._handed_out + 1) * UNACKNOWLEDGED_BYTES > self._most and self._handed_out:
                raise self._unacknowledged()
            self._not_acknowledged(position)
            self._send_out(Staged(change, position), None, (position,), 0)
        self.reached(k, offset + 1)

    def reject(self, rejection: Rejection, position: Position) -> None:
        """Take a record that cannot be read."""
        k, offset = position.kafka_partition, position.offset
        aside = self._asides.get((k, offset)) if offset < self._before.get(k, 0) else None
        if aside is None or not aside.is_acknowledged:
            self._set_aside(Rejected(rejection, position))
        self.reached(k, offset + 1)

    def pass_on(self, item: Late | Rejected | Released | Staged) -> int:
        """Hand out an item of another topic, which is no part of the state. Return its number."""
        self._send_out(item, None, (), 0)
        return self._number

    def is_acknowledged(self, item: Item) -> bool:
        """Return whether an item was acknowledged."""
        return item.number < (self._released[0].number if self._released else self._number + 1)

    def oldest(self) -> dict[int, int]:
        """Return the oldest offset that is not acknowledged, by Kafka partition."""
        return {k: self._oldest(k) for k in sorted(self._next)}

    def reached(self, kafka_partition: int, following: int) -> None:
        """Take that all records of a Kafka partition before an offset were read."""
        if following > self._next.get(kafka_partition, -1):
            self._next[kafka_partition] = following
        if (
            kafka_partition in self._again
            and self._next[kafka_partition] >= self._before[kafka_partition]
        ):
            self._again.discard(kafka_partition)

    def release(self) -> None:
        """Release the transactions that the low watermark of the tracker has passed."""
        self._passed = max(self._passed, self._tracker.low_watermark or 0)
        if self._again:
            return
        while self._times and self._times[0] < self._passed:
            time = heapq.heappop(self._times)
            groups = self._groups.pop(time).values()
            for group in sorted(
                groups, key=lambda group: (group.server_transaction_id, group.first)
            ):
                self._release_group(time, group)
        withheld, self._withheld = self._withheld, []
        for item in withheld:
            self._send_out(item, None, (item.position,), 0)

    def pop(self) -> Item | None:
        """Hand out the next item, or None."""
        if not self._out:
            return None
        item, size = self._out.popleft()
        self._buffered -= size
        if isinstance(item, WholeTransaction):
            self._handed_out += len(item.positions)
        elif item.position.topic == self._topic:
            self._handed_out += 1
        return item

    def acknowledge(self, item: Item) -> None:
        """Acknowledge an item, and all that were handed out before it. A second time does
        nothing.
        """
        while self._released and self._released[0].number <= item.number:
            _, order_place, positions, is_staged = self._released.popleft()
            if order_place is not None:
                self._acknowledged = order_place
            for position in positions:
                k, offset = position.kafka_partition, position.offset
                self._open[k].remove(offset)
                self._handed_out -= 1
                if is_staged:
                    self._staged[k] = offset + 1
                elif order_place is None:
                    aside = self._asides[k, offset]
                    self._asides[k, offset] = aside._replace(is_acknowledged=True)
        if len(self._asides) > _PRUNE_ABOVE:
            self._prune()

    def state(self) -> bytes:
        """Return the state as bytes. The tracker must have taken all claims (`advance`)."""
        assert not self._tracker.has_news, "claims of records that are not read again would be lost"
        self._prune()
        return ReaderState(
            self._topic,
            self._topic_id,
            {
                k: (self._oldest(k), max(following, self._before.get(k, 0)))
                for k, following in sorted(self._next.items())
            },
            self._acknowledged,
            tuple(sorted(self._asides.values())),
            self._tracker.frontier,
            dict(sorted(self._staged.items())),
        ).to_bytes()

    def _oldest(self, k: int) -> int:
        """Return the offset from which a Kafka partition must be read again."""
        least = self._open[k].least() if k in self._open else None
        return self._next[k] if least is None else least

    def _is_acknowledged(self, change: Mutation | Release, position: Position) -> bool:
        time, id_ = change.commit_timestamp, _id_of(change)
        if id_ or (time, id_) != self._acknowledged[:2]:
            return (time, id_) <= self._acknowledged[:2]
        return (position.kafka_partition, position.offset) <= self._acknowledged[2:]

    def _add_part(self, change: Mutation | Release, position: Position, size: int) -> bool:
        """Add a change to its transaction. Return False if the transaction has it already."""
        groups = self._groups.get(change.commit_timestamp)
        if groups is None:
            groups = self._groups[change.commit_timestamp] = {}
            heapq.heappush(self._times, change.commit_timestamp)
        id_ = _id_of(change)
        transaction = None if isinstance(change, Release) else change.transaction
        group = groups.setdefault(id_ or _content(change), _Group(id_))
        sequence = transaction.record_sequence if id_ and transaction is not None else 0
        if sequence in group.parts:
            return False
        group.parts[sequence] = change, position
        if id_ and transaction is not None:
            group.declared = max(group.declared, transaction.number_of_records_in_transaction)
        group.size += size
        self._buffered += size
        self._not_acknowledged(position)
        return True

    def _set_late(
        self, change: Mutation | Release, position: Position, *, is_duplicate: bool = False
    ) -> None:
        if is_duplicate and not isinstance(change, DataChange):
            # The same copy was sent again. The release or truncation itself is handed out.
            k, offset = position.kafka_partition, position.offset
            self._asides[k, offset] = Aside(k, offset, is_duplicate=True, is_acknowledged=True)
        elif isinstance(change, Release):
            self._set_aside(replace(released_of(change, position), is_late=True))
        else:
            self._set_aside(Late(change, position, is_duplicate))

    def _set_aside(self, item: Late | Rejected | Released) -> None:
        """Hand an item out after all that was released before it, and after all that is read
        again.
        """
        k, offset = item.position.kafka_partition, item.position.offset
        is_duplicate = isinstance(item, Late) and item.is_duplicate
        self._asides[k, offset] = Aside(k, offset, is_duplicate, False)
        self._not_acknowledged(item.position)
        if self._again:
            self._withheld.append(item)
        else:
            self._send_out(item, None, (item.position,), 0)

    def _release_group(self, time: int, group: _Group) -> None:
        parts = [group.parts[sequence] for sequence in sorted(group.parts)]
        positions = tuple(position for _, position in parts)
        first = parts[0][0]
        order_place = OrderPlace(time, group.server_transaction_id, *group.first)
        whole = (
            released_of(first, positions[0])
            if isinstance(first, Release)
            else WholeTransaction(
                time,
                group.server_transaction_id,
                tuple(change for change, _ in parts if isinstance(change, Mutation)),
                max(0, group.declared - len(parts)),
                positions,
            )
        )
        self._send_out(whole, order_place, positions, group.size)

    def _send_out(
        self, item: Item, order_place: OrderPlace | None, positions: tuple[Position, ...], size: int
    ) -> None:
        self._number += 1
        is_staged = isinstance(item, Staged) and bool(positions)
        self._released.append(_HandedOut(self._number, order_place, positions, is_staged))
        self._out.append((replace(item, number=self._number), size))

    def _not_acknowledged(self, position: Position) -> None:
        self._open.setdefault(position.kafka_partition, Multiset()).add(position.offset)

    def _prune(self) -> None:
        """Forget acknowledged asides that are not read again."""
        self._asides = {
            (k, offset): aside
            for (k, offset), aside in self._asides.items()
            if not aside.is_acknowledged or offset >= self._oldest(k)
        }

    def _unacknowledged(self) -> ConnectorError:
        return transactions_unacknowledged(f"{self._handed_out:,}", f"{self._most:,}")

    def _full(self) -> ConnectorError:
        lagging = self._tracker.lagging_partition
        if self._again:
            cause = "Records up to the given state are read again before one is handed out"
        elif lagging is None or self._tracker.low_watermark is None:
            cause = "The low watermark is not known: not all stream partitions were announced"
        else:
            cause = (
                f"Stream partition {lagging.stream_partition} delays the low watermark in Kafka"
                f" partition {lagging.kafka_partition}"
            )
        return buffer_full(
            f"{self._buffered:,}",
            f"{self._most:,}",
            cause,
            None if lagging is None else lagging.stream_partition,
            None if lagging is None else lagging.kafka_partition,
        )


def _id_of(change: Mutation | Release) -> str:
    if isinstance(change, Release) or change.transaction is None:
        return ""
    return change.transaction.server_transaction_id


def _content(change: Mutation | Release) -> Hashable:
    """The content of a release, or of a change or truncation without a transaction. A copy that was
    sent again has the same. Two rows of a write stream never have the same, because their offsets
    differ.
    """
    if isinstance(change, Release):
        return change.ranges
    if isinstance(change, Truncate):
        return change.table, change.tie_breaker, change.change_sequence_number
    return (
        change.table,
        change.row_key,
        change.tie_breaker,
        change.change_type,
        change.source_cluster_id,
        change.change_sequence_number,
        change.entries,
        change.row_image,
        change.write_stream,
    )

"""The records in the file of a spool: which of them are settled, and what must be told (PUB-3).

A record is settled if it is acknowledged, or refused by Kafka, or lost. Their numbers up to `low`
leave the file. Millions of records may be there, so none of them is in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from connector.kafka.produce.spool_client import Entry
from connector.kafka.produce.spool_file import Loss, SpoolFile
from connector.records.model import Record
from connector.records.spooled import Kind, SpooledRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from connector.kafka.produce.results import OnDelivery, Results


class _Callbacks:
    """The functions to call for stored records. Neighbours with the same function share a run."""

    def __init__(self) -> None:
        self._firsts = [0]
        self._values: list[tuple[OnDelivery | None, bool]] = [(None, False)]

    def add(self, number: int, on_delivery: OnDelivery | None, counts: bool) -> None:
        """Register a record. Numbers ascend. `counts`: the application sent it."""
        if self._values[-1] != (on_delivery, counts):
            self._firsts.append(number)
            self._values.append((on_delivery, counts))

    def of(self, number: int) -> tuple[OnDelivery | None, bool]:
        return self._values[bisect_right(self._firsts, number) - 1]

    def forget_below(self, number: int) -> None:
        settled = bisect_right(self._firsts, number) - 1
        if settled > len(self._firsts) // 2:
            del self._firsts[:settled], self._values[:settled]


class Rows:
    """The stored records.

    - `low` is the first number that is not settled, and `stored_to` the next number of the file.
    - `size` is the number of bytes that count for the limit.
    - `newly_refused`, `repaired` and `losses` must be written to the file.
    """

    def __init__(self, results: Results, file: SpoolFile) -> None:
        """Check the file, and register its records. Raises `SpoolError`."""
        self._results, self._file = results, file
        self._callbacks = _Callbacks()
        self._sizes: deque[tuple[int, int]] = deque()
        self._settled: set[int] = set()
        self._refused: dict[int, Record] = {}
        self.size = 0
        self.newly_refused: list[tuple[int, str]] = []
        self.repaired: list[int] = []
        self.losses: list[Loss] = []
        file.check(self._found)
        assert file.content is not None
        self.low, self.stored_to = file.content.first, file.content.next
        for loss in file.all_losses():
            self._settle(range(loss.first, loss.last + 1))
        for number, record, error in file.refused():
            if (decoded := record.decoded()) is not None:
                self._refused[number] = decoded
                results.found_refused(decoded, error)
        self.advance()

    @property
    def backlog(self) -> int:
        """The number of records that are not settled."""
        return self.stored_to - self.low - len(self._settled)

    def is_settled(self, number: int) -> bool:
        return number < self.low or number in self._settled

    def is_behind_loss(self, number: int) -> bool:
        return any(loss.first < number for loss in (*self._file.losses, *self.losses))

    def stored(self, entry: Entry) -> None:
        """Register a record that was written."""
        record, sent = entry.record, entry.sent
        assert record is not None
        entry.is_stored = True
        self.stored_to = entry.number + 1
        self._sizes.append((entry.number, record.size))
        self.size += record.size
        if sent is None:
            self._settled.add(entry.number)
            return
        self._callbacks.add(entry.number, sent.on_delivery, not sent.is_ours)
        if record.kind == Kind.CHANGE:
            sent.delivery.to_spool(entry.number, record.time)
        entry.sent = None

    def acknowledged(self, number: int, record: SpooledRecord) -> None:
        """Register an acknowledgement. Only the first one of a record counts."""
        if self.is_settled(number):
            return
        self._settled.add(number)
        on_delivery, counts = self._callbacks.of(number)
        delivery = self._results.delivery(record.stream_partition)
        decoded = record.decoded() if on_delivery is not None or delivery.failed else None
        self._results.spooled_acknowledged(
            delivery, decoded, on_delivery, is_change=record.kind == Kind.CHANGE, counts=counts
        )

    def failed(self, number: int, record: SpooledRecord, error: str) -> None:
        """Register a record that Kafka refused. It is kept until an equal one is delivered."""
        if self.is_settled(number):
            return
        decoded = record.decoded()
        assert decoded is not None, "a record of this release can be decoded"
        self._settled.add(number)
        self.newly_refused.append((number, error))
        self._refused[number] = decoded
        self._results.spooled_lost(decoded, error, self._callbacks.of(number)[0])

    def lost(self, loss: Loss) -> None:
        """Register records that are missing or damaged."""
        numbers = range(loss.first, loss.last + 1)
        if not all(map(self.is_settled, numbers)):
            self.losses.append(loss)
            self._settle(numbers)

    def advance(self) -> None:
        """Move `low` behind the settled records."""
        low = self.low
        while low in self._settled:
            self._settled.remove(low)
            low += 1
        if low == self.low:
            return
        self.low = low
        while self._sizes and self._sizes[0][0] < low:
            self.size -= self._sizes.popleft()[1]
        self._callbacks.forget_below(low)
        self._results.spool_settled_below(low)

    def find_repaired(self) -> None:
        """Forget refused records that were delivered or set aside since."""
        for number, record in list(self._refused.items()):
            if self._results.why_failed(record) is None:
                del self._refused[number]
                self.repaired.append(number)

    def _found(self, number: int, record: SpooledRecord) -> None:
        self._sizes.append((number, record.size))
        self.size += record.size
        if record.kind == Kind.CHANGE:
            self._results.delivery(record.stream_partition).found_in_spool(number, record.time)

    def _settle(self, numbers: Iterable[int]) -> None:
        self._settled.update(number for number in numbers if number >= self.low)

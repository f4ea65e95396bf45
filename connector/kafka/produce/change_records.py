"""Checks and queues the changes of one producer (REC-14, REC-17, REC-18, WMK-5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from confluent_kafka import murmur2

from connector.clock import now_us
from connector.errors import ConnectorError, InvalidChangeError
from connector.kafka.produce.record_bytes import outside_session
from connector.kafka.produce.results import MAX_FAILED, OnDelivery, Results, Sent
from connector.records.model import DataChange
from connector.watermarks.frontier import is_claim

if TYPE_CHECKING:
    from connector.kafka.produce.control_records import ControlRecords
    from connector.kafka.produce.record_bytes import RecordBytes
    from connector.kafka.produce.results import Queue
    from connector.kafka.transactions import HeaderList
    from connector.watermarks.delivery import Delivery


_Checked = tuple[bytes, int, bool]
"""The bytes of a change, the Kafka partition of its key, and whether it makes a claim."""


class ChangeRecords:
    """The changes of one producer. `ignored_claims` counts the estimates that were sent as 0."""

    def __init__(
        self,
        queue: Queue,
        results: Results,
        record_bytes: RecordBytes,
        control: ControlRecords,
        *,
        max_clock_skew_us: int,
        clock: Callable[[], float],
    ) -> None:
        self._queue, self._results = queue, results
        self._bytes, self._control = record_bytes, control
        self._max_clock_skew_us, self._clock = max_clock_skew_us, clock
        self.ignored_claims = 0

    def send(self, change: DataChange, headers: HeaderList, on_delivery: OnDelivery | None) -> None:
        """Queue one change. Raises as `ChangeProducer.send` does."""
        checked = self._checked(change, headers)
        self._control.announce(change)
        self._put(change, checked, headers, on_delivery)

    def send_many(
        self, changes: Sequence[DataChange], headers: HeaderList, on_delivery: OnDelivery | None
    ) -> None:
        """Check all changes, and queue them. Raises as `ChangeProducer.send_many` does."""
        checked = self._all_checked(changes, headers)
        queued = 0
        try:
            with self._queue.together():
                for change, checked_change in zip(changes, checked, strict=True):
                    self._control.announce(change)
                    queued += 1  # also if it is refused: then its result is already reported
                    self._put(change, checked_change, headers, on_delivery)
        except ConnectorError as error:
            for change in changes[queued:]:
                delivery = self._results.delivery(change.stream_partition)
                self._results.failed += delivery.sent(change)
                self._results.answer(
                    Sent(change, delivery, 1, on_delivery),
                    f"not sent, because a record before it was not accepted: {error.cause}",
                )
            raise

    def _all_checked(self, changes: Sequence[DataChange], headers: HeaderList) -> list[_Checked]:
        checked: list[_Checked] = []
        oldest: dict[str, int] = {}
        for index, change in enumerate(changes):
            if self._results.failed > MAX_FAILED:
                self._results.check_is_among_failed(change)
            before = oldest.get(change.stream_partition)
            try:
                checked.append(self._checked(change, headers, before))
            except InvalidChangeError as error:
                error.in_batch(index)
                raise
            if before is None or change.commit_timestamp < before:
                oldest[change.stream_partition] = change.commit_timestamp
        return checked

    def _checked(
        self, change: DataChange, headers: HeaderList, before: int | None = None
    ) -> _Checked:
        """Check and encode a change. `before` is the oldest change of the batch that is sent before
        it.
        """
        if change.write_stream is not None:
            raise outside_session(change)
        delivery = self._results.delivery(change.stream_partition)
        delivery.check_is_new(change)
        claim = self._claim(change, delivery, before)
        value = self._bytes.checked(change, change.row_key, headers, claim)
        kafka_partition = murmur2(change.row_key, self._bytes.kafka_partitions)
        return value, kafka_partition, claim != 0

    def _put(
        self,
        change: DataChange,
        checked: _Checked,
        headers: HeaderList,
        on_delivery: OnDelivery | None,
    ) -> None:
        value, kafka_partition, has_claim = checked
        delivery = self._results.delivery(change.stream_partition)
        self._results.failed += delivery.sent(change)
        if has_claim:
            delivery.watch.claimed()
        elif delivery.watch.since is None:
            delivery.watch.changed(change.commit_timestamp, self._clock)
        self._queue.put(
            Sent(change, delivery, 1, on_delivery), change.row_key, value, kafka_partition, headers
        )

    def _claim(self, change: DataChange, delivery: Delivery, before: int | None) -> int:
        """The estimated low watermark to send: that of the application, or else the newest reported
        position (PUB-1). It is lowered to the changes that are not acknowledged (REC-18). 0: no
        claim can be made (WMK-5).
        """
        claim = change.estimated_low_watermark
        if not self._queue.may_claim or not (claim or delivery.reached):
            return 0
        if claim and not is_claim(claim, now_us(), self._max_clock_skew_us):
            self.ignored_claims += 1
            return 0
        times = (change.commit_timestamp, delivery.oldest_open(), before)
        return min([claim or delivery.reached + 1, *(time for time in times if time is not None)])

"""Waits for the results of the records of one producer, in short turns (REC-17, PUB-1, PUB-5)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from connector.kafka.produce.results import Results, Sent

if TYPE_CHECKING:
    from connector.kafka.produce.send_queue import SendQueue
    from connector.kafka.produce.spool_queue import SpoolQueue
    from connector.kafka.produce.turns import Turns

TURN_S: Final = 0.25
"""The longest wait in one turn. The timer of the heartbeats comes between two turns."""


class DeliveryWait:
    """Waits for results, and makes the calls of `on_delivery`."""

    def __init__(self, turns: Turns, queue: SendQueue[Sent], results: Results) -> None:
        self._turns, self._queue, self._results = turns, queue, results

    def poll(self, timeout_s: float) -> int:
        """Wait until a call of `on_delivery` is due or a result comes, and return the number of
        calls.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._turns:
                open_before = len(self._queue.items)
                left_s = max(0.0, deadline - time.monotonic())
                self._queue.serve(0.0 if self._results.due else min(left_s, TURN_S))
                told = self._results.tell()
                if told or left_s <= TURN_S or len(self._queue.items) < open_before:
                    return told

    def flush_to_disk(self, queue: SpoolQueue, timeout_s: float) -> None:
        """Wait until each record is acknowledged or in the file of the spool (PUB-3).

        Raises `DeliveryError` if one is neither.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._turns:
                left_s = deadline - time.monotonic()
                if queue.is_safe() or left_s <= 0:
                    break
                queue.serve(min(left_s, TURN_S), push=True)
                self._results.tell()
        with self._turns:
            if self._results.failed or not queue.is_safe():
                raise self._results.not_delivered()
            queue.promise()

    def flush(self, timeout_s: float) -> None:
        """Wait for all results. Automatic heartbeats do not count.

        Raises `DeliveryError` if a record is not delivered.
        """
        deadline = time.monotonic() + timeout_s
        with self._turns:
            self._results.tell()
        while True:
            with self._turns:
                # `on_delivery` may send further records.
                is_open = self._results.is_in_flight() or self._queue.backlog > 0
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not (is_open or self._results.due):
                    break
                self._queue.serve(min(left_s, TURN_S), push=True)
                self._results.tell()
        with self._turns:
            is_open = self._results.is_in_flight() or self._queue.backlog > 0
            if is_open or self._results.failed:
                raise self._results.not_delivered()

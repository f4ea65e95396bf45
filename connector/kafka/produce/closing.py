"""Waits for the results of the records of one producer, and closes it, also when the program ends
without that (REC-17, PUB-1, PUB-3, PUB-5, PUB-8).
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from connector.errors import ConnectorError, DeliveryError
from connector.kafka.unclosed import try_after

if TYPE_CHECKING:
    from connector.kafka.produce.heartbeats import AutomaticHeartbeats
    from connector.kafka.produce.results import Queue, Results

STEP_S: Final = 0.25
"""The longest wait of the client, so that heartbeats that become due are sent meanwhile."""


class Closing:
    """The parts of one producer that `poll`, `flush` and `close` need. `is_closed` means that
    nothing can be sent.
    """

    def __init__(self, queue: Queue, results: Results, heartbeats: AutomaticHeartbeats) -> None:
        self._queue, self._results, self._heartbeats = queue, results, heartbeats
        self.is_closed = False

    def poll(self, timeout_s: float) -> int:
        """Wait until a call of `on_delivery` is due or a result comes, and return the number of
        calls.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            before = self._queue.backlog
            left_s = max(0.0, deadline - time.monotonic())
            self._queue.poll(0.0 if self._results.due else min(left_s, STEP_S))
            self._heartbeats.send_due()
            calls = self._results.call()
            if calls or left_s <= STEP_S or self._queue.backlog < before:
                return calls

    def flush(self, timeout_s: float) -> None:
        """Wait for all results, then send the last heartbeats, and wait for theirs.

        Raises `DeliveryError` if a record is not delivered.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._results.check_may_wait()
            self._wait(deadline)
            if self._is_open() or self._results.failed or self._results.refused:
                raise self._results.not_delivered()
        except DeliveryError as error:
            try_after(error, lambda: self._send_last(deadline))
            raise
        self._send_last(deadline)

    def close(self, timeout_s: float) -> None:
        """Flush, and close the client. Raises as `ChangeProducer.close` does."""
        try:
            self.flush(timeout_s)
            self._heartbeats.check_last()
        finally:
            self.is_closed = True
            self._queue.close(1, "the producer was closed before it was acknowledged")
            self._results.call()

    def finish(self, timeout_s: float) -> str:
        """As `close`. The records of an open transaction are lost."""
        if self._results.transaction is None:
            self.close(timeout_s)
        elif self._results.undelivered():
            raise self._results.not_delivered()
        return ""

    def dropped(self) -> bool:
        """Close an outbox: the next producer sends its records. Without one, the client goes on."""
        if self._queue.stores:
            with suppress(ConnectorError):
                self._queue.close(0, "the producer was dropped without close")
            return False
        return bool(self._queue.items or self._results.failed)

    def is_finished(self) -> bool:
        with suppress(ConnectorError):
            self._queue.poll(0)
            return not self._queue.items and not self._results.failed
        return False

    def _wait(self, deadline: float) -> None:
        self._results.call()
        while True:
            # `on_delivery` may send further records.
            left_s = deadline - time.monotonic()
            is_open = self._is_open() and self._results.refused is None
            if left_s <= 0 or not (is_open or self._results.due):
                return
            self._queue.poll(min(left_s, STEP_S), push=True)
            self._heartbeats.send_due()
            self._results.call()

    def _is_open(self) -> bool:
        """Whether a record has no result. Automatic heartbeats do not count, except in an outbox,
        where records wait behind them.
        """
        return self._results.is_in_flight() or (self._queue.stores and self._queue.backlog > 0)

    def _send_last(self, deadline: float) -> None:
        if time.monotonic() > deadline and not self._queue.stores:
            return
        self._heartbeats.send_last()
        while self._queue.backlog and (left_s := deadline - time.monotonic()) > 0:
            if self._results.refused is not None:
                break
            self._queue.poll(min(left_s, STEP_S), push=True)
        self._heartbeats.check()
        if self._queue.stores and self._queue.backlog:
            raise self._results.not_delivered()

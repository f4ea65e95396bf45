"""Closes a producer, also when the program ends without it (REC-17, PUB-1, PUB-3, PUB-8)."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from connector.errors import ConnectorError, DeliveryError, ErrorCode

if TYPE_CHECKING:
    from connector.kafka.produce.delivery_wait import DeliveryWait
    from connector.kafka.produce.heartbeats import AutomaticHeartbeats
    from connector.kafka.produce.results import Results, Sent
    from connector.kafka.produce.send_queue import SendQueue
    from connector.kafka.produce.spool import OpenSpool
    from connector.kafka.produce.turns import Turns


class Closing:
    """The parts of one producer that `close` needs. `is_closed` means that nothing can be sent."""

    def __init__(
        self,
        turns: Turns,
        queue: SendQueue[Sent],
        results: Results,
        wait: DeliveryWait,
        heartbeats: AutomaticHeartbeats,
        spool: OpenSpool | None,
    ) -> None:
        self._turns, self._queue, self._results = turns, queue, results
        self._wait, self._heartbeats, self._spool = wait, heartbeats, spool
        self.is_closed = False

    def close(self, timeout_s: float) -> None:
        """Flush, send the last heartbeats, and close the client. Raises as `ChangeProducer.close`
        does.
        """
        deadline = time.monotonic() + timeout_s
        self._heartbeats.stop()
        if self._spool is not None:
            self._spool.stop()
        in_memory: DeliveryError | None = None
        try:
            self._flush(deadline)
        except DeliveryError as error:
            if self._spool is None or error.code != ErrorCode.RECORDS_UNDELIVERED:
                raise
            in_memory = error
        finally:
            with self._turns:
                self.is_closed = True
                self._queue.let_go(1, "the producer was closed before it was acknowledged")
                self._results.tell()
        if in_memory is not None:
            self._check_moved(in_memory)

    def finish(self, timeout_s: float) -> str:
        """As `close`. The records of an open transaction are lost."""
        deadline = time.monotonic() + timeout_s
        with self._turns.if_free(timeout_s) as is_free:
            if not is_free or self._results.transaction is not None:
                if self._results.undelivered():
                    raise self._results.not_delivered()
                return ""
        self.close(max(0.0, deadline - time.monotonic()))
        return ""

    def dropped(self) -> bool:
        """With a spool, move everything there. Without one, the client goes on."""
        if self._spool is not None:
            self._spool.drop()
            return False
        self._heartbeats.is_stopped = True
        return bool(self._queue.items or self._results.failed)

    def is_finished(self) -> bool:
        with self._turns.if_free() as is_free, suppress(ConnectorError):
            if is_free:
                self._queue.serve(0)
                return not self._queue.items and not self._results.failed
        return False

    def _flush(self, deadline: float) -> None:
        try:
            self._results.check_may_wait()
            self._wait.flush(deadline - time.monotonic())
        except ConnectorError as error:
            try:
                self._heartbeats.send_last(deadline)
            except ConnectorError as further:
                error.add_note(f"in addition: {further}")
            raise
        self._heartbeats.send_last(deadline)

    def _check_moved(self, before: DeliveryError) -> None:
        """Raise what is true after the records in memory were moved to the spool."""
        if not self._results.failed and not self._queue.backlog:  # they were acknowledged meanwhile
            self._heartbeats.check_last()
            return
        error = self._results.not_delivered()
        for note in getattr(before, "__notes__", ()):
            error.add_note(note)
        raise error

"""Writes the records of a producer to its spool, many in one transaction (PUB-3).

The producer appends in its turn. `commit` takes no turn, so a slow disk delays no call. The lock is
not held during a write.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from typing import TYPE_CHECKING

from connector.kafka.produce.spool_file import SpoolFile, Write

if TYPE_CHECKING:
    from connector.kafka.produce.spool_client import Entry
    from connector.kafka.produce.spool_rows import Rows
    from connector.records.model import Heartbeat


class SpoolWriter:
    """The records that must be written.

    - `size` is the number of bytes of the records that are not written, and `count` their number.
    - `error` says why the last write has failed, or is empty.
    """

    def __init__(self, file: SpoolFile, rows: Rows) -> None:
        self._file, self._rows = file, rows
        self._changed = threading.Condition()
        self._commits = threading.Lock()
        self._waiting: deque[Entry] = deque()
        self._taken: list[Entry] = []
        self._written: list[Entry] = []
        self._positions: dict[str, Heartbeat] = {}
        self._is_writing = False
        self._next = rows.stored_to
        self.size = 0
        self.error = ""

    @property
    def count(self) -> int:
        return len(self._waiting) + len(self._taken)

    def append(self, entries: list[Entry]) -> None:
        """Write these records, in this order, at the next commit."""
        with self._changed:
            for entry in entries:
                assert entry.record is not None
                entry.is_spooled = True
                self.size += entry.record.size
                self._waiting.append(entry)

    def keep_position(self, position: Heartbeat) -> None:
        """Write a position of the application together with the records before it."""
        with self._changed:
            self._positions[position.stream_partition] = position

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of a write."""
        with self._changed:
            if not self._written:
                self._changed.wait(timeout_s)

    def written(self) -> list[Entry]:
        """Return the records that were written since the last call."""
        with self._changed:
            written, self._written = self._written, []
            for entry in written:
                assert entry.record is not None
                self.size -= entry.record.size
        return written

    def take_back(self) -> list[Entry] | None:
        """Return all records that are not written, so that they are sent from memory instead.

        None: a write has not ended, or a control record among them must wait for its changes. It
        does so in the file. If the file is not writable, it is returned, too.
        """
        with self._changed:
            entries = [*self._taken, *self._waiting]
            if self._is_writing or self._written:
                return None
            if not self.error and any(one.is_claim for one in entries):
                return None
            if self._taken:  # they could not be written
                self._next = self._taken[0].number
            self._taken, self._waiting, self.size = [], deque(), 0
            self._positions.clear()
        return entries

    def commit(self) -> bool:
        """Write what is new. Returns False if there is nothing, or if it cannot be written."""
        with self._commits:
            write = self._take()
            if write is None:
                return False
            error: sqlite3.Error | None = None
            try:
                self._file.write(write)
            except sqlite3.Error as failure:
                error = failure
            with self._changed:
                self._is_writing = False
                self.error = "" if error is None else f"The spool is not writable: {error}"
                if error is None:
                    self._committed(write)
                self._changed.notify_all()
            return error is None

    def _committed(self, write: Write) -> None:
        self._written += self._taken
        self._taken = []
        for position in write.positions:
            if self._positions.get(position.stream_partition) == position:
                del self._positions[position.stream_partition]
        del self._rows.newly_refused[: len(write.refused)]
        del self._rows.repaired[: len(write.repaired)]
        del self._rows.losses[: len(write.losses)]

    def _take(self) -> Write | None:
        rows, content = self._rows, self._file.content
        assert content is not None
        with self._changed:
            while self._waiting:
                entry = self._waiting.popleft()
                entry.number = self._next
                self._next += 1
                self._taken.append(entry)
            write = Write(
                [(one.number, one.record) for one in self._taken if one.record is not None],
                rows.low,
                self._next,
                [*self._positions.values()],
                [*rows.newly_refused],
                [*rows.repaired],
                [*rows.losses],
                is_empty=rows.low == self._next,
            )
            self._is_writing = bool(
                write.records
                or write.positions
                or write.refused
                or write.repaired
                or write.losses
                or write.first > content.first
            )
            return write if self._is_writing else None

"""The records that a producer with a spool has in memory, and their messages at the client
(PUB-3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from connector.kafka.produce.send_queue import POLL_EVERY, HeaderList, SendQueue

if TYPE_CHECKING:
    from connector.kafka.produce.results import Sent
    from connector.records.spooled import SpooledRecord

REFUSALS: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
    }
)
"""The errors that are about a record. After any other error, the record is sent again."""


@dataclass(slots=True, eq=False)
class Entry:
    """A record on its way.

    - `sent` is there until the result is known, or the record is stored.
    - `record` is there if the record may be spooled. The producer makes others again.
    - `at` is when it was given to the client.
    - `number` is that of the spool, or 0. `is_spooled`: it waits for the spool, or is in it.
      `is_stored`: it is in the file.
    - `pending` messages have no result. `error` is that of one of them.
    - `is_done`: it is acknowledged. It may be sent again, behind an earlier record.
    """

    sent: Sent | None
    record: SpooledRecord | None
    at: float
    number: int = 0
    pending: int = 0
    error: str = ""
    is_refused: bool = False
    is_spooled: bool = False
    is_stored: bool = False
    is_done: bool = False

    @property
    def is_claim(self) -> bool:
        """Whether it must wait for the changes that it covers."""
        return self.record is not None and self.record.is_claim and not self.is_done

    def failed(self, error: KafkaError | str) -> None:
        """Register the error of a message."""
        is_refused = isinstance(error, KafkaError) and error.code() in REFUSALS
        self.is_refused = self.is_refused or is_refused
        self.error = self.error or (error if isinstance(error, str) else error.str())


class ClientQueue(SendQueue[Entry]):
    """The messages at the client. `answer` is called for each, after `Entry.failed`."""

    def offer(
        self, entry: Entry, key: bytes, value: bytes, kafka_partition: int, headers: HeaderList
    ) -> None:
        """Give a message to the client. Do not wait.

        Raises `BufferError` if there is no space, and `KafkaException` if the client refuses the
        message. Then it has no answer.
        """
        number = self._next_number
        self._next_number += 1
        self._outstanding[number] = entry
        entry.pending += 1
        try:
            self.client.produce(
                self._facts.topic,
                value,
                key,
                kafka_partition,
                partial(self._on_delivery, number),
                headers=headers,
            )
        except (BufferError, KafkaException):
            del self._outstanding[number]
            entry.pending -= 1
            raise
        if number % POLL_EVERY == 0:
            self.serve(0)

    def serve_after(self, error: KafkaException) -> None:
        """Build a new client if the error was fatal."""
        if error.args[0].code() == KafkaError._FATAL:
            self.serve(0)

    def read_reports(self) -> None:
        reports, self._reports = self._reports, []
        for number, error in reports:
            entry = self._outstanding.pop(number, None)
            if entry is not None:
                if error is not None:
                    entry.failed(error)
                self._answer(entry, "" if error is None else error.str())


class InMemory(Collection["Sent"]):
    """The records that are neither acknowledged nor stored, in their order."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def add(self, entry: Entry) -> None:
        self._entries[id(entry)] = entry

    def remove(self, entry: Entry) -> None:
        self._entries.pop(id(entry), None)

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sent]:
        return (entry.sent for entry in self._entries.values() if entry.sent is not None)

    def __contains__(self, sent: object) -> bool:
        return any(one is sent for one in self)

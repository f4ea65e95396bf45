"""The claim of a bridge on its stream: of two bridges, only the newer one goes on (SRC-8)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from connector.errors.producers import bridge_taken_over
from connector.kafka import client, topics
from connector.kafka.client import records_between
from connector.kafka.tables import publish_claim
from connector.kafka.topics import LATEST, offsets_of
from connector.tables.published import BRIDGE_KEY

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig


class BridgeClaim:
    """The claim of one bridge, also across its sessions: a record on `<topic>.tables`, where the
    newest one counts. Not thread-safe.
    """

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        """Claim nothing yet."""
        self._kafka, self._topic, self._id = kafka, topic, uuid.uuid4().hex.encode()
        self._newest, self._next = b"", 0

    @property
    def is_lost(self) -> bool:
        """Whether another bridge has claimed the stream later."""
        return self._newest not in (b"", self._id)

    def take(self) -> None:
        """Claim the stream, the first time, and raise as `check` does."""
        self._admin = client.admin(self._kafka)
        self._facts = topics.create_tables_topic(self._kafka, self._topic)
        if not self._newest:
            next_offset = self._end()
            publish_claim(self._kafka, self._topic, self._id)
            self._newest, self._next = self._id, next_offset
        self.check()

    def check(self) -> None:
        """Raise `WriterConflictError` if another bridge has claimed the stream later. Raises
        `BrokerError`, too.
        """
        end = self._end()
        if end > self._next:
            at = (self._facts.topic, self._facts.topic_id, {0: (self._next, end)})
            for record in records_between(self._kafka, *at):
                if record.key == BRIDGE_KEY.encode():
                    self._newest = record.value or b""
            self._next = end
        if self.is_lost:
            raise bridge_taken_over(self._topic)

    def _end(self) -> int:
        partition = (self._facts.topic, 0)
        return offsets_of(self._admin, self._kafka, LATEST, [partition])[partition]

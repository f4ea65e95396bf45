"""Reads the catalog of a change topic, and gives a session its owner (WRS-3)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from connector.errors import BrokerError, TopicError, WriterConflictError
from connector.errors.kafka import catalog_of_another_topic, record_unreadable
from connector.errors.producers import taken_over
from connector.kafka import client, topics
from connector.kafka.client import records_between
from connector.kafka.transactions import TransactionMessage
from connector.write_streams.model import (
    Catalog,
    SessionEntry,
    StreamEntry,
    catalog_topic,
    session_id,
    to_value,
    topic_of_catalog,
)

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig
    from connector.kafka.transactions import TransactionClient

READ_TIMEOUT_S: Final = 90.0
"""Longer than a transaction may be open: another session may have died in one."""

OPEN_TIMEOUT_S: Final = 150.0
REFRESH_S: Final = 60.0


def describe(kafka: KafkaConfig, topic: str) -> topics.TopicFacts:
    """Ask for the properties of the catalog. Raises `TopicError` if it does not exist, or cannot be
    one, and `BrokerError`.
    """
    facts = topics.describe(kafka, catalog_topic(topic))
    topics.check_compacted(facts)
    return facts


def read(
    kafka: KafkaConfig,
    facts: topics.TopicFacts,
    *,
    is_complete: bool,
    topic_id: str = "",
    session: str = "",
    owner: str = "",
) -> Catalog:
    """Read the committed records of the catalog `facts`.

    With `is_complete`, it reads up to the high watermark, and waits for the end of the transactions
    that are open now. Otherwise, it reads what can be read at once. An empty `topic_id` of the
    change topic is not compared. `session` and `owner` are as in `Catalog`.

    Raises `TopicError` if a record is not one of the catalog, or if sessions wrote to an earlier
    change topic. Raises `BrokerError` also if an open transaction does not end.
    """
    catalog = Catalog(session, owner)
    offsets = topics.high_watermarks if is_complete else topics.end_offsets
    begin, end = topics.beginning_offsets(kafka, facts)[0], offsets(kafka, facts)[0]
    if begin >= end:
        return catalog
    for record in records_between(
        kafka,
        facts.topic,
        facts.topic_id,
        {0: (begin, end)},
        further=client.SHORT_WAIT,
        timeout_s=READ_TIMEOUT_S,
    ):
        try:
            catalog.add((record.key or b"").decode(), record.value or b"")
        except (ValueError, RecursionError) as error:
            offset = str(record.position.offset)
            raise record_unreadable(facts.topic, offset, str(error)) from None
    if topic_id and (other := catalog.other_topic(topic_id)):
        topic = topic_of_catalog(facts.topic)
        raise catalog_of_another_topic(topic, facts.topic, other, topic_id)
    return catalog


def records_of(
    topic: str, entries: Mapping[str, StreamEntry | SessionEntry]
) -> list[TransactionMessage]:
    """Return the records of a catalog topic, by name of the write stream or session."""
    return [
        TransactionMessage(topic, name.encode(), to_value(entry), 0)
        for name, entry in entries.items()
    ]


class TakenOverError(Exception):
    """Another session of this name was opened. `catalog` is what was read."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self.catalog = catalog


class SessionCatalog:
    """The catalog, as the owner of a session reads and writes it.

    - `kafka`, `facts` and `session` are the brokers, the change topic and the name of the session.
    - `transactional_id` is that of the session.
    """

    def __init__(self, kafka: KafkaConfig, facts: topics.TopicFacts, session: str) -> None:
        """Raises as `describe` does."""
        self.kafka, self.facts, self.session = kafka, facts, session
        self.transactional_id = session_id(facts.topic, session)
        self._catalog_facts = describe(kafka, facts.topic)
        self._owner = uuid.uuid4().hex
        self._refreshed_at = time.monotonic()

    def read(self, *, is_complete: bool) -> Catalog:
        """Read the catalog. Raises as the function of this name does."""
        return read(
            self.kafka,
            self._catalog_facts,
            is_complete=is_complete,
            topic_id=self.facts.topic_id,
            session=self.session,
            owner=self._owner,
        )

    def records_of(
        self, entries: Mapping[str, StreamEntry | SessionEntry]
    ) -> list[TransactionMessage]:
        return records_of(self._catalog_facts.topic, entries)

    def take_over(self, transactions: TransactionClient) -> Catalog:
        """Become the owner of the session. Return the catalog.

        If the owner changes meanwhile, another session was opened later, and this one gives way.
        Raises as `WriteSession` does.
        """
        deadline, earlier = time.monotonic() + OPEN_TIMEOUT_S, None
        while True:
            transactions.start()
            catalog = self.read(is_complete=True)
            owner = catalog.owner_of(self.session)
            if owner == self._owner:  # the outcome of the transaction was unknown
                return catalog
            if earlier is not None and owner != earlier:
                cause = "It was opened at the same time as this one, and later"
                raise self.conflict(cause, "not taken")
            earlier = owner
            entry = replace(
                catalog.sessions.get(self.session, SessionEntry("")),
                owner=self._owner,
                topic_id=self.facts.topic_id,
            )
            failure = transactions.commit(self.records_of({self.session: entry}))
            if failure is None:
                catalog.sessions[self.session] = entry
                return catalog
            if failure.is_permanent or time.monotonic() > deadline:
                what = f"open the write session {self.session} of {self.facts.topic}"
                assert failure.error is not None, "only reading has no error of Kafka"
                raise client.explain(failure.error, self.kafka, what, "Write")
            time.sleep(0.1)

    def recover(self, transactions: TransactionClient) -> Catalog:
        """Open a new client, and read the catalog. Raises `TakenOverError` if another session of
        this name was opened, and as `read` and `TransactionClient.start` do.
        """
        self._check_owner(self.read(is_complete=False))
        transactions.start()
        catalog = self.read(is_complete=True)
        self._check_owner(catalog)
        return catalog

    def refreshed(self) -> topics.TopicFacts | None:
        """Once a minute, ask whether the topics are still the same. Return the change topic, or
        None if it was not asked or did not answer. Raises `TopicError` if one was replaced.
        """
        if time.monotonic() - self._refreshed_at < REFRESH_S:
            return None
        self._refreshed_at = time.monotonic()
        try:
            facts = topics.describe(self.kafka, self.facts.topic)
            catalog_facts = topics.describe(self.kafka, self._catalog_facts.topic)
        except (BrokerError, TopicError):
            return None  # if the cause stays, the next transaction fails
        topics.check_identity(self.facts.topic_id, facts)
        topics.check_identity(self._catalog_facts.topic_id, catalog_facts)
        return facts

    def conflict(self, cause: str, outcome: str) -> WriterConflictError:
        """Return the error for another session of this name."""
        return taken_over(f"the write session {self.session}", self.facts.topic, cause, outcome)

    def _check_owner(self, catalog: Catalog) -> None:
        if catalog.owner_of(self.session) != self._owner:
            raise TakenOverError(catalog)

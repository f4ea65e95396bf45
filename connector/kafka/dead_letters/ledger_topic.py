"""The ledger in Kafka: each action on a dead letter is one transaction with the record that it
sends (DLQ-11).

Two processes must not replay the same dead letter. Therefore each process that acts on dead letters
has these steps:

    1  start transactions with the transactional id of the topic. Kafka aborts the open transaction
       of a dead process, and fences a running one. It answers when the last transaction is
       complete, so all of it can be read
    2  read the ledger to its end. From here on, only this process can write to it, unless another
       process fences it
    3  one transaction: the replayed records, the history of each dead letter with the new entry,
       and the totals
    4  after any failure, close the client. The outcome of the transaction is unknown. Read the
       ledger again

A process uses only the ledger of step 2 and its own commits. Therefore you can kill it at any point
and run it again. No record is lost or duplicated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import Message, murmur2

from connector.dead_letters.envelope import dead_letter_topic, ledger_topic, replay_topic
from connector.dead_letters.ledger import (
    Ledger,
    LedgerEntry,
    LedgerWrite,
    Sent,
    Totals,
    history_from_json,
    history_to_json,
    totals_from_json,
    totals_to_json,
)
from connector.dead_letters.replay import in_batches
from connector.errors import DeliveryError, TopicError, WriterConflictError
from connector.errors.dead_letters import ledger_in_use, ledger_write_unknown
from connector.errors.kafka import record_unreadable
from connector.kafka import client, topics
from connector.kafka.client import records_between, windows_before
from connector.kafka.dead_letters.topic import read_letters
from connector.kafka.transactions import Failure, TransactionClient, TransactionMessage

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig

MAX_WRITES: Final = 1000
"""The maximum number of actions in a transaction (DLQ-11)."""
TOTALS_KEY: Final = b"totals"
"""The key of the totals. No dead letter has this id."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of the records in a transaction. It must end well within
`transactions.TIMEOUT_S`.
"""


def read_ledger(kafka: KafkaConfig, topic: str, group: str | None = None) -> Ledger:
    """Read the committed ledger of a change topic, or of a group of its readers. It is empty if the
    ledger topic does not exist.

    Raises `TopicError` if the ledger is not compacted or has an invalid record, and `BrokerError`.
    """
    ledger = Ledger()
    if (bounds := _bounds(kafka, topic, group)) is None:
        return ledger
    for key, value in _records(kafka, *bounds):
        if isinstance(value, Totals):
            ledger.open_since, ledger.sent = value.open_since, value.sent
            ledger.published = value.published
        else:
            ledger.set_history(key, value)
    return ledger


def read_totals(kafka: KafkaConfig, topic: str) -> Totals | None:
    """Read the newest totals from the last records of the ledger. None: there are no totals. Raises
    as `read_ledger` does.
    """
    if (bounds := _bounds(kafka, topic)) is None:
        return None
    facts, begin, end = bounds
    # The totals are the last record of their transaction. Aborted records may follow.
    for windows in windows_before({0: end}, {0: begin}, 16):
        values = [value for _, value in _records(kafka, facts, *windows[0])]
        if totals := [value for value in values if isinstance(value, Totals)]:
            return totals[-1]
    return None


def published_letters(
    kafka: KafkaConfig, topic: str, table: str, above: int
) -> Mapping[str, str] | None:
    """Return the dead letters of a table, as `Ledger.published_of`. None: the totals of the ledger
    do not count more than `above`. Otherwise it reads all dead letters. Raises as `read_ledger`
    does.
    """
    topic_id, totals = topics.describe(kafka, topic).topic_id, read_totals(kafka, topic)
    if (0 if totals is None else totals.published.get((topic_id, table), 0)) <= above:
        return None
    return read_ledger(kafka, topic).published_of(topic_id, table, letter_ids(kafka, topic))


def letter_ids(kafka: KafkaConfig, topic: str) -> Iterator[str]:
    """Yield the ids of all dead letters of a change topic. There are none without their topic."""
    try:
        for letter, _ in read_letters(kafka, topic):
            yield letter.id
    except TopicError as error:
        if error.code != "TOPIC_MISSING":
            raise


def _bounds(
    kafka: KafkaConfig, topic: str, group: str | None = None
) -> tuple[topics.TopicFacts, int, int] | None:
    """Return the ledger topic, its first offset and its end offset. None: it does not exist.

    The change topic must exist.
    """
    try:
        facts = topics.describe(kafka, ledger_topic(topic, group))
    except TopicError:
        topics.describe(kafka, topic)
        return None
    topics.check_compacted(facts)
    return facts, topics.beginning_offsets(kafka, facts)[0], topics.end_offsets(kafka, facts)[0]


def _records(
    kafka: KafkaConfig, facts: topics.TopicFacts, begin: int, end: int
) -> Iterator[tuple[str, tuple[LedgerEntry, ...] | Totals]]:
    """Yield the histories and totals between two offsets of the ledger, with their keys."""
    ranges = {0: (begin, end)}
    for record in records_between(
        kafka, facts.topic, facts.topic_id, ranges, further=client.SHORT_WAIT
    ):
        key, value = record.key or b"", record.value or b""
        try:
            yield (
                key.decode(),
                (totals_from_json if key == TOTALS_KEY else history_from_json)(value),
            )
        except ValueError as error:
            offset = str(record.position.offset)
            raise record_unreadable(facts.topic, offset, str(error)) from None


def replay_target(
    kafka: KafkaConfig, source: topics.TopicFacts, group: str | None
) -> topics.TopicFacts:
    """Return the topic to which dead letters are replayed: the change topic, or that of a group.
    Raises `TopicError` if the group has none, and `BrokerError`.
    """
    if group is None:
        return source
    return topics.describe(kafka, replay_topic(source.topic, group))


class LedgerWriter:
    """The only writer of the ledger of a change topic. A new writer fences the older one. Not
    thread-safe.

    `ledger` is the committed ledger. Use it as a context manager. After an error, create another
    writer, which reads the ledger again.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str,
        on_step: Callable[[str], None] = lambda step: None,
        group: str | None = None,
    ) -> None:
        """Fence any other writer, and read the ledger. Its topic is created if necessary.
        `on_step` is called before each step. The topics of a `group` must exist. Its records are
        sent to its topic for replays, not to the change topic.

        Raises `TopicError`, `BrokerError`.
        """
        self._kafka, self._on_step = kafka, on_step
        self.source = topics.describe(kafka, topic)
        if group is None:
            topics.create_dead_letter_topics(kafka, self.source)
        self.target = replay_target(kafka, self.source, group)
        self._ledger_topic = topics.describe(kafka, ledger_topic(topic, group))
        topics.check_compacted(self._ledger_topic)
        self._delivered: dict[int, int] = {}
        self._client = TransactionClient(
            kafka,
            f"lowmark.{dead_letter_topic(topic, group)}",
            max(self.source.max_message_bytes, topics.LETTER_HEADROOM_BYTES),
            on_step,
        )
        try:
            self._client.start()
            self.ledger = read_ledger(kafka, topic, group)
        except BaseException:
            self.close()
            raise

    def commit(self, writes: Sequence[LedgerWrite]) -> None:
        """Commit the actions in one transaction. All of them take effect, or none.

        Records are sent in this order, and the totals last. There may be at most `MAX_WRITES`
        actions, and one for each dead letter.

        Raises `WriterConflictError` if another writer has taken over. Raises `DeliveryError` if the
        transaction failed, or if its outcome is unknown. Then the ledger has the outcome.
        """
        assert self._client.is_open, (
            "after an error, the content of the ledger is unknown: another writer reads it"
        )
        assert len({write.letter_id for write in writes}) == len(writes) <= MAX_WRITES, len(writes)
        histories = {
            write.letter_id: self.ledger.with_entry(write.letter_id, write.entry)
            for write in writes
        }
        failure = self._client.commit(
            self._messages(writes, histories), on_delivered=self._on_delivered
        )
        if failure is not None:
            raise self._failed(failure)
        for letter_id, entries in histories.items():
            self.ledger.set_history(letter_id, entries)
        sent = self.ledger.sent
        ends = sent.ends if sent.topic_id == self.target.topic_id else {}
        self.ledger.sent = Sent(self.target.topic_id, {**ends, **self._delivered})

    def write_totals(self, open_since: int) -> None:
        """Store that all open dead letters first failed at `open_since` (µs) or later, and the end
        offsets of the last replays.

        Raises as `commit` does.
        """
        if self.ledger.open_since != open_since or self._delivered:
            self.ledger.open_since = open_since
            self.commit(())

    def close(self) -> None:
        """Close the client. Actions that are not committed have no effect. A second call does
        nothing.
        """
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _messages(
        self, writes: Sequence[LedgerWrite], histories: Mapping[str, tuple[LedgerEntry, ...]]
    ) -> Iterator[TransactionMessage]:
        """Yield each record with its history, and the totals last."""
        name, of_target = self._ledger_topic.topic, self.target.kafka_partitions
        for write in writes:
            if (record := write.record) is not None:
                partition = record.kafka_partition
                if partition is None:
                    partition = murmur2(record.key, of_target)
                yield TransactionMessage(
                    self.target.topic, record.key, record.value, partition, list(record.headers)
                )
            self._on_step("record")
            history = history_to_json(histories[write.letter_id])
            yield TransactionMessage(name, write.letter_id.encode(), history, 0)
        yield TransactionMessage(name, TOTALS_KEY, totals_to_json(self.ledger.totals(histories)), 0)

    def _on_delivered(self, message: Message) -> None:
        if message.topic() == self.target.topic:
            self._delivered[message.partition() or 0] = (message.offset() or 0) + 1

    def _failed(self, failure: Failure) -> WriterConflictError | DeliveryError:
        error = ledger_in_use if failure.is_fenced else ledger_write_unknown
        return error(self.source.topic, failure.cause)


def in_transactions(
    writes: Iterable[LedgerWrite], at_most: int = MAX_WRITES
) -> Iterator[list[LedgerWrite]]:
    """Group the actions into lists. Each list fits into one transaction."""
    return in_batches(writes, lambda write: write.size, at_most=at_most, at_most_bytes=MAX_BYTES)

"""One connection of a bridge: it reads the topics of a source from the newest resume token on, and
publishes their changes until it is stopped or fails (SRC-1).

It may end at any instant. The next session begins at the newest heartbeat that Kafka has, and
publishes what came after it again, with the same commit timestamps.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from connector.clock import now_us
from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.source_letters import ORDER_HEADER, AssignedOrder
from connector.errors import ConnectorError, InvalidChangeError, TopicError
from connector.errors.kafka import record_unreadable
from connector.errors.sources import source_position_missing, source_too_wide
from connector.kafka import topics
from connector.kafka.bridge.reader import SourceReader
from connector.kafka.bridge.tables import BridgeTables, Warn
from connector.kafka.dead_letters.topic import DeadLetterPublisher
from connector.kafka.produce.producer import ChangeProducer
from connector.kafka.schema_registry import RegistryClient
from connector.records.model import MAX_RESUME_TOKEN_BYTES, Heartbeat, Rule
from connector.records.rejection import Position, Reason
from connector.reports.bridge_status import ADD_KEY, PROVIDE_TRANSACTIONS, text_of_waiting
from connector.sources import doubts
from connector.sources.by_partition import ByPartition
from connector.sources.by_transaction import ByTransaction
from connector.sources.captured import reads_table
from connector.sources.changes import STREAM_PARTITION, Changes, headers, location_of
from connector.sources.debezium import DebeziumDecoder
from connector.sources.model import Poison, Row, Skipped, Waiting, lacks_transaction
from connector.sources.position import SourcePosition
from connector.sources.records import AvroFormat, JsonFormat
from connector.sources.upsert import UpsertDecoder
from connector.stored import to_stored

if TYPE_CHECKING:
    from connector.config.settings import (
        ConnectorConfig,
        RegistryConfig,
        SourceConfig,
        StreamConfig,
    )
    from connector.kafka.bridge.claim import BridgeClaim
    from connector.sources.model import (
        Decoder,
        ForeignRecord,
        Released,
        Sequencer,
        TopicPartition,
    )
    from connector.sources.tables import KnownTables

WAITING_HEADER: Final = "connector.source.waiting"
"""A heartbeat has it while the bridge waits for events of its source (SRC-8)."""
CHECKPOINT_S: Final = 1.0
WAITING_S: Final = 10.0
"""How long the bridge waits for events before it says so, and how often it says so again."""
_POLL_S: Final = 0.1
_IDLE_S: Final = 3.0
_CLOSE_S: Final = 5.0
_FLUSH_S: Final = 30.0
"""How long the bridge waits for acknowledgements, before it begins again at its position."""


@dataclass(slots=True)
class BridgeCounts:
    """The work of a bridge: the changes, truncations and dead letters that were published, and the
    records that were left out, by rule.
    """

    changes: int = 0
    letters: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


class BridgeSession:
    """A bridge of one stream, from its newest resume token on. Not thread-safe."""

    def __init__(
        self,
        config: ConnectorConfig,
        stream: StreamConfig,
        claim: BridgeClaim,
        counts: BridgeCounts,
        warn: Warn,
        stack: ExitStack,
    ) -> None:
        """Claim the stream, find the position, and open the topics. No change is sent. `stack`
        closes the clients.

        Raises:
            WriterConflictError: Another bridge has claimed the stream later.
            TopicError: A topic is missing or was made again, or the resume token cannot be read.
            BrokerError: No broker answers.
        """
        assert stream.source is not None, "a bridge needs a source"
        self._stream, source, kafka, topic = stream, stream.source, config.kafka, stream.topic
        self._kafka, self._claim, self._counts, self._warn = kafka, claim, counts, warn
        self._transactions = source.transactions
        self._needs_transactions = bool(source.transactions)
        self._checkpoint_at = 0.0
        self._letters: list[DeadLetter] = []
        self._waiting: tuple[str, float] | None = None
        self._without_key: set[str] = set()
        self._read_again: set[str] = set()
        self._producer = ChangeProducer(
            kafka, topic, limits=stream.limits, registry=config.registry
        )
        stack.callback(self._close_producer)
        self._publisher = stack.enter_context(DeadLetterPublisher(kafka, topic))
        self._claim.take()
        position = self._position()
        self._tables = BridgeTables(config, stream, warn)
        self._decoder = decoder_of(source, config.registry, self._tables.of_decoder, stack)
        self._changes = Changes(
            lambda table: self._tables.definitions.get(table),
            on_truncate=source.on_truncate,
            on_missing_value=source.on_missing_value,
        )
        self._sequencer = self._sequencer_of(source, stream.limits.max_clock_skew_s, position)
        topic_ids = {} if position is None else position.topic_ids
        self._reader = SourceReader(kafka, source, self._sequencer.starts, topic_ids)
        stack.callback(self._reader.close)
        self._warn_of_missing_topics(source)

    def run(
        self,
        is_stopped: Callable[[], bool],
        *,
        once: bool = False,
        skip: str = "",
        on_read: Callable[[int, int], None] = lambda read, total: None,
    ) -> None:
        """Publish until `is_stopped`, or with `once`, until everything is published that the topics
        have at the start.

        Args:
            is_stopped: Asked several times a second.
            once: Stop at the end of the topics.
            skip: The id of a transaction that is published without the events that it lacks.
            on_read: Receives how many offsets were read, and how many the topics had at the start
                of the call, until that is reached.

        Raises:
            TopicError, ConfigError, InvalidChangeError: The source or its settings need a person.
            WriterConflictError: Another bridge has claimed the stream later.
            DeliveryError, BrokerError: Kafka or the registry does not answer. Begin another
                session.
        """
        ends, begin = self._reader.end_offsets(), dict(self._reader.positions)
        total, read = sum(max(0, end - begin[p]) for p, end in ends.items()), 0
        busy_at = time.monotonic()
        while not is_stopped():
            records = self._reader.poll(_POLL_S)
            # Of several tables that want one name, the first has it: in any order of arrival.
            for record in sorted(records, key=lambda record: record.partition):
                self._add(record)
            if read < total:
                read = self._read_since(begin, ends)
                on_read(read, total)
            self._tables.publish_news()
            for partition in self._reader.read_on():
                self._sequencer.read_to(partition, self._reader.positions[partition])
            if self._sequencer.wants_ends:
                self._sequencer.ends(self._reader.end_offsets())
            is_busy = self._send_released() or bool(records)
            self._reader.pause(self._sequencer.full)
            now = time.monotonic()
            if self._sequencer.has_claim or now >= self._checkpoint_at:
                self._checkpoint(now)
            if skip and isinstance(self._sequencer, ByTransaction) and self._sequencer.skip(skip):
                self._warn("TRANSACTION_SKIPPED", f"transaction {skip} is published as it is")
                skip = ""
            if is_busy:
                busy_at = now
            elif once and self._is_at(ends, is_idle=now > busy_at + _IDLE_S):
                # Nothing is reached before it is known that empty Kafka partitions are empty.
                self._sequencer.ends(self._reader.end_offsets())
                break
        self._checkpoint(time.monotonic())
        if once and (waiting := self._next_waiting()) is not None:
            self._warn("BRIDGE_WAITS", text_of_waiting(waiting, now_us()))
        if skip:
            text = f"transaction {skip} was not skipped: it is not the one that waits for events"
            self._warn("TRANSACTION_NOT_SKIPPED", text)

    def _sequencer_of(
        self, source: SourceConfig, skew_s: int, position: SourcePosition | None
    ) -> Sequencer:
        if not source.transactions:
            return ByPartition(position, max_clock_skew_s=skew_s)
        reads = reads_table(
            source.transactions, source.topics, lambda topic: topic in self._reader.existing
        )
        return ByTransaction(source.transactions, position, max_clock_skew_s=skew_s, reads=reads)

    def _warn_of_missing_topics(self, source: SourceConfig) -> None:
        topics_read = {topic for topic, _ in self._reader.partitions}
        for name in source.topics:
            if not any(source.matches(name, topic) for topic in topics_read):
                text = (
                    f"no topic is {name} yet, or Kafka does not show it to this user (right: Read)"
                )
                self._warn("SOURCE_TOPIC_MISSING", f"{text}. The bridge reads it when it appears")

    def _add(self, record: ForeignRecord) -> None:
        event = self._decoder.decode(record)
        if isinstance(event, Skipped):
            self._counts.left_out[event.rule] += 1
            if event.rule == "NO_KEY" and event.table not in self._without_key:
                self._without_key.add(event.table)
                text = f"{event.table} has rows without a key, which are left out. {ADD_KEY}"
                self._warn("SOURCE_NO_KEY", text)
        elif isinstance(event, Row) and event.is_snapshot:
            is_new = not event.is_incremental and event.table not in self._read_again
            if is_new and record.topic in self._sequencer.snapshots:
                self._read_again.add(event.table)
                self._warn("SOURCE_READ_AGAIN", doubts.read_again(event.table))
        elif self._needs_transactions and lacks_transaction(event):
            self._needs_transactions = False
            text = f"{location_of(record)} has no transaction. {PROVIDE_TRANSACTIONS}"
            self._warn("SOURCE_WITHOUT_TRANSACTIONS", text)
        self._sequencer.add(record, event)

    def _send_released(self) -> bool:
        """Send what is released, and return whether there was any."""
        is_any = False
        for released in self._sequencer.released(now_us()):
            is_any = True
            change = self._changes.change(released)
            if not isinstance(change, Poison):
                try:
                    self._producer.send(change, headers(released))
                    self._counts.changes += 1
                except InvalidChangeError as error:
                    if error.rule == Rule.COMMIT_TIMESTAMP:
                        raise
                    event = released.event
                    change = Poison(error.rule, str(error), event.commit, event.table)
            if isinstance(change, Poison):
                self._letters.append(self._letter(released, change))
            elif isinstance(released.event, Row) and released.event.is_snapshot:
                self._tables.has_read_again(released.event.table)
        return is_any

    def _letter(self, released: Released, poison: Poison) -> DeadLetter:
        record, commit = released.record, released.event.commit
        topic_id = self._reader.topic_ids[record.topic]
        order = AssignedOrder(
            released.commit_timestamp,
            released.tie_breaker,
            released.count,
            commit.transaction if released.count else "",
        )
        return DeadLetter(
            position=Position(record.topic, topic_id, record.kafka_partition, record.offset),
            key=record.key,
            value=record.value,
            headers=(*headers(released), (ORDER_HEADER, str(order).encode())),
            reason=Reason.UNREADABLE_SOURCE,
            rule=poison.rule,
            detail=poison.detail,
            first_failed_at=now_us(),
            record_timestamp=record.timestamp,
        )

    def _checkpoint(self, now: float) -> None:
        """Wait until Kafka has everything that was sent, and report the position."""
        self._checkpoint_at = now + CHECKPOINT_S
        self._claim.check()  # `flush` sends heartbeats
        if self._letters:
            self._publisher.publish(self._letters)
            self._counts.letters += len(self._letters)
            self._letters = []
        self._producer.flush(_FLUSH_S)
        self._claim.check()  # another bridge may have read the position
        reached = self._sequencer.reached
        if not reached:
            return
        token = self._sequencer.token(self._reader.topic_ids)
        if len(token) > MAX_RESUME_TOKEN_BYTES:
            count = len(self._sequencer.starts)
            raise source_too_wide(self._stream.topic, count, len(token), MAX_RESUME_TOKEN_BYTES)
        self._producer.reached(STREAM_PARTITION, reached, token)
        if self._sequencer.has_claim:
            self._producer.flush(_FLUSH_S)
            self._sequencer.claim_acknowledged()
        self._report_waiting(now, Heartbeat(STREAM_PARTITION, reached, token))

    def _report_waiting(self, now: float, heartbeat: Heartbeat) -> None:
        """Say what the bridge waits for: to its log, and in a heartbeat to `status` (SRC-8)."""
        waiting = self._next_waiting()
        if waiting is None:
            self._waiting = None
            return
        what, reported_at = self._waiting or ("", now)
        if what != waiting.transaction:
            self._waiting = waiting.transaction, now
        elif now > reported_at + WAITING_S:
            self._waiting = waiting.transaction, now
            text = json.dumps(to_stored(waiting), separators=(",", ":"))
            self._producer.send(heartbeat, [(WAITING_HEADER, text)])
            self._warn("BRIDGE_WAITS", text_of_waiting(waiting, now_us()))

    def _next_waiting(self) -> Waiting | None:
        topic = self._transactions
        if topic and (topic, 0) not in self._reader.partitions:
            return Waiting("topic", topic, now_us())
        return self._sequencer.waiting

    def _position(self) -> SourcePosition | None:
        """The position of the newest resume token. None: no bridge has sent to the topic."""
        topic = self._stream.topic
        try:
            token = self._producer.resume_token(STREAM_PARTITION)
        except TopicError as error:
            if error.code != "RESUME_TOKEN_MISSING":
                raise
            facts = topics.describe(self._kafka, topic)
            if topics.beginning_offsets(self._kafka, facts)[0]:
                raise source_position_missing(topic) from None
            return None
        try:
            return SourcePosition.parse(token)
        except ValueError as error:
            what = f"the resume token of {STREAM_PARTITION}"
            raise record_unreadable(topic, what, str(error)) from None

    def _close_producer(self) -> None:
        # The next session sends again what Kafka does not have. A heartbeat of a bridge that was
        # taken over would be behind those of the newer one.
        with suppress(ConnectorError):
            self._producer.close(0 if self._claim.is_lost else _CLOSE_S)

    def _read_since(
        self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> int:
        positions = self._reader.positions
        return sum(max(0, min(positions.get(p, e), e) - begin[p]) for p, e in ends.items())

    def _is_at(self, ends: Mapping[TopicPartition, int], *, is_idle: bool) -> bool:
        """Whether everything before `ends` is published. `is_idle`: nothing came for a while, so
        the rest waits for its transactions.
        """
        positions, starts = self._reader.positions, self._sequencer.starts
        if any(positions.get(partition, end) < end for partition, end in ends.items()):
            return False
        return is_idle or all(starts.get(p, positions.get(p, e)) >= e for p, e in ends.items())


def decoder_of(
    source: SourceConfig, registry: RegistryConfig | None, tables: KnownTables, stack: ExitStack
) -> Decoder:
    """Return the decoder of a source. Its client of the registry is closed with `stack`."""
    if not source.format.is_avro:
        return decoder_with(source, None, tables)
    assert registry is not None, "the configuration needs a registry for Avro"
    return decoder_with(source, stack.enter_context(RegistryClient(registry)).schema, tables)


def decoder_with(
    source: SourceConfig, schema_of: Callable[[int], str | None] | None, tables: KnownTables
) -> Decoder:
    """Return the decoder of a source. `schema_of` reads a schema of the registry, for Avro."""
    records = JsonFormat() if schema_of is None else AvroFormat(schema_of)
    if not source.format.is_debezium:
        return UpsertDecoder(records, tables)
    return DebeziumDecoder(
        records, tables, transactions=source.transactions, heartbeats=source.heartbeats
    )

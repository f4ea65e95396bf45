"""Reads a change stream, for programs (REC-21, SUB-1 to SUB-4, WRS-22). A bad record is a value in
the stream, never an exception.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from connector.clock import now_us
from connector.dead_letters.envelope import check_group, replay_topic
from connector.errors.kafka import arguments_exclude
from connector.kafka import client, topics
from connector.kafka.consume.decode import ConsumerRecord, Decoder, ReleaseCopies
from connector.kafka.consume.group import Uncommitted
from connector.kafka.consume.group_state import GroupState
from connector.kafka.consume.options import (
    CommitRange,
    Group,
    Start,
    StreamSettings,
    check_buffered_bytes,
    check_start,
)
from connector.kafka.consume.reader import RecordReader, Replays
from connector.kafka.consume.set_aside import SetAside
from connector.kafka.consume.stages import Timed, TransactionStage, WatermarkStage
from connector.kafka.consume.start_offsets import (
    create_time_warning,
    first_positions,
    positions_of_state,
)
from connector.kafka.unclosed import watch
from connector.records.rejection import Position
from connector.watermarks.frontier import UNKNOWN
from connector.watermarks.reader_state import ReaderState
from connector.watermarks.tracker import Watermark, WatermarkTracker, check_range
from connector.watermarks.transactions import (
    DEFAULT_BUFFERED_BYTES,
    HeldBack,
    Item,
    Released,
    Staged,
    TransactionAssembler,
)

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig

Yielded = TypeVar("Yielded")

_POLL_S: Final = 0.5


class _Consumer(Generic[Yielded]):
    """The common part of the three consumers."""

    _reader: RecordReader

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str,
        stream: StreamSettings | None,
        *,
        bounded: bool,
        group: Group | None,
    ) -> None:
        self._kafka, self._stream = kafka, stream or StreamSettings()
        self._decoder = Decoder(self._stream.registry, self._stream.limits, self._stream.tables)
        self._admin = client.admin(kafka)
        self._facts = topics.describe(kafka, topic, self._admin)
        self._topic_warnings = topics.check(self._facts)
        self._ends = topics.end_offsets(kafka, self._facts) if bounded else None
        self._replays: Replays | None = None
        if group is not None and group.replays:
            facts = topics.describe(kafka, replay_topic(topic, check_group(group.name)))
            self._replays = Replays(facts, topics.end_offsets(kafka, facts) if bounded else None)
        self._group = group
        self._set_aside = SetAside(kafka, topic, None if group is None else group.name)
        self._unwatch: Callable[[], object] = lambda: None
        self._closed = False

    @property
    def warnings(self) -> list[str]:
        """Sentences about wrong settings of the topic, and about a group without stored positions
        whose `start` leaves out earlier records.
        """
        return [*self._topic_warnings, *self._reader.warnings]

    @property
    @abstractmethod
    def finished(self) -> bool:
        """True when a bounded consumer has reached its end, or the low watermark is above the range
        of commit time.
        """

    def __iter__(self) -> Iterator[Yielded]:
        """Yield items and wait for more. It ends only if the consumer is bounded or its range has
        an end. Raises as `poll` does.
        """
        while not self.finished:
            received = self.poll(_POLL_S)
            if received is not None:
                yield received

    @abstractmethod
    def poll(self, timeout_s: float) -> Yielded | None:
        """Return the next item.

        After an exception, the next call returns the same item.

        Args:
            timeout_s: The approximate maximum time to wait.

        Returns:
            The item. None: the time has passed, or the iteration has ended.

        Raises:
            BrokerError: No broker has answered for 30 s. Or a schema is needed, and the registry
                does not answer.
            TopicError: The topic was deleted or replaced, or records were deleted before they were
                read.
            ConnectorError: The transactions that wait need too much memory (`BUFFER_FULL`).
        """

    def set_aside(self, received: ConsumerRecord | Item, detail: str) -> None:
        """Put a record that the program cannot process into the dead letters of the group (SUB-4),
        whose topics must exist (`create_group_topics`).

        It returns when all replicas have the letter. `commit` or `acknowledge` the record after
        that. If the program stops in between, the record comes again, and its letter counts once.

        Args:
            received: An item of this consumer. All records of a transaction are set aside.
            detail: Why, for people. It is shortened to 1,024 bytes.

        Raises:
            ConfigError: The consumer has no group, or the group cannot have dead letters. Or this
                consumer has not yielded `received`, or it was committed or acknowledged before.
            TopicError: A topic is missing, or the record was deleted.
            DeliveryError: The letter was not acknowledged. Set the record aside again.
            BrokerError: No broker answers.
        """
        assert not self._closed, "a closed consumer sets nothing aside"
        self._set_aside.publish(
            received, detail, self._reader, lambda at: self._is_acknowledged(received, at)
        )

    def commit(self) -> None:
        """Store the positions of all records that were read for the group. This includes replays.

        Raises:
            BrokerError: Kafka did not store them.
        """
        self._reader.commit()

    def close(self) -> None:
        """Leave the group, and close the client. Positions are not committed."""
        self._closed = True
        self._unwatch()
        self._reader.close()
        self._set_aside.close()
        self._decoder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(
        self,
        start: Start | Group,
        kafka_partitions: Collection[int] | None = None,
        commits: CommitRange | None = None,
    ) -> RecordReader:
        """Return the reader. Without another start, it begins where the range may begin."""
        if start == "beginning" and commits is not None and commits.start is not None:
            self._topic_warnings += create_time_warning(self._facts)
            start = first_positions(
                self._kafka,
                self._facts,
                self._decoder,
                commits.start,
                kafka_partitions=kafka_partitions,
                has_roots=bool(self._stream.roots),
            )
        return RecordReader(
            self._kafka,
            self._facts,
            self._admin,
            self._decoder,
            start=start,
            kafka_partitions=kafka_partitions,
            ends=self._ends,
            replays=self._replays,
        )

    def _watch(self, uncommitted: Callable[[], int]) -> None:
        if self._group is not None:
            left = Uncommitted(self._facts.topic, self._group.name, uncommitted)
            self._unwatch = watch(self, left)

    def _is_acknowledged(self, _received: ConsumerRecord | Item, position: Position) -> bool:
        return self._reader.is_committed(position)


class _RecordConsumer(_Consumer[Yielded]):
    """A consumer whose positions are those of the records that it has yielded."""

    @property
    def positions(self) -> tuple[Position, ...]:
        """The last offset that was read in each Kafka partition, or -1. Store it, and pass it as
        `start` later.
        """
        facts = self._reader.facts
        return tuple(
            Position(facts.topic, facts.topic_id, number, following - 1)
            for number, following in sorted(self._reader.next_offsets.items())
        )


class ChangeConsumer(_RecordConsumer[ConsumerRecord | Released | Staged]):
    """An iterator over the records of a change stream. Not thread-safe.

    Records of one Kafka partition come in order. Use it as a context manager. In place of a release
    of write streams, it yields one `Released`, and of a truncation, one copy as a record. In a
    group, only the member that reads Kafka partition 0 gets them. Changes that are older than the
    truncation may come after it: compare their order (EVO-13). If a program ends without `commit`
    and `close`, standard error says how many records the group reads again (PUB-8).
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str,
        *,
        start: Start | Group = "beginning",
        kafka_partitions: Collection[int] | None = None,
        bounded: bool = False,
        staged: bool = False,
        stream: StreamSettings | None = None,
    ) -> None:
        """Check the topic and find the start position.

        Args:
            kafka: The brokers and client settings.
            topic: The name of the change topic.
            start: Where to start. With a `Group`, Kafka distributes the Kafka partitions, `commit`
                stores positions, and a record can be `set_aside`.
            kafka_partitions: Without a group, the Kafka partitions to read. None: all, including
                new ones.
            bounded: Stop at the current end of the topic.
            staged: Yield the rows of write streams that wait for a release, too, as `Staged`. They
                come as soon as they are read. Those in other Kafka partitions may come after their
                `Released`.
            stream: The settings of the stream. None: the default values of `StreamSettings`.

        Raises:
            TopicError: There is no such topic, it is compacted or was replaced, or records were
                deleted. The group has no topic for replays.
            BrokerError: No broker answers.
            ConfigError: A client setting is not allowed, or arguments exclude each other.
        """
        group = _group_of(start, kafka_partitions)
        super().__init__(kafka, topic, stream, bounded=bounded, group=group)
        self._reader = self._open(start, kafka_partitions)
        self._copies = ReleaseCopies(topic, kafka_partitions, staged)
        self._watch(self._reader.uncommitted)

    @property
    def finished(self) -> bool:
        return self._reader.finished

    def poll(self, timeout_s: float) -> ConsumerRecord | Released | Staged | None:
        deadline, left = time.monotonic() + timeout_s, timeout_s
        while (received := self._reader.poll(left)) is not None:
            shown = self._copies.shown(received)
            left = max(0.0, deadline - time.monotonic())
            if shown is not None or not left:
                return shown
        return None


class WatermarkConsumer(_RecordConsumer[Timed]):
    """An iterator over the records of a change stream and its low watermark (SUB-1, SUB-2). Not
    thread-safe.

    It yields what a `ChangeConsumer` yields, and a `Watermark` whenever the low watermark of the
    Kafka partitions that it reads advances. It is known when each of these Kafka partitions has an
    announcement, or with `StreamSettings.roots`, when each root has sent a record there.

    - If it reads all Kafka partitions, each change of the stream with a smaller commit timestamp
      came before, as far as the watermarks of the source are true. So did the rows of releases
      below it, except those of a late release.
    - If it reads some of them, as a member of a group or with `kafka_partitions`, this is true of
      the changes in these Kafka partitions only: rows are complete, transactions are not. The low
      watermark of the stream is the least of all members. When a group gives it other Kafka
      partitions, its low watermark is unknown again, and may come back smaller.
    - With `commits`, it leaves out records outside the range, and records that cannot be read and
      arrived too early to be in it. The iteration ends once the low watermark is above the end of
      the range. A change or truncation behind the low watermark is a `Late`, and a release has
      `is_late`.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str,
        *,
        start: Start | Group = "beginning",
        commits: CommitRange | None = None,
        kafka_partitions: Collection[int] | None = None,
        bounded: bool = False,
        staged: bool = False,
        stream: StreamSettings | None = None,
    ) -> None:
        """Check the topic and find the start position. The arguments are as in `ChangeConsumer`.

        Args:
            commits: The commit timestamps to yield. Reading begins where the first such change may
                be. A range with a start excludes `staged`, because the rows of a release may be
                much older than the release.

        Raises:
            OutOfRangeError: The range begins before the oldest record of the topic.
            TopicError, BrokerError, ConfigError: As for `ChangeConsumer`, or the range begins in
                the future or ends before it begins.
        """
        group = _group_of(start, kafka_partitions)
        if group is not None and commits is not None:
            reason = (
                "A group has its own stored positions, and each member would end at another time"
            )
            raise arguments_exclude("a Group", "commits", reason)
        _check_range(commits, start, staged=staged)
        super().__init__(kafka, topic, stream, bounded=bounded, group=group)
        self._reader = self._open(start, kafka_partitions, commits)
        limits = self._stream.limits
        tracker = WatermarkTracker(
            roots=frozenset(self._stream.roots),
            max_clock_skew_s=limits.max_clock_skew_s,
            only=None if self._reader.is_whole_topic else frozenset(kafka_partitions or ()),
        )
        copies = ReleaseCopies(topic, kafka_partitions, staged)
        self._stage = WatermarkStage(self._reader, tracker, copies, limits, commits)
        self._watch(self._reader.uncommitted)

    @property
    def finished(self) -> bool:
        return self._stage.is_finished

    def poll(self, timeout_s: float) -> Timed | None:
        self._stage.wait(timeout_s)
        return self._stage.pop()


class TransactionConsumer(_Consumer[Item]):
    """An iterator over the whole transactions of a change stream, in the order of commit timestamp,
    transaction id and position (SUB-3). Not thread-safe.

    - A `WholeTransaction` comes once the low watermark has passed it. A duplicate, or a change of a
      transaction that was yielded, is a `Late`. A record that cannot be read is a `Rejected`.
      A truncation is one of the changes of its transaction. Other control records are not yielded.
    - A release of write streams comes as `Released` at its place in this order. With `staged`, its
      rows came before, as `Staged`. A release behind the low watermark comes at once, with
      `is_late`, perhaps before some of its rows.
    - `acknowledge` the items in their order. Then store `state()`, or let a `Group` store it with
      `commit`. The consumer reads all Kafka partitions, also with a group: a later consumer of the
      group fences it.

    Use it as a context manager. `low_watermark` (µs) is the last one that all transactions below it
    were yielded for. None: it is not known.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str,
        *,
        start: Start | Group | bytes = "beginning",
        commits: CommitRange | None = None,
        bounded: bool = False,
        staged: bool = False,
        stream: StreamSettings | None = None,
        max_buffered_bytes: int = DEFAULT_BUFFERED_BYTES,
    ) -> None:
        """Check the topic and find the start position. The arguments are as in `WatermarkConsumer`.

        Args:
            start: Where to start. Bytes are a value of `state()` to continue from. A `Group` stores
                this state, and records can be `set_aside`. Its replays come as `Late` or
                `Rejected`.
            max_buffered_bytes: The bound for transactions that are read and not yielded: 1 KiB to
                1 TiB.

        Raises:
            OutOfRangeError, TopicError, BrokerError: As for `WatermarkConsumer`.
            ConfigError: As for `WatermarkConsumer`, or a number is out of its range, or the state
                is not one.
        """
        group = start if isinstance(start, Group) else None
        first: Start = "beginning"
        if not isinstance(start, bytes):
            first = start.start if isinstance(start, Group) else start
        check_buffered_bytes(max_buffered_bytes)
        check_start(first)
        _check_range(commits, first, staged=staged)
        state = ReaderState.from_bytes(start) if isinstance(start, bytes) else None
        super().__init__(kafka, topic, stream, bounded=bounded, group=group)
        self._group_state: GroupState | None = None
        if group is not None:
            replay_facts = None if self._replays is None else self._replays.facts
            self._group_state = GroupState(kafka, self._facts, group.name, replay_facts)
            state = self._group_state.stored
            if self._replays is not None:
                self._replays = self._replays._replace(next_offsets=self._group_state.replayed)
        try:
            if state is not None:
                first = positions_of_state(state, kafka, self._facts)
            self._reader = self._open(first, commits=commits)
        except BaseException:
            if self._group_state is not None:
                self._group_state.close()
            raise
        self._stage = self._stage_from(state, commits, staged, max_buffered_bytes)
        self.low_watermark: int | None = None
        self._watch(self._stage.unstored)

    @property
    def finished(self) -> bool:
        return self._stage.is_finished

    @property
    def held_back(self) -> HeldBack | None:
        """The transactions that were read and wait for the low watermark, and what delays it. For
        example, look at it after the loop of a bounded consumer. None: none waits.
        """
        return self._assembler.held_back()

    def poll(self, timeout_s: float) -> Item | None:
        deadline = time.monotonic() + timeout_s
        while True:
            self._stage.wait(max(0.0, deadline - time.monotonic()))
            item = self._stage.pop_item()
            if not isinstance(item, Watermark):
                return item
            self.low_watermark = item.low_watermark

    def acknowledge(self, item: Item) -> None:
        """Acknowledge an item that this consumer has yielded, and all that came before it."""
        self._stage.acknowledge(item)

    def state(self) -> bytes:
        """Return from where a later consumer continues.

        Store it together with the effects of the acknowledged items. A consumer that starts with it
        yields each item that is not acknowledged again, and then goes on.
        """
        return self._stage.state()

    def commit(self) -> None:
        """Store `state()` for the group: what was acknowledged.

        Raises:
            BrokerError: Kafka did not store it.
            WriterConflictError: A later consumer reads transactions for the group.
            ConnectorError: The state is too large for a group.
        """
        assert self._group_state is not None, "the state of a consumer without a group is yours"
        count = self._reader.facts.kafka_partitions
        self._group_state.store(
            self._stage.state(), self._assembler.oldest(), self._stage.replayed, count
        )
        self._stage.stored()

    def close(self) -> None:
        super().close()
        if self._group_state is not None:
            self._group_state.close()

    def _stage_from(
        self,
        state: ReaderState | None,
        commits: CommitRange | None,
        staged: bool,
        max_buffered_bytes: int,
    ) -> TransactionStage:
        stream, facts = self._stream, self._reader.facts
        tracker = WatermarkTracker(
            roots=frozenset(stream.roots),
            max_clock_skew_s=stream.limits.max_clock_skew_s,
            frontier=UNKNOWN if state is None else state.frontier,
        )
        first, last = (commits or CommitRange()).bounds
        self._assembler = TransactionAssembler(
            tracker,
            facts.topic,
            facts.topic_id,
            max_buffered_bytes=max_buffered_bytes,
            start_commit=first,
            end_commit=last,
            state=state,
        )
        copies = ReleaseCopies(facts.topic, None, staged)
        return TransactionStage(
            self._reader, tracker, copies, stream.limits, commits, self._assembler
        )

    def _is_acknowledged(self, received: ConsumerRecord | Item, position: Position) -> bool:
        if isinstance(received, ConsumerRecord):
            return self._reader.is_committed(position)
        return self._assembler.is_acknowledged(received)


def _group_of(start: Start | Group, kafka_partitions: Collection[int] | None) -> Group | None:
    """Raises `ConfigError` if the arguments exclude each other."""
    if not isinstance(start, Group):
        check_start(start)
        return None
    if kafka_partitions is not None:
        reason = "Kafka gives Kafka partitions to the members of a group"
        raise arguments_exclude("a Group", "kafka_partitions", reason)
    return start


def _check_range(commits: CommitRange | None, start: Start | Group, *, staged: bool) -> None:
    """Raises `ConfigError` if a range excludes another argument, or cannot be one."""
    if commits is None:
        return
    if commits.start is not None and start != "beginning":
        reason = "Where to start follows from the range of commit time"
        raise arguments_exclude("CommitRange.start", "start", reason)
    if commits.start is not None and staged:
        reason = "Rows are staged at any time before their release"
        raise arguments_exclude("CommitRange.start", "staged", reason)
    check_range(commits.start, commits.end, now_us())

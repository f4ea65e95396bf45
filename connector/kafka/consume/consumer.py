"""Reads a change stream, for programs (REC-21, SUB-1 to SUB-4).

    with ChangeConsumer(kafka, "changes", bounded=True) as consumer:
        for received in consumer:
            match received.record: case DataChange(): … case Rejection(): …

A bad record is a value in the stream, never an exception. Exceptions are for bad situations: no
broker, no registry, a topic that was replaced, or records that retention deleted before they were
read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Generic, Literal, Self, TypeVar, Unpack, cast, overload

from connector.clock import now_us
from connector.errors import ConfigError, ErrorCode
from connector.kafka import client, topics
from connector.kafka.arguments import check, check_flags, names_of, numbers_of
from connector.kafka.consume.commit_range import (
    create_time_warning,
    first_arrival,
    first_positions,
)
from connector.kafka.consume.decode import Decoder
from connector.kafka.consume.group_state import GroupState
from connector.kafka.consume.options import (
    ReaderOptions,
    check_numbers_given,
    check_options,
    check_types,
    positions_of_state,
)
from connector.kafka.consume.reader import RecordReader
from connector.kafka.consume.record import ConsumerRecord, Start
from connector.kafka.consume.releases import ReleaseCopies
from connector.kafka.consume.set_aside import (
    SetAside,
    already_acknowledged,
    check_item,
    positions_of,
    replays_of,
)
from connector.kafka.consume.stages import (
    CommitRange,
    Received,
    TransactionStage,
    WatermarkStage,
    transaction_stage,
)
from connector.kafka.consume.uncommitted import Uncommitted
from connector.kafka.unclosed import watch
from connector.records.model import MAX_LONG
from connector.records.rejection import Position
from connector.validation import Limits
from connector.watermarks.commit_range import check_range
from connector.watermarks.frontier import UNKNOWN
from connector.watermarks.reader_state import ReaderState
from connector.watermarks.released import Released, Staged
from connector.watermarks.tracker import Watermark, WatermarkTracker
from connector.watermarks.transactions import (
    DEFAULT_BUFFERED_BYTES,
    HeldBack,
    Item,
    Late,
    Rejected,
    WholeTransaction,
)

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig, RegistryConfig

Yielded = TypeVar("Yielded")
"""What a `ChangeConsumer` yields. It follows from its arguments."""

_POLL_S: Final = 0.5


class ChangeConsumer(Generic[Yielded]):
    """An iterator over a change stream. Not thread-safe.

    Without further arguments, it yields a `ConsumerRecord` for each record. Records of one Kafka
    partition come in order.

    **Write streams.** Staged rows are left out. Instead of a release, it yields `Released`, with
    the commit timestamp and the offsets of the rows. Each Kafka partition has a copy of the
    release, and it yields the one in Kafka partition 0. So in a group, only the member that reads
    Kafka partition 0 gets it. With `kafka_partitions`, it is the copy in the least of these. With
    `staged=True`, each staged row is yielded as `Staged`, too, as soon as it is read. Rows in other
    Kafka partitions may come after `Released`. All rows in the Kafka partitions that it reads came
    before a `Watermark` above the commit timestamp, except those of a late release.

    **Ranges.** With `start_commit` or `end_commit`, records outside the range are left out. A
    record that cannot be read is left out if it arrived too early to be in the range. The
    iteration ends once the low watermark is above `end_commit`. A change that comes after the low
    watermark has passed it is a `Late`, if it comes before the iteration ends.

    **Watermarks.** With `watermarks=True`, it also yields a `Watermark` whenever the low watermark
    of the Kafka partitions that it reads advances. If it reads all of them, each change of the
    stream with a smaller commit timestamp came before, as far as the watermarks of the source are
    true. If it reads some of them, as a member of a group or with `kafka_partitions`, this is true
    of the changes in these Kafka partitions only. It may conclude that a row is complete, since all
    changes of a row are in one Kafka partition, unless some were added. It may not conclude that a
    transaction is complete, since the transaction may have other changes elsewhere. The low
    watermark of the stream is the least of all members. When a group gives it other Kafka
    partitions, its low watermark is unknown again, and may come back smaller. The low watermark is
    known when each of these Kafka partitions has an announcement, or with `roots`, when each root
    has sent a record there.

    **Transactions.** With `transactions=True`, it yields a `WholeTransaction` once the low
    watermark has passed it, in the order of commit timestamp, transaction id and position. A
    duplicate, or a change of a transaction that was yielded, is a `Late`. A record that cannot be
    read is a `Rejected`. Other control records than releases are not yielded. A release is one
    transaction, and comes as `Released` at its place in this order. With `staged=True`, its rows
    came before, as `Staged`. They are not kept in memory. A release behind the low watermark comes
    at once, with `is_late`, perhaps before some of its rows. `acknowledge` the items in their
    order, and store `state()`. With `group`, `commit()` stores it in the group. The consumer reads
    all Kafka partitions, also then: a later consumer of the group shuts it out.

    **Dead letters of a group.** With `group`, a record that the program cannot process can be
    `set_aside`. With `replays=True`, the replays of such records come, too, as soon as they are
    there. With `transactions=True`, they come as `Late` or `Rejected`.

    Use it as a context manager. If the program ends without `commit` and `close`, standard error
    says how many records the group reads again (PUB-8). `finished` is True when the iteration has
    ended. `warnings` are sentences about wrong settings of the topic, and about a group without
    stored positions whose `start` leaves out earlier records.
    """

    @overload
    def __init__(
        self: ChangeConsumer[ConsumerRecord | Released],
        kafka: KafkaConfig,
        topic: str,
        *,
        start_commit: None = ...,
        end_commit: None = ...,
        watermarks: Literal[False] = ...,
        transactions: Literal[False] = ...,
        staged: Literal[False] = ...,
        **options: Unpack[ReaderOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ChangeConsumer[ConsumerRecord | Released | Staged],
        kafka: KafkaConfig,
        topic: str,
        *,
        start_commit: None = ...,
        end_commit: None = ...,
        watermarks: Literal[False] = ...,
        transactions: Literal[False] = ...,
        staged: Literal[True],
        **options: Unpack[ReaderOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ChangeConsumer[ConsumerRecord | Released | Watermark],
        kafka: KafkaConfig,
        topic: str,
        *,
        start_commit: None = ...,
        end_commit: None = ...,
        watermarks: Literal[True],
        transactions: Literal[False] = ...,
        staged: Literal[False] = ...,
        **options: Unpack[ReaderOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ChangeConsumer[ConsumerRecord | Released | Staged | Watermark],
        kafka: KafkaConfig,
        topic: str,
        *,
        start_commit: None = ...,
        end_commit: None = ...,
        watermarks: Literal[True],
        transactions: Literal[False] = ...,
        staged: Literal[True],
        **options: Unpack[ReaderOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ChangeConsumer[ConsumerRecord | Released | Late],
        kafka: KafkaConfig,
        topic: str,
        *,
        start_commit: int | None = ...,
        end_commit: int | None = ...,
        watermarks: Literal[False] = ...,
        transactions: Literal[False] = ...,
        staged: Literal[False] = ...,
        **options: Unpack[ReaderOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ChangeConsumer[WholeTransaction | Late | Rejected | Released],
        kafka: KafkaConfig,
        topic: str,
        *,
        start_commit: int | None = ...,
        end_commit: int | None = ...,
        watermarks: Literal[False] = ...,
        transactions: Literal[True],
        staged: Literal[False] = ...,
        **options: Unpack[ReaderOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ChangeConsumer[Item],
        kafka: KafkaConfig,
        topic: str,
        *,
        start_commit: None = ...,
        end_commit: int | None = ...,
        watermarks: Literal[False] = ...,
        transactions: Literal[True],
        staged: Literal[True],
        **options: Unpack[ReaderOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ChangeConsumer[Received],
        kafka: KafkaConfig,
        topic: str,
        *,
        start_commit: int | None = ...,
        end_commit: int | None = ...,
        watermarks: bool = ...,
        transactions: bool = ...,
        staged: bool = ...,
        **options: Unpack[ReaderOptions],
    ) -> None: ...

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str,
        *,
        start: Start = "beginning",
        group: str | None = None,
        kafka_partitions: Iterable[int] | None = None,
        bounded: bool = False,
        registry: RegistryConfig | None = None,
        limits: Limits | None = None,
        tables: frozenset[str] | None = None,
        metadata_refresh_s: float = 10.0,
        start_commit: int | None = None,
        end_commit: int | None = None,
        watermarks: bool = False,
        transactions: bool = False,
        staged: bool = False,
        roots: Iterable[str] = (),
        max_buffered_bytes: int = DEFAULT_BUFFERED_BYTES,
        state: bytes | None = None,
        replays: bool = False,
    ) -> None:
        """Check the topic and find the start position.

        Args:
            kafka: The brokers and client settings.
            topic: The name of the change topic.
            start: Where to start. In a group, it applies only to Kafka partitions without a
                committed position. Kafka partitions that are missing in stored positions are read
                from the beginning, because they are new.
            group: The consumer group. Kafka distributes the Kafka partitions, and `commit` stores
                positions. With `transactions`, it only stores the state.
            kafka_partitions: Without a group, the Kafka partitions to read. None: all, including
                new ones.
            bounded: Stop at the current end of the topic.
            registry: The schema registry.
            limits: The limits of the stream.
            tables: The declared source tables. None: changes of any table are accepted.
            metadata_refresh_s: How often to check whether the topic was replaced or has new Kafka
                partitions.
            start_commit: The least commit timestamp (µs) to yield. Reading begins where the first
                such change may be.
            end_commit: The greatest commit timestamp (µs) to yield. It may be in the future.
            watermarks: Yield watermarks, too.
            transactions: Yield whole transactions instead of records. It reads all Kafka
                partitions.
            staged: Yield the rows of write streams that wait for a release, too. It excludes
                `start_commit`, because the rows of a release may be much older than the release.
            roots: The root stream partitions, if you know them. Then a reader that starts in the
                middle of the topic need not find their announcements.
            max_buffered_bytes: The bound for transactions that are read and not yielded: 1 KiB to
                1 TiB.
            state: A value of `state()` to continue from, instead of `start`.
            replays: Read the replays of the dead letters of the group, too. They come between the
                records of the topic, with the header `connector.replay`.

        Raises:
            OutOfRangeError: The range begins in the future, ends before it begins, or begins
                before the oldest record of the topic.
            TopicError: There is no such topic, it is compacted or was replaced, or records were
                deleted. The group has no topic for replays.
            BrokerError: No broker answers.
            ConfigError: A client setting is not allowed, arguments exclude each other, an argument
                has a wrong type, a number is out of its range, or the state is not one.
        """
        check_types(
            kafka=kafka,
            topic=topic,
            start=start,
            group=group,
            registry=registry,
            limits=limits,
            tables=tables,
            metadata_refresh_s=metadata_refresh_s,
            state=state,
        )
        check_flags(
            bounded=bounded,
            watermarks=watermarks,
            transactions=transactions,
            staged=staged,
            replays=replays,
        )
        numbers = (
            None
            if kafka_partitions is None
            else numbers_of("kafka_partitions", kafka_partitions, "numbers of Kafka partitions")
        )
        named = names_of("roots", roots, "names of stream partitions, for example ['p0']")
        has_range = start_commit is not None or end_commit is not None
        check_options(
            {
                "group": group is not None,
                "kafka_partitions": numbers is not None,
                "transactions": transactions,
                "start": start != "beginning",
                "start_commit": start_commit is not None,
                "end_commit": end_commit is not None,
                "state": state is not None,
                "replays": replays,
                "staged": staged,
            }
        )
        check_numbers_given(
            start_commit=start_commit, end_commit=end_commit, max_buffered_bytes=max_buffered_bytes
        )
        known = None if state is None else ReaderState.from_bytes(state)
        now = now_us()
        check_range(start_commit, end_commit, now)
        self._decoder = Decoder(registry, limits, tables)
        admin = client.admin(kafka)
        facts = topics.describe(kafka, topic, admin)
        self._topic_warnings = topics.check(facts)
        ends = topics.end_offsets(kafka, facts) if bounded else None
        beside = replays_of(kafka, topic, group) if replays and group is not None else None
        self._closed = False
        self._set_aside = SetAside(kafka, topic, group)
        self._group_state: GroupState | None = None
        replayed: Mapping[int, int] | None = None
        if transactions and group is not None:
            self._group_state = GroupState(kafka, facts, group, beside)
            known, replayed = self._group_state.stored, self._group_state.replayed
        try:
            if known is not None:
                start = positions_of_state(known, kafka, facts)
            elif start_commit is not None:
                self._topic_warnings += create_time_warning(facts)
                start = first_positions(
                    kafka,
                    facts,
                    admin,
                    self._decoder,
                    start_commit,
                    now,
                    kafka_partitions=numbers,
                    has_roots=bool(named),
                )
            self._reader = RecordReader(
                kafka,
                facts,
                admin,
                self._decoder,
                start=start,
                group=None if transactions else group,
                kafka_partitions=numbers,
                ends=ends,
                metadata_refresh_s=metadata_refresh_s,
                replays=beside,
                replay_ends=topics.end_offsets(kafka, beside) if beside and bounded else None,
                replayed=replayed,
            )
        except BaseException:
            if self._group_state is not None:
                self._group_state.close()
            raise
        self._copies = ReleaseCopies(topic, numbers, staged)
        self._stage: WatermarkStage | None = None
        if watermarks or transactions or has_range:
            commits = CommitRange(
                start_commit or 0,
                MAX_LONG if end_commit is None else end_commit,
                first_arrival(facts, self._decoder.limits, start_commit or 0),
            )
            tracker = WatermarkTracker(
                roots=named,
                max_clock_skew_s=self._decoder.limits.max_clock_skew_s,
                only=None if self._reader.is_whole_topic else frozenset(numbers or ()),
                frontier=UNKNOWN if known is None else known.frontier,
            )
            self._stage = (
                transaction_stage(
                    self._reader,
                    tracker,
                    self._copies,
                    commits,
                    known,
                    max_buffered_bytes,
                    watermarks,
                )
                if transactions
                else WatermarkStage(
                    self._reader, tracker, self._copies, watermarks, commits if has_range else None
                )
            )
        self._unwatch: Callable[[], object] = lambda: None
        if group is not None:
            stage = self._stage
            count = (
                stage.unstored if isinstance(stage, TransactionStage) else self._reader.uncommitted
            )
            self._unwatch = watch(self, Uncommitted(topic, group, count))

    @property
    def warnings(self) -> list[str]:
        return [*self._topic_warnings, *self._reader.warnings]

    @property
    def finished(self) -> bool:
        """True when a bounded consumer has reached its end, or the low watermark is above
        `end_commit`.
        """
        return self._reader.finished if self._stage is None else self._stage.is_finished

    @property
    def held_back(self) -> HeldBack | None:
        """The transactions that were read and wait for the low watermark, and what delays it. For
        example, look at it after the loop of a bounded consumer.

        None: none waits, or the consumer does not read whole transactions.
        """
        return self._stage.held_back() if isinstance(self._stage, TransactionStage) else None

    def __iter__(self) -> Iterator[Yielded]:
        """Yield items and wait for more. It ends only if the consumer is bounded or has an
        `end_commit`. Raises as `poll` does.
        """
        while not self.finished:
            received = self.poll(_POLL_S)
            if received is not None:
                yield received

    def poll(self, timeout_s: float) -> Yielded | None:
        """Return the next item.

        After an exception, the next call returns the same item.

        Args:
            timeout_s: The approximate maximum time to wait.

        Returns:
            The item. None: the time has passed, or the iteration has ended.

        Raises:
            BrokerError: No broker has answered for 30 s.
            RegistryError: A schema is needed, and the registry does not answer.
            TopicError: The topic was deleted or replaced, or records were deleted before they were
                read.
            BufferFullError: Transactions that wait for the low watermark need too much memory.
        """
        return cast("Yielded | None", self._poll(timeout_s))

    def _poll(self, timeout_s: float) -> Received | None:
        stage = self._stage
        if stage is None:
            return self._poll_record(timeout_s)
        deadline = time.monotonic() + timeout_s
        while (item := stage.pop()) is None and not stage.is_finished:
            left = max(0.0, deadline - time.monotonic())
            stage.take(stage.unread or self._reader.poll(min(left, stage.wait_s)))
            if not left:
                return stage.pop()
        return item

    def _poll_record(self, timeout_s: float) -> Received | None:
        deadline, left = time.monotonic() + timeout_s, timeout_s
        while (received := self._reader.poll(left)) is not None:
            shown = self._copies.shown(received)
            left = max(0.0, deadline - time.monotonic())
            if shown is not None or not left:
                return shown
        return None

    @property
    def positions(self) -> tuple[Position, ...]:
        """The last offset that was read in each Kafka partition, or -1. Store it, and pass it as
        `start` later. With `transactions=True`, use `state()` instead.
        """
        facts = self._reader.facts
        return tuple(
            Position(facts.topic, facts.topic_id, number, following - 1)
            for number, following in sorted(self._reader.next_offsets.items())
        )

    def acknowledge(self, item: Item) -> None:
        """Acknowledge an item, and all that were yielded before it.

        Args:
            item: An item that this consumer has yielded: a `WholeTransaction`, `Late`, `Rejected`,
                `Released` or `Staged`.
        """
        self._transactions.acknowledge(item)

    def state(self) -> bytes:
        """Return from where a later consumer continues.

        Store it together with the effects of the acknowledged items. A consumer with
        `state=` yields each item that is not acknowledged again, and then goes on.

        Returns:
            For each Kafka partition the oldest unacknowledged and the next offset, the
            acknowledged commit timestamp, and the frontier, as bytes.
        """
        return self._transactions.state()

    def set_aside(self, received: ConsumerRecord | Item, detail: str) -> None:
        """Put a record that the program cannot process into the dead letters of the group (SUB-4).
        Call it before `close`.

        It returns when all replicas have the letter. `commit` or `acknowledge` the record after
        that, as one that was processed. If the program stops in between, the record comes again. If
        it is set aside again, readers count its letter once. The topics of the group must exist
        (`create_group_topics`).

        Args:
            received: An item of this consumer. All records of a transaction are set aside.
            detail: Why, for people. It is shortened to 1,024 bytes.

        Raises:
            ConnectorError: The record was committed or acknowledged before. It is still in its
                topic.
            ConfigError: The consumer has no group, or the group cannot have dead letters. Or
                `received` is not an item that this consumer has yielded, or `detail` is not a text.
            TopicError: The record is of another topic, a topic is missing, or the record was
                deleted.
            DeliveryError: The letter was not acknowledged. Set the record aside again.
            BrokerError: No broker answers.
        """
        assert not self._closed, "a closed consumer sets nothing aside"
        check_item(received, detail)
        facts, replays = self._reader.facts, self._reader.replays
        read = {one.topic: one for one in (facts, replays) if one is not None}
        self._set_aside.check(received, read)
        is_ours = all(map(self._reader.has_returned, positions_of(received)))
        check("received", received, is_ours, "an item that this consumer has yielded")
        for position in positions_of(received):
            if self._is_acknowledged(received, position):
                raise already_acknowledged(position)
        self._set_aside.publish(received, detail, read)

    def commit(self) -> None:
        """Store the positions of all records that were read for the group. This includes replays.
        With `transactions=True`, store `state()` for the group instead: what was acknowledged.

        Raises:
            BrokerError: Kafka did not store them.
            WriterConflictError: A later consumer reads transactions for the group.
            ConnectorError: The state is too large for a group.
        """
        if self._group_state is None:
            self._reader.commit()
        else:
            stage = self._transactions
            count = self._reader.facts.kafka_partitions
            self._group_state.store(stage.state(), stage.oldest(), stage.replayed, count)
            stage.stored()

    def close(self) -> None:
        """Leave the group, and close the client. Positions are not committed."""
        self._closed = True
        self._unwatch()
        self._reader.close()
        self._set_aside.close()
        if self._group_state is not None:
            self._group_state.close()
        self._decoder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_acknowledged(self, received: ConsumerRecord | Item, position: Position) -> bool:
        if isinstance(received, ConsumerRecord) or not isinstance(self._stage, TransactionStage):
            return self._reader.is_committed(position)
        return self._stage.is_acknowledged(received)

    @property
    def _transactions(self) -> TransactionStage:
        if not isinstance(self._stage, TransactionStage):
            raise ConfigError(
                ErrorCode.READER_OPTION_INVALID,
                "The consumer does not read whole transactions",
                "Only such a consumer has a state and acknowledges",
                "Build it with transactions=True",
            )
        return self._stage

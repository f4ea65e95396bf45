"""Operations on the dead letters of one stream: list, replay, park, discard, reopen (DLQ-8, DLQ-10
to DLQ-14).

    queue = DeadLetterQueue(config, config.streams["orders"], by="ada@desk")
    few = LetterFilter(reasons=frozenset({Reason.UNKNOWN_SCHEMA}))
    for decision in queue.plan(few): ...              # shows the decisions, sends nothing
    queue.replay(few, why="the schema is registered")   # one effect, even if you run it again

The command `connector dead-letters` uses this class. Dead letters are read from their topic each
time, one after the other. Memory holds one id for each, and the ledger.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from connector.clock import now_us
from connector.dead_letters.batching import in_batches
from connector.dead_letters.envelope import DeadLetter, check_group, dead_letter_topic
from connector.dead_letters.filter import LetterFilter
from connector.dead_letters.ledger import (
    OPEN_STATES,
    Action,
    Ledger,
    LedgerEntry,
    LetterStatus,
    RepairNote,
)
from connector.dead_letters.repair import Step
from connector.dead_letters.replay import (
    MAX_ATTEMPTS,
    Decision,
    Force,
    ReplayTarget,
    Tally,
    Verdict,
    decide,
)
from connector.errors import TopicError, check_note
from connector.kafka import topics
from connector.kafka.dead_letters.child_process import from_child
from connector.kafka.dead_letters.ledger_topic import (
    MAX_DEEDS,
    LedgerWrite,
    LedgerWriter,
    Outgoing,
    in_transactions,
    read_ledger,
    replay_target,
)
from connector.kafka.dead_letters.topic import read_letters
from connector.kafka.schema_registry import RegistryClient
from connector.records.codec import ChangeRecord, Schemas
from connector.records.rejection import Rejection
from connector.state.rate import RateLimit, check_rate
from connector.validation import KafkaRecord, validate_record

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, RegistryConfig, StreamConfig

MANY: Final = 5000
"""From this number of dead letters on, the decisions are made in a child process."""
AT_ONCE: Final = 200
AT_ONCE_BYTES: Final = 256 * 1024
"""The maximum size of the lists that the child process sends. Some lists fit into the pipe."""

OnStep = Callable[[str], None]
Others = Callable[[DeadLetter, LetterStatus], None]


class DeadLetterQueue:
    """The dead letters of one stream, or those of a group of its readers (SUB-4). Not thread-safe.

    `group` has the name of the group, or None. `schemas` are used for decoding. A registry is asked
    when one of its schemas is needed.

    All methods raise `TopicError` if the change topic, or a topic of the group, is missing,
    `BrokerError`, and `RegistryError` if a needed schema cannot be read.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        stream: StreamConfig,
        *,
        by: str,
        horizon: int | None = None,
        group: str | None = None,
    ) -> None:
        """Create the queue without a connection.

        Args:
            config: The configuration.
            stream: The stream.
            by: Who acts. The ledger stores it.
            horizon: The horizon of the stream, if it is known (µs). An older change is not
                replayed.
            group: The group of readers. Its letters are replayed to its own topic. None: the
                letters of ingest.

        Raises:
            ConfigError: The group cannot have dead letters, or `by` is not a text, or an empty one.
        """
        check_note("by", by)
        self.group = None if group is None else check_group(group)
        self._config, self._stream, self._by, self._horizon = config, stream, by, horizon
        self.topic = stream.topic
        self.schemas = Schemas(_Registered(config.registry))

    def ledger(self) -> Ledger:
        """Read the ledger."""
        return read_ledger(self._config.kafka, self.topic, self.group)

    def at_most(self) -> int:
        """Return the maximum number of dead letters: the records in their topic. Some may be
        duplicates.
        """
        try:
            facts = topics.describe(self._config.kafka, dead_letter_topic(self.topic, self.group))
        except TopicError:
            return 0
        begin, ends = (
            topics.beginning_offsets(self._config.kafka, facts),
            topics.end_offsets(self._config.kafka, facts),
        )
        return sum(end - begin[number] for number, end in ends.items())

    def letters(
        self,
        which: LetterFilter,
        ledger: Ledger | None = None,
        *,
        others: Others = lambda letter, standing: None,
    ) -> Iterator[tuple[DeadLetter, LetterStatus]]:
        """Yield the selected dead letters, each once, with its state. They are in order within a
        Kafka partition, and so within a key.

        There are none if the dead-letter topic does not exist.

        Args:
            which: The filter.
            ledger: A ledger that was read before. The state is looked up when a dead letter is
                read.
            others: Called for each dead letter that is not selected.
        """
        known = self.ledger() if ledger is None else ledger
        try:
            topics.describe(self._config.kafka, dead_letter_topic(self.topic, self.group))
        except TopicError:
            topics.describe(self._config.kafka, self.topic)
            if self.group is not None:
                name = dead_letter_topic(self.topic, self.group)
                topics.describe_of_group(self._config.kafka, self.topic, name, self.group)
            return
        for letter, _ in read_letters(self._config.kafka, self.topic, group=self.group):
            standing = known.standing(letter)
            if which.means(letter, standing, self.schemas):
                yield letter, standing
            else:
                others(letter, standing)

    def plan(
        self,
        which: LetterFilter,
        *,
        steps: Sequence[Step] = (),
        max_attempts: int = MAX_ATTEMPTS,
        force: Force | None = None,
        ledger: Ledger | None = None,
        others: Others = lambda letter, standing: None,
    ) -> Iterator[Decision]:
        """Yield the decisions of a replay, one by one, as a dry run. Sends and writes nothing.

        Args:
            which: The filter.
            steps: The repair steps.
            max_attempts: A dead letter is parked after so many attempts.
            force: As in `connector.dead_letters.replay.decide`.
            ledger: A ledger that was read before.
            others: As in `letters`.
        """
        door = self._front_door(topics.describe(self._config.kafka, self.topic))
        for letter, standing in self.letters(which, ledger, others=others):
            yield decide(
                letter,
                standing,
                door,
                self.schemas,
                now=now_us(),
                steps=steps,
                max_attempts=max_attempts,
                force=force,
            )

    def decision(self, letter: DeadLetter, standing: LetterStatus) -> Decision:
        """Return the decision of a replay for one dead letter that was read before."""
        door = self._front_door(topics.describe(self._config.kafka, self.topic))
        return decide(letter, standing, door, self.schemas, now=now_us())

    def replay(
        self,
        which: LetterFilter,
        *,
        why: str,
        steps: Sequence[Step] = (),
        max_attempts: int = MAX_ATTEMPTS,
        force: Force | None = None,
        max_changes_per_s: float | None = None,
        on_progress: Callable[[int, int], None] = lambda looked, done: None,
        stop: threading.Event | None = None,
        on_step: OnStep = lambda step: None,
    ) -> Tally:
        """Replay the selected dead letters. Those with too many attempts are parked. Refused ones
        do not change.

        Each dead letter takes effect once, even if you run this several times, kill it, or run it
        in parallel. It continues with those that are not in the ledger. Dead letters of a key are
        sent in their order.

        Args:
            which: The filter.
            why: The reason, for the ledger.
            steps: The repair steps.
            max_attempts: A dead letter is parked after so many attempts.
            force: As in `connector.dead_letters.replay.decide`.
            max_changes_per_s: The maximum number of dead letters that are sent in a second, from
                0.001 to 1,000,000. They are spread over it (PUB-7). None: no limit.
            on_progress: Called after each transaction with two numbers: the dead letters that were
                read, of at most `at_most()`, and those that were replayed or parked.
            stop: When it is set, no further transaction begins.
            on_step: Called before each step of a transaction.

        Returns:
            The number of dead letters by decision.

        Raises:
            ConfigError: `why` is not a text, or an empty one. Or `max_changes_per_s` is not
                allowed.
            WriterConflictError: Another process acts on the dead letters.
            DeliveryError: A transaction failed, or its outcome is unknown. Run this again.
        """
        check_note("why", why)
        check_rate(max_changes_per_s)
        tally, stopped, looked = Tally(), stop or threading.Event(), _Looked()
        limit = None if max_changes_per_s is None else RateLimit(max_changes_per_s)
        at_once = MAX_DEEDS if limit is None else min(MAX_DEEDS, limit.at_once)
        with LedgerWriter(self._config.kafka, self.topic, on_step, self.group) as writer:
            begun_at = now_us()
            if force is None and limit is None and self.at_most() >= MANY:
                settled = self._settled_elsewhere(which, tuple(steps), max_attempts)
            else:
                settled = self._settled(which, tuple(steps), max_attempts, writer.ledger, force)
            with closing(settled):
                deeds = self._deeds(settled, tally, looked, str(which), why)
                done = 0
                for some in in_transactions(deeds, at_once):
                    if stopped.wait(limit.wait_s(time.monotonic(), len(some)) if limit else 0):
                        return tally
                    writer.commit(some)
                    tally.verdicts.update(
                        Verdict.REPLAY if deed.record else Verdict.PARK for deed in some
                    )
                    done += len(some)
                    on_progress(looked.count, done)
            writer.write_totals(looked.since or begun_at)
        return tally

    def act(
        self, action: Action, which: LetterFilter, *, why: str, on_step: OnStep = lambda step: None
    ) -> tuple[int, Counter[str]]:
        """Park, discard or reopen the selected dead letters.

        Args:
            action: Not `REPLAYED`. Use `replay` for this.
            which: The filter.
            why: The reason, for the ledger.
            on_step: Called before each step of a transaction.

        Returns:
            The number of changed dead letters, and by state, the number of those whose state does
            not allow the action.

        Raises:
            ConfigError: `why` is not a text, or an empty one.
            WriterConflictError: Another process acts on the dead letters.
            DeliveryError: A transaction failed, or its outcome is unknown. Run this again.
        """
        assert action is not Action.REPLAYED, "replay does that"
        check_note("why", why)
        done, refused, left = 0, Counter[str](), _Looked()

        def deeds(ledger: Ledger) -> Iterator[LedgerWrite]:
            for letter, standing in self.letters(which, ledger, others=left.other):
                if standing.allows(action):
                    left.add(letter, stays=action is not Action.DISCARDED)
                    attempts_since_reopen = (
                        0 if action is Action.REOPENED else standing.attempts_since_reopen
                    )
                    yield LedgerWrite(
                        letter.id,
                        LedgerEntry(
                            action,
                            now_us(),
                            self._by,
                            why,
                            str(which),
                            standing.attempt,
                            attempts_since_reopen,
                        ),
                    )
                else:
                    refused[standing.state] += 1
                    left.other(letter, standing)

        with LedgerWriter(self._config.kafka, self.topic, on_step, self.group) as writer:
            begun_at = now_us()
            for some in in_transactions(deeds(writer.ledger)):
                writer.commit(some)
                done += len(some)
            writer.write_totals(left.since or begun_at)
        return done, refused

    def _settled(
        self,
        which: LetterFilter,
        steps: tuple[Step, ...],
        max_attempts: int,
        ledger: Ledger,
        force: Force | None = None,
    ) -> Generator[tuple[list[_Settled], _Looked]]:
        """Yield lists of dead letters to replay or park, and the counts up to there."""
        looked = _Looked()

        def settled() -> Iterator[_Settled]:
            for decision in self.plan(
                which,
                steps=steps,
                max_attempts=max_attempts,
                force=force,
                ledger=ledger,
                others=looked.other,
            ):
                if decision.verdict is Verdict.REFUSE:
                    looked.refused.add(decision)
                    looked.other(decision.letter, ledger.standing(decision.letter))
                else:
                    looked.add(decision.letter, stays=decision.verdict is Verdict.PARK)
                    yield _Settled.of(decision)

        for some in in_batches(
            settled(), lambda one: one.size, at_most=AT_ONCE, at_most_bytes=AT_ONCE_BYTES
        ):
            yield some, looked
        yield [], looked

    def _settled_elsewhere(
        self, which: LetterFilter, steps: tuple[Step, ...], max_attempts: int
    ) -> Generator[tuple[list[_Settled], _Looked]]:
        """The same as `_settled`, computed ahead in a child process."""
        alone = partial(
            _settled_alone,
            self._config,
            self._stream,
            self._horizon,
            self.group,
            which,
            steps,
            max_attempts,
        )
        for some, looked in from_child(alone):
            yield [_Settled.unpacked(one) for one in some], looked

    def _deeds(
        self,
        settled: Iterator[tuple[list[_Settled], _Looked]],
        tally: Tally,
        looked: _Looked,
        selection: str,
        why: str,
    ) -> Iterator[LedgerWrite]:
        for some, so_far in settled:
            looked.count, looked.since = so_far.count, so_far.since
            tally.verdicts |= so_far.refused.verdicts
            tally.refused |= so_far.refused.refused
            for one in some:
                action, reason = (Action.REPLAYED, why) if one.record else (Action.PARKED, one.why)
                yield LedgerWrite(
                    one.letter_id,
                    LedgerEntry(
                        action,
                        now_us(),
                        self._by,
                        reason,
                        selection,
                        one.attempt,
                        one.attempts_since_reopen,
                        one.repair_note,
                    ),
                    one.record,
                )

    def _front_door(self, facts: topics.TopicFacts) -> ReplayTarget:
        tables = {
            name: table
            for name, table in self._config.tables.items()
            if table.stream == self._stream.name
        }
        # A group may read tables that are not declared.
        rejects_others = self._stream.unknown_tables == "reject" and self.group is None
        to = replay_target(self._config.kafka, facts, self.group)
        declared = frozenset(table.source for table in tables.values()) if rejects_others else None

        def validated(record: KafkaRecord, schemas: Schemas) -> ChangeRecord | Rejection:
            return validate_record(
                record,
                schemas=schemas,
                limits=self._stream.limits,
                kafka_partitions=facts.kafka_partitions,
                tables=declared,
                horizon=self._horizon,
            )

        return ReplayTarget(
            to.topic, to.kafka_partitions, to.max_message_bytes, validated, tables, self.group
        )


class _Settled(NamedTuple):
    """A dead letter to replay, or to park if there is no record. It has the necessary parts of a
    `Decision`.
    """

    letter_id: str
    why: str
    attempt: int
    attempts_since_reopen: int
    repair_note: RepairNote | None
    record: Outgoing | None

    @classmethod
    def of(cls, decision: Decision) -> _Settled:
        record, content = None, decision.content
        if content is not None:
            assert content.key is not None, "a record without a key would have been rejected again"
            record = Outgoing(content.key, content.value, content.headers, decision.kafka_partition)
        return cls(
            decision.letter.id,
            decision.why,
            decision.attempt,
            decision.attempts_since_reopen,
            decision.repair_note,
            record,
        )

    @property
    def size(self) -> int:
        return 0 if self.record is None else self.record.size

    def packed(self) -> _Packed:
        """The same as plain tuples. Their transfer between processes takes a fifth of the time."""
        return tuple(self[:-1]), None if self.record is None else tuple(self.record)

    @classmethod
    def unpacked(cls, packed: _Packed) -> _Settled:
        fields, record = packed
        return cls._make((*fields, None if record is None else Outgoing._make(record)))


_Packed = tuple[tuple[Any, ...], tuple[Any, ...] | None]


def _settled_alone(
    config: ConnectorConfig,
    stream: StreamConfig,
    horizon: int | None,
    group: str | None,
    which: LetterFilter,
    steps: tuple[Step, ...],
    max_attempts: int,
) -> Iterator[tuple[list[_Packed], _Looked]]:
    """Runs in the child process. It reads the ledger itself. Meanwhile only the parent process
    writes to the ledger.
    """
    queue = DeadLetterQueue(config, stream, by="a child process", horizon=horizon, group=group)
    for some, looked in queue._settled(which, steps, max_attempts, queue.ledger()):
        yield [one.packed() for one in some], looked


@dataclass(slots=True)
class _Looked:
    """Counts: the dead letters that were read, the oldest first failure of those that stay open or
    parked, and the refused ones.
    """

    count: int = 0
    since: int | None = None
    refused: Tally = field(default_factory=Tally)

    def add(self, letter: DeadLetter, *, stays: bool) -> None:
        """Count a dead letter that changes. `stays`: it is open or parked afterwards."""
        self.count += 1
        if stays:
            self.since = min(self.since or letter.first_failed_at, letter.first_failed_at)

    def other(self, letter: DeadLetter, standing: LetterStatus) -> None:
        """Count a dead letter that does not change."""
        self.add(letter, stays=standing.state in OPEN_STATES)


class _Registered(Mapping[int, str | None]):
    """The schemas of a registry by id. Each is read when it is first needed, because a repair may
    name another schema.
    """

    def __init__(self, registry: RegistryConfig | None) -> None:
        self._registry = registry
        self._known: dict[int, str | None] = {}

    def __getitem__(self, schema_id: int) -> str | None:
        if self._registry is None:
            raise KeyError(schema_id)
        if schema_id not in self._known:
            with RegistryClient(self._registry) as registry:
                self._known[schema_id] = registry.schema(schema_id)
        return self._known[schema_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

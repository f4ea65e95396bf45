"""Dead letters of one stream: list, explain, repair and replay, park, discard, reopen (DLQ-8 to
DLQ-14).

Dead letters are read from their topic each time, one after the other. Memory holds one id for each,
and the ledger.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from connector.clock import now_us
from connector.config.settings import find_stream
from connector.dead_letters.effect import Effect
from connector.dead_letters.envelope import DeadLetter, check_group, dead_letter_topic, replay_claim
from connector.dead_letters.filter import LetterFilter, is_short_for, is_whole
from connector.dead_letters.ledger import (
    ALLOWED,
    Action,
    Ledger,
    LedgerEntry,
    LedgerWrite,
    LetterStatus,
)
from connector.dead_letters.repair import Step
from connector.dead_letters.replay import (
    MAX_ATTEMPTS,
    Decision,
    Remaining,
    ReplayTarget,
    Tally,
    Verdict,
    decide,
    ledger_write,
)
from connector.errors import TableError, TopicError, check_note
from connector.errors.dead_letters import dead_letter_ambiguous, dead_letter_missing
from connector.events import OnEvent, info, log_event, warning
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import DataChange
from connector.records.rejection import Rejection
from connector.records.views import Json
from connector.services.letter_effects import Effects
from connector.services.load_config import who
from connector.services.source_letters import source_changes
from connector.services.wait import wait_for_replays
from connector.services.warehouses import warehouse_of
from connector.state.pace import RateLimit, check_rate
from connector.text import FEW, counted, truncate_utf8
from connector.validation import KafkaRecord, validate_record

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, RegistryConfig


@dataclass(frozen=True, slots=True)
class LetterReport:
    """One dead letter in detail.

    - `history` has each action on it, the oldest first.
    - `rows` has its row as `connector read` prints it now, by table; None if there is no row. It is
      empty if the warehouse cannot be read.
    - `decision` and `effects` are the verdict of a replay, and its effect on the row by table.
    - `new_change` is a change with the effect that the change of the letter would have on its row
      now. Publish it if the letter is too late. Or it is a sentence why there is no such change.
    """

    letter: DeadLetter
    status: LetterStatus
    history: tuple[LedgerEntry, ...]
    rows: Mapping[str, Json | None]
    decision: Decision
    effects: Mapping[str, Effect]
    new_change: DataChange | str


class DeadLetters:
    """The dead letters of one stream, or of a group of its readers. Not thread-safe.

    An action is done once per letter and stored in the ledger, with who, when and why. You can stop
    it at any time and repeat it. A filter without `states` selects the letters that an action can
    be done to: for example, `reopen` takes parked and discarded ones.

    Each method may raise `BrokerError`, `TopicError` if the change topic, or a topic of the group,
    is missing, and `BrokerError` if a needed schema cannot be read.

    Attributes:
        stream: The name of the stream.
        topic: The change topic.
        group: The group of readers, or None.
        schemas: Used for decoding. A schema of the registry is read when it is needed.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        stream: str | None = None,
        *,
        by: str | None = None,
        group: str | None = None,
        on_event: OnEvent = log_event,
    ) -> None:
        """Use the dead letters of a stream, or of a group of its readers (SUB-4).

        For example: `DeadLetters(config, "orders").replay(LetterFilter(), why="the schema is
        registered now")`.

        Args:
            config: It has the stream.
            stream: The name or topic of the stream. None: the only one of the configuration.
            by: The person or program that acts. None: the user and the host of this process.
            group: The group of readers that set the records aside with `ChangeConsumer.set_aside`.
                A replay sends them to this group only. None: the records that ingest rejected.
            on_event: Receives warnings, for example that the horizon is unknown because the
                warehouse cannot be read.

        Raises:
            ConfigError: There is no such stream, or the group cannot have dead letters, or `by` is
                empty.
        """
        self._config, self._stream = config, find_stream(config, stream)
        self._by, self._on_event = who() if by is None else by, on_event
        check_note("by", self._by)
        self.stream, self.topic = self._stream.name, self._stream.topic
        self.group = None if group is None else check_group(group)
        self._registry = _RegistrySchemas(config.registry)
        self.schemas = Schemas(self._registry)

    def ledger(self) -> Ledger:
        """Read the ledger: the history of each letter that something was done about."""
        from connector.kafka.dead_letters.ledger_topic import read_ledger

        return read_ledger(self._config.kafka, self.topic, self.group)

    def at_most(self) -> int:
        """Return the number of records in the dead-letter topic. Some may be duplicates."""
        from connector.kafka import topics

        kafka = self._config.kafka
        try:
            facts = topics.describe(kafka, dead_letter_topic(self.topic, self.group))
        except TopicError:
            return 0
        begin, ends = topics.beginning_offsets(kafka, facts), topics.end_offsets(kafka, facts)
        return sum(end - begin[number] for number, end in ends.items())

    def list(
        self, which: LetterFilter | None = None, ledger: Ledger | None = None
    ) -> Iterator[tuple[DeadLetter, LetterStatus]]:
        """Yield the letters that a filter selects, each once, with its status; without one, the
        open letters. Letters of a Kafka partition, and so of a key, are in order.

        `ledger` was read before. None: read it now.
        """
        ledger = self.ledger() if ledger is None else ledger
        return (
            (letter, status)
            for letter, status, is_selected in self._letters(which or LetterFilter(), ledger)
            if is_selected
        )

    def find(self, letter_id: str) -> tuple[DeadLetter, LetterStatus, tuple[LedgerEntry, ...]]:
        """Return one letter, its status and its history, without a look at the warehouse. The id
        may be short, as for `whole_ids`. Raises `ConnectorError` if it means no letter, or several.
        """
        by_id = LetterFilter(ids=self.whole_ids([letter_id]))
        ledger = self.ledger()
        for letter, status in self.list(by_id, ledger):
            return letter, status, ledger.history(letter.id)
        topic = dead_letter_topic(self.topic, self.group)
        name = f"the dead letter {letter_id}"
        raise dead_letter_missing(topic, name, self.stream, self.group)

    def whole_ids(self, ids: Collection[str]) -> frozenset[str]:
        """Return whole ids of letters. Each may be short: a prefix of the id, or of its topic id
        with the rest. An id that no letter has stays as it is. Letters are read only if one is
        short. Raises `ConnectorError` if one means several letters.
        """
        whole = frozenset(filter(is_whole, ids))
        matches: dict[str, list[str]] = {text: [] for text in ids if text not in whole}
        for letter, _, _ in self._letters(LetterFilter(), Ledger()) if matches else ():
            for text, examples in matches.items():
                if letter.id == text or (len(examples) <= FEW and is_short_for(text, letter.id)):
                    examples.append(letter.id)
        for text, examples in matches.items():
            if len(examples) > 1 and text not in examples:
                topic = dead_letter_topic(self.topic, self.group)
                shown = ", ".join(examples[:FEW])
                raise dead_letter_ambiguous(topic, text, shown, self.stream, self.group)
        return whole.union(
            examples[0] if examples and text not in examples else text
            for text, examples in matches.items()
        )

    def show(self, letter_id: str) -> LetterReport:
        """Return one letter in detail. Raises as `find` does."""
        return self.report(*self.find(letter_id))

    def report(
        self, letter: DeadLetter, status: LetterStatus, history: tuple[LedgerEntry, ...]
    ) -> LetterReport:
        """Return the details of a letter that `find` returned."""
        decision = self._decider()(letter, status, now_us())
        record = decode(letter.value, self.schemas)
        change = record.record if isinstance(record, ChangeRecord) else None
        effects = self._effects()
        if effects is None:
            why = "its group has no tables" if self.group else "the warehouse cannot be read"
            return LetterReport(letter, status, history, {}, decision, {}, why)
        ((_, of_replay),) = effects.of_each([decision], self.schemas)
        if not isinstance(change, DataChange):
            why = "its record is not a valid change"
            return LetterReport(letter, status, history, {}, decision, of_replay, why)
        rows, new_change = effects.rows_of(change), effects.new_change(letter, change)
        return LetterReport(letter, status, history, rows, decision, of_replay, new_change)

    def plan(
        self,
        which: LetterFilter,
        *,
        steps: Sequence[Step] = (),
        max_attempts: int = MAX_ATTEMPTS,
    ) -> Iterator[tuple[Decision, Mapping[str, Effect]]]:
        """Yield the decision that `replay` would make about each letter, and the effect on its row
        by table. Nothing is sent.

        `steps` repair each letter first, for example `Step.parse("unset key")`. A letter is parked
        after `max_attempts`.
        """
        effects, decided = self._effects(), self._decider(steps, max_attempts)
        decisions = (decided(letter, status, now_us()) for letter, status in self.list(which))
        if effects is None:
            return ((decision, {}) for decision in decisions)
        return effects.of_each(decisions, self.schemas)

    def replay(
        self,
        which: LetterFilter,
        *,
        why: str,
        steps: Sequence[Step] = (),
        max_attempts: int = MAX_ATTEMPTS,
        max_changes_per_s: float | None = None,
        stop: threading.Event | None = None,
        on_progress: Callable[[int, int], None] = lambda read, done: None,
    ) -> Tally:
        """Send letters to the change topic again. Each takes effect once, even if you run this
        several times, kill it, or run it in parallel. Letters of a key are sent in their order.

        Args:
            which: The filter.
            why: The reason, for the ledger.
            steps: The repair steps.
            max_attempts: A letter is parked after so many attempts.
            max_changes_per_s: The maximum number of letters that are sent in a second, from 0.001
                to 1,000,000, without bursts (PUB-7). None: no limit.
            stop: When it is set, no further transaction begins.
            on_progress: Called after each transaction with two numbers: the letters that were read,
                of at most `at_most()`, and those that were replayed or parked.

        Returns:
            The number of letters by verdict.

        Raises:
            ConfigError: `why` cannot be stored, or `max_changes_per_s` is not allowed.
            WriterConflictError: Another process acts on the dead letters.
            DeliveryError: A transaction failed, or its outcome is unknown. Run this again.
        """
        check_note("why", why)
        check_rate(max_changes_per_s)
        tally, decided = Tally(), self._decider(steps, max_attempts)

        def writes(ledger: Ledger, remaining: Remaining) -> Iterator[LedgerWrite]:
            for letter, status, is_selected in self._letters(which, ledger):
                now = now_us()
                decision = decided(letter, status, now) if is_selected else None
                if decision is None or decision.verdict is Verdict.REFUSE:
                    if decision is not None:
                        tally.add(decision)
                    remaining.add_unchanged(letter, status)
                    continue
                remaining.add(letter, stays=decision.verdict is Verdict.PARK)
                yield ledger_write(decision, at=now, by=self._by, why=why, selection=str(which))

        def on_commit(batch: Sequence[LedgerWrite], read: int) -> None:
            tally.verdicts.update(
                Verdict.REPLAY if write.record else Verdict.PARK for write in batch
            )
            on_progress(read, tally.verdicts[Verdict.REPLAY] + tally.verdicts[Verdict.PARK])

        limit = None if max_changes_per_s is None else RateLimit(max_changes_per_s)
        self._commit(writes, on_commit, limit, stop)
        return tally

    def park(self, which: LetterFilter, *, why: str) -> tuple[int, Counter[str]]:
        """Set letters aside: no replay takes them before they are reopened.

        Returns:
            Their number, and by state, the number of those whose state does not allow it.

        Raises:
            ConfigError, WriterConflictError, DeliveryError: As for `replay`.
        """
        return self._act(Action.PARKED, which, why)

    def discard(self, which: LetterFilter, *, why: str) -> tuple[int, Counter[str]]:
        """Declare that letters are not to be replayed. Returns and raises as `park` does."""
        return self._act(Action.DISCARDED, which, why)

    def erase(self, ids: Iterable[str], *, why: str) -> int:
        """Close the letters of a row that is erased (OPR-2). Returns how many there were."""
        return self._act(Action.ERASED, LetterFilter(ids=frozenset(ids)), why)[0]

    def cover(self, ids: Iterable[str], *, rebuild: str, why: str) -> int:
        """Close table letters whose changes are in the table since this rebuild (RUN-6). Returns
        how many there were.
        """
        which = LetterFilter(ids=frozenset(ids))
        return self._act(Action.COVERED, which, why, selection=rebuild)[0]

    def reopen(self, which: LetterFilter, *, why: str) -> tuple[int, Counter[str]]:
        """Open parked or discarded letters again. Returns and raises as `park` does."""
        return self._act(Action.REOPENED, which, why)

    def wait(self, which: LetterFilter, *, since: int | None = None) -> bool:
        """Wait until each table has what is in the change topic now. False: a replay of `which`
        since `since` (µs) was rejected again. Not for letters of a group, which no table has.
        """
        assert self.group is None, "replays of a group are read by its own programs"
        started_at, selection = now_us() if since is None else since, truncate_utf8(str(which))
        return wait_for_replays(
            *(self._config, self._stream),
            lambda: self._are_rejected_again(started_at, selection),
            self._on_event,
        )

    def _are_rejected_again(self, since: int, selection: str) -> bool:
        """Return whether a replay since a time, or of a selection, is a letter again."""
        ledger, rejected = self.ledger(), Counter[str]()
        for letter, _ in self.list(None, ledger):
            claim = replay_claim(letter.headers)
            if claim is not None and any(
                entry.at >= since or entry.selection == selection
                for entry in ledger.history(claim[0])
            ):
                rejected[letter.reason] += 1
        if rejected:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in rejected.most_common())
            replays = counted(rejected.total(), "replay")
            text = f"{replays} rejected again: {reasons}; list the dead letters to see why"
            self._on_event(info("REJECTED_AGAIN", text))
        return bool(rejected)

    def _letters(
        self, which: LetterFilter, ledger: Ledger
    ) -> Iterator[tuple[DeadLetter, LetterStatus, bool]]:
        """Yield all letters, each with its status, and whether the filter selects it."""
        from connector.kafka import topics
        from connector.kafka.dead_letters.topic import read_letters

        kafka, name = self._config.kafka, dead_letter_topic(self.topic, self.group)
        try:
            topics.describe(kafka, name)
        except TopicError:
            topics.describe(kafka, self.topic)
            if self.group is not None:
                topics.describe(kafka, name)
            return
        for letter, _ in read_letters(kafka, self.topic, group=self.group):
            status = ledger.status(letter)
            yield letter, status, which.matches(letter, status, self.schemas)

    def _act(
        self, action: Action, which: LetterFilter, why: str, selection: str = ""
    ) -> tuple[int, Counter[str]]:
        check_note("why", why)
        if which.states is None and not which.ids:
            which = replace(which, states=ALLOWED[action])
        refused, selection = Counter[str](), selection or str(which)

        def writes(ledger: Ledger, remaining: Remaining) -> Iterator[LedgerWrite]:
            for letter, status, is_selected in self._letters(which, ledger):
                if not is_selected or not status.allows(action):
                    refused.update([status.state] if is_selected else [])
                    remaining.add_unchanged(letter, status)
                    continue
                remaining.add(letter, stays=action in (Action.PARKED, Action.REOPENED))
                attempts = 0 if action is Action.REOPENED else status.attempts_since_reopen
                entry = LedgerEntry(
                    action, now_us(), self._by, why, selection, status.attempt, attempts
                )
                yield LedgerWrite(letter.id, entry)

        return self._commit(writes), refused

    def _commit(
        self,
        writes: Callable[[Ledger, Remaining], Iterator[LedgerWrite]],
        on_commit: Callable[[Sequence[LedgerWrite], int], None] = lambda batch, read: None,
        limit: RateLimit | None = None,
        stop: threading.Event | None = None,
    ) -> int:
        """Commit ledger writes in transactions, and return their number. The totals of the ledger
        are written at the end, unless `stop` was set.

        `on_commit` is called after each transaction with its writes, and with the number of letters
        that were read up to there.
        """
        from connector.kafka.dead_letters.ledger_topic import (
            MAX_WRITES,
            LedgerWriter,
            in_transactions,
            letter_ids,
        )

        at_most = MAX_WRITES if limit is None else min(MAX_WRITES, limit.at_once)
        stopped, remaining, done = stop or threading.Event(), Remaining(), 0
        with LedgerWriter(self._config.kafka, self.topic, group=self.group) as writer:
            started_at = now_us()
            if self.group is None:
                writer.ledger.count_published(letter_ids(self._config.kafka, self.topic))
            for batch in in_transactions(writes(writer.ledger, remaining), at_most):
                if stopped.wait(limit.wait_s(time.monotonic(), len(batch)) if limit else 0):
                    return done
                writer.commit(batch)
                done += len(batch)
                on_commit(batch, remaining.read)
            writer.write_totals(remaining.since or started_at)
        return done

    def _decider(
        self, steps: Sequence[Step] = (), max_attempts: int = MAX_ATTEMPTS
    ) -> Callable[[DeadLetter, LetterStatus, int], Decision]:
        """Decides whether a letter with a status can be replayed at a time (µs)."""
        target = self._target()
        return lambda letter, status, now: decide(
            *(letter, status, target, self.schemas), now=now, steps=steps, max_attempts=max_attempts
        )

    def _target(self) -> ReplayTarget:
        from connector.kafka import topics
        from connector.kafka.dead_letters.ledger_topic import replay_target

        facts = topics.describe(self._config.kafka, self.topic)
        target = replay_target(self._config.kafka, facts, self.group)
        tables = self._config.tables_of(self._stream.name)
        # A group may read tables that are not declared.
        rejects_others = self._stream.unknown_tables == "reject" and self.group is None
        declared = frozenset(table.source for table in tables.values()) if rejects_others else None
        horizon = self._horizon

        def validated(record: KafkaRecord, schemas: Schemas) -> ChangeRecord | Rejection:
            return validate_record(
                record,
                schemas=schemas,
                limits=self._stream.limits,
                kafka_partitions=facts.kafka_partitions,
                tables=declared,
                horizon=horizon,
            )

        return ReplayTarget(
            *(target.topic, target.kafka_partitions, target.max_message_bytes),
            *(validated, tables, self.group),
            source_changes(self._config, self._stream, facts.kafka_partitions, self._registry),
        )

    @cached_property
    def _horizon(self) -> int | None:
        """The horizon. None for a group, and, with a warning, without a readable warehouse."""
        if self.group is not None:
            return None
        try:
            from connector.lake.state_reader import progress_of

            return progress_of(warehouse_of(self._config), self._stream.name).horizon
        except (ModuleNotFoundError, TableError) as error:
            text = (
                f"the horizon is unknown ({error}). A replayed change that"
                " is too late is rejected again"
            )
            self._on_event(warning("HORIZON_UNKNOWN", text, stream=self._stream.name))
            return None

    def _effects(self) -> Effects | None:
        """The rows now. None for a group, and, with a warning, without a readable warehouse."""
        if self.group is not None:
            return None
        return Effects.open(self._config, self._stream, self._on_event)


class _RegistrySchemas(Mapping[int, str | None]):
    """The schemas of a registry by id. Each is read when it is first needed."""

    def __init__(self, registry: RegistryConfig | None) -> None:
        self._registry = registry
        self._cache: dict[int, str | None] = {}

    def __getitem__(self, schema_id: int) -> str | None:
        if self._registry is None:
            raise KeyError(schema_id)
        if schema_id not in self._cache:
            from connector.kafka.schema_registry import RegistryClient

            with RegistryClient(self._registry) as registry:
                self._cache[schema_id] = registry.schema(schema_id)
        return self._cache[schema_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._cache)

    def __len__(self) -> int:
        return len(self._cache)

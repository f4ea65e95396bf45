"""Dead letters of one stream: list, explain, repair and replay, park, discard, reopen (DLQ-8 to
DLQ-14).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from connector.clock import now_us
from connector.config.settings import find_stream
from connector.dead_letters.effect import Effect
from connector.dead_letters.envelope import DeadLetter, dead_letter_topic
from connector.dead_letters.filter import LetterFilter
from connector.dead_letters.ledger import ALLOWED, Action, LedgerEntry, LetterStatus
from connector.dead_letters.repair import Step
from connector.dead_letters.replay import MAX_ATTEMPTS, Decision, Force, Tally
from connector.errors import ConnectorError, ErrorCode, TableError
from connector.records.codec import ChangeRecord, decode
from connector.records.model import DataChange
from connector.services.dead_letters.effects import Effects
from connector.services.dead_letters.wait import wait_for_tables
from connector.services.events import OnEvent, log_event, warning
from connector.services.load_config import who
from connector.services.warehouses import warehouse_of
from connector.text import truncate_utf8

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.kafka.dead_letters.queue import DeadLetterQueue


@dataclass(frozen=True, slots=True)
class LetterReport:
    """One dead letter in detail.

    Attributes:
        letter: The rejected record with its original bytes, and the reason.
        status: Its state, and how often it was replayed.
        history: Each thing that was done about it, the oldest first.
        rows: Its row as readers see it now, by table; None where there is no row. Empty if the
            warehouse cannot be read.
        decision: The verdict of a replay.
        effects: The effect of a replay on the row, by table.
    """

    letter: DeadLetter
    status: LetterStatus
    history: tuple[LedgerEntry, ...]
    rows: Mapping[str, Mapping[str, object] | None]
    decision: Decision
    effects: Mapping[str, Effect]


class DeadLetters:
    """The dead letters of one stream, or of a group of its readers. Make it with `dead_letters`.
    Each method may raise `BrokerError` and `TopicError`.

    An action is done once per letter and stored in the ledger, with who, when and why. You can stop
    it at any time and repeat it. A filter without `states` selects the letters that an action can
    be done to: for example, `reopen` takes parked and discarded ones.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        stream: StreamConfig,
        by: str,
        on_event: OnEvent,
        group: str | None = None,
    ) -> None:
        from connector.kafka.dead_letters.queue import DeadLetterQueue

        self._config, self._stream, self._by, self._on_event = config, stream, by, on_event
        self._group = group
        self.queue = DeadLetterQueue(config, stream, by=by, group=group)

    @cached_property
    def _replaying(self) -> DeadLetterQueue:
        """The queue with the horizon of the stream: only a replay needs it, so only a replay reads
        the warehouse for it. Letters of a group do not go to tables.
        """
        if self._group is not None:
            return self.queue
        from connector.kafka.dead_letters.queue import DeadLetterQueue

        return DeadLetterQueue(
            self._config,
            self._stream,
            by=self._by,
            horizon=_horizon(self._config, self._stream, self._on_event),
        )

    def list(self, which: LetterFilter | None = None) -> Iterator[tuple[DeadLetter, LetterStatus]]:
        """The letters that a filter selects, with their status; without one, the open letters."""
        return self.queue.letters(LetterFilter() if which is None else which)

    def show(self, letter_id: str) -> LetterReport:
        """One letter in detail. Raises `ConnectorError` if no letter has this id."""
        letter, status, history = self.find(letter_id)
        return LetterReport(letter, status, history, *self.effects_on(letter, status))

    def find(self, letter_id: str) -> tuple[DeadLetter, LetterStatus, tuple[LedgerEntry, ...]]:
        """One letter, its status and its history, without a look at the warehouse. Raises as `show`
        does.
        """
        ledger = self.queue.ledger()
        named = LetterFilter(ids=frozenset({letter_id}), states=frozenset())
        letter, status = next(self.queue.letters(named, ledger), (None, None))
        if letter is None or status is None:
            topic = dead_letter_topic(self.queue.topic, self._group)
            raise ConnectorError(
                ErrorCode.DEAD_LETTER_MISSING,
                f"There is no dead letter {letter_id}",
                f"{topic} has no dead letter with this id",
                "List all dead letters to find its id",
                stream=self._stream.name,
                group=self._group,
            )
        return letter, status, tuple(ledger.history(letter.id))

    def effects_on(
        self, letter: DeadLetter, status: LetterStatus
    ) -> tuple[Mapping[str, Mapping[str, object] | None], Decision, Mapping[str, Effect]]:
        """The row of a letter by table, the verdict of a replay, and its effect on the row, as in
        `LetterReport`. Letters of a group have no effect on rows.
        """
        found = decode(letter.value, self.queue.schemas)
        effects = self._effects()
        decision = self.queue.decision(letter, status)
        if effects is None:
            return {}, decision, {}
        change = found.record if isinstance(found, ChangeRecord) else None
        rows = effects.rows_of(change) if isinstance(change, DataChange) else {}
        ((_, done),) = effects.of_each([decision], self.queue.schemas)
        return rows, decision, done

    def plan(
        self,
        which: LetterFilter,
        *,
        steps: Iterable[Step] = (),
        max_attempts: int = MAX_ATTEMPTS,
        force: bool = False,
    ) -> Iterator[tuple[Decision, Mapping[str, Effect]]]:
        """Show the effect that `replay` would have on each letter, and on its row by table. Nothing
        is sent.

        `steps` repair each letter first, for example `Step.parse("key-from-record")`. `force` is
        for letters that are too late: it raises `ConnectorError` if the warehouse cannot be read.
        """
        queue, effects = self._replaying, self._effects()
        forced = self._forced(effects) if force else None
        decisions = queue.plan(which, steps=tuple(steps), max_attempts=max_attempts, force=forced)
        # A forced effect was worked out with the decision: the row shows it already.
        return (
            ((decision, {}) for decision in decisions)
            if effects is None or force
            else effects.of_each(decisions, queue.schemas)
        )

    def replay(
        self,
        which: LetterFilter,
        *,
        why: str,
        steps: Iterable[Step] = (),
        max_attempts: int = MAX_ATTEMPTS,
        force: bool = False,
        max_changes_per_s: float | None = None,
        stop: threading.Event | None = None,
        on_progress: Callable[[int, int], None] = lambda looked, done: None,
    ) -> Tally:
        """Send letters to the change topic again. Each takes effect once.

        `max_changes_per_s` limits the rate, without bursts (PUB-7). `stop` ends it after the
        transaction in flight. Returns the number of letters by verdict.
        """
        return self._replaying.replay(
            which,
            why=why,
            steps=tuple(steps),
            max_attempts=max_attempts,
            force=self._forced(self._effects()) if force else None,
            max_changes_per_s=max_changes_per_s,
            on_progress=on_progress,
            stop=stop or threading.Event(),
        )

    def park(self, which: LetterFilter, *, why: str) -> tuple[int, Counter[str]]:
        """Set letters aside: no replay takes them before they are reopened. Returns their number,
        and those left alone by state.
        """
        return self.queue.act(Action.PARKED, _for_action(Action.PARKED, which), why=why)

    def discard(self, which: LetterFilter, *, why: str) -> tuple[int, Counter[str]]:
        """Declare that letters are not to be replayed; the records stay in the topic. Returns as
        `park` does.
        """
        return self.queue.act(Action.DISCARDED, _for_action(Action.DISCARDED, which), why=why)

    def reopen(self, which: LetterFilter, *, why: str) -> tuple[int, Counter[str]]:
        """Open parked or discarded letters again. Returns as `park` does."""
        return self.queue.act(Action.REOPENED, _for_action(Action.REOPENED, which), why=why)

    def wait(self, which: LetterFilter, *, since: int | None = None) -> bool:
        """Wait until each table has what is in the change topic now. False: a replay of `which`
        since `since` was rejected again. Not for letters of a group, which no table has.
        """
        assert self._group is None, "replays of a group are read by its own programs"
        began = now_us() if since is None else since
        return (
            wait_for_tables(
                self._config,
                self._stream,
                self.queue,
                began,
                truncate_utf8(str(which)),
                self._on_event,
            )
            == 0
        )

    def _effects(self) -> Effects | None:
        """The rows of the stream's tables as they are now; None, with a warning, if the warehouse
        cannot be read. None for letters of a group, too.
        """
        if self._group is not None:
            return None
        return Effects.of(self._config, self._stream, self._on_event)

    @staticmethod
    def _forced(effects: Effects | None) -> Force:
        if effects is None:
            raise ConnectorError(
                ErrorCode.FORCE_WITHOUT_WAREHOUSE,
                "Cannot force a too-late change: the warehouse is unreadable",
                "The effect on the row is computed from the tables",
                "Run this where the warehouse is, with `pip install 'lowmark[lake]'`",
            )
        return effects.forced


def dead_letters(
    config: ConnectorConfig,
    stream: str | None = None,
    *,
    by: str | None = None,
    group: str | None = None,
    on_event: OnEvent = log_event,
) -> DeadLetters:
    """The dead letters of a stream, or of a group of its readers (SUB-4).

    For example: `dead_letters(config, "orders").replay(LetterFilter(), why="the schema is
    registered now")`.

    Args:
        config: It has the stream.
        stream: The name or topic of the stream. None: the only one of the configuration.
        by: The person or program that acts. None: the user and the host of this process.
        group: The group of readers that set the records aside with `ChangeConsumer.set_aside`.
            A replay sends them to this group only. None: the records that ingest rejected.
        on_event: Receives warnings, for example that the horizon is unknown because the warehouse
            cannot be read.

    Returns:
        Methods on the letters.

    Raises:
        ConfigError: There is no such stream, or the group cannot have dead letters, or `by` is not
            a text, or an empty one.
    """
    by = who() if by is None else by
    return DeadLetters(config, find_stream(config, stream), by, on_event, group)


def _for_action(action: Action, which: LetterFilter) -> LetterFilter:
    """A filter with the default states selects those that the action is for; letters named by id in
    any state.
    """
    if which.states != LetterFilter().states:
        return which
    return replace(which, states=frozenset() if which.ids else ALLOWED[action])


def _horizon(config: ConnectorConfig, stream: StreamConfig, on_event: OnEvent) -> int | None:
    try:
        from connector.lake.state_reader import progress_of

        return progress_of(warehouse_of(config), stream.name).horizon
    except (ModuleNotFoundError, TableError) as error:
        text = (
            f"the horizon of {stream.name} is unknown ({error}). A replayed change that is too"
            " late is rejected again"
        )
        on_event(warning("HORIZON_UNKNOWN", text, stream=stream.name))
        return None

"""The replay plan: for each dead letter, whether it is sent again, and with which content (DLQ-10,
DLQ-13, DLQ-14).

A replay sends the original record to the change topic again: same key, same headers without those
about the failure, and one header that names the dead letter and the attempt. A dead letter is
refused, with the reason, and does not change, if:

    it is not open                       it was replayed, parked or discarded
    it is TOO_LATE                       nothing older than the horizon is merged. A person can
                                         publish a new change (`connector.dead_letters.effect`)
    it is WATERMARK_IN_FUTURE            waiting does not make a wrong claim true
    a repair step does not fit
    it would be rejected again           with the current settings, schemas and horizon. So no
                                         attempt is wasted
    the Kafka partition does not exist   a control record goes to its original Kafka partition
    it is too large for the topic

The letter of a bridge has the record of a source (SRC-6). It is read again, and the change of its
row is sent.

A dead letter that was tried `max_attempts` times is parked instead. So no record is replayed for
ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from connector.dead_letters.envelope import (
    MAX_ATTEMPT,
    OWN_PREFIX,
    REPLAY_HEADER,
    DeadLetter,
    is_error_header,
    replay_header,
)
from connector.dead_letters.ledger import (
    OPEN_STATES,
    Action,
    LedgerEntry,
    LedgerWrite,
    LetterState,
    LetterStatus,
    Outgoing,
    RepairNote,
)
from connector.dead_letters.repair import Content, Step, Unrepairable, content_of, note, repair
from connector.records.codec import ChangeRecord, Schemas
from connector.records.model import DataChange, Truncate
from connector.records.rejection import Headers, Reason, Rejection
from connector.tables.definition import TableDefinition
from connector.tables.row import read_change
from connector.text import is_plain
from connector.validation import KafkaRecord, size_of

MAX_ATTEMPTS: Final = 3
"""The default number of attempts. A record that failed three times needs to be examined (DLQ-14).
"""

RECORD_OVERHEAD_BYTES: Final = 128
"""A batch of one record, rounded up. Each header has an overhead, too."""
HEADER_OVERHEAD_BYTES: Final = 10

ALREADY_REPLAYED: Final = "it is already replayed"
"""Why a replayed dead letter is refused."""
_TOO_LATE: Final = "it is too late"
_AGAIN: Final = "it would be rejected again as"

_Item = TypeVar("_Item")
Judge = Callable[[KafkaRecord, Schemas], ChangeRecord | Rejection]
"""`validation.validate_record` with the current settings of the stream."""


class Verdict(StrEnum):
    """The decision for a dead letter in a replay."""

    REPLAY = "replay"
    PARK = "park"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """The topic to which records are sent, its limits, and how its records are validated.

    - `tables` are those of the stream, by name.
    - `group` is set if it is the topic of a group of readers (SUB-4). It takes control records of
      the change topic, too.
    - `read_source` makes the change of a foreign record (SRC-6), or says why it has no change.
    """

    topic: str
    kafka_partitions: int
    max_message_bytes: int
    validate_record: Judge
    tables: Mapping[str, TableDefinition]
    group: str | None = None
    read_source: Callable[[DeadLetter, Content], Content | str] = lambda letter, content: (
        "the stream has no source"
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision for one dead letter.

    - `why` is empty for a replay. Otherwise it is a sentence.
    - `content` is sent to `kafka_partition`. None: to the Kafka partition of its key.
    - `attempt` and `attempts_since_reopen` are those of the ledger after the action.
    """

    letter: DeadLetter
    verdict: Verdict
    why: str
    attempt: int
    attempts_since_reopen: int
    content: Content | None = None
    kafka_partition: int | None = None
    repair_note: RepairNote | None = None

    @property
    def is_too_late(self) -> bool:
        """Whether it is refused because its change is older than the horizon (DLQ-13)."""
        return self.why.startswith((f"{_TOO_LATE}:", f"{_AGAIN} {Reason.TOO_LATE}:"))


@dataclass(slots=True)
class Tally:
    """The number of letters by decision, and of the refused ones by their short reason."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    too_late: int = 0

    def add(self, decision: Decision) -> None:
        self.verdicts[decision.verdict] += 1
        if decision.verdict is Verdict.REFUSE:
            self.refused[decision.why.partition(":")[0]] += 1
            self.too_late += decision.is_too_late


def decide(
    letter: DeadLetter,
    status: LetterStatus,
    target: ReplayTarget,
    schemas: Schemas,
    *,
    now: int,
    steps: Sequence[Step] = (),
    max_attempts: int = MAX_ATTEMPTS,
) -> Decision:
    """Decide what a replay does with a dead letter. Raises only what `schemas` raise.

    Args:
        letter: The dead letter.
        status: Its state in the ledger.
        target: The change topic.
        schemas: The writer schemas that are known.
        now: The current time (µs).
        steps: The repair steps.
        max_attempts: It is parked after so many attempts.
    """

    def unsent(verdict: Verdict, why: str) -> Decision:
        return Decision(letter, verdict, why, status.attempt, status.attempts_since_reopen)

    if why := _why_not(letter, status):
        return unsent(Verdict.REFUSE, why)
    if status.attempts_since_reopen >= max_attempts:
        why = f"it was replayed {status.attempts_since_reopen} times and rejected each time"
        return unsent(Verdict.PARK, why)
    before = content_of(letter)
    after = repair(before, steps, schemas)
    if isinstance(after, Unrepairable):
        return unsent(Verdict.REFUSE, f"it cannot be repaired: {after.why}")
    is_foreign = letter.reason is Reason.UNREADABLE_SOURCE
    change = target.read_source(letter, after) if is_foreign else after
    if isinstance(change, str):
        return unsent(Verdict.REFUSE, f"{_AGAIN} {letter.reason}: {change}")
    attempt = status.attempt + 1
    record = target.validate_record(
        KafkaRecord(letter.position, now, change.key, change.value, change.headers), schemas
    )
    content = Content(change.key, change.value, _outgoing(change.headers, letter.id, attempt))
    if why := _why_not_sent(letter, record, content, target, is_repaired=bool(steps)):
        return unsent(Verdict.REFUSE, why)
    assert isinstance(record, ChangeRecord)
    partition = None if isinstance(record.record, DataChange) else letter.position.kafka_partition
    return Decision(
        letter,
        Verdict.REPLAY,
        "",
        attempt,
        status.attempts_since_reopen + 1,
        content,
        partition,
        note(steps, before, after),
    )


def _why_not(letter: DeadLetter, status: LetterStatus) -> str:
    if not status.allows(Action.REPLAYED):
        if status.state is LetterState.REPLAYED:
            return ALREADY_REPLAYED
        if status.state is LetterState.COVERED:
            return "it is covered: a rebuild brought its change into the table"
        remedy = (
            "reopen it first" if status.allows(Action.REOPENED) else "nothing can be done with it"
        )
        return f"it is {status.state}: {remedy}"
    if letter.reason is Reason.TOO_LATE:
        return (
            f"{_TOO_LATE}: tombstones may have expired since, so lowmark merges no change below the"
            " horizon. Publish a new change with the same effect instead"
        )
    if status.attempt >= MAX_ATTEMPT:
        return "it has the largest attempt number: publish the change again as a new record"
    if letter.reason is Reason.WATERMARK_IN_FUTURE:
        return (
            "it is a claim of a wrong clock: a replay does not make it true, and a later claim"
            " replaces it"
        )
    return ""


def _why_not_sent(
    letter: DeadLetter,
    record: ChangeRecord | Rejection,
    content: Content,
    target: ReplayTarget,
    *,
    is_repaired: bool,
) -> str:
    if isinstance(record, Rejection):
        return f"{_AGAIN} {record.reason}: {record.detail}"
    if isinstance(record.record, DataChange):
        if letter.table is not None and (
            why := _why_not_in(letter.table, record.record, target.tables)
        ):
            return why
    elif is_repaired and not isinstance(record.record, Truncate):
        return "it is a control record: it cannot be repaired, and a later one replaces it"
    elif (
        letter.position.topic != target.topic and target.group is None
    ) or letter.position.kafka_partition >= target.kafka_partitions:
        return f"it is a control record: {target.topic} does not have its Kafka partition"
    if names := [name for name, _ in content.headers if not is_plain(name)]:
        return f"it has a header that no client can write: {names[0]!r}"
    if (size := _size_on_wire(content)) > target.max_message_bytes:
        return (
            f"it is too large: it has {size} bytes with its headers, but {target.topic} allows"
            f" {target.max_message_bytes}"
        )
    return ""


def _why_not_in(table: str, change: DataChange, tables: Mapping[str, TableDefinition]) -> str:
    definition = tables.get(table)
    if definition is None:
        return f"its table is not declared: {table}"
    fault = read_change(definition, change)
    return f"{_AGAIN} {fault.reason}: {fault.detail}" if fault else ""


def _outgoing(headers: Headers, letter_id: str, attempt: int) -> Headers:
    """Return the headers of a replay (DLQ-10).

    Headers about a failure or an earlier replay are removed, and the header of this replay is
    added.
    """
    original = (
        header
        for header in headers
        if not (
            header[0].startswith(OWN_PREFIX)
            or header[0] == REPLAY_HEADER
            or is_error_header(header[0])
        )
    )
    return (*original, replay_header(letter_id, attempt))


def _size_on_wire(content: Content) -> int:
    overhead = RECORD_OVERHEAD_BYTES + HEADER_OVERHEAD_BYTES * len(content.headers)
    return size_of(content.key, content.value, content.headers) + overhead


def ledger_write(decision: Decision, *, at: int, by: str, why: str, selection: str) -> LedgerWrite:
    """Return the ledger entry of a replay or a parking, and the record that is sent.

    `at`, `by`, `why` and `selection` are those of `LedgerEntry`. A parked dead letter has the
    reason of its decision.
    """
    record, content = None, decision.content
    if content is not None:
        assert content.key is not None, "a record without a key would have been rejected again"
        record = Outgoing(content.key, content.value, content.headers, decision.kafka_partition)
    entry = LedgerEntry(
        Action.PARKED if record is None else Action.REPLAYED,
        at,
        by,
        decision.why if record is None else why,
        selection,
        decision.attempt,
        decision.attempts_since_reopen,
        decision.repair_note,
    )
    return LedgerWrite(decision.letter.id, entry, record)


@dataclass(slots=True)
class Remaining:
    """The letters that were read, and the oldest failure of those left open or parked (µs)."""

    read: int = 0
    since: int | None = None

    def add(self, letter: DeadLetter, *, stays: bool) -> None:
        """Count a dead letter that changes. `stays`: it is open or parked afterwards."""
        self.read += 1
        if stays:
            self.since = min(self.since or letter.first_failed_at, letter.first_failed_at)

    def add_unchanged(self, letter: DeadLetter, status: LetterStatus) -> None:
        """Count a dead letter that does not change."""
        self.add(letter, stays=status.state in OPEN_STATES)


def in_batches(
    items: Iterable[_Item], size: Callable[[_Item], int], *, at_most: int, at_most_bytes: int
) -> Iterator[list[_Item]]:
    """Yield the items in order, in lists of at most `at_most` items and `at_most_bytes` bytes.

    A larger item is alone in its list. Before a list is yielded, at most one item after it is read
    from `items`.
    """
    batch: list[_Item] = []
    total = 0
    for item in items:
        bytes_ = size(item)
        if batch and total + bytes_ > at_most_bytes:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += bytes_
        if len(batch) == at_most:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch

"""The dead letters of a row: those that the changelog has, and their state in Kafka (SUB-6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from connector.dead_letters.envelope import letter_id
from connector.dead_letters.filter import LetterFilter
from connector.dead_letters.ledger import LetterState
from connector.records.codec import Schemas, read
from connector.records.ordering import OrderPosition
from connector.records.rejection import Reason, Rejection
from connector.records.views import OrNull
from connector.services.dead_letters import DeadLetters

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig
    from connector.lake.changelog_changes import LoggedChange, RejectedRecord
    from connector.tables.definition import TableDefinition


@dataclass(frozen=True, slots=True)
class RowLetter:
    """A dead letter of a row.

    - `detail` is empty if only the changelog was read, which does not have it.
    - `ingest_batch` 0: another program wrote the letter.
    - `is_certain` is False if the record has no row key, and only its Kafka key is that of the row.
    - `is_replayed`: the changelog has a replay of it that was accepted.
    - `state` and `attempt` are None if Kafka was not asked.
    """

    id: str
    reason: Reason
    rule: OrNull[str]
    detail: OrNull[str]
    ingest_batch: OrNull[int]
    order_position: OrNull[str]
    is_certain: bool
    is_replayed: bool = False
    state: LetterState | None = None
    attempt: int | None = None


def rejected_letters(
    records: Iterable[RejectedRecord],
    source: str,
    row_key: bytes,
    schemas: Schemas,
) -> Iterator[RowLetter]:
    """The dead letters of rejected records, as far as the changelog has them."""
    for record in records:
        certain = is_of(record.key, record.value, source, row_key, schemas)
        if certain is not None:
            yield RowLetter(
                record.letter_id,
                record.reason,
                record.rule,
                "",
                record.arrival.ingest_batch,
                str(record.position),
                certain,
            )


def table_letter(table: str, logged: LoggedChange, rejection: Rejection) -> RowLetter:
    """The dead letter of a change that the table cannot hold (TBL-9)."""
    return RowLetter(
        letter_id(logged.arrival.position, table),
        rejection.reason,
        rejection.rule,
        rejection.detail,
        logged.arrival.ingest_batch,
        str(logged.position),
        is_certain=True,
    )


def with_replays(
    letters: Iterable[RowLetter], accepted: Iterable[LoggedChange]
) -> tuple[RowLetter, ...]:
    """The letters, the oldest first, with `is_replayed`: a change of `accepted` replays it."""
    replays = {logged.position[:3] for logged in accepted if logged.position.attempt}

    def order(letter: RowLetter) -> OrderPosition:
        return OrderPosition.of_letter(letter.order_position)

    marked = [replace(letter, is_replayed=order(letter)[:3] in replays) for letter in letters]
    return tuple(sorted(marked, key=lambda letter: (order(letter), letter.id)))


def from_kafka(
    config: ConnectorConfig,
    definition: TableDefinition,
    row_key: bytes,
    logged: Iterable[RowLetter],
) -> Iterator[RowLetter]:
    """The letters that the changelog has, with their state, and those that only the dead-letter
    topic has.

    It reads the whole dead-letter topic. Raises `BrokerError` and `TopicError`.
    """
    by_id = {letter.id: letter for letter in logged}
    service = DeadLetters(config, definition.stream)
    for letter, status in service.list(LetterFilter(states=frozenset())):
        of_row = by_id.pop(letter.id, None)
        if of_row is None and letter.table in (None, definition.name):
            certain = is_of(letter.key, letter.value, definition.source, row_key, service.schemas)
            if certain is not None:
                of_row = RowLetter(
                    *(letter.id, letter.reason, letter.rule, letter.detail),
                    *(letter.ingest_batch, letter.order_position, certain),
                )
        if of_row is not None:
            yield replace(of_row, detail=letter.detail, state=status.state, attempt=status.attempt)
    yield from by_id.values()


def is_of(
    key: bytes | None, value: bytes | None, source: str, row_key: bytes, schemas: Schemas
) -> bool | None:
    """Whether a record is certainly of the row. None: it is not. Where the record cannot be
    decoded, its Kafka key decides, and False is returned.
    """
    datum: Any = read(value, schemas)
    if isinstance(datum, Rejection):
        return False if key == row_key else None
    change = datum["data_change"]
    if change is None or (change["table"], change["row_key"]) != (source, row_key):
        return None
    return True

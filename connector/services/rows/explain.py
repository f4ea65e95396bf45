"""Why a row is as it is: its changes in the changelog, the entries that won, its deletions and its
dead letters (SUB-6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

from connector import warehouse as places
from connector.config.settings import find_table
from connector.errors import BrokerError, TopicError, argument_invalid
from connector.records.json_view import view_of_entry
from connector.records.model import DataChange
from connector.records.ordering import ChangeOrder, OrderBy, OrderPosition, change_order
from connector.records.rejection import Rejection
from connector.records.views import (
    AsText,
    Flat,
    Hidden,
    Json,
    Mark,
    Named,
    Shown,
    Time,
    Viewed,
    view,
)
from connector.services.rows.letters import (
    RowLetter,
    from_kafka,
    rejected_letters,
    table_letter,
    with_replays,
)
from connector.services.rows.versions import (
    FirstVersion,
    added_after,
    blocking,
    first_version,
    is_applied,
)
from connector.services.warehouses import warehouse_of
from connector.state.damage import reading
from connector.state.stream_progress import Progress
from connector.stored import from_stored
from connector.tables.definition import TableDefinition
from connector.tables.explain import Delivery, Explanation
from connector.tables.explain import explain as explain_row
from connector.tables.merge import RowState, visible
from connector.tables.row import is_same_row, read_change, row_of, state_of, view_of_row
from connector.tables.values import Unreadable
from connector.watermarks.frontier import UNKNOWN

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig
    from connector.lake.changelog_changes import LoggedChange
    from connector.lake.plain_table import PlainTable
    from connector.lake.row_states import RowStates

Row = Mapping[str, object]
_SHOWN_OF_A_CHANGE: Final = (
    "commit_timestamp",
    "tie_breaker",
    "change_sequence_number",
    "stream_partition",
    "change_type",
    "source_cluster_id",
)


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of a row in the changelog. All times are microseconds.

    Attributes:
        change: The change, with all that its order and its effect need.
        order: The order of its first entry. None: the table is ordered by sequence number, and the
            change has none.
        position: Its order position. A replay has that of its dead letter.
        ingest_batch: The batch that read this delivery.
        kafka_partition: The Kafka partition of this delivery.
        offset: The offset of this delivery.
        arrived_at: When Kafka got it.
        is_late: Whether its commit timestamp was below the low watermark when it was ingested.
            None: the log of the changelog does not have that watermark any more.
        is_replay: Whether it is a replay of a dead letter.
        is_applied: Whether the newest version of the table contains it.
        dead_letter: The id of its table letter. None: the table can hold it.
        blocked_by: The id of the dead letter that it waits for. None: it does not wait.
    """

    change: Hidden[DataChange]
    order: Hidden[ChangeOrder | None]
    position: AsText[OrderPosition]
    ingest_batch: int
    kafka_partition: int
    offset: int
    arrived_at: Time
    is_late: bool | None
    is_replay: bool
    is_applied: bool
    dead_letter: str | None
    blocked_by: str | None

    @property
    def _content(self) -> Annotated[Json, Mark.SHOWN, Mark.FLAT]:
        """The fields of the change that its order and its effect need, as a JSON view."""
        change = view(self.change)
        transaction = self.change.transaction
        return {
            **{name: change[name] for name in _SHOWN_OF_A_CHANGE},
            "record_sequence": 0 if transaction is None else transaction.record_sequence,
            "entries": [view_of_entry(entry) for entry in self.change.entries],
        }


@dataclass(frozen=True, slots=True)
class RowHistory(Viewed):
    """Why a row is as it is.

    Attributes:
        table: The name of the table.
        definition: The definition of the table, as the table has it.
        row_key: The row key.
        row: The row with everything that was ingested. None: there is no row.
        applied_row: The row as the last apply left it. None: there is no row.
        changes: The changes in the changelog, in the order of the table. Those without an order
            come last.
        explanation: For each column the entry that won and the entries that lost; the deletions.
        dead_letters: The dead letters, the oldest first.
        shown_since: The first version from which on every version shows the row as it is now. None:
            the newest version does not, or the key never existed.
        trimmed_to: The batches up to this one have left the changelog. 0: it is complete.
        not_looked_at: All that could not be looked at, a sentence for each.
        is_confirmed: Whether the table has the row that the changelog gives. None: this cannot be
            compared, because the changelog is not complete.
    """

    table: str
    definition: Hidden[TableDefinition]
    row_key: bytes
    row: Hidden[Row | None]
    applied_row: Hidden[Row | None]
    changes: tuple[RowChange, ...]
    explanation: Flat[Explanation]
    dead_letters: tuple[RowLetter, ...]
    shown_since: FirstVersion | None
    trimmed_to: int
    not_looked_at: tuple[str, ...]
    is_confirmed: bool | None

    @property
    def _view_of_row(self) -> Annotated[Json | None, Mark.SHOWN, Named("row")]:
        """The row as `connector read` prints it."""
        return None if self.row is None else view_of_row(self.definition, self.row)

    @property
    def _view_of_applied_row(self) -> Annotated[Json | None, Mark.SHOWN, Named("applied_row")]:
        """The row that the last apply left, as `connector read` prints it."""
        return None if self.applied_row is None else view_of_row(self.definition, self.applied_row)

    @property
    def is_known(self) -> Shown[bool]:
        """Whether anything is known of the key: a change, a stored cell, a deletion, a dead
        letter.
        """
        found = self.explanation
        return bool(self.changes or self.dead_letters or found.columns or found.deletions)


def explain(
    config: ConnectorConfig, table: str, key: bytes | tuple[object, ...], *, ask_kafka: bool = True
) -> RowHistory:
    """Say why a row is as it is. It needs no Java.

    It reads the slot of the source table in the changelog, and the rejected records. So it takes
    longer if the changelog is larger. If there are dead letters, it reads the dead-letter topic.

    For example: `explain(config, "orders", b"order-7").explanation.columns`.

    Args:
        config: It has the table.
        table: The name of the table.
        key: The row key, or the values of the key columns.
        ask_kafka: Whether to read the dead-letter topic. If Kafka does not answer, the result says
            so in `not_looked_at`.

    Returns:
        The history of the row. `is_known` is False if the key never existed.

    Raises:
        ConfigError: There is no such table.
        InvalidChangeError: The values are not a key of the table.
        TableError: The table or its changelog cannot be read, or the table was not made from this
            changelog.
    """
    from connector.lake.row_states import RowStates

    if not isinstance(key, bytes | tuple):
        raise argument_invalid("key", key, "bytes, or a tuple with the values of the key columns")
    states = RowStates(warehouse_of(config), find_table(config, table))
    definition = states.definition
    row_key = key if isinstance(key, bytes) else definition.key.write_key(key)
    log = _Log.of(states.changelog, places.changelog(warehouse_of(config), definition.stream))
    accepted, refused = _changes(states, row_key)
    letters, not_looked_at = _letters(
        config, states, row_key, accepted, refused, log, ask_kafka=ask_kafka
    )
    applied_rows = states.applied([row_key])
    stored, applied = states.with_pending(applied_rows)[row_key], applied_rows[row_key]
    deliveries = [Delivery(one.change, one.position) for one in accepted]
    logged = state_of(definition, deliveries)
    row = _row(definition, row_key, stored)
    state, is_confirmed = stored, None
    if not log.trimmed_to:
        state = logged
        is_confirmed = is_same_row(row, _row(definition, row_key, logged))
    else:
        not_looked_at.append(
            f"Changes of batches up to {log.trimmed_to}: they have left the changelog"
        )
    found = explain_row(deliveries, state, definition)
    since = None
    if visible(applied) == visible(stored):
        since = first_version(states, found, accepted, is_complete=not log.trimmed_to)
    changes = [_change(states, log, one, None) for one in accepted]
    changes += [_change(states, log, one, letter) for one, letter in refused]
    return RowHistory(
        table=definition.name,
        definition=definition,
        row_key=row_key,
        row=row,
        applied_row=_row(definition, row_key, applied),
        changes=tuple(sorted(changes, key=_in_order)),
        explanation=found,
        dead_letters=letters,
        shown_since=since,
        trimmed_to=log.trimmed_to,
        not_looked_at=tuple(not_looked_at),
        is_confirmed=is_confirmed,
    )


@dataclass(frozen=True, slots=True)
class _Log:
    """The content of the commits of a changelog: batches that left it, the low watermark after each
    batch, and the number of dead letters of the stream.
    """

    trimmed_to: int
    low_watermarks: Mapping[int, int | None]
    rejected: int

    @staticmethod
    def of(changelog: PlainTable | None, path: str) -> _Log:
        """Read the commits of the changelog at `path`. Raises `TableError` if the newest one cannot
        be read.
        """
        stored = [] if changelog is None else [one.stored for one in changelog.commits()]
        commits = [one for one in stored if one]
        low_watermarks: dict[int, int | None] = {0: None}
        for commit in commits:
            # An old commit that cannot be read does not say what was late.
            with suppress(AttributeError, KeyError, TypeError, ValueError):
                batch = from_stored(int, commit["progress"]["ingest_batch"])
                low = commit["progress"].get("low_watermark")
                low_watermarks.setdefault(batch, None if low is None else from_stored(int, low))
        if not commits:
            return _Log(0, low_watermarks, 0)
        with reading(path):
            newest = Progress.from_json(commits[0]["progress"], UNKNOWN)
            return _Log(
                from_stored(int, commits[0].get("trimmed_to", 0)),
                low_watermarks,
                sum(newest.rejected.values()) + newest.external_dead_letters.count,
            )

    def is_late(self, ingest_batch: int, commit_timestamp: int) -> bool | None:
        """Whether a change was below the low watermark of the batch before (WMK-11)."""
        if ingest_batch - 1 not in self.low_watermarks:
            return None
        return commit_timestamp < (self.low_watermarks[ingest_batch - 1] or 0)


def _changes(
    states: RowStates, row_key: bytes
) -> tuple[list[LoggedChange], list[tuple[LoggedChange, RowLetter]]]:
    """The changes that the table can hold, and the others with their table letters (TBL-9).

    A change need not fit a column that was added after its batch (TBL-8).
    """
    from connector.lake.changelog_changes import changes_of

    added = added_after(states)
    accepted: list[LoggedChange] = []
    refused: list[tuple[LoggedChange, RowLetter]] = []
    definition = states.definition
    if states.changelog is not None:
        for logged in changes_of(states.changelog, definition.source, row_key):
            batch = logged.arrival.ingest_batch
            columns = tuple(one for one in definition.columns if added.get(one.cell, 0) < batch)
            known = replace(definition, columns=columns, keep_unmapped=True)
            rejection = read_change(known, logged.change)
            if isinstance(rejection, Rejection):
                refused.append((logged, table_letter(definition.name, logged, rejection)))
            else:
                accepted.append(logged)
    return accepted, refused


def _letters(
    config: ConnectorConfig,
    states: RowStates,
    row_key: bytes,
    accepted: Iterable[LoggedChange],
    refused: Iterable[tuple[LoggedChange, RowLetter]],
    log: _Log,
    *,
    ask_kafka: bool,
) -> tuple[tuple[RowLetter, ...], list[str]]:
    """The dead letters of the row, and what could not be looked at. Kafka is asked only where there
    is a dead letter.
    """
    from connector.lake.changelog_changes import rejected_of

    source = states.definition.source
    rejected = () if states.changelog is None else rejected_of(states.changelog, row_key)
    known = [*rejected_letters(rejected, source, row_key), *(letter for _, letter in refused)]
    not_looked_at = []
    if known or log.rejected or states.table_state.letters:
        if ask_kafka:
            try:
                known = list(from_kafka(config, states.definition, row_key, known))
            except (BrokerError, TopicError) as error:
                not_looked_at.append(f"The dead-letter topic: {error.problem}")
        else:
            not_looked_at.append("The dead-letter topic: Kafka was not asked")
    return with_replays(known, accepted), not_looked_at


def _change(
    states: RowStates, log: _Log, logged: LoggedChange, letter: RowLetter | None
) -> RowChange:
    change, position, arrival = logged.change, logged.position, logged.arrival
    dead = None if letter is not None else blocking(states.table_state, logged)
    topic_id, name = arrival.position.topic_id, states.definition.name
    return RowChange(
        change=change,
        order=_order(states.definition, change, position),
        position=position,
        ingest_batch=arrival.ingest_batch,
        kafka_partition=arrival.position.kafka_partition,
        offset=arrival.position.offset,
        arrived_at=arrival.record_timestamp,
        is_late=log.is_late(arrival.ingest_batch, change.commit_timestamp),
        is_replay=position.attempt > 0,
        is_applied=letter is None and is_applied(states.table_state, logged),
        dead_letter=None if letter is None else letter.id,
        blocked_by=None if dead is None else dead.letter_id(topic_id, name),
    )


def _order(
    definition: TableDefinition, change: DataChange, position: OrderPosition
) -> ChangeOrder | None:
    if definition.order is OrderBy.SEQUENCE_NUMBER and change.change_sequence_number is None:
        return None
    return change_order(change, position, definition.order)


def _in_order(one: RowChange) -> tuple[bool, tuple[int, ...], OrderPosition]:
    return one.order is None, () if one.order is None else one.order.rank, one.position


def _row(definition: TableDefinition, row_key: bytes, state: RowState) -> Row | None:
    if isinstance(definition.key.read_key(row_key), Unreadable):
        return None
    return row_of(definition, row_key, visible(state))

"""Why a row is as it is: its changes in the changelog, the entries that won, its deletions and its
dead letters (SUB-6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

from connector import warehouse as paths
from connector.config.settings import find_table
from connector.errors import BrokerError, TableError, TopicError
from connector.records.codec import Schemas
from connector.records.json_view import view_of_entry
from connector.records.model import DataChange, Truncate
from connector.records.ordering import ChangeOrder, OrderBy, OrderPosition, change_order, rank_of
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
from connector.sources.changes import POSITION_HEADER, RECORD_HEADER
from connector.state.damage import reading
from connector.state.erased_keys import key_hash
from connector.state.stream_progress import Progress
from connector.stored import from_stored
from connector.tables.definition import TableDefinition
from connector.tables.explain import Delivery, Explanation
from connector.tables.explain import explain as explain_row
from connector.tables.merge import RowState, truncate, visible
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
    """A delivery of a change of a row, from the changelog. All times are microseconds.

    - `order` is that of its first entry. None: the table is ordered by sequence number, and the
      change has none. A replay has the `position` of its dead letter.
    - `is_late`: its commit timestamp was below the low watermark when it was ingested. None: the
      log of the changelog does not have that watermark any more.
    - `is_applied`: the newest version of the table contains it.
    - `dead_letter` is the id of its table letter. None: the table can hold it, or a truncation
      deleted it before.
    - `blocked_by` is the id of the dead letter that it waits for.
    - `source_record` is the record of a foreign topic that a bridge made it of, as topic, Kafka
      partition and offset, and `source_position` its position in the log of the source. None: no
      bridge sent it (SRC-7).
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
    source_record: str | None = None
    source_position: str | None = None

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
    """Why a row is as it is. `explain` documents the fields."""

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
    erased_to: Time | None

    @property
    def _view_of_row(self) -> Annotated[Json | None, Mark.SHOWN, Named("row")]:
        return None if self.row is None else view_of_row(self.definition, self.row)

    @property
    def _view_of_applied_row(self) -> Annotated[Json | None, Mark.SHOWN, Named("applied_row")]:
        return None if self.applied_row is None else view_of_row(self.definition, self.applied_row)

    @property
    def is_known(self) -> Shown[bool]:
        """Whether the key has a change, a stored cell, a deletion or a dead letter."""
        cells = self.explanation
        return bool(self.changes or self.dead_letters or cells.columns or cells.deletions)


def explain(
    config: ConnectorConfig, table: str, key: bytes | tuple[object, ...], *, ask_kafka: bool = True
) -> RowHistory:
    """Say why a row is as it is. It needs no Java.

    It reads the changes of the source table in the changelog, so it takes longer if that is larger.
    If there are dead letters, it reads the dead-letter topic.

    For example: `explain(config, "orders", b"order-7").explanation.columns`.

    Args:
        config: It has the table.
        table: The name of the table.
        key: The row key, or the values of the key columns.
        ask_kafka: Whether to read the dead-letter topic. `not_looked_at` says if it failed.

    Returns:
        The history of the row; `is_known` is False if the key never existed.

        - `row` has everything that was ingested, `applied_row` is as the last apply left it. None:
            there is no row.
        - `changes` are those in the changelog, in the order of the table. `explanation` has for
            each column the entry that won and those that lost, the deletions, and the truncations
            of the table that hide an entry.
        - `dead_letters` are those of the row, the oldest first.
        - `shown_since` is the first version from which on every version shows the row as it is now.
            None: the newest version does not, or the key never existed.
        - Batches up to `trimmed_to` have left the changelog. `not_looked_at` has a sentence for
            each source that could not be read.
        - `erased_to`: the row was erased, and changes up to this commit timestamp (µs) are refused.
            None: it was not erased, or `not_looked_at` says why it is not known.
        - `is_confirmed`: the table has the row that the changelog gives. None: the changelog is not
            complete.

    Raises:
        ConfigError: There is no such table.
        InvalidChangeError: The values are not a key of the table.
        TableError: The table or its changelog cannot be read, or the table was not made from this
            changelog.
    """
    from connector.lake.row_states import RowStates

    states = RowStates(warehouse_of(config), find_table(config, table))
    definition = states.definition
    row_key = key if isinstance(key, bytes) else definition.key.write_key(key)
    log = _Log.read(states.changelog, paths.changelog(warehouse_of(config), definition.stream))
    accepted, rejected = _changes(states, row_key)
    of_table = _not_truncated(states, rejected)
    letters, not_looked_at = _letters(config, states, row_key, accepted, of_table, log, ask_kafka)
    if log.trimmed_to:
        not_looked_at.append(
            f"Changes of batches up to {log.trimmed_to}: they have left the changelog"
        )
    erased_to = None
    try:
        erased_to = _erased_to(config, definition, row_key)
    except TableError as error:  # for example without the right to read the secret of the hashes
        not_looked_at.append(f"Erasures: {error.problem}")
    changes = [_change(states, log, logged, None) for logged in accepted]
    by_id = {letter.id: letter for letter in letters}
    changes += [_change(states, log, logged, by_id.get(letter.id)) for logged, letter in rejected]
    return replace(
        _history(states, row_key, accepted, log),
        changes=tuple(sorted(changes, key=_in_order)),
        dead_letters=letters,
        not_looked_at=tuple(not_looked_at),
        erased_to=erased_to,
    )


def _erased_to(config: ConnectorConfig, definition: TableDefinition, row_key: bytes) -> int | None:
    """The commit timestamp (µs) up to which changes of the row are refused. None: the row was not
    erased (OPR-2).
    """
    from connector.lake.overrides import Overrides

    erased = Overrides(warehouse_of(config)).erased(definition.stream)
    if not erased.erased_to:
        return None
    return erased.erased_to.get(key_hash(erased.secret, definition.source, row_key))


def _history(
    states: RowStates, row_key: bytes, accepted: Sequence[LoggedChange], log: _Log
) -> RowHistory:
    """The row, its cells and its first version, without its changes and dead letters."""
    definition, is_complete = states.definition, not log.trimmed_to
    applied_rows = states.applied([row_key])
    stored, applied = states.with_pending(applied_rows)[row_key], applied_rows[row_key]
    deliveries = [Delivery(logged.change, logged.position) for logged in accepted]
    rank, logged = states.truncated, state_of(definition, deliveries)
    row, logged = _row(definition, row_key, stored), truncate(logged, rank)
    explanation = explain_row(
        *(deliveries, logged if is_complete else stored, definition), _truncations(states), rank
    )
    since = None
    if visible(applied) == visible(stored):
        since = first_version(states, explanation, accepted, is_complete=is_complete)
    is_same = is_same_row(row, _row(definition, row_key, logged))
    return RowHistory(
        table=definition.name,
        definition=definition,
        row_key=row_key,
        row=row,
        applied_row=_row(definition, row_key, applied),
        changes=(),
        explanation=explanation,
        dead_letters=(),
        shown_since=since,
        trimmed_to=log.trimmed_to,
        not_looked_at=(),
        is_confirmed=is_same if is_complete else None,
        erased_to=None,
    )


def _truncations(states: RowStates) -> Iterable[Truncate]:
    """The truncations of the table in the changelog (EVO-13)."""
    from connector.lake.changelog_changes import truncations_of

    if states.changelog is None:
        return ()
    return truncations_of(states.changelog, states.definition.source)


@dataclass(frozen=True, slots=True)
class _Log:
    """The content of the commits of a changelog: batches that left it, the low watermark after each
    batch, and the number of dead letters of the stream.
    """

    trimmed_to: int
    low_watermarks: Mapping[int, int | None]
    rejected: int

    @staticmethod
    def read(changelog: PlainTable | None, path: str) -> _Log:
        """Raises `TableError` if the newest commit at `path` cannot be read."""
        newest_first = [] if changelog is None else changelog.commits()
        commits = [commit.stored for commit in newest_first if commit.stored]
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
    rejected: list[tuple[LoggedChange, RowLetter]] = []
    definition = states.definition
    if states.changelog is not None:
        for logged in changes_of(states.changelog, definition.source, row_key):
            batch = logged.arrival.ingest_batch
            columns = tuple(
                column for column in definition.columns if added.get(column.cell, 0) < batch
            )
            at_batch = replace(definition, columns=columns, keep_unmapped=True)
            rejection = read_change(at_batch, logged.change)
            if isinstance(rejection, Rejection):
                rejected.append((logged, table_letter(definition.name, logged, rejection)))
            else:
                accepted.append(logged)
    return accepted, rejected


def _not_truncated(
    states: RowStates, rejected: Iterable[tuple[LoggedChange, RowLetter]]
) -> Iterator[RowLetter]:
    """The letters of the changes that no truncation deletes.

    An apply that takes a change with its truncation makes no dead letter, so only Kafka knows the
    letters of the others.
    """
    truncated, order_by = states.truncated, states.definition.order
    for logged, letter in rejected:
        rank = rank_of(logged.change, order_by)
        if truncated is None or rank is None or rank >= truncated:
            yield letter


def _letters(
    config: ConnectorConfig,
    states: RowStates,
    row_key: bytes,
    accepted: Iterable[LoggedChange],
    of_table: Iterable[RowLetter],
    log: _Log,
    ask_kafka: bool,
) -> tuple[tuple[RowLetter, ...], list[str]]:
    """The dead letters of the row, and what could not be looked at. `of_table` are those of changes
    that the table cannot hold.
    """
    from connector.lake.changelog_changes import rejected_of

    source = states.definition.source
    records = () if states.changelog is None else rejected_of(states.changelog, row_key)
    letters = [*rejected_letters(records, source, row_key, Schemas()), *of_table]
    not_looked_at = []
    if letters or log.rejected or states.table_state.letters:
        if ask_kafka:
            try:
                letters = list(from_kafka(config, states.definition, row_key, letters))
            except (BrokerError, TopicError) as error:
                not_looked_at.append(f"The dead-letter topic: {error.problem}")
        else:
            not_looked_at.append("The dead-letter topic: Kafka was not asked")
    return with_replays(letters, accepted), not_looked_at


def _change(
    states: RowStates, log: _Log, logged: LoggedChange, letter: RowLetter | None
) -> RowChange:
    change, position, arrival = logged.change, logged.position, logged.arrival
    blocked_by = None if letter is not None else blocking(states.table_state, logged)
    topic_id, name = arrival.position.topic_id, states.definition.name
    headers = {name: value.decode(errors="replace") for name, value in logged.headers if value}
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
        blocked_by=None if blocked_by is None else blocked_by.letter_id(topic_id, name),
        source_record=headers.get(RECORD_HEADER),
        source_position=headers.get(POSITION_HEADER),
    )


def _order(
    definition: TableDefinition, change: DataChange, position: OrderPosition
) -> ChangeOrder | None:
    if definition.order is OrderBy.SEQUENCE_NUMBER and change.change_sequence_number is None:
        return None
    return change_order(change, position, definition.order)


def _in_order(change: RowChange) -> tuple[bool, tuple[int, ...], OrderPosition]:
    return change.order is None, () if change.order is None else change.order.rank, change.position


def _row(definition: TableDefinition, row_key: bytes, state: RowState) -> Row | None:
    if isinstance(definition.key.read_key(row_key), Unreadable):
        return None
    return row_of(definition, row_key, visible(state))

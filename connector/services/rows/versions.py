"""The version of a table that first showed a row as it is now, and which changes a version has
(SUB-6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from connector.records.ordering import OrderPosition
from connector.records.views import Time
from connector.state.table_state import TableState
from connector.tables.explain import Explanation
from connector.tables.merge import truncate, visible
from connector.tables.row import state_of

if TYPE_CHECKING:
    from connector.dead_letters.blocked_rows import BlockingLetter
    from connector.lake.changelog_changes import LoggedChange
    from connector.lake.row_states import RowStates


@dataclass(frozen=True, slots=True)
class FirstVersion:
    """The version of a table that first showed a row as it is now.

    Attributes:
        version: The version of the Delta table.
        committed_at: When it was committed, in microseconds.
        or_earlier: Whether it may have been an earlier one. The log has no earlier version, or a
            column was added later.
    """

    version: int
    committed_at: Time
    or_earlier: bool


def first_version(
    states: RowStates,
    explanation: Explanation,
    accepted: Iterable[LoggedChange],
    *,
    is_complete: bool,
) -> FirstVersion | None:
    """The first version in the log from which on every version shows the row as the newest one.

    A version has the changes that its applies covered. A column that was added later is shown from
    the change of the definition on that added it (TBL-21, EVO-3). If the changelog is not complete,
    a change that left it may have been hidden since. Then it is the first version that has all
    changes of the row.
    """
    # Of copies of a replay, the first one counts.
    newest_first = sorted(accepted, key=lambda logged: logged.arrival.ingest_batch, reverse=True)
    arrived = {logged.position: logged for logged in newest_first}
    if states.table is None or not (explanation.columns or explanation.deletions):
        return None
    is_added = _is_added(states, explanation, arrived)
    newest = _shown_by(states, states.table_state, arrived.values())
    count = sum(is_applied(states.table_state, logged) for logged in arrived.values())
    first: FirstVersion | None = None
    for commit in states.table.commits():  # the newest first
        if not commit.stored:
            continue
        try:
            table_state = TableState.from_json(commit.stored)
        except ValueError:  # an old commit that cannot be read ends what is known
            return first
        is_other = is_added and _definition(table_state) != _definition(states.table_state)
        is_same = (
            _shown_by(states, table_state, arrived.values()) == newest
            if is_complete
            else sum(is_applied(table_state, logged) for logged in arrived.values()) == count
        )
        if is_other or not is_same:
            return first and replace(first, or_earlier=is_other or not is_complete)
        first = FirstVersion(commit.version, commit.committed_at, or_earlier=True)
    return first


def _definition(table_state: TableState) -> tuple[str, int]:
    return table_state.rebuild, table_state.definition_version


def _shown_by(
    states: RowStates, table_state: TableState, changes: Iterable[LoggedChange]
) -> Mapping[tuple[str, bytes], bytes]:
    """The cells that a version shows, if the changelog is complete."""
    applied = [logged for logged in changes if is_applied(table_state, logged)]
    state = state_of(states.definition, ((logged.change, logged.position) for logged in applied))
    return visible(truncate(state, table_state.truncated))


def is_applied(table_state: TableState, logged: LoggedChange) -> bool:
    """Whether a version of the table has a change."""
    covered = table_state.covers(logged.arrival.ingest_batch, logged.change.commit_timestamp)
    return covered and blocking(table_state, logged) is None


def blocking(table_state: TableState, logged: LoggedChange) -> BlockingLetter | None:
    """The dead letter that a change waits for (DLQ-3)."""
    batch, kafka_partition, offset, _ = logged.position
    change, location = logged.change, (kafka_partition, offset)
    for letter in table_state.blocked_rows:
        if letter.is_before(change.row_key, batch, location, change.commit_timestamp):
            return letter
    return None


def _is_added(
    states: RowStates, explanation: Explanation, arrived: Mapping[OrderPosition, LoggedChange]
) -> bool:
    """Whether a column of the row was added after the change that gives it its value."""
    added = added_after(states)
    for column in explanation.columns:
        after = added.get((column.family, column.qualifier), 0)
        if column.winner is not None and after:
            change = arrived.get(column.winner.order.position)
            if change is None or change.arrival.ingest_batch <= after:
                return True
    return False


def added_after(states: RowStates) -> Mapping[tuple[str, bytes], int]:
    """The last batch before each column was defined, by its cell; 0: there was none."""
    from connector.tables.stored_definition import from_properties

    if states.table is None:
        return {}
    _, ids = from_properties(states.table.properties)
    return {column.cell: ids.since.get(column.name, 0) for column in states.definition.columns}

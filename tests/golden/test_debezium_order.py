"""The records of a real Debezium, in any order of their partitions, become the states that
PostgreSQL had (SRC-2, SRC-10).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from connector.sources.by_transaction import ByTransaction
from connector.sources.debezium import DebeziumDecoder
from connector.sources.model import End, Event, ForeignRecord, Row, TruncatedTable
from connector.sources.position import SourcePosition
from connector.sources.records import JsonFormat
from connector.sources.tables import KnownTables
from tests.examples import draws, tries
from tests.golden.test_debezium_rows import FORMATS, TRANSACTIONS, decoder
from tests.property.source_bridge import Bridge, key_text, states_by_time, without_empty
from tests.property.source_world import State, Topics
from tests.recorded_topics import recording, states


def topics_of(name: str) -> Topics:
    return topics_with(recording(name).records, decoder(name))


def topics_with(records: Sequence[ForeignRecord], reader: DebeziumDecoder) -> Topics:
    topics = Topics()
    for record in records:
        topics.written += 1
        topics.records.setdefault(record.partition, []).append((record, reader.decode(record)))
        topics.visible_after.setdefault(record.partition, []).append(topics.written)
        topics.created_at.setdefault(record.partition, 0)
    return topics


def true_states(topics: Topics) -> list[tuple[str, State]]:
    """The state after each transaction, in the order of the ends: each event counts once."""
    events = dict[str, dict[int, Event]]()
    tables = dict[str, dict[str, dict[str, bytes]]]()
    ends = dict.fromkeys(
        event.commit.transaction
        for _, event in topics.records[TRANSACTIONS, 0]
        if isinstance(event, End)
    )
    for records in topics.records.values():
        for _, event in records:
            if isinstance(event, Row) and event.is_snapshot and not event.is_incremental:
                cells = {name: value for name, value in event.cells.items() if value is not None}
                tables.setdefault(event.table, {})[key_text(event)] = cells
            elif isinstance(event, Row | TruncatedTable) and event.commit.transaction:
                of_transaction = events.setdefault(event.commit.transaction, {})
                of_transaction[event.commit.sequence] = event
    found = [("", copied(tables))]
    for transaction in ends:
        for _, event in sorted(events.get(transaction, {}).items()):
            rows = tables.setdefault(event.table, {})
            if isinstance(event, TruncatedTable):
                rows.clear()
                continue
            assert isinstance(event, Row)
            key = key_text(event)
            before = {} if event.whole else rows.get(key, {})
            rows[key] = {n: v for n, v in {**before, **event.cells}.items() if v is not None}
            if event.deleted:
                del rows[key]
        found.append((transaction, copied(tables)))
    return found


def copied(tables: State) -> State:
    """A copy without what no event says: the default of a new column, which comes with the rows of
    an incremental snapshot.
    """
    return {
        table: {
            key: {n: v for n, v in row.items() if (table, n) != ("public.words", "note")}
            for key, row in rows.items()
        }
        for table, rows in tables.items()
    }


@pytest.mark.parametrize("name", FORMATS)
def test_every_prefix_is_a_state_of_postgresql(name: str, seed: int) -> None:
    """SRC-2, SRC-10, `cut_is_consistent`, `resumable`: partitions are read in random orders, and
    the bridge is killed at random steps. Each prefix by commit timestamp is a state.
    """
    topics = topics_of(name)
    true = true_states(topics)
    for drawn in draws(seed, tries(100, 2)):
        random = Random(drawn)

        def made(position: SourcePosition | None) -> ByTransaction:
            return ByTransaction(TRANSACTIONS, position, max_clock_skew_s=600, most_records=20)

        bridge = Bridge(topics, made, random)
        bridge.run(4)
        at = 0
        for time, state in sorted(states_by_time(bridge.sent).items()):
            shown = without_empty(copied(state))
            while at < len(true) and without_empty(true[at][1]) != shown:
                at += 1
            assert at < len(true), (drawn, time)
        assert without_empty(true[-1][1]) == shown


@pytest.mark.parametrize("name", FORMATS)
def test_the_states_have_the_rows_of_postgresql(name: str) -> None:
    """SRC-10: the truth of the test above is PostgreSQL's own, transaction by transaction."""
    found = dict(true_states(topics_of(name)))
    for state in states(name):
        if state.transaction:
            for table, rows in state.tables.items():
                keys = {"/".join(map(str, key)) for key in rows}
                assert keys == set(found[state.transaction].get(table, {})), (state.what, table)


@pytest.mark.parametrize("has_xa", [False, True])
def test_every_prefix_is_a_state_of_mariadb(has_xa: bool, seed: int) -> None:
    """SRC-2, SRC-8, SRC-10: with GTIDs of two domains, truncations and DDL without an END, and a
    stretch that came again. An XA transaction has no END: the bridge may wait for it.
    """
    true = [
        without_empty(
            {
                table: {key: {"v": (row["v"] or "").encode()} for (key,), row in rows.items()}
                for table, rows in state.tables.items()
            }
        )
        for state in states("mariadb")
        if has_xa or (not state.what.startswith("XA") and "after it" not in state.what)
    ]
    records = recording("mariadb").records
    ids = [(record.value or b"").find(b'"BEGIN","id":"0-7-21"') for record in records]
    (xa,) = [at for at, found in enumerate(ids) if found >= 0]
    if not has_xa:
        records = [r for r in records[:xa] if b'"0-7-21"' not in (r.value or b"")]
    reader = DebeziumDecoder(JsonFormat(), KnownTables(), transactions=TRANSACTIONS)
    topics = topics_with(records, reader)
    for number in tries(100, 10):
        sequencers: list[ByTransaction] = []

        def made(position: SourcePosition | None) -> ByTransaction:
            at = ByTransaction(TRANSACTIONS, position, max_clock_skew_s=600)
            sequencers.append(at)  # noqa: B023, it is called in this round
            return at

        bridge = Bridge(topics, made, Random(f"{seed} {number}"))
        bridge.run(4)
        at, shown = 0, without_empty({})
        for time, state in sorted(states_by_time(bridge.sent).items()):
            shown = without_empty(state)
            while at < len(true) and true[at] != shown:
                at += 1
            assert at < len(true), (number, time, shown)
        assert shown == true[-1] or (has_xa and sequencers[-1].waiting is not None), number

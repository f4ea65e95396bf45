"""The audit of a source in single situations (SRC-7). The laws are in
`tests/property/test_source_audit_laws.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from connector.sources.audit import SourceAudit, SourceTopicAudit
from connector.sources.compact import UNKNOWN_ORDER, Order, Orders
from connector.sources.model import LSN, Commit, End, Event, ForeignRecord, Row

NOW = 1_700_000_000_000_000
S = 1_000_000
TOPIC, ENDS = "t.a", "t.transaction"


def audited(*published: tuple[Event, Order], ends: Sequence[End]) -> SourceTopicAudit:
    """The account of a topic with one Kafka partition for each event."""
    changes = Orders()
    records: dict[str, list[tuple[ForeignRecord, Event]]] = {
        ENDS: [(ForeignRecord(ENDS, 0, at, NOW, None, b""), end) for at, end in enumerate(ends)],
        TOPIC: [],
    }
    for kafka_partition, (event, order) in enumerate(published):
        record = ForeignRecord(TOPIC, kafka_partition, 0, NOW, b"key", b"")
        records[TOPIC].append((record, event))
        changes.add(record.partition, 0, order)
    audit = SourceAudit(
        lambda topic: iter(records[topic]),
        lambda topic: iter(()),
        changes,
        Orders(),
        transactions=ENDS,
    )
    of_topic, of_ends = audit.results([TOPIC, ENDS])
    assert (of_ends.marks, of_ends.disordered) == (len(ends), 0)
    return of_topic


def of_transaction(time: int, number: int = 1, count: int = 1) -> tuple[list[Row], End]:
    """The events of a transaction, all of one row, and its end."""
    commit = Commit(time=time, transaction=str(number), log=LSN, after=(20 * number,))
    before = replace(commit, after=(20 * number - 10,))
    rows = [
        Row(table="a", commit=replace(before, sequence=sequence), key={"id": 1})
        for sequence in range(1, count + 1)
    ]
    return rows, End(commit, count)


@pytest.mark.parametrize(("later", "doubled"), [(0, 0), (3, 1)])
def test_an_event_that_is_sent_again_is_published_at_its_place_or_is_doubled(
    later: int, doubled: int
) -> None:
    """SRC-7: a bridge that was killed publishes it with the same commit timestamp."""
    (row,), end = of_transaction(NOW)
    audit = audited((row, Order(NOW, 1, 1)), (row, Order(NOW + later, 1, 1)), ends=[end])
    assert (audit.changes, audit.doubled, audit.disordered) == (2, doubled, 0)


@pytest.mark.parametrize("published_s", [-30, 30])
@pytest.mark.parametrize("committed_s", [-20, -5, 5, 20])
def test_a_row_of_a_snapshot_is_above_earlier_events_and_below_later_ones(
    committed_s: int, published_s: int
) -> None:
    """SRC-7, `newest_wins`: commit times tell, if they are clearly apart. It is one fault, whatever
    the number of events that show it.
    """
    events, end = of_transaction(NOW + committed_s * S, count=2)
    row = Row(table="a", commit=Commit(time=NOW), key={"id": 1}, is_snapshot=True)
    published = [
        (event, Order(NOW + published_s * S, event.commit.sequence, 2)) for event in events
    ]
    audit = audited((row, Order(NOW, 1, 0)), *published, ends=[end])
    is_wrong = abs(committed_s) > 10 and (committed_s < 0) is not (published_s < 0)
    assert (audit.changes, audit.doubled, audit.disordered) == (3, 0, is_wrong)


@pytest.mark.parametrize(
    ("alone_at", "other_at", "disordered", "unverified"),
    [
        pytest.param(30, 0, 0, 0, id="its topic came later"),
        pytest.param(10, 0, 0, 1, id="nothing was published before"),
        pytest.param(30, 10, 1, 0, id="without the others of its transaction"),
    ],
)
def test_an_event_that_is_published_without_its_transaction_is_disordered(
    alone_at: int, other_at: int, disordered: int, unverified: int
) -> None:
    """SRC-7: unless its topic came later. Without an earlier transaction, that is unknown."""
    (other, alone), end = of_transaction(NOW, count=2)
    (next_,), next_end = of_transaction(NOW, number=2)
    published = [(alone, Order(NOW + alone_at, 1, 0)), (next_, Order(NOW + 20, 1, 1))]
    if other_at:
        published.append((other, Order(NOW + other_at, 1, 2)))
    audit = audited(*published, ends=[end, next_end])
    assert (audit.changes, audit.disordered) == (len(published), disordered)
    assert audit.unverified == unverified


@pytest.mark.parametrize(
    ("earlier", "later", "kept", "is_moved"),
    [
        pytest.param((5, 1, 0), (7, 1, 0), (7, 1, 0), False, id="alone"),
        pytest.param((7, 1, 0), (5, 1, 0), (7, 1, 0), False, id="alone, earlier"),
        pytest.param((5, 1, 2), (5, 1, 2), (5, 1, 2), False, id="the same"),
        pytest.param((5, 1, 2), (7, 1, 2), (7, 1, 2), True, id="another time"),
        pytest.param((5, 1, 2), (5, 2, 2), (5, 2, 2), True, id="another number"),
        pytest.param((5, 1, 0), (7, 1, 2), (7, 1, 2), True, id="alone, then in a transaction"),
        pytest.param((7, 1, 0), (5, 1, 2), (7, 1, 0), True, id="alone later"),
        pytest.param((5, 1, 2), (7, 1, 0), (7, 1, 0), True, id="in a transaction, then alone"),
        pytest.param((7, 1, 2), (5, 1, 0), (7, 1, 2), True, id="in a transaction later"),
        pytest.param(UNKNOWN_ORDER, (5, 1, 2), (5, 1, 2), False, id="unreadable, then read"),
        pytest.param((5, 1, 2), UNKNOWN_ORDER, (5, 1, 2), False, id="read, then unreadable"),
        pytest.param(UNKNOWN_ORDER, UNKNOWN_ORDER, UNKNOWN_ORDER, False, id="unreadable"),
    ],
)
def test_a_record_that_is_published_again_has_its_greatest_order(
    earlier: tuple[int, int, int],
    later: tuple[int, int, int],
    kept: tuple[int, int, int],
    is_moved: bool,
) -> None:
    """SRC-7: without a transaction, several orders are no fault. A change that cannot be read is
    one, too.
    """
    orders, record = Orders(), ForeignRecord(TOPIC, 0, 7, NOW, b"key", b"")
    for order in (earlier, later):
        orders.add(record.partition, record.offset, Order(*order))
    assert orders.order_of(record) == kept
    assert Order(*kept).is_known is (kept != UNKNOWN_ORDER)
    assert orders.moved == ({(record.partition, record.offset)} if is_moved else set())


def test_a_change_that_cannot_be_read_is_published() -> None:
    """SRC-7: its event is not missing, and its place is not known."""
    (row,), end = of_transaction(NOW)
    audit = audited((row, UNKNOWN_ORDER), ends=[end])
    assert (audit.changes, audit.missing, audit.disordered) == (1, 0, 0)

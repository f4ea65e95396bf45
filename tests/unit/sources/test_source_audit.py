"""The audit of a source in single situations (SRC-7). The laws are in
`tests/property/test_source_audit_laws.py`.
"""

from __future__ import annotations

import pytest

from connector.sources.audit import SourceAudit, SourceTopicAudit
from connector.sources.compact import Order, Orders
from connector.sources.model import LSN, Commit, End, Event, ForeignRecord, Row

NOW = 1_700_000_000_000_000
S = 1_000_000
TOPIC, ENDS = "t.a", "t.transaction"


def audited(*published: tuple[Event, Order], end: End) -> SourceTopicAudit:
    """The account of a topic with one Kafka partition for each event, and with one end."""
    changes = Orders()
    records: dict[str, list[tuple[ForeignRecord, Event]]] = {
        ENDS: [(ForeignRecord(ENDS, 0, 0, NOW, None, b""), end)],
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
    assert (of_ends.marks, of_ends.disordered) == (1, 0)
    return of_topic


def of_transaction(time: int) -> tuple[Row, End]:
    """The only event of a transaction, and its end."""
    commit = Commit(time=time, transaction="1", sequence=1, log=LSN, after=(10,))
    row = Row(table="a", commit=commit, key={"id": 1})
    return row, End(Commit(time=time, transaction="1", log=LSN, after=(20,)), 1)


@pytest.mark.parametrize(("later", "doubled"), [(0, 0), (3, 1)])
def test_an_event_that_is_sent_again_is_published_at_its_place_or_is_doubled(
    later: int, doubled: int
) -> None:
    """SRC-7: a bridge that was killed publishes it with the same commit timestamp."""
    row, end = of_transaction(NOW)
    audit = audited((row, Order(NOW, 1, 1)), (row, Order(NOW + later, 1, 1)), end=end)
    assert (audit.changes, audit.doubled, audit.disordered) == (2, doubled, 0)


@pytest.mark.parametrize("published_s", [-30, 30])
@pytest.mark.parametrize("committed_s", [-20, -5, 5, 20])
def test_a_row_of_a_snapshot_is_above_earlier_events_and_below_later_ones(
    committed_s: int, published_s: int
) -> None:
    """SRC-7, `newest_wins`: commit times tell, if they are clearly apart."""
    event, end = of_transaction(NOW + committed_s * S)
    row = Row(table="a", commit=Commit(time=NOW), key={"id": 1}, is_snapshot=True)
    audit = audited((row, Order(NOW, 1, 0)), (event, Order(NOW + published_s * S, 1, 1)), end=end)
    is_wrong = abs(committed_s) > 10 and (committed_s < 0) is not (published_s < 0)
    assert (audit.changes, audit.doubled, audit.disordered) == (2, 0, is_wrong)

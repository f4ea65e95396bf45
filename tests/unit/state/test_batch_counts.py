"""The counts of a batch, from those of its rows (TBL-5)."""

from __future__ import annotations

from collections import Counter

import pytest

from connector.records.model import ChildPartition, ChildPartitions, Transaction, Truncate
from connector.state.batch_counts import RowCounts, counts_of
from connector.state.source_checks import Ignored, SchemaFields
from connector.state.stream_progress import Progress
from connector.watermarks.frontier import BatchClaims, Frontier, LineageRecord
from connector.watermarks.producer_epoch import OlderProducer
from connector.watermarks.stream_partition import StreamPartition

BEFORE = Progress(frontier=Frontier(2, {"p": StreamPartition(claims={0: 50}, epochs={1: 9})}))


def test_the_counts_of_no_rows_are_those_of_an_empty_batch() -> None:
    result = counts_of(RowCounts(), Progress(), 2, {})
    assert (result.records, result.claims) == (0, BatchClaims(2))


def test_a_truncation_declares_its_transaction_as_a_change_does() -> None:
    """ING-2, EVO-13: only a transaction of several records can lack one."""
    truncations = [
        Truncate("p", "t", size, 0, Transaction("id", 0, False, size)) for size in (1, 2, 300)
    ]
    rows = RowCounts(declared=5, truncations=dict.fromkeys([*truncations, Truncate("p", "t", 9)]))
    result = counts_of(rows, Progress(), 2, {})
    assert result.declared == 5 + 2
    assert result.truncations == (*truncations, Truncate("p", "t", 9))


def test_claims_without_effect_are_found_in_what_was_read_before() -> None:
    """ING-4: one that goes backwards, and those in the future."""
    rows = RowCounts(in_future=Counter(p=3, q=0))
    rows.claim("p", 0, 40)
    rows.claim("p", 0, 30)
    result = counts_of(rows, BEFORE, 2, {})
    assert result.claims.claims == {"p": {0: 40}}
    assert result.findings.ignored == {"p": {Ignored.BACKWARDS: 1, Ignored.IN_FUTURE: 3}}
    assert result.ignored_claims == 4


def test_an_older_producer_is_found_in_the_batch_and_behind_the_batches_before() -> None:
    """PUB-4."""
    rows = RowCounts()
    for kafka_partition, epoch, offset in ((0, 3, 1), (0, 4, 2), (0, 3, 5), (1, 8, 7)):
        rows.epoch("p", kafka_partition, epoch, offset)
    result = counts_of(rows, BEFORE, 2, {})
    assert result.claims.epochs == {"p": {0: 4, 1: 8}}
    assert result.findings.older_producers == {"p": OlderProducer(1, 8, 9)}
    assert counts_of(rows, Progress(), 2, {}).findings.older_producers == {
        "p": OlderProducer(0, 3, 4)
    }


def test_records_are_counted_by_the_unknown_fields_of_their_schema() -> None:
    """ING-3."""
    result = counts_of(RowCounts(schemas=Counter({1: 2, 7: 1})), Progress(), 2, {1: ("color",)})
    assert result.findings.unknown_fields == {
        1: SchemaFields(("color",), 2),
        7: SchemaFields((), 1),
    }


@pytest.mark.parametrize(("named", "expected"), [(0, 2), (2, 2), (3, 3)])
def test_a_record_may_name_more_kafka_partitions_than_the_topic_has(
    named: int, expected: int
) -> None:
    """WMK-4."""
    record = ChildPartitions("p", 5, 0, (ChildPartition("p"),))
    lineage = LineageRecord(0, 2, record)
    result = counts_of(
        RowCounts(kafka_partitions=named, lineage={lineage: None}), Progress(), 2, {}
    )
    assert (result.claims.kafka_partitions, result.claims.lineage) == (expected, (lineage,))

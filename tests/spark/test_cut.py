"""`cut_is_consistent`: a table at its cut shows the source's state at the low watermark, whole transactions, all Kafka partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from connector.model import ChildPartition, ChildPartitions, DataChange, Heartbeat
from connector.spark.source import BatchRange
from tests.spark.streams import STREAM, Stream, account, shown

S = 1_000_000
ACCOUNTS = [f"account {n}" for n in range(8)]
OPENING = 100
TOTAL = OPENING * len(ACCOUNTS)
ANNOUNCED = ChildPartitions("p", 1, 0, (ChildPartition("p"),))


def transactions(rng: Random, first: int, count: int) -> Iterator[tuple[DataChange, DataChange]]:
    """Transfers, one a second: each writes the new balances of two rows at one commit timestamp."""
    balances = dict.fromkeys(ACCOUNTS, OPENING)
    for at in range(first, first + count):
        one, other = rng.sample(ACCOUNTS, 2)
        amount = rng.randint(1, 50)
        balances[one] -= amount
        balances[other] += amount
        yield account(one, at * S, amount=str(balances[one])), account(other, at * S, amount=str(balances[other]))


class Bank:
    """Accounts, and transfers that arrive in disorder, some twice; every Kafka partition is read at its own pace."""

    def __init__(self, spark: SparkSession, folder: Path, rng: Random) -> None:
        self.rng, self.stream = rng, Stream(spark, folder, STREAM)
        self.transfers = transactions(rng, 2, 10_000)
        self.at = 1
        self.stream.topic.records.append([])
        self.stream.topic.send_everywhere(ANNOUNCED)
        self.stream.topic.send(*(account(row, S, amount=str(OPENING)) for row in ACCOUNTS))
        self.stream.topic.send_everywhere(Heartbeat("p", S))
        self.stream.ingest()

    def transfer(self, count: int) -> None:
        """Some transfers, shuffled, a few of them twice, and a heartbeat behind them."""
        changes = [change for _ in range(count) for change in next(self.transfers)]
        changes += self.rng.sample(changes, 3)
        self.rng.shuffle(changes)
        self.stream.topic.send(*changes)
        self.at += count
        self.stream.topic.send_everywhere(Heartbeat("p", self.at * S))

    def ingest(self) -> None:
        """Read on in each Kafka partition, to somewhere."""
        rest = self.stream.topic.rest()
        some = {k: self.rng.randint(rest.start[k], end) for k, end in rest.end.items()}
        self.stream.ingest(offsets=BatchRange(rest.start, some))


def total(rows: dict[object, dict[str, object]]) -> int:
    return sum(int(str(row["amount"])) for row in rows.values())


def test_cut_is_consistent_whatever_the_pace_of_kafka_partitions(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """TBL-10, REC-24: worked example 2 of the merge: no cut ever shows another sum, and everything arrives."""
    bank = Bank(spark, tmp_path, Random(seed))
    table = bank.stream.table()
    for _ in range(4):
        bank.transfer(20)
        bank.ingest()
        bank.stream.apply(table)
        assert table.bookkeeping().is_consistent_cut
        assert total(shown(table)) == TOTAL
    bank.stream.ingest()
    bank.stream.apply(table)
    assert total(shown(table)) == TOTAL
    assert shown(table) == bank.stream.truth()
    assert table.bookkeeping().complete_to_batch == table.bookkeeping().to_batch


def test_without_the_cut_the_bank_is_noticed(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """The check is tried itself: applied past the low watermark, a transfer is seen by half."""
    bank = Bank(spark, tmp_path, Random(seed))
    bank.stream.config = replace(STREAM, stall_after_s=0)
    table = bank.stream.table()
    for _ in range(20):
        bank.transfer(20)
        bank.ingest()
        bank.stream.apply(table)
        if total(shown(table)) != TOTAL:
            assert not table.bookkeeping().is_consistent_cut
            return
    pytest.fail("every sum was right")


def test_a_stalled_watermark_is_passed_and_the_table_says_so(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-11, MRG-13: past the low watermark once it stalls; back to the cut as soon as it moves again."""
    stream = Stream(spark, tmp_path)
    table = stream.table()
    stream.topic.send_everywhere(ANNOUNCED)
    stream.topic.send(account("a", 10 * S, amount="1"))
    stream.topic.send_everywhere(Heartbeat("p", 10 * S))
    stream.topic.send(account("a", 20 * S, amount="2"), account("b", 20 * S, amount="2"))
    stream.ingest()
    stream.apply(table)
    assert (total(shown(table)), table.bookkeeping().is_consistent_cut) == (1, True)
    assert table.bookkeeping().complete_to_batch == 0
    assert stream.apply(table) is None, "nothing more belongs to the cut"

    later = stream.clock + STREAM.stall_after_s * S
    stream.apply(table, now=later)
    assert (total(shown(table)), table.bookkeeping().is_consistent_cut) == (4, False)
    assert stream.apply(table, now=later) is None

    stream.topic.send(account("c", 15 * S, amount="3"), account("d", 30 * S, amount="4"))
    stream.topic.send_everywhere(Heartbeat("p", 15 * S))
    stream.ingest()
    stream.apply(table)
    assert set(shown(table)) == {"a", "b", "c"}, "d is above the low watermark, which moves again"
    assert not table.bookkeeping().is_consistent_cut, "b is above it, too"

    stream.topic.send_everywhere(Heartbeat("p", 30 * S))
    stream.ingest()
    stream.apply(table)
    assert shown(table) == stream.truth()
    assert table.bookkeeping().is_consistent_cut

"""`cut_is_consistent`: a table at its cut shows the source's state at the low watermark, whole
transactions, all Kafka partitions.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from connector.lake.plain_table import open_table
from connector.records.codec import encode, frame
from connector.records.model import ChildPartition, ChildPartitions, Heartbeat, kafka_key
from connector.spark.storage.logged_batch import BatchRange
from connector.state.jobs import CutRecord
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType
from tests.property.bank import TOTAL, BankSimulation, Written
from tests.property.processes import as_record
from tests.spark.streams import STREAM, Stream, account, definition, shown

S = 1_000_000
ANNOUNCED = ChildPartitions("p", 1, 0, (ChildPartition("p"),))


class Bank:
    """The bank of `tests/property/bank.py` in a stream and a table. `cuts` are those where the
    table stood, as a pipeline records them.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, rng: Random, *, lies: bool = False
    ) -> None:
        self.rng, self.simulation, self.stream = (
            rng,
            BankSimulation(rng, lies=lies),
            Stream(spark, folder, STREAM),
        )
        self.stream.topic.records = []
        self.table = self.stream.table(
            definition(key=Key((KeyPart("id", DataType.BYTES),), KeyForm.ROW_KEY))
        )
        self.cuts: list[CutRecord] = []
        self.ingest(everything=True)

    def ingest(self, *, everything: bool = False) -> None:
        """Read on in each Kafka partition, to somewhere."""
        topic = self.stream.topic
        for k, log in enumerate(self.simulation.logs):
            if k == len(topic.records):
                topic.records.append([])
            for sent in log[len(topic.records[k]) :]:
                record = (
                    sent.change if isinstance(sent, Written) and sent.change else as_record(sent)
                )
                topic.raw(
                    (kafka_key(record), frame(encode(record, sent.kafka_partitions), None)), at=k
                )
        rest = topic.rest()
        self.stream.ingest(
            offsets=(
                rest
                if everything
                else BatchRange(
                    rest.start,
                    {k: self.rng.randint(rest.start[k], end) for k, end in rest.end.items()},
                )
            )
        )

    def apply(self, *, ignores_watermark: bool = False) -> dict[bytes, int]:
        """The balances afterwards. Without a watermark, the stream is as old as one that stalls."""
        stall_us = self.stream.config.stall_after_s * S
        self.stream.apply(self.table, now=self.stream.clock + stall_us * ignores_watermark)
        version, book = self.table.newest()
        if book.apply_watermark is not None and book.is_consistent_cut:
            cut = CutRecord(
                "s",
                book.apply_watermark,
                book.to_batch,
                0,
                book.merged,
                self.stream.clock,
                {"accounts": version},
            )
            follows = cut.follows(self.cuts[-1] if self.cuts else None)
            self.cuts += [] if follows is None else [follows]
        return self.balances()

    def balances(self, cut: CutRecord | None = None) -> dict[bytes, int]:
        """What the table shows, or showed at a cut."""
        table = open_table(
            f"{self.stream.folder}/tables/accounts/data", cut.versions["accounts"] if cut else None
        )
        rows = [dict(zip(table.types, row, strict=True)) for row in table.rows()]
        return {row["id"]: row["amount"] for row in rows}


def test_cut_is_consistent_whatever_the_pace_of_kafka_partitions(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """TBL-10, TBL-17, REC-24, WMK-4, WMK-7: worked example 2 of the merge, while stream partitions
    split and merge and the topic grows.

    Every cut ever recorded is the bank at that moment, to the cent, and everything arrives.
    """
    bank = Bank(spark, tmp_path, Random(seed))
    kafka_partitions = len(bank.simulation.logs)
    for _ in range(4):
        bank.simulation.turn()
        bank.ingest()
        bank.apply()
    bank.simulation.finish()
    bank.ingest(everything=True)
    last = bank.apply()
    assert len(bank.cuts) > 1
    for cut in bank.cuts:
        assert bank.balances(cut) == bank.simulation.at(cut.low_watermark)
        assert sum(bank.balances(cut).values()) in (0, TOTAL)
    assert last == bank.simulation.at(bank.simulation.clock + 1)
    assert bank.table.table_state().complete_to_batch == bank.table.table_state().to_batch
    assert len(bank.simulation.logs) > kafka_partitions
    assert any(producer.has_ended for producer in bank.simulation.producers)


def test_without_the_cut_the_sums_are_wrong(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """The check is tried itself: applied past the low watermark, a transfer is seen by half."""
    bank = Bank(spark, tmp_path, Random(seed))
    for _ in range(20):
        bank.simulation.turn()
        bank.ingest()
        if sum(bank.apply(ignores_watermark=True).values()) not in (0, TOTAL):
            assert not bank.table.table_state().is_consistent_cut
            return
    pytest.fail("every sum was right")


@pytest.mark.long
def test_a_cut_of_wrong_watermarks_is_revised_and_counted(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """WMK-11, TBL-17: a producer that breaks REC-18 makes a cut wrong; what it had not delivered
    revises it, which is counted.
    """
    bank = Bank(spark, tmp_path, Random(seed), lies=True)
    for _ in range(20):
        bank.simulation.turn()
        bank.ingest(everything=True)
        wrong = bank.apply()
        if bank.cuts and wrong != bank.simulation.at(bank.cuts[-1].low_watermark):
            break
    else:
        pytest.fail("no lie was noticed")
    believed = bank.cuts[-1]
    bank.simulation.arrive()
    bank.ingest(everything=True)
    bank.apply()
    revised = bank.cuts[-1]
    assert (revised.low_watermark, revised.revision) == (
        believed.low_watermark,
        believed.revision + 1,
    )
    assert revised.to_batch > believed.to_batch
    assert bank.stream.changelog().progress().late > 0
    assert (
        bank.balances(revised)
        == bank.simulation.at(revised.low_watermark)
        != bank.balances(believed)
    )


def total(rows: dict[object, dict[str, object]]) -> int:
    return sum(int(str(row["amount"])) for row in rows.values())


@pytest.mark.long
def test_a_stalled_watermark_is_ignored_and_the_table_is_no_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-11, MRG-13: past the low watermark once it stalls; back to the cut as soon as it moves
    again.
    """
    stream = Stream(spark, tmp_path)
    table = stream.table()
    stream.topic.send_everywhere(ANNOUNCED)
    stream.topic.send(account("a", 10 * S, amount="1"))
    stream.topic.send_everywhere(Heartbeat("p", 10 * S))
    stream.topic.send(account("a", 20 * S, amount="2"), account("b", 20 * S, amount="2"))
    stream.ingest()
    stream.apply(table)
    assert (total(shown(table)), table.table_state().is_consistent_cut) == (1, True)
    assert table.table_state().complete_to_batch == 0
    assert stream.apply(table) is None, "nothing more belongs to the cut"

    later = stream.clock + STREAM.stall_after_s * S
    stream.apply(table, now=later)
    assert (total(shown(table)), table.table_state().is_consistent_cut) == (4, False)
    assert stream.apply(table, now=later) is None

    stream.topic.send(account("c", 15 * S, amount="3"), account("d", 30 * S, amount="4"))
    stream.topic.send_everywhere(Heartbeat("p", 15 * S))
    stream.ingest()
    stream.apply(table)
    assert set(shown(table)) == {"a", "b", "c"}, "d is above the low watermark, which moves again"
    assert not table.table_state().is_consistent_cut, "b is above it, too"

    stream.topic.send_everywhere(Heartbeat("p", 30 * S))
    stream.ingest()
    stream.apply(table)
    assert shown(table) == stream.truth()
    assert table.table_state().is_consistent_cut

"""The bad records of the demo: each is rejected, for the reason that the demo expects, and for no
other.
"""

from __future__ import annotations

import struct

import pytest

from connector.demo import bank
from connector.demo.poison import Poison, poison
from connector.records.codec import ChangeRecord, Schemas
from connector.records.model import DataChange, Rule, SetCell
from connector.records.rejection import Position, Reason, Rejection
from connector.tables.values import DataType, Encoding, Unreadable, read_value
from connector.validation import KafkaRecord, Limits, validate_record

NOW = 1_800_000_000_000_000
UNREADABLE = {
    "accounts": SetCell("a", b"balance", b"7 bytes"),
    "files": SetCell("f", b"size", b"many"),
}


def made(seed: int = 1) -> list[Poison]:
    done = bank.transactions(
        bank.operations(accounts=5, transfers=20, seed=seed), first=NOW - 10**6, last=NOW
    )
    targets = [change for transaction in done for change in transaction]
    return poison(targets, kafka_partitions=3, now=NOW, seed=seed, unreadable=UNREADABLE)


def verdict(one: Poison) -> ChangeRecord | Rejection:
    record = KafkaRecord(Position("t", "id", 0, 0), NOW, one.key, one.value, one.headers)
    return validate_record(
        record, schemas=Schemas(), limits=Limits(), kafka_partitions=3, tables=None
    )


@pytest.mark.parametrize("one", made(), ids=lambda one: one.kind)
def test_each_is_rejected_for_its_own_reason(one: Poison) -> None:
    """REC-11, REC-13 to REC-16, DLQ-2: expected by hand, judged by the definition"""
    found = verdict(one)
    if one.table is not None:
        assert isinstance(found, ChangeRecord), (
            "only its table can see what is wrong with it (TBL-9)"
        )
        return
    assert isinstance(found, Rejection)
    assert (found.reason, found.rule) == (one.reason, one.rule)


def test_other_seeds_are_rejected_alike() -> None:
    for seed in range(50):
        for one in made(seed):
            found = verdict(one)
            assert one.table or (
                isinstance(found, Rejection)
                and (found.reason, found.rule) == (one.reason, one.rule)
            ), (seed, one)


def test_every_reason_that_ingest_can_give_is_among_them() -> None:
    """The others need a table by sequence number, a horizon, a least commit timestamp, an
    undeclared table that is rejected, ten megabytes, a producer, or a reader.
    """
    elsewhere = {
        Reason.MISSING_SEQUENCE_NUMBER,
        Reason.TOO_LATE,
        Reason.COMMIT_TIMESTAMP_TOO_OLD,
        Reason.UNKNOWN_TABLE,
        Reason.TOO_LARGE,
        Reason.REJECTED,
        Reason.RETRIES_EXHAUSTED,
        Reason.CONSUMER_FAILED,
    }
    assert {one.reason for one in made()} == set(Reason) - elsewhere


def test_most_rules_are_among_them() -> None:
    control_records_only = {Rule.HEARTBEAT_TIMESTAMP, Rule.START_TIMESTAMP, Rule.CHILDREN}
    by_settings = {Rule.UNKNOWN_FIELDS, Rule.ROW_IMAGE, Rule.LOGICAL_TYPE}
    large = {Rule.RESUME_TOKEN, Rule.ESTIMATED_LOW_WATERMARK, Rule.TRANSACTION}
    of_write_sessions = {Rule.WRITE_STREAM, Rule.RELEASE}
    assert {one.rule for one in made()} - {""} == (
        set(Rule) - control_records_only - large - by_settings - of_write_sessions
    )


def test_values_for_table_letters_do_not_fit_their_columns() -> None:
    assert isinstance(
        read_value(DataType.INT64, Encoding.BINARY, UNREADABLE["accounts"].value), Unreadable
    )
    assert isinstance(
        read_value(DataType.INT64, Encoding.TEXT, UNREADABLE["files"].value), Unreadable
    )
    assert read_value(DataType.INT64, Encoding.BINARY, struct.pack(">q", -7)) == -7


def test_well_formed_poison_would_do_damage() -> None:
    """Otherwise nobody would notice that it was applied."""
    for one in made():
        found = verdict(one)
        if isinstance(found, ChangeRecord):
            assert isinstance(found.record, DataChange)
            assert (found.record.commit_timestamp, found.record.tie_breaker) == (NOW, 2**62)


def test_headers_collide_with_those_of_letters_in_some() -> None:
    """DLQ-1: byte for byte, whatever they are called"""
    names = {name for one in made() for name, _ in one.headers}
    assert {"connector.dlq.reason", "__connect.errors.stage"} < names
    assert any(value is None for one in made() for _, value in one.headers)


def test_the_seed_repeats_them() -> None:
    assert made(3) == made(3) != made(4)

"""A decoded datum is a record, or it breaks a rule (REC-14, REC-16)."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import Any

import fastavro
import pytest

from connector.records.codec import ChangeRecord, Schemas, decode, frame
from connector.records.datum import build
from connector.records.model import (
    CONTROL_KEY,
    MAX_LONG,
    MAX_RANGES,
    MAX_TIMESTAMP,
    ChildPartition,
    ChildPartitions,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Heartbeat,
    OffsetRange,
    Record,
    Release,
    Rule,
    SetCell,
    Transaction,
    Truncate,
    WriteStreamOffset,
)
from connector.records.rejection import Reason, Rejection
from tests.fastavro_encoder import to_datum
from tests.property.test_codec_roundtrip import PLAIN_SCHEMA

CHANGE = DataChange(
    stream_partition="p",
    table="t",
    row_key=b"k",
    commit_timestamp=5,
    entries=(DeleteFamily("f"), SetCell("f", b"q", b"v"), DeleteCells("f", b"q", 1, 9)),
    transaction=Transaction("tx"),
)
CHILDREN = ChildPartitions("p", 5, 0, (ChildPartition("c", ("p",), b"a", b"m"),))
ROW = replace(CHANGE, write_stream=WriteStreamOffset("job/rows", 7))
STAGED = replace(ROW, commit_timestamp=0, transaction=None)
RELEASE = Release("p", 5, (OffsetRange("job/rows", 0, 8), OffsetRange("w2/p", 3, 4)))
TRUNCATE = Truncate("p", "t", 5, 1, Transaction("tx"), "A")
ONE = {"stream": "a/b", "first": 0, "upto": 1}


def with_faults(record: Any, **faults: Any) -> dict[str, Any]:
    """A datum of the record; a fault is named by its path, with `__` between the parts."""
    datum = to_datum(record, 4)
    for path, value in faults.items():
        *parents, name = path.split("__")
        place: Any = datum
        for parent in parents:
            place = place[int(parent) if parent.isdigit() else parent]
        place[name] = value
    return datum


def to_record(datum: dict[str, Any], kafka_partitions: int | None) -> Record | Rejection:
    """The record with this datum as Kafka has it, on a topic with so many Kafka partitions."""
    body = BytesIO()
    fastavro.schemaless_writer(body, PLAIN_SCHEMA, datum)
    decoded = decode(frame(body.getvalue(), None), Schemas(), kafka_partitions=kafka_partitions)
    return decoded.record if isinstance(decoded, ChangeRecord) else decoded


def verdict(datum: dict[str, Any], kafka_partitions: int | None = 4) -> tuple[Reason, str]:
    rejection = to_record(datum, kafka_partitions)
    assert isinstance(rejection, Rejection)
    return rejection.reason, rejection.rule


IN_ORDER: list[tuple[str, dict[str, Any]]] = [
    (Rule.BRANCHES, {"heartbeat": {"timestamp": 1, "resume_token": b""}}),
    (Reason.UNKNOWN_ENTRY, {"data_change__entries__0__kind": "UNKNOWN"}),
    (Rule.FAMILY, {"data_change__entries__0__family": "f\n"}),
    (Rule.QUALIFIER, {"data_change__entries__1__qualifier": b"q" * 16385}),
    (Rule.CELL_TIMESTAMP, {"data_change__entries__1__cell_timestamp": -1}),
    (Rule.CELL_RANGE, {"data_change__entries__2__range_end": 1}),
    (Rule.TRANSACTION, {"data_change__transaction__record_sequence": -1}),
    (Rule.WRITE_STREAM, {"data_change__write_stream": {"stream": "job", "offset": 0}}),
    (Rule.STREAM_PARTITION, {"stream_partition": ""}),
    (Rule.TABLE, {"data_change__table": "a b"}),
    (Rule.ROW_KEY, {"data_change__row_key": b""}),
    (Rule.COMMIT_TIMESTAMP, {"data_change__commit_timestamp": MAX_TIMESTAMP + 1}),
    (Rule.SOURCE_CLUSTER_ID, {"data_change__source_cluster_id": ""}),
    (Rule.RESUME_TOKEN, {"data_change__resume_token": b"r" * 65537}),
    (Rule.ESTIMATED_LOW_WATERMARK, {"data_change__estimated_low_watermark": -1}),
    (Reason.INVALID_SEQUENCE_NUMBER, {"data_change__change_sequence_number": "0x"}),
    (Rule.KAFKA_PARTITIONS, {"kafka_partitions": 0}),
]
"""Faults of a change, in the order in which they are found."""


@pytest.mark.parametrize("index", range(len(IN_ORDER)), ids=lambda index: IN_ORDER[index][0])
def test_of_several_faults_the_first_of_the_list_is_named(index: int) -> None:
    """REC-14, REC-16: alone, and with every fault behind it in the list."""
    name, fault = IN_ORDER[index]
    expected = (Reason.INVALID, name) if isinstance(name, Rule) else (name, "")
    assert verdict(with_faults(CHANGE, **fault)) == expected
    everything = {path: value for _, later in IN_ORDER[index:] for path, value in later.items()}
    assert verdict(with_faults(CHANGE, **everything)) == expected


def test_the_list_has_the_rules_of_a_change_in_the_order_of_the_enum() -> None:
    """REC-14."""
    named = [name for name, _ in IN_ORDER if isinstance(name, Rule)]
    assert named == sorted(named, key=list(Rule).index)
    by_schema_and_settings = {Rule.LOGICAL_TYPE, Rule.UNKNOWN_FIELDS, Rule.ROW_IMAGE}
    of_control = {Rule.HEARTBEAT_TIMESTAMP, Rule.START_TIMESTAMP, Rule.CHILDREN, Rule.RELEASE}
    assert set(Rule) - set(named) - by_schema_and_settings - of_control == {Rule.ENTRY_COUNT}


@pytest.mark.systems
def test_entries_are_checked_before_they_are_counted() -> None:
    """REC-14, REC-16."""
    assert verdict(with_faults(CHANGE, data_change__entries=[])) == (
        Reason.INVALID,
        Rule.ENTRY_COUNT,
    )
    entry = to_datum(CHANGE, 4)["data_change"]["entries"][0]
    assert verdict(with_faults(CHANGE, data_change__entries=[entry] * 100_001)) == (
        Reason.INVALID,
        Rule.ENTRY_COUNT,
    )
    last = [entry] * 100_000 + [entry | {"kind": "UNKNOWN"}]
    assert verdict(with_faults(CHANGE, data_change__entries=last)) == (Reason.UNKNOWN_ENTRY, "")


@pytest.mark.parametrize(
    ("rule", "record", "faults"),
    [
        (Rule.BRANCHES, CHANGE, {"data_change": None}),
        (
            Rule.RESUME_TOKEN,
            Heartbeat("p", 5),
            {"heartbeat__resume_token": b"r" * 65537},
        ),
        (
            Rule.HEARTBEAT_TIMESTAMP,
            Heartbeat("p", 5),
            {"heartbeat__timestamp": 0, "heartbeat__resume_token": b"r" * 65537},
        ),
        (
            Rule.START_TIMESTAMP,
            CHILDREN,
            {"child_partitions__start_timestamp": -1, "child_partitions__children__0__token": ""},
        ),
        (Rule.CHILDREN, CHILDREN, {"child_partitions__children__0__token": "ä" * 513}),
        (Rule.CHILDREN, CHILDREN, {"child_partitions__children__0__parent_partition_tokens": [""]}),
        (Rule.CHILDREN, CHILDREN, {"child_partitions__children__0__end_key": b"a"}),
        (Rule.ROW_KEY, CHANGE, {"data_change__row_key": CONTROL_KEY}),
        (Rule.ROW_KEY, CHANGE, {"data_change__row_key": b"k" * 4097}),
        (Rule.SOURCE_CLUSTER_ID, CHANGE, {"data_change__change_type": "GARBAGE_COLLECTION"}),
        (Rule.CELL_RANGE, CHANGE, {"data_change__entries__2__range_start": -1}),
        (Rule.CELL_RANGE, CHANGE, {"data_change__entries__2__range_start": 9}),
        (Rule.COMMIT_TIMESTAMP, CHANGE, {"data_change__commit_timestamp": 0}),
        (Rule.COMMIT_TIMESTAMP, STAGED, {"data_change__write_stream": None}),
        (Rule.COMMIT_TIMESTAMP, ROW, {"data_change__commit_timestamp": -1}),
        (Rule.COMMIT_TIMESTAMP, ROW, {"data_change__commit_timestamp": MAX_TIMESTAMP + 1}),
        *(
            (Rule.WRITE_STREAM, row, {"data_change__write_stream__stream": name})
            for row in (ROW, STAGED)
            for name in ("", "job", "/b", "a/", "a/b/c", "a/b\n", "a/ä", "a" * 65 + "/b")
        ),
        (Rule.WRITE_STREAM, ROW, {"data_change__write_stream__offset": -1}),
        (Rule.WRITE_STREAM, STAGED, {"data_change__estimated_low_watermark": 1}),
        (Rule.WRITE_STREAM, STAGED, {"data_change__resume_token": b"r"}),
        (Rule.WRITE_STREAM, ROW, {"data_change__commit_timestamp": 0}),
        (Rule.CELL_TIMESTAMP, STAGED, {"data_change__entries__1__cell_timestamp": -1}),
        (Rule.BRANCHES, CHANGE, {"release": {"commit_timestamp": 0, "ranges": []}}),
        (Rule.BRANCHES, RELEASE, {"truncate": None, "release": None}),
        (Rule.STREAM_PARTITION, TRUNCATE, {"stream_partition": ""}),
        (Rule.TABLE, TRUNCATE, {"truncate__table": "a b"}),
        (Rule.TABLE, TRUNCATE, {"truncate__table": "", "truncate__commit_timestamp": 0}),
        (Rule.COMMIT_TIMESTAMP, TRUNCATE, {"truncate__commit_timestamp": 0}),
        (Rule.COMMIT_TIMESTAMP, TRUNCATE, {"truncate__commit_timestamp": MAX_TIMESTAMP + 1}),
        (Rule.TRANSACTION, TRUNCATE, {"truncate__transaction__record_sequence": -1}),
        (Rule.RELEASE, RELEASE, {"release__commit_timestamp": 0}),
        (Rule.RELEASE, RELEASE, {"release__commit_timestamp": MAX_TIMESTAMP + 1}),
        (Rule.RELEASE, RELEASE, {"release__ranges": []}),
        (Rule.RELEASE, RELEASE, {"release__ranges__1__stream": "job/rows"}),
        (Rule.RELEASE, RELEASE, {"release__ranges__1__stream": "job"}),
        (Rule.RELEASE, RELEASE, {"release__ranges__1__first": -1}),
        (Rule.RELEASE, RELEASE, {"release__ranges__1__first": 4}),
        (
            Rule.RELEASE,
            RELEASE,
            {"release__ranges": [ONE | {"stream": f"a/{n}"} for n in range(MAX_RANGES + 1)]},
        ),
    ],
    ids=lambda case: "" if isinstance(case, dict) else str(case)[:20],
)
def test_the_other_faults(rule: Rule, record: Any, faults: dict[str, Any]) -> None:
    """REC-9, REC-14, REC-16, WRS-1, WRS-4, WRS-11, WRS-16."""
    assert verdict(with_faults(record, **faults)) == (Reason.INVALID, rule)


@pytest.mark.parametrize("start", [None, b""])
@pytest.mark.parametrize("end", [None, b""])
def test_a_key_range_is_open_where_its_key_is_empty_or_absent(
    start: bytes | None, end: bytes | None
) -> None:
    """ING-5: as in Bigtable; the record has the keys as they were sent."""
    for child in (
        ChildPartition("c", ("p",), start, end),
        ChildPartition("c", ("p",), start, b"m"),
        ChildPartition("c", ("p",), b"a", end),
    ):
        record = ChildPartitions("p", 5, 0, (child,))
        assert build(to_datum(record, 4)) == to_record(to_datum(record, 4), 4) == record


@pytest.mark.parametrize(
    ("record", "filled"),
    [
        (CHANGE, {"stream_partition": "ä" * 512}),
        (CHANGE, {"kafka_partitions": 1}),
        (CHANGE, {"data_change__table": "t" * 128}),
        (CHANGE, {"data_change__row_key": b"k" * 4096}),
        (CHANGE, {"data_change__commit_timestamp": 1}),
        (CHANGE, {"data_change__commit_timestamp": MAX_TIMESTAMP}),
        (
            CHANGE,
            {
                "data_change__change_type": "GARBAGE_COLLECTION",
                "data_change__source_cluster_id": "",
            },
        ),
        (CHANGE, {"data_change__resume_token": b"r" * 65536}),
        (CHANGE, {"data_change__estimated_low_watermark": 0}),
        (CHANGE, {"data_change__transaction__record_sequence": 0}),
        (CHANGE, {"data_change__entries__1__family": "f" * 64}),
        (CHANGE, {"data_change__entries__1__qualifier": b"q" * 16384}),
        (CHANGE, {"data_change__entries__1__cell_timestamp": 0}),
        (
            CHANGE,
            {"data_change__entries__2__range_start": 8, "data_change__entries__2__range_end": 9},
        ),
        (
            CHANGE,
            {"data_change__entries__2__range_start": 0, "data_change__entries__2__range_end": 0},
        ),
        (
            CHANGE,
            {"data_change__entries__2__range_start": 9, "data_change__entries__2__range_end": 0},
        ),
        (Heartbeat("p", 5), {"heartbeat__timestamp": 1, "heartbeat__resume_token": b"r" * 65536}),
        (Heartbeat("p", 5), {"heartbeat__timestamp": MAX_TIMESTAMP}),
        (CHILDREN, {"child_partitions__start_timestamp": 1}),
        (CHILDREN, {"child_partitions__children": []}),
        (CHILDREN, {"child_partitions__children__0__start_key": None}),
        (CHILDREN, {"child_partitions__children__0__end_key": None}),
        (
            CHILDREN,
            {
                "child_partitions__children__0__start_key": b"",
                "child_partitions__children__0__end_key": b"\x00",
            },
        ),
        (ROW, {"data_change__write_stream__stream": f"{'a' * 64}/{'-_.a0' * 12}"}),
        (ROW, {"data_change__write_stream__offset": MAX_LONG}),
        (STAGED, {"data_change__write_stream__offset": 0}),
        (STAGED, {"data_change__tie_breaker": 3, "data_change__change_sequence_number": "1"}),
        (TRUNCATE, {"truncate__commit_timestamp": 1, "truncate__tie_breaker": -(2**63)}),
        (TRUNCATE, {"truncate__transaction": None, "truncate__change_sequence_number": None}),
        (RELEASE, {"release__commit_timestamp": 1}),
        (RELEASE, {"release__commit_timestamp": MAX_TIMESTAMP}),
        (RELEASE, {"release__ranges__0__upto": MAX_LONG}),
        (
            RELEASE,
            {"release__ranges": [ONE | {"stream": f"a/{n}"} for n in range(MAX_RANGES)]},
        ),
    ],
    ids=lambda case: ", ".join(case) if isinstance(case, dict) else "",
)
def test_values_at_a_limit_are_allowed(record: Any, filled: dict[str, Any]) -> None:
    """REC-14, REC-16: exactly at the limit, and everything that is said is in the record."""
    datum = with_faults(record, **filled)
    result = to_record(datum, 4)
    assert not isinstance(result, Rejection)
    assert to_datum(result, datum["kafka_partitions"]) == datum


NUMBER = "1 to 4 sections of 1 to 16 hexadecimal digits, separated by /"
NAME = "of the characters - _ . a-z A-Z 0-9"


@pytest.mark.parametrize(
    ("faults", "reason", "detail"),
    [
        (
            {"heartbeat": {"timestamp": 1, "resume_token": b""}},
            Reason.INVALID,
            (
                "the content is ['data_change', 'heartbeat'], but must be exactly one of"
                " data_change, heartbeat, child_partitions, release, truncate"
            ),
        ),
        ({"kafka_partitions": 0}, Reason.INVALID, "kafka_partitions is 0, but must be at least 1"),
        (
            {"kafka_partitions": 5},
            Reason.INVALID,
            "kafka_partitions is 5, but must be at most 4, which the topic has",
        ),
        (
            {"data_change__entries": []},
            Reason.INVALID,
            "entries is 0, but must be 1 to 100000 entries",
        ),
        (
            {"data_change__transaction__record_sequence": -1},
            Reason.INVALID,
            "record_sequence is -1, but must be from 0 to 2^63 - 1",
        ),
        (
            {"data_change__table": "t" * 129},
            Reason.INVALID,
            f"table is '{'t' * 65}... (129 long), but must be 1 to 128 {NAME}",
        ),
        (
            {"data_change__entries__1__kind": "UNKNOWN"},
            Reason.UNKNOWN_ENTRY,
            "entries[1].kind is 'UNKNOWN', but must be a kind of entry that this release knows",
        ),
        (
            {"data_change__entries__2__range_start": 9},
            Reason.INVALID,
            (
                "entries[2].range_start, range_end is (9, 9), but must be"
                " at least 0, start < end or end = 0"
            ),
        ),
        (
            {"data_change__change_sequence_number": "0x"},
            Reason.INVALID_SEQUENCE_NUMBER,
            f"change_sequence_number is '0x', but must be {NUMBER}",
        ),
        (
            {
                "data_change__write_stream": {"stream": "job/a", "offset": 0},
                "data_change__commit_timestamp": 0,
            },
            Reason.INVALID,
            (
                "transaction is Transaction(server_transaction_id='tx', record_sequence=0,"
                " is_last_record_in_..., but must be empty in a staged change"
            ),
        ),
    ],
    ids=lambda case: ", ".join(case) if isinstance(case, dict) else "",
)
def test_each_kind_of_fault_says_what_it_found(
    faults: dict[str, Any], reason: Reason, detail: str
) -> None:
    """DLQ-2"""
    rejection = to_record(with_faults(CHANGE, **faults), 4)
    assert isinstance(rejection, Rejection)
    assert (rejection.reason, rejection.detail) == (reason, detail)


def test_more_kafka_partitions_than_the_topic_has_are_invalid_where_the_topic_is_known() -> None:
    """REC-14, REC-24."""
    assert verdict(to_datum(CHANGE, 5), 4) == (Reason.INVALID, Rule.KAFKA_PARTITIONS)
    assert to_record(to_datum(CHANGE, 4), 4) == CHANGE
    assert to_record(to_datum(CHANGE, 5), None) == CHANGE


def test_unused_fields_of_a_kind_are_ignored_and_ranges_count_for_one_kind_only() -> None:
    """REC-5, REC-7."""
    datum = with_faults(
        CHANGE,
        data_change__entries__0__range_end=-5,
        data_change__entries__0__value=b"v",
        data_change__entries__0__cell_timestamp=-5,
        data_change__entries__0__qualifier=b"q" * 16385,
        data_change__entries__2__cell_timestamp=-5,
        data_change__entries__1__range_start=9,
    )
    assert to_record(datum, 4) == CHANGE


def test_the_rules_are_checked_for_one_entry_after_the_other() -> None:
    """REC-14."""
    faults = {"data_change__entries__1__cell_timestamp": -1, "data_change__entries__2__family": ""}
    assert verdict(with_faults(CHANGE, **faults)) == (Reason.INVALID, Rule.CELL_TIMESTAMP)


def test_a_detail_names_field_value_and_limit_and_stays_short() -> None:
    """DLQ-2, DLQ-6."""
    rejection = to_record(with_faults(CHANGE, data_change__row_key=b"k" * 5000), 4)
    assert isinstance(rejection, Rejection)
    assert rejection.detail.startswith("row_key is b'kkk")
    assert "kkk... (5000 long), but must be 1 to 4096 bytes" in rejection.detail
    entry = to_record(with_faults(CHANGE, data_change__entries__1__family="ß"), 4)
    assert isinstance(entry, Rejection)
    assert entry.detail == f"entries[1].family is 'ß', but must be 1 to 64 {NAME}"


def test_nanoseconds_are_invalid_and_the_detail_says_so() -> None:
    """ING-6, REC-14: they are above the largest time."""
    at = 1_714_475_984_123_456_000
    result = to_record(with_faults(CHANGE, data_change__commit_timestamp=at), 4)
    assert isinstance(result, Rejection)
    assert result.rule == Rule.COMMIT_TIMESTAMP
    assert result.detail.endswith("it fits nanoseconds: 2024-04-30T11:19:44.123456Z")

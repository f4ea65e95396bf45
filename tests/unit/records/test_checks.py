from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connector.records.checks import (
    CHANGE_CHECKS,
    CHILD_PARTITIONS_CHECKS,
    ENTRY_CHECKS,
    HEARTBEAT_CHECKS,
    RECORD_CHECKS,
    RELEASE_CHECKS,
    to_record,
)
from connector.records.codec import to_datum
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
    Release,
    Rule,
    SetCell,
    Transaction,
    WriteStreamOffset,
)
from connector.records.rejection import Reason, Rejection

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


def verdict(datum: dict[str, Any], kafka_partitions: int | None = 4) -> tuple[Reason, str]:
    rejection = to_record(datum, kafka_partitions)
    assert isinstance(rejection, Rejection)
    return rejection.reason, rejection.rule


FAULTS_OF_A_CHANGE = [
    (Rule.BRANCHES, {"heartbeat": {"timestamp": 1, "resume_token": b""}}),
    (Rule.STREAM_PARTITION, {"stream_partition": ""}),
    (Rule.KAFKA_PARTITIONS, {"kafka_partitions": 0}),
    (Rule.TABLE, {"data_change__table": "a b"}),
    (Rule.ROW_KEY, {"data_change__row_key": b""}),
    (Rule.COMMIT_TIMESTAMP, {"data_change__commit_timestamp": MAX_TIMESTAMP + 1}),
    (Rule.SOURCE_CLUSTER_ID, {"data_change__source_cluster_id": ""}),
    (Rule.RESUME_TOKEN, {"data_change__resume_token": b"r" * 65537}),
    (Rule.ESTIMATED_LOW_WATERMARK, {"data_change__estimated_low_watermark": -1}),
    (Rule.TRANSACTION, {"data_change__transaction__record_sequence": -1}),
    (Rule.WRITE_STREAM, {"data_change__write_stream": {"stream": "job", "offset": 0}}),
]
ENTRY_FAULTS = [
    (Rule.FAMILY, {"data_change__entries__2__family": "f\n"}),
    (Rule.QUALIFIER, {"data_change__entries__1__qualifier": b"q" * 16385}),
    (Rule.CELL_TIMESTAMP, {"data_change__entries__0__cell_timestamp": -1}),
    (Rule.CELL_RANGE, {"data_change__entries__2__range_end": 1}),
]
LATER_FAULTS: list[tuple[Reason, str, dict[str, Any]]] = [
    (Reason.UNKNOWN_ENTRY, "", {"data_change__entries__2__kind": "UNKNOWN"}),
    *[(Reason.INVALID, rule.value, fault) for rule, fault in ENTRY_FAULTS],
    (Reason.INVALID_SEQUENCE_NUMBER, "", {"data_change__change_sequence_number": "0x"}),
]
IN_ORDER = [
    (Reason.INVALID, rule.value, fault) for rule, fault in FAULTS_OF_A_CHANGE
] + LATER_FAULTS


@pytest.mark.parametrize(
    "index", range(len(IN_ORDER)), ids=lambda index: f"{IN_ORDER[index][0]} {IN_ORDER[index][1]}"
)
def test_of_several_faults_the_first_of_the_list_is_named(index: int) -> None:
    """REC-14, REC-16: alone, and with every fault behind it in the list."""
    reason, rule, fault = IN_ORDER[index]
    everything = {
        path: value for _, _, later in reversed(IN_ORDER[index:]) for path, value in later.items()
    }
    assert verdict(with_faults(CHANGE, **fault)) == (reason, rule)
    if reason is not Reason.UNKNOWN_ENTRY:
        everything.pop("data_change__entries__2__kind", None)
        if rule == Rule.CELL_RANGE:
            everything = fault | {"data_change__change_sequence_number": "0x"}
    assert verdict(with_faults(CHANGE, **everything)) == (reason, rule)


def test_no_entries_is_named_before_their_kind() -> None:
    assert verdict(with_faults(CHANGE, data_change__entries=[])) == (
        Reason.INVALID,
        Rule.ENTRY_COUNT,
    )
    unknown = to_datum(CHANGE, 4)["data_change"]["entries"][0] | {"kind": "UNKNOWN", "family": ""}
    assert verdict(with_faults(CHANGE, data_change__entries=[unknown] * 100_001)) == (
        Reason.INVALID,
        Rule.ENTRY_COUNT,
    )
    assert verdict(with_faults(CHANGE, data_change__entries=[unknown])) == (
        Reason.UNKNOWN_ENTRY,
        "",
    )


@pytest.mark.parametrize(
    ("rule", "record", "faults"),
    [
        (Rule.BRANCHES, CHANGE, {"data_change": None}),
        (
            Rule.RESUME_TOKEN,
            Heartbeat("p", 5),
            {"heartbeat__resume_token": b"r" * 65537, "heartbeat__timestamp": 0},
        ),
        (Rule.HEARTBEAT_TIMESTAMP, Heartbeat("p", 5), {"heartbeat__timestamp": 0}),
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
        assert to_record(to_datum(record, 4), 4) == record


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
def test_what_reaches_a_limit_is_allowed(record: Any, filled: dict[str, Any]) -> None:
    """REC-14, REC-16: exactly at the limit, and everything that is said is in the record."""
    datum = with_faults(record, **filled)
    found = to_record(datum, 4)
    assert not isinstance(found, Rejection)
    assert to_datum(found, datum["kafka_partitions"]) == datum


NUMBER = "1 to 4 sections of 1 to 16 hexadecimal digits, separated by /"


@pytest.mark.parametrize(
    ("faults", "reason", "detail"),
    [
        (
            {"heartbeat": {"timestamp": 1}},
            Reason.INVALID,
            (
                "broken rule: exactly one of data_change, heartbeat, child_partitions and"
                " release is not null"
            ),
        ),
        ({"kafka_partitions": 0}, Reason.INVALID, "kafka_partitions is 0, but must be at least 1"),
        ({"kafka_partitions": 5}, Reason.INVALID, "kafka_partitions is 5, but the topic has 4"),
        (
            {"data_change__entries": []},
            Reason.INVALID,
            "entries is a list of 0, but must be 1 to 100000 entries",
        ),
        (
            {"data_change__transaction__record_sequence": -1},
            Reason.INVALID,
            "transaction is given, but must be a transaction with a record_sequence of at least 0",
        ),
        (
            {"data_change__table": "t" * 129},
            Reason.INVALID,
            (
                f"table is '{'t' * 80}' (cut, 129 long), but must be 1 to 128 characters of a-z A-Z"
                " 0-9 . - _"
            ),
        ),
        (
            {"data_change__table": "!" * 80},
            Reason.INVALID,
            f"table is '{'!' * 80}', but must be 1 to 128 characters of a-z A-Z 0-9 . - _",
        ),
        (
            {"data_change__entries__1__kind": "UNKNOWN"},
            Reason.UNKNOWN_ENTRY,
            "entry 1 of 3 has a kind that this release does not know",
        ),
        (
            {"data_change__entries__2__range_start": 9},
            Reason.INVALID,
            (
                "entries[2]: broken rule: range_start is at least 0, and range_end is 0 or"
                " greater than range_start"
            ),
        ),
        (
            {"data_change__change_sequence_number": "0" * 81},
            Reason.INVALID_SEQUENCE_NUMBER,
            f"change_sequence_number is '{'0' * 80}' (cut, 81 long), but must be {NUMBER}",
        ),
        (
            {"data_change__write_stream": {"stream": "job", "offset": 0}},
            Reason.INVALID,
            (
                "write_stream is given, but must be a write stream such as job/rows: two parts of 1"
                " to 64 of the characters - _ . a-z A-Z 0-9, with an offset of at least 0"
            ),
        ),
        (
            {
                "data_change__write_stream": {"stream": "job/a", "offset": 0},
                "data_change__commit_timestamp": 0,
            },
            Reason.INVALID,
            (
                "broken rule: a change with a commit_timestamp of 0 has no estimated_low_watermark,"
                " no resume_token and no transaction"
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
        data_change__entries__1__range_start=9,
    )
    assert to_record(datum, 4) == CHANGE


def test_a_rule_is_judged_for_all_entries_before_the_next_rule() -> None:
    """REC-14: the JVM looks at entries rule by rule, too."""
    faults = {"data_change__entries__0__cell_timestamp": -1, "data_change__entries__2__family": ""}
    assert verdict(with_faults(CHANGE, **faults)) == (Reason.INVALID, Rule.FAMILY)


def test_every_rule_is_in_the_tables_and_in_the_order_of_the_list() -> None:
    """REC-14."""
    control = [HEARTBEAT_CHECKS, CHILD_PARTITIONS_CHECKS, RELEASE_CHECKS]
    tables = [RECORD_CHECKS, CHANGE_CHECKS, ENTRY_CHECKS, *control]
    order = list(Rule)
    for table in tables:
        places = [order.index(check[0]) for check in table]
        assert places == sorted(places)
    of_schema, by_settings = {Rule.LOGICAL_TYPE}, {Rule.UNKNOWN_FIELDS, Rule.ROW_IMAGE}
    assert {check[0] for table in tables for check in table} == set(Rule) - of_schema - by_settings
    assert (of_schema, by_settings) == (set(order[:1]), set(order[-2:]))


def test_a_detail_names_field_value_and_limit_and_stays_short() -> None:
    """DLQ-2, DLQ-6."""
    rejection = to_record(with_faults(CHANGE, data_change__row_key=b"k" * 5000), 4)
    assert isinstance(rejection, Rejection)
    assert rejection.detail.startswith("row_key is b'kkk")
    assert "(cut, 5000 long), but must be 1 to 4096 bytes" in rejection.detail
    entry = to_record(with_faults(CHANGE, data_change__entries__1__family="ß"), 4)
    assert isinstance(entry, Rejection)
    assert (
        entry.detail
        == "entries[1]: family is 'ß', but must be 1 to 64 characters of a-z A-Z 0-9 . - _"
    )

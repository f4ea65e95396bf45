from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import ConfigError, InvalidChangeError
from connector.records.codec import SCHEMA, ChangeRecord, Schemas, encode, frame, framed
from connector.records.model import (
    CONTROL_KEY,
    MAX_TIMESTAMP,
    ChildPartitions,
    DataChange,
    DeleteFamily,
    Heartbeat,
    ModType,
    OffsetRange,
    Record,
    Release,
    RowImage,
    Rule,
    SetCell,
    Transaction,
    Truncate,
    WriteStreamOffset,
    kafka_key,
)
from connector.records.rejection import Position, Reason, Rejection
from connector.records.views import YEAR_2000, view_of_time
from connector.validation import (
    EARLIEST_ARRIVAL,
    MAX_AHEAD_US,
    KafkaRecord,
    Limits,
    RowImages,
    UnknownFields,
    arrival,
    check_age,
    size_of,
    validate_record,
)
from tests.changes import NEWER_SCHEMA, in_newer_schema

NOW = 1_714_475_984_000_000
SKEW = 300_000_000
ROOM = 10_000


def change(**fields: Any) -> DataChange:
    legal: dict[str, Any] = {
        "stream_partition": "p",
        "table": "t",
        "row_key": b"k",
        "commit_timestamp": NOW,
        "entries": (DeleteFamily("f"),),
    }
    return DataChange(**legal | fields)


def verdict(record: Record | None = None, **fields: Any) -> ChangeRecord | Rejection:
    record = record or change()
    legal: dict[str, Any] = {
        "key": kafka_key(record),
        "value": framed(record, 4),
        "record_timestamp": NOW,
    }
    asked: dict[str, Any] = {
        "schemas": Schemas(),
        "limits": Limits(max_record_bytes=ROOM),
        "kafka_partitions": 4,
        "tables": None,
        "horizon": None,
        "truncated": {},
    }
    asked |= {name: fields.pop(name) for name in tuple(fields) if name in asked}
    return validate_record(KafkaRecord(Position("orders", "T", 0, 0), **legal | fields), **asked)


def reason(*args: Any, **fields: Any) -> Reason:
    rejection = verdict(*args, **fields)
    assert isinstance(rejection, Rejection)
    return rejection.reason


def row(at: int = NOW) -> DataChange:
    return change(commit_timestamp=at, write_stream=WriteStreamOffset("job/a", 0))


def release(at: int = NOW) -> Release:
    return Release("p", at, (OffsetRange("job/a", 0, 4),))


def truncation(at: int = NOW) -> Truncate:
    return Truncate("p", "t", at)


STAGED = row(0)
ORDINARY: list[Record] = [change(), Heartbeat("p", NOW), ChildPartitions("p", NOW, 0, ())]
RECORDS = [
    *(pytest.param(record, id=type(record).__name__) for record in ORDINARY),
    pytest.param(row(), id="row"),
    pytest.param(STAGED, id="staged"),
    pytest.param(release(), id="release"),
    pytest.param(truncation(), id="truncation"),
]


@pytest.mark.parametrize("record", RECORDS)
def test_an_honest_record_is_accepted(record: Record) -> None:
    """REC-3."""
    assert verdict(record) == ChangeRecord(record, 4)


def test_a_record_is_too_large_by_key_and_value_together() -> None:
    """REC-14: the limit itself is allowed."""
    value = frame(encode(change(), 4), None)
    size = len(value) + 1
    assert isinstance(verdict(limits=Limits(max_record_bytes=size)), ChangeRecord)
    assert reason(limits=Limits(max_record_bytes=size - 1)) is Reason.TOO_LARGE


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("key", [None, b"", b"other", b"k\x00"])
def test_another_key_is_a_mismatch(record: Record, key: bytes | None) -> None:
    """REC-1, REC-3, REC-16."""
    assert reason(record, key=key) is Reason.KEY_MISMATCH


@pytest.mark.parametrize(
    ("record", "key", "detail"),
    [
        (change(), None, "the Kafka key is null, the row key has 1 bytes beginning with 6b"),
        (
            change(),
            b"",
            (
                "the Kafka key is 0 bytes beginning with nothing, the row key has 1 bytes beginning"
                " with 6b"
            ),
        ),
        (
            change(row_key=b"r" * 40),
            b"k" * 33,
            (
                f"the Kafka key is 33 bytes beginning with {'6b' * 32}, the row key has 40 bytes"
                f" beginning with {'72' * 32}"
            ),
        ),
        (
            Heartbeat("p", NOW),
            b"k",
            (
                "the Kafka key is 1 bytes beginning with 6b, the key of control records has 18"
                f" bytes beginning with {CONTROL_KEY.hex()}"
            ),
        ),
    ],
    ids=["no key", "empty key", "long keys", "heartbeat"],
)
def test_a_mismatch_shows_both_keys(record: Record, key: bytes | None, detail: str) -> None:
    """REC-1, REC-3, DLQ-2: whose row it was meant for can be seen, however long the keys are."""
    assert verdict(record, key=key) == Rejection(Reason.KEY_MISMATCH, detail)


def test_a_change_under_the_control_key_and_a_heartbeat_under_a_row_key_are_mismatches() -> None:
    """REC-3."""
    assert reason(change(), key=CONTROL_KEY) is Reason.KEY_MISMATCH
    assert reason(Heartbeat("p", NOW), key=b"k") is Reason.KEY_MISMATCH


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (lambda time: change(commit_timestamp=time), Reason.COMMIT_TIMESTAMP_IN_FUTURE),
        (row, Reason.COMMIT_TIMESTAMP_IN_FUTURE),
        (release, Reason.COMMIT_TIMESTAMP_IN_FUTURE),
        (truncation, Reason.COMMIT_TIMESTAMP_IN_FUTURE),
        (lambda time: Heartbeat("p", time), Reason.WATERMARK_IN_FUTURE),
        (lambda time: ChildPartitions("p", time, 0, ()), Reason.WATERMARK_IN_FUTURE),
    ],
    ids=["change", "row", "release", "truncation", "heartbeat", "child partitions"],
)
def test_a_claim_may_be_ahead_by_the_skew_and_no_microsecond_more(
    claim: Any, expected: Reason
) -> None:
    """REC-15, WRS-20."""
    assert isinstance(verdict(claim(NOW + SKEW)), ChangeRecord)
    assert reason(claim(NOW + SKEW + 1)) is expected
    assert reason(claim(NOW + 1), limits=Limits(max_clock_skew_s=0)) is expected
    assert isinstance(verdict(claim(1)), ChangeRecord)


CLAIMS = {
    "change": lambda time: change(commit_timestamp=time),
    "row": row,
    "release": release,
    "truncation": truncation,
    "heartbeat": lambda time: Heartbeat("p", time),
    "child partitions": lambda time: ChildPartitions("p", time, 0, ()),
}


@pytest.mark.parametrize(("kind", "earlier"), [*zip(CLAIMS, (0, 0, 0, 0, 1, 1), strict=True)])
def test_a_claim_may_be_as_old_as_the_least_commit_timestamp(kind: str, earlier: int) -> None:
    """ING-6: an announcement is dated just before the first change, or at the beginning."""
    least = NOW - 10
    limits, claim = Limits(min_commit_timestamp=least), CLAIMS[kind]
    assert isinstance(verdict(claim(least - earlier), limits=limits), ChangeRecord)
    assert reason(claim(least - earlier - 1), limits=limits) is Reason.COMMIT_TIMESTAMP_TOO_OLD
    assert reason(claim(2), limits=limits) is Reason.COMMIT_TIMESTAMP_TOO_OLD
    assert isinstance(verdict(claim(1), limits=limits), ChangeRecord) is (earlier == 1)
    assert isinstance(verdict(claim(2)), ChangeRecord), "it is off if it is not set"


@pytest.mark.parametrize(
    ("number", "unit"), [(1_714_475_984, "seconds"), (1_714_475_984_123, "milliseconds")]
)
@pytest.mark.parametrize("kind", CLAIMS)
def test_a_time_in_another_unit_is_too_old_and_the_unit_is_named(
    kind: str, number: int, unit: str
) -> None:
    """ING-6."""
    found = verdict(CLAIMS[kind](number), limits=Limits(min_commit_timestamp=YEAR_2000))
    assert isinstance(found, Rejection)
    assert found.reason is Reason.COMMIT_TIMESTAMP_TOO_OLD
    assert f"is {number}, but must be at least {YEAR_2000} (min_commit_timestamp)" in found.detail
    assert f"it fits {unit}: 2024-04-30T11:19:44" in found.detail


def test_a_producer_gets_an_error() -> None:
    """ING-6: with the rule, the field and the limit; without a least time, no time is refused."""
    with pytest.raises(InvalidChangeError) as caught:
        check_age(Heartbeat("p", 1_714_475_984_123), YEAR_2000)
    assert (caught.value.rule, caught.value.field) == ("COMMIT_TIMESTAMP_TOO_OLD", "timestamp")
    check_age(change(commit_timestamp=1), 0)


def test_a_time_too_far_ahead_names_its_unit() -> None:
    """ING-6, REC-15: units of 100 nanoseconds are in the year 2513; microseconds name no unit."""
    rejection = verdict(change(commit_timestamp=17_144_759_841_234_567))
    assert isinstance(rejection, Rejection)
    assert rejection.reason is Reason.COMMIT_TIMESTAMP_IN_FUTURE
    assert "it fits units of 100 nanoseconds: 2024-04-30T11:19:44" in rejection.detail
    ahead = verdict(change(commit_timestamp=NOW + SKEW + 1))
    assert isinstance(ahead, Rejection)
    assert "it fits" not in ahead.detail


def test_a_change_that_is_too_old_is_not_called_too_late_or_of_an_unknown_table() -> None:
    """ING-6, DLQ-2: the first reason of the list."""
    limits = Limits(min_commit_timestamp=NOW + 1)
    found = reason(limits=limits, tables=frozenset({"other"}), horizon=NOW + 1)
    assert found is Reason.COMMIT_TIMESTAMP_TOO_OLD


def test_a_staged_change_has_no_time_that_could_be_wrong() -> None:
    """WRS-11: neither too old nor too late, and never ahead. Its table and its key count."""
    strict = Limits(max_record_bytes=ROOM, min_commit_timestamp=NOW, max_clock_skew_s=0)
    accepted = ChangeRecord(STAGED, 4)
    assert verdict(STAGED, limits=strict, horizon=NOW) == accepted
    assert verdict(STAGED, limits=strict, record_timestamp=-1000) == accepted
    assert reason(STAGED, tables=frozenset({"other"})) is Reason.UNKNOWN_TABLE


def test_a_release_is_too_late_as_a_change_is() -> None:
    """MRG-11, WRS-20: it is not limited to the tables of the stream."""
    for late in (change, row, release, truncation):
        at = {"commit_timestamp": NOW} if late is change else {"at": NOW}
        assert isinstance(verdict(late(**at), horizon=NOW), ChangeRecord)
        assert reason(late(**at), horizon=NOW + 1) is Reason.TOO_LATE
    assert isinstance(verdict(release(), tables=frozenset()), ChangeRecord)


def test_a_copy_of_an_accepted_truncation_is_no_dead_letter() -> None:
    """EVO-13: it counts from the first copy that is accepted. A newer one is another record."""
    accepted = {"t": (NOW, 0, 1)}
    copy = Truncate("p", "t", NOW, transaction=Transaction("x", 1))
    for repeated in (copy, truncation(NOW), truncation(NOW - 1)):
        for late in ({"horizon": NOW + 1}, {"record_timestamp": NOW - SKEW - 5}):
            verdicts = [verdict(repeated, **late, truncated=by) for by in ({}, accepted)]
            assert [isinstance(result, Rejection) for result in verdicts] == [True, False]
    for newer in (
        Truncate("p", "t", NOW, 1),
        Truncate("p", "u", NOW),
        change(commit_timestamp=NOW),
    ):
        assert reason(newer, horizon=NOW + 1, truncated=accepted) is Reason.TOO_LATE
    assert reason(copy, tables=frozenset({"u"}), truncated=accepted) is Reason.UNKNOWN_TABLE


def test_an_estimate_ahead_of_the_clock_is_kept() -> None:
    """REC-15: a watermark ignores its claim, and the change is valid."""
    assert isinstance(verdict(change(estimated_low_watermark=NOW * 1000)), ChangeRecord)


def test_an_unknown_table_is_kept_unless_the_stream_says_otherwise() -> None:
    assert isinstance(verdict(tables=None), ChangeRecord)
    assert isinstance(verdict(tables=frozenset({"t"})), ChangeRecord)
    assert reason(tables=frozenset({"other"})) is Reason.UNKNOWN_TABLE
    assert reason(truncation(), tables=frozenset({"other"})) is Reason.UNKNOWN_TABLE
    assert isinstance(verdict(Heartbeat("p", NOW), tables=frozenset()), ChangeRecord)


def test_of_several_faults_the_first_of_the_order_is_named() -> None:
    """DLQ-2: each step takes the first fault away, and the next one of the list comes to light."""
    late = change(commit_timestamp=NOW + SKEW + 1, change_sequence_number="1")
    good = encode(late, 4)
    assert good.count(b"\x02f\x00\x00\x00\x00\x00") == 1
    no_sequence = good.replace(b"\x02\x021", b"\x02\x02x")
    no_table = no_sequence.replace(b"\x02t\x02k", b"\x02!\x02k")
    no_family = no_table.replace(b"\x02f\x00\x00\x00\x00\x00", b"\x02!\x00\x00\x00\x00\x00")
    unknown_entry = no_family.replace(b"\x06\x02!", b"\x00\x02!")
    registry = Schemas({7: SCHEMA})
    single = frame(b"", None)
    steps: list[tuple[str, bytes]] = [
        ("TOO_LARGE", b"\xff" * (ROOM + 1)),
        ("UNKNOWN_FRAMING", unknown_entry),
        ("UNKNOWN_SCHEMA", b"\x00\x00\x00\x00\x08" + unknown_entry[:-1]),
        ("UNDECODABLE", b"\x00\x00\x00\x00\x07" + unknown_entry[:-1]),
        ("UNKNOWN_ENTRY", single + unknown_entry),
        ("INVALID FAMILY", single + no_family),
        ("INVALID TABLE", single + no_table),
        ("INVALID_SEQUENCE_NUMBER", single + no_sequence),
        ("KEY_MISMATCH", single + good),
    ]
    asked: dict[str, Any] = {"schemas": registry, "tables": frozenset()}
    for expected, value in steps:
        rejection = verdict(value=value, key=b"", **asked)
        assert isinstance(rejection, Rejection)
        assert f"{rejection.reason} {rejection.rule}".strip() == expected
    assert reason(late, **asked) is Reason.COMMIT_TIMESTAMP_IN_FUTURE
    assert reason(change(), **asked) is Reason.UNKNOWN_TABLE


@pytest.mark.parametrize("value", [None, b""])
def test_a_record_without_a_value_has_an_unknown_framing(value: bytes | None) -> None:
    """REC-16: a tombstone of a compacted topic, for one."""
    assert reason(value=value) is Reason.UNKNOWN_FRAMING


@pytest.mark.parametrize(
    "fields",
    [{"max_clock_skew_s": -1}, {"max_record_bytes": 0}, {"min_commit_timestamp": -1}],
)
def test_limits_that_make_no_sense_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Limits(**fields)


def test_the_limits_are_five_minutes_and_ten_megabytes() -> None:
    """REC-14, REC-15."""
    assert Limits() == Limits(max_clock_skew_s=300, max_record_bytes=10_000_000)
    assert Limits(max_clock_skew_s=0, max_record_bytes=1), "the least that makes sense"


def test_a_change_below_the_horizon_is_too_late() -> None:
    """MRG-11: the horizon itself is allowed, and only changes have an age."""
    assert isinstance(verdict(horizon=NOW), ChangeRecord)
    rejection = verdict(horizon=NOW + 1)
    assert rejection == Rejection(
        Reason.TOO_LATE,
        f"commit_timestamp is {view_of_time(NOW)}, the horizon was {view_of_time(NOW + 1)}",
    )
    assert isinstance(verdict(Heartbeat("p", NOW), horizon=NOW + 1), ChangeRecord)
    assert reason(tables=frozenset({"other"}), horizon=NOW + 1) is Reason.UNKNOWN_TABLE


@pytest.mark.parametrize(
    ("record", "fields", "expected"),
    [
        (
            change(),
            {"limits": Limits(max_record_bytes=3), "value": b"abc"},
            (Reason.TOO_LARGE, "key and value have 4 bytes, the limit is 3"),
        ),
        (
            change(commit_timestamp=NOW + SKEW + 7),
            {},
            (
                Reason.COMMIT_TIMESTAMP_IN_FUTURE,
                (
                    f"commit_timestamp is {NOW + SKEW + 7}, {SKEW + 7} µs after the record's"
                    f" arrival at {NOW}; 300 s are allowed"
                ),
            ),
        ),
        (
            Heartbeat("p", NOW + 1),
            {"limits": Limits(max_clock_skew_s=0)},
            (
                Reason.WATERMARK_IN_FUTURE,
                (
                    f"timestamp is {NOW + 1}, 1 µs after the record's arrival at {NOW}; 0 s are"
                    " allowed"
                ),
            ),
        ),
        (
            ChildPartitions("p", NOW + 1, 0, ()),
            {"limits": Limits(max_clock_skew_s=0)},
            (
                Reason.WATERMARK_IN_FUTURE,
                (
                    f"start_timestamp is {NOW + 1}, 1 µs after the record's arrival at {NOW}; 0 s"
                    " are allowed"
                ),
            ),
        ),
        (
            change(),
            {"tables": frozenset()},
            (Reason.UNKNOWN_TABLE, "no table of the stream has the source table t"),
        ),
    ],
    ids=["too large", "change", "heartbeat", "child partitions", "unknown table"],
)
def test_a_rejection_has_the_value_and_the_allowed_values(
    record: Record, fields: dict[str, Any], expected: tuple[Reason, str]
) -> None:
    """DLQ-2, DLQ-9: in figures, so that no user has to decode the record."""
    assert verdict(record, **fields) == Rejection(*expected)


def test_a_record_without_a_key_or_a_value_has_a_size() -> None:
    """REC-14"""
    assert reason(key=None, value=b"abc", limits=Limits(max_record_bytes=2)) is Reason.TOO_LARGE
    assert reason(key=b"abc", value=None, limits=Limits(max_record_bytes=2)) is Reason.TOO_LARGE
    assert (
        reason(key=b"abc", value=None, limits=Limits(max_record_bytes=3)) is Reason.UNKNOWN_FRAMING
    )


def test_more_kafka_partitions_than_the_topic_has_are_judged_by_what_it_has_now() -> None:
    """REC-14: the change names four."""
    assert isinstance(verdict(kafka_partitions=4), ChangeRecord)
    rejection = verdict(kafka_partitions=3)
    assert rejection == Rejection(
        Reason.INVALID,
        "kafka_partitions is 4, but must be at most 3, which the topic has",
        "KAFKA_PARTITIONS",
    )


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_of_a_schema_with_unknown_fields_is_rejected_if_the_stream_says_so(
    record: Record,
) -> None:
    """ING-3, EVO-10: by default it is accepted, without these fields."""
    asked = {
        "value": in_newer_schema(record, 4, 9),
        "schemas": Schemas({9: NEWER_SCHEMA, 8: SCHEMA}),
    }
    assert verdict(record, **asked) == ChangeRecord(record, 4)
    reject = Limits(unknown_fields=UnknownFields.REJECT)
    assert verdict(record, **asked, limits=reject) == Rejection(
        Reason.INVALID,
        "the schema 9 has fields that this release does not know: ChangeRecord.note,"
        " DataChange.colour",
        Rule.UNKNOWN_FIELDS,
    )
    known = {**asked, "value": framed(record, 4, 8)}
    assert verdict(record, **known, limits=reject) == ChangeRecord(record, 4)


SETS, DELETES = SetCell("f", b"q", b"v", 1), DeleteFamily("f")


@pytest.mark.parametrize(
    ("mod_type", "entries", "detail"),
    [
        (ModType.DELETE, (DELETES,), ""),
        (
            ModType.DELETE,
            (DELETES, SETS),
            "row_image.mod_type is DELETE, but the entries set cells",
        ),
        (ModType.INSERT, (DELETES, SETS), ""),
        (ModType.INSERT, (DELETES,), "row_image.mod_type is INSERT, but the entries set no cell"),
        (ModType.UPDATE, (SETS,), ""),
        (ModType.UPDATE, (DELETES,), ""),
    ],
)
def test_a_row_image_that_contradicts_the_entries_is_rejected_if_the_stream_says_so(
    mod_type: ModType, entries: tuple[DeleteFamily | SetCell, ...], detail: str
) -> None:
    """ING-7: by default it is accepted; without a row image there is nothing to compare."""
    record = change(entries=entries, row_image=RowImage(mod_type))
    assert verdict(record) == ChangeRecord(record, 4)
    reject = Limits(row_images=RowImages.REJECT)
    rejection = Rejection(Reason.INVALID, detail, Rule.ROW_IMAGE) if detail else None
    assert verdict(record, limits=reject) == (rejection or ChangeRecord(record, 4))
    plain = change(entries=entries)
    assert verdict(plain, limits=reject) == ChangeRecord(plain, 4)


@pytest.mark.parametrize(
    ("key", "value", "headers", "size"),
    [
        (None, None, (), 0),
        (b"key", None, (), 3),
        (b"key", b"value", (), 8),
        (None, None, (("\ud800", b"1"),), 3 + 1),
        (None, b"v", (("name", b"text"), ("näme", None)), 1 + 8 + 5),
    ],
)
def test_keys_values_and_headers_count(
    key: bytes | None, value: bytes | None, headers: tuple, size: int
) -> None:
    assert size_of(key, value, headers) == size


READ_AT = 1_795_653_500_413_362
LONG = st.integers(-(2**63), 2**63 - 1)
ABSURD_MS = {
    "none": -1,
    "zero": 0,
    "negative": -62_135_596_800_001,
    "seconds": READ_AT // 1_000_000,
    "microseconds": READ_AT,
    "nanoseconds": READ_AT * 1000,
    "far future": READ_AT // 1000 + 10**11,
    "greatest": 2**63 - 1,
    "least": -(2**63),
}


@pytest.mark.parametrize("milliseconds", ABSURD_MS.values(), ids=ABSURD_MS)
def test_an_absurd_time_is_not_believed(milliseconds: int) -> None:
    """REC-25: a number that a client wrote in another unit, or for no time at all."""
    assert arrival(milliseconds, by_broker=False, read_at=READ_AT) is None


@given(LONG, st.booleans())
def test_a_time_that_is_believed_is_possible(milliseconds: int, by_broker: bool) -> None:
    """REC-25: it is the record timestamp, and every later step can compute with it."""
    found = arrival(milliseconds, by_broker=by_broker, read_at=READ_AT)
    assert found in (None, milliseconds * 1000)
    assert found is None or EARLIEST_ARRIVAL <= found <= MAX_TIMESTAMP
    assert found is None or by_broker or found <= READ_AT + MAX_AHEAD_US


@given(st.integers(EARLIEST_ARRIVAL // 1000, (READ_AT + MAX_AHEAD_US) // 1000), st.booleans())
def test_a_possible_time_is_believed(milliseconds: int, by_broker: bool) -> None:
    """REC-25: also a minute ahead, because clocks differ."""
    assert arrival(milliseconds, by_broker=by_broker, read_at=READ_AT) == milliseconds * 1000


def test_the_clock_of_a_broker_may_be_ahead() -> None:
    """REC-25: a reader whose clock is an hour behind believes the brokers."""
    ahead = READ_AT // 1000 + 3_600_000
    assert arrival(ahead, by_broker=True, read_at=READ_AT) == ahead * 1000
    assert arrival(ahead, by_broker=False, read_at=READ_AT) is None

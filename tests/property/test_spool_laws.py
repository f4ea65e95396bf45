"""The pure parts of the spool: checksums, numbers, what a control record covers, times (PUB-3)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from connector.records.codec import encode, frame
from connector.records.model import CONTROL_KEY, DataChange, DeleteFamily, Heartbeat, kafka_key
from connector.records.spooled import (
    EVERYWHERE,
    Kind,
    SpooledRecord,
    checksum,
    covers,
    describe_losses,
    missing,
    pack_headers,
    spooled,
    unpack_headers,
)
from connector.watermarks import spooled_times
from connector.watermarks.delivery import Delivery
from connector.watermarks.spooled_times import SpooledTimes
from tests.property.strategies import VERSION_1_RECORDS

headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=4)
stored = st.builds(
    SpooledRecord,
    st.sampled_from(Kind),
    st.sampled_from("pq"),
    st.integers(0, 50),
    st.integers(-1, 5),
    st.binary(max_size=5),
    st.binary(max_size=5),
    headers.map(pack_headers),
)


@given(headers)
def test_headers_come_back(given_headers: list[tuple[str, bytes | None]]) -> None:
    assert unpack_headers(pack_headers(given_headers)) == given_headers


@given(VERSION_1_RECORDS, headers)
def test_a_record_comes_back_as_it_was(record, given_headers) -> None:
    """PUB-3, nothing_lost"""
    value = frame(encode(record, 3), 7)
    found = spooled(record, kafka_key(record), value, 2, given_headers)
    assert found.decoded() == record
    assert found.value == value
    assert found.is_claim == (not isinstance(record, DataChange))
    assert not spooled(record, b"", value, EVERYWHERE, [], is_ours=True).is_claim


@given(st.integers(1, 2**62), stored, st.integers(1, 2**62), stored)
def test_another_number_or_record_has_another_checksum(
    number: int, record: SpooledRecord, other_number: int, other: SpooledRecord
) -> None:
    if (number, record) == (other_number, other):
        assert checksum(number, record) == checksum(other_number, other)
    assert checksum(number, record) != checksum(number + 1, record)


@given(stored, st.data())
def test_a_byte_that_moves_between_two_parts_is_noticed(record: SpooledRecord, data) -> None:
    parts = record.key + record.value
    at = data.draw(st.integers(0, len(parts)))
    moved = record._replace(key=parts[:at], value=parts[at:])
    assert (checksum(1, moved) == checksum(1, record)) == (moved == record)


@given(st.sets(st.integers(1, 40)), st.integers(1, 20), st.integers(0, 20))
def test_each_missing_number_is_named_once(found: set[int], first: int, count: int) -> None:
    end = first + count
    ranges = list(missing(sorted(number for number in found if number >= first), first, end))
    named = [number for start, last in ranges for number in range(start, last + 1)]
    assert named == [number for number in range(first, end) if number not in found]


def test_losses_are_described_by_number() -> None:
    assert describe_losses([(5, 6), (9, 9)]) == "3 records (numbers 5 to 6, 9)"


@given(stored, st.lists(stored))
def test_what_a_control_record_does_not_cover_may_be_open(
    control: SpooledRecord, earlier: list[SpooledRecord]
) -> None:
    """PUB-3, REC-18, watermark: as `Delivery` decides it for a record that is not spooled."""
    open_ = [one.time for one in earlier if one.kind == Kind.CHANGE and one.stream_partition == "p"]
    control = control._replace(stream_partition="p")
    is_covered = any(covers(control, one) for one in earlier)
    match control.kind:
        case Kind.HEARTBEAT:
            assert is_covered == (min(open_, default=control.time + 1) <= control.time)
        case Kind.CHILD_PARTITIONS:
            assert is_covered == bool(earlier)
        case _:
            assert not is_covered


@given(st.lists(st.integers(0, 100), max_size=60), st.data())
def test_the_least_time_in_the_spool_is_never_too_high(times: list[int], data) -> None:
    """PUB-3, watermark: blocks of 3 changes, settled from the first one on."""
    spooled_times.CHANGES_PER_BLOCK, before = 3, spooled_times.CHANGES_PER_BLOCK
    try:
        found = SpooledTimes()
        for number, time in enumerate(times):
            found.add(number, time)
        for settled in sorted(data.draw(st.lists(st.integers(0, len(times))))):
            found.settled_below(settled)
            least, left = found.least(), times[settled:]
            assert (least is None) == (not left)
            assert least is None or least <= min(left)
            whole_blocks = times[settled - settled % 3 :]
            assert least is None or least == min(whole_blocks)
    finally:
        spooled_times.CHANGES_PER_BLOCK = before


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_a_change_counts_as_open_from_send_to_its_acknowledgement(times: list[int]) -> None:
    """PUB-3, watermark: also while it is in the spool."""
    delivery = Delivery()
    change = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        commit_timestamp=1,
        entries=(DeleteFamily("f"),),
    )
    for number, time in enumerate(times):
        delivery.sent(replace(change, commit_timestamp=time))
        delivery.to_spool(number, time)
        assert delivery.oldest_open() == min(times[: number + 1])
    for _ in times:
        delivery.spooled_acknowledged(None, is_change=True)
    assert delivery.spooled is not None
    delivery.spooled.settled_below(len(times))
    assert (delivery.oldest_open(), delivery.under_way) == (None, 0)
    heartbeat = Heartbeat("p", 5)
    assert spooled(heartbeat, CONTROL_KEY, b"", EVERYWHERE, []).time == 5


def test_the_kinds_of_spooled_records_have_fixed_numbers() -> None:
    """PUB-3: a spool of an earlier start has them."""
    assert [(one.name, one.value) for one in Kind] == [
        ("CHANGE", 0),
        ("ANNOUNCEMENT", 1),
        ("HEARTBEAT", 2),
        ("CHILD_PARTITIONS", 3),
    ]

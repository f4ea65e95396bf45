"""The pure parts of the outbox: rows, checksums, the times of stored changes (PUB-3)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from connector.kafka.produce.outbox_file import Kind, Row, _is_whole, headers_of, row_of
from connector.records.model import DataChange, DeleteFamily
from connector.watermarks.delivery import Delivery, StoredTimes

headers = st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5) | st.text(max_size=5)),
    max_size=4,
)
rows = st.builds(
    row_of,
    st.integers(1, 2**62),
    st.sampled_from(Kind),
    st.integers(-1, 5),
    st.binary(max_size=5),
    st.binary(max_size=5),
    headers,
)


@given(headers)
def test_headers_come_back(given_headers: list[tuple[str, str | bytes | None]]) -> None:
    """PUB-3, nothing_lost: a text comes back as its UTF-8, as Kafka stores it."""
    expected = [
        (name, value.encode() if isinstance(value, str) else value) for name, value in given_headers
    ]
    assert headers_of(row_of(1, 0, 0, b"k", b"v", given_headers)) == expected


@given(rows, rows)
def test_another_row_has_another_checksum(row: Row, other: Row) -> None:
    assert _is_whole(row)
    assert (row.checksum == other.checksum) == (row == other)
    assert not _is_whole(row._replace(number=row.number + 1))


@given(rows, st.data())
def test_a_byte_that_moves_between_two_parts_is_noticed(row: Row, data: st.DataObject) -> None:
    parts = row.key + row.value
    at = data.draw(st.integers(0, len(parts)))
    moved = row._replace(key=parts[:at], value=parts[at:])
    assert _is_whole(moved) == (moved == row)


@given(st.lists(st.integers(0, 100), max_size=60), st.data())
def test_the_least_time_in_the_outbox_is_never_too_high(
    times: list[int], data: st.DataObject
) -> None:
    """PUB-3, watermark_is_honest: changes are added and settled in any rhythm, and once all are
    settled, none is left.
    """
    stored, settled = StoredTimes(), 0
    for number, time in enumerate(times):
        stored.add(number, time)
        if data.draw(st.booleans()):
            settled = data.draw(st.integers(settled, number + 1))
            stored.settled_below(settled)
        left, least = times[settled : number + 1], stored.least()
        assert not left or (least is not None and least <= min(left))
    stored.settled_below(len(times))
    assert stored.least() is None


@given(st.lists(st.integers(1, 100), min_size=40, max_size=80))
def test_a_busy_outbox_does_not_hold_old_times_for_ever(times: list[int]) -> None:
    """PUB-1: the estimate of a change follows, at most two generations behind."""
    stored, ascending = StoredTimes(), sorted(times)
    for number, time in enumerate(ascending):
        stored.add(number, time)
        stored.settled_below(number - 4)
        least = stored.least()
        assert least is not None
        assert least >= ascending[max(0, number - 15)]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_a_change_counts_as_open_from_send_to_its_acknowledgement(times: list[int]) -> None:
    """PUB-3, watermark_is_honest: also while it is in the outbox. A heartbeat in the outbox needs
    to be below the failed ones only.
    """
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
        delivery.stored(number, time)
        assert delivery.oldest_open() == min(times[: number + 1])
        assert delivery.oldest_unsent() is None
    delivery.outbox.settled_below(len(times))
    assert (delivery.oldest_open(), delivery.under_way) == (None, 0)


def test_the_kinds_of_rows_have_fixed_numbers() -> None:
    """PUB-3: an outbox of an earlier start has them."""
    assert [(one.name, one.value) for one in Kind] == [
        ("CHANGE", 0),
        ("ANNOUNCEMENT", 1),
        ("HEARTBEAT", 2),
        ("CHILD_PARTITIONS", 3),
        ("AUTOMATIC_HEARTBEAT", 4),
        ("TRUNCATION", 5),
    ]

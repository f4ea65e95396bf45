from __future__ import annotations

from dataclasses import replace

import pytest

from connector.records.avro_encoder import encode_body, encode_row
from connector.records.model import (
    MAX_LONG,
    SERVER_TIME,
    DataChange,
    DeleteFamily,
    Heartbeat,
    OffsetRange,
    Release,
    SetCell,
    Transaction,
    Truncate,
    WriteStreamOffset,
)
from tests.fastavro_encoder import encode_with_fastavro

EDGES = sorted(
    {sign * 2**power + step for power in range(64) for sign in (1, -1) for step in (-1, 0, 1)}
)


def test_every_length_of_a_number_is_written_as_fastavro_writes_it() -> None:
    """REC-20."""
    for number in EDGES:
        if -MAX_LONG - 1 <= number <= MAX_LONG:
            entry = SetCell("f", b"q", b"v", max(number, 0))
            change = DataChange(
                stream_partition="p",
                table="t",
                row_key=b"k",
                commit_timestamp=1,
                tie_breaker=number,
                entries=(entry,),
            )
            assert encode_body(change, 4) == encode_with_fastavro(change, 4)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 8191, 8192, 16384])
def test_every_length_of_bytes_is_written_as_fastavro_writes_it(length: int) -> None:
    """REC-20."""
    change = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        commit_timestamp=1,
        entries=(SetCell("f", b"q" * length, b"v" * length),),
    )
    assert encode_body(change, 4) == encode_with_fastavro(change, 4)


def test_an_object_that_is_not_an_entry_is_a_bug() -> None:
    change = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        commit_timestamp=1,
        entries=(DeleteFamily("f"),),
    )
    object.__setattr__(change, "entries", ("entry",))
    with pytest.raises(AssertionError):
        encode_body(change, 1)


def test_a_heartbeat_byte_by_byte() -> None:
    assert (
        encode_body(Heartbeat("p", 7, b"r"), 4)
        == b"\x02p" + b"\x08" + b"\x00" + b"\x02\x0e\x02r" + b"\x00\x00\x00"
    )


def test_a_staged_row_and_a_release_byte_by_byte() -> None:
    """WRS-16: without a line of the encoder."""
    row = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        commit_timestamp=0,
        source_cluster_id="c",
        entries=(SetCell("f", b"q", b"hi", 7),),
        write_stream=WriteStreamOffset("job/a", 3),
    )
    before = b"\x02p" + b"\x08" + b"\x02" + b"\x02t\x02k\x00\x02c\x00\x00\x00\x00"
    cell = b"\x02\x02\x02f\x02q\x0e\x00\x00\x04hi\x00"
    assert encode_body(row, 4) == (
        before + cell + b"\x00\x00\x00" + b"\x02\x0ajob/a\x06" + b"\x00\x00\x00\x00"
    )
    release = Release("p", 7, (OffsetRange("job/a", 0, 4),))
    assert encode_body(release, 4) == (
        b"\x02p" + b"\x08" + b"\x00\x00\x00" + b"\x02\x0e" + b"\x02\x0ajob/a\x00\x08\x00\x00"
    )


def test_a_truncation_byte_by_byte() -> None:
    """EVO-13: without a line of the encoder."""
    truncate = Truncate("p", "t", 7, 3, Transaction("x", 1), "A/B")
    transaction = b"\x02" + b"\x02x\x02\x00\x02\x02\x00\x00"
    assert encode_body(truncate, 4) == (
        b"\x02p\x08\x00\x00\x00\x00\x02\x02t\x0e\x06" + transaction + b"\x02\x06A/B"
    )
    plain = b"\x02t\x0e\x00\x00\x00"
    assert encode_body(Truncate("p", "t", 7), 4) == b"\x02p\x08\x00\x00\x00\x00\x02" + plain


def test_an_append_of_a_staged_row_gives_server_time_and_keeps_all_other_times() -> None:
    """WRS-11: a time of 0 is a time, and the release does not change it."""
    cells = (SetCell("f", b"a", b"", SERVER_TIME), SetCell("f", b"b", b"", 0))
    row = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        commit_timestamp=0,
        entries=cells,
        write_stream=WriteStreamOffset("job/a", 0),
    )
    assert row.is_staged
    assert row.entries == cells
    body, appended = encode_row(row, 12, 70, 4)
    expected = replace(
        row,
        entries=(SetCell("f", b"a", b"", 70), SetCell("f", b"b", b"", 0)),
        write_stream=WriteStreamOffset("job/a", 12),
    )
    assert body == encode_body(expected, 4)
    assert encode_row(row, 12, 71, 5)[1] == appended


def test_a_row_has_a_write_stream() -> None:
    change = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        commit_timestamp=1,
        entries=(DeleteFamily("f"),),
    )
    with pytest.raises(AssertionError):
        encode_row(change, 0, 1, 4)

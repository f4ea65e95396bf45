from __future__ import annotations

import pytest

from connector.records.avro_encoder import encode_body
from connector.records.codec import encode_with_fastavro
from connector.records.model import MAX_LONG, DataChange, DeleteFamily, Heartbeat, SetCell

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


def test_what_is_no_entry_is_a_bug() -> None:
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
        == b"\x02p" + b"\x08" + b"\x00" + b"\x02\x0e\x02r" + b"\x00"
    )

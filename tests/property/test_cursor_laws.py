"""Numbers and lengths of many records are read as `connector.records.avro_decoder` reads each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from connector.engine.avro import Buffer, Cursor
from connector.records.avro_decoder import DamagedError, read_bytes, read_int, read_long
from tests.damaged_cases import EVIL, number
from tests.examples import tries

EDGES = [0, 1, 63, 64, 2**13, 2**27, 2**31 - 1, 2**31, 2**34, 2**55, 2**56, 2**62, 2**63 - 1]


def texts(rng: Random, count: int) -> Iterator[bytes]:
    """Numbers of every size, some in more bytes than they need, and bytes at random."""
    for _ in range(count):
        value = rng.choice(EDGES) if rng.random() < 0.3 else rng.getrandbits(rng.randrange(64))
        text = number(rng.choice((value, -value - 1)))
        match rng.randrange(6):
            case 0:  # not canonical
                longer = rng.randrange(1, 12)
                text = text[:-1] + bytes([text[-1] | 128]) + b"\x80" * (longer - 1) + b"\x00"
            case 1:
                text = rng.choice(EVIL)
            case 2:
                text = rng.randbytes(rng.randrange(12))
            case 3:
                text = text[: rng.randrange(len(text) + 1)]
            case 4:  # a length
                size = rng.randrange(200)
                text = number(size) + rng.randbytes(max(0, size + rng.choice((0, 0, -1, 1))))
        yield text


def assert_reads(
    given: Sequence[bytes],
    one: Callable[[bytes, int], tuple[Any, int]],
    many: Callable[[Cursor], Any],
    *,
    may_refuse: Callable[[bytes, Any], bool] = lambda text, value: False,
) -> int:
    """Both forms read the same, from each place. Returns how many values were read."""
    buffer = Buffer(pa.array(given, pa.binary()))
    cursor = Cursor(buffer, buffer.start.copy(), buffer.end)
    values = many(cursor)
    for text, value, start, position, is_good in zip(
        given, values, buffer.start, cursor.position, cursor.is_good, strict=True
    ):
        assert 0 <= position - start <= len(text), text
        try:
            wanted, end = one(text, 0)
        except (IndexError, DamagedError):
            assert not is_good, text
            continue
        if is_good:
            assert (value, position - start) == (wanted, end), text
        else:
            assert may_refuse(text, wanted), text
    return int(cursor.is_good.sum())


def spans_of(cursor: Cursor) -> list[bytes]:
    return cursor.binary(cursor.spans()).to_pylist()  # type: ignore[no-any-return]


def test_numbers_and_lengths_are_read_as_of_one_record(seed: int) -> None:
    """REC-13, ENG-2: whatever the bytes, and whatever bytes follow."""
    rng = Random(seed)
    for _ in tries(100):
        given = list(texts(rng, rng.choice((1, 10, 500))))
        found = [
            assert_reads(given, read_long, Cursor.long),
            assert_reads(
                given,
                read_int,
                Cursor.int_,
                # An int has no more than 32 bits, but a decoder drops them.
                may_refuse=lambda text, _: len(text) >= 5 and text[4] >= 16,
            ),
            assert_reads(given, read_bytes, spans_of),
        ]
        assert len(given) < 500 or min(found) > 50


def test_bytes_of_every_length_are_taken_from_the_end_of_the_buffer() -> None:
    """ENG-2: a span ends with the last value, and its bytes are all it has."""
    for size in range(40):
        text = bytes(range(1, size + 1))
        buffer = Buffer(pa.array([b"\xff" * 9 + text], pa.binary()))
        for start in range(size + 1):
            span = np.array([[9 + start], [size - start]])
            assert buffer.binary(span).to_pylist() == [text[start:]]


def test_the_buffer_of_a_part_of_an_array_has_only_its_bytes() -> None:
    values = pa.array([b"before", None, b"one", b"", b"two", b"behind"], pa.binary())
    buffer = Buffer(values.slice(1, 4))
    assert bytes(buffer.bytes).rstrip(b"\x00") == b"onetwo"
    assert (buffer.end - buffer.start).tolist() == [0, 3, 0, 3]


@pytest.mark.parametrize("values", [[], [None], [b""], [None, None]])
def test_there_may_be_no_bytes(values: list[bytes | None]) -> None:
    buffer = Buffer(pa.array(values, pa.binary()))
    cursor = Cursor(buffer, buffer.start.copy(), buffer.end)
    assert cursor.long().tolist() == [0] * len(values)
    assert not cursor.is_good.any()

"""In which slot of a changelog the rows are (TBL-4).

- -4: ranges of staged rows that were released.
- -3: frontiers that are too large for metadata.
- -2: rejected records.
- -1: control records.
- 16: staged rows of write streams, and those that expired.
- 0 to 15: changes, by a hash of the name of their source table. It is XXH64 with seed 42, as in
  Spark's function `xxhash64`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

TABLE_SLOTS: Final = 16
CONTROL_SLOT: Final = -1
REJECTED_SLOT: Final = -2
FRONTIER_SLOT: Final = -3
RELEASED_SLOT: Final = -4
STAGED_SLOT: Final = TABLE_SLOTS

SEED: Final = 42
_MASK: Final = 2**64 - 1
_PRIME_1: Final = 0x9E3779B185EBCA87
_PRIME_2: Final = 0xC2B2AE3D27D4EB4F
_PRIME_3: Final = 0x165667B19E3779F9
_PRIME_4: Final = 0x85EBCA77C2B2AE63
_PRIME_5: Final = 0x27D4EB2F165667C5


@lru_cache(maxsize=1024)
def table_slot(source: str) -> int:
    """Return the slot with the changes of a source table."""
    signed = xxh64(source.encode(), SEED)
    return (signed - 2**64 if signed >= 2**63 else signed) % TABLE_SLOTS


def xxh64(data: bytes, seed: int = 0) -> int:
    """Return the XXH64 of some bytes, from 0 to 2^64 - 1."""
    place = len(data) - len(data) % 32
    if place:
        lanes = [(seed + start) & _MASK for start in (_PRIME_1 + _PRIME_2, _PRIME_2, 0, -_PRIME_1)]
        for start in range(0, place, 8):
            lane = start // 8 % 4
            lanes[lane] = _round(lanes[lane], int.from_bytes(data[start : start + 8], "little"))
        found = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * _PRIME_1 + _PRIME_4) & _MASK
    else:
        found = (seed + _PRIME_5) & _MASK
    return _avalanche(_tail((found + len(data)) & _MASK, data[place:]))


def _tail(found: int, rest: bytes) -> int:
    """The last bytes, fewer than 32: eight at a time, then four, then one."""
    while len(rest) >= 8:
        found ^= _round(0, int.from_bytes(rest[:8], "little"))
        found, rest = (_rotated(found, 27) * _PRIME_1 + _PRIME_4) & _MASK, rest[8:]
    if len(rest) >= 4:
        found ^= int.from_bytes(rest[:4], "little") * _PRIME_1 & _MASK
        found, rest = (_rotated(found, 23) * _PRIME_2 + _PRIME_3) & _MASK, rest[4:]
    for byte in rest:
        found = _rotated(found ^ (byte * _PRIME_5 & _MASK), 11) * _PRIME_1 & _MASK
    return found


def _avalanche(found: int) -> int:
    found = (found ^ found >> 33) * _PRIME_2 & _MASK
    found = (found ^ found >> 29) * _PRIME_3 & _MASK
    return found ^ found >> 32


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _PRIME_2) & _MASK, 31) * _PRIME_1 & _MASK


def _rotated(number: int, by: int) -> int:
    number &= _MASK
    return (number << by | number >> 64 - by) & _MASK

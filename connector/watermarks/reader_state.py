"""The state of a reader of whole transactions, as bytes that a program stores (SUB-3)."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from connector.errors.kafka import reader_state_invalid
from connector.stored import from_stored, to_stored
from connector.watermarks.frontier import UNKNOWN, Frontier


class OrderPlace(NamedTuple):
    """The place of a transaction in the order of release."""

    commit_timestamp: int
    server_transaction_id: str
    kafka_partition: int
    offset: int


class Aside(NamedTuple):
    """A record that is not a part of a transaction, and whether it was acknowledged."""

    kafka_partition: int
    offset: int
    is_duplicate: bool
    is_acknowledged: bool


@dataclass(frozen=True, slots=True)
class ReaderState:
    """From where a reader of whole transactions continues.

    - `offsets` has, for each Kafka partition, the oldest unacknowledged offset and the next one.
    - `acknowledged` is the place of the last acknowledged transaction.
    - `asides` are those between the two offsets.
    - `staged` has, for each Kafka partition, the offset after the last acknowledged staged row.
    """

    topic: str
    topic_id: str
    offsets: Mapping[int, tuple[int, int]]
    acknowledged: OrderPlace
    asides: tuple[Aside, ...]
    frontier: Frontier = UNKNOWN
    staged: Mapping[int, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Convert to bytes. `from_bytes` is the inverse."""
        stored = to_stored(replace(self, frontier=UNKNOWN))
        return json.dumps({**stored, "frontier": self.frontier.to_json()}).encode()

    @staticmethod
    def from_bytes(text: bytes) -> ReaderState:
        """Raises `ConfigError` if the bytes are not a state."""
        try:
            stored = json.loads(text)
            frontier = Frontier.from_json(stored.pop("frontier"))
            state = replace(from_stored(ReaderState, stored), frontier=frontier)
            for k, (oldest, following) in state.offsets.items():
                if not (k >= 0 and 0 <= oldest <= following):
                    raise ValueError(f"Kafka partition {k} has the offsets {oldest}, {following}")
            return state
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise reader_state_invalid(str(error)) from error


def to_pieces(state: bytes, count: int) -> list[str] | None:
    """Return a state as texts of ASCII, each at most `MAX_PIECE_BYTES`. `from_pieces` is the
    inverse. None: it does not fit into so many.
    """
    text = base64.b85encode(zlib.compress(state, 9)).decode()
    room = MAX_PIECE_BYTES - len(_head(count, count, 0))
    needed = max(1, -(-len(text) // room))
    if needed > count:
        return None
    check = zlib.crc32(state)
    return [
        _head(number, needed, check) + text[number * room : (number + 1) * room]
        for number in range(needed)
    ]


def from_pieces(pieces: Mapping[int, str]) -> bytes:
    """Return the state of texts by number, which may have others behind. Raises `ValueError` if
    they are not the pieces of one state.
    """
    matched = _HEAD.match(pieces.get(0, ""))
    if matched is None:
        raise ValueError("the first piece is not one of a state")
    needed, check = int(matched[2]), int(matched[3], 16)
    text = ""
    for number in range(needed):
        head = _head(number, needed, check)
        if not pieces.get(number, "").startswith(head):
            raise ValueError(f"piece {number} is not one of the same state")
        text += pieces[number][len(head) :]
    try:
        state = zlib.decompress(base64.b85decode(text))
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if zlib.crc32(state) != check:
        raise ValueError("the pieces are damaged")
    return state


def is_piece(text: str) -> bool:
    """Return whether a text is a piece of a state."""
    return _HEAD.match(text) is not None


def _head(number: int, needed: int, check: int) -> str:
    return f"transactions.v1 {number} {needed} {check:08x} "


_HEAD: Final = re.compile(r"transactions\.v1 (\d{1,6}) (\d{1,6}) ([0-9a-f]{8}) ")
MAX_PIECE_BYTES: Final = 4000
"""By default, a broker takes 4,096 bytes of metadata for each Kafka partition."""

NOTHING: Final = OrderPlace(0, "", -1, -1)

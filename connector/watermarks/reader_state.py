"""The state of a reader of whole transactions, as bytes that a program stores (SUB-3)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from connector.errors import ConfigError, ErrorCode
from connector.stored import from_stored, to_stored
from connector.watermarks.frontier import UNKNOWN, Frontier


class Place(NamedTuple):
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
    """

    topic: str
    topic_id: str
    offsets: Mapping[int, tuple[int, int]]
    acknowledged: Place
    asides: tuple[Aside, ...]
    frontier: Frontier = UNKNOWN

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
            raise ConfigError(
                ErrorCode.READER_STATE_INVALID,
                "The given state is not a state of a reader",
                str(error),
                "Pass the bytes that state() returned, or read without a state",
            ) from error


NOTHING: Final = Place(0, "", -1, -1)

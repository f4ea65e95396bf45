"""The arguments of readers that are values: a group, a range of commit time, and the settings of
the stream.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from connector.errors import argument_invalid
from connector.kafka import client
from connector.records.model import MAX_LONG, MAX_TIMESTAMP
from connector.records.rejection import Position
from connector.validation import Limits

if TYPE_CHECKING:
    from connector.config.settings import RegistryConfig

Start = Literal["beginning", "end"] | int | tuple[Position, ...]
"""Where to start. An `int` is a record timestamp in microseconds. Positions are those of a
consumer (`ChangeConsumer.positions`). Kafka partitions that they lack are read from the beginning.
"""

_BUFFERED_BYTES: Final = (1024, 1024**4)


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group, whose stored positions are where to start. Raises `ConfigError`.

    - `name` is the name of the group.
    - `start` is where to start without a stored position.
    - `replays`: the replays of the group's dead letters are read, too, between the records of the
      topic (SUB-4).
    """

    name: str
    start: Start = "beginning"
    replays: bool = False

    def __post_init__(self) -> None:
        client.check_id("group", self.name)
        check_start(self.start)


@dataclass(frozen=True, slots=True)
class CommitRange:
    """Commit timestamps from `start` to `end` (µs), both included. None: it is open on this side.

    `end` may be in the future. Raises `ConfigError` if no time can be such a number.
    """

    start: int | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("start", self.start), ("end", self.end)):
            if value is not None:
                _check_number(f"CommitRange.{name}", value, 0, MAX_TIMESTAMP, "microseconds")

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest commit timestamp."""
        return self.start or 0, MAX_LONG if self.end is None else self.end


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of the stream, as far as a reader needs them.

    - `registry` is the schema registry.
    - `limits` are those of the stream.
    - `tables` are the declared source tables. None: changes of any table are accepted.
    - `roots` are the root stream partitions, if you know them. Then a reader that starts in the
      middle of the topic need not find their announcements to know the low watermark.

    Raises `ConfigError` if one text is given in place of several.
    """

    registry: RegistryConfig | None = None
    limits: Limits = field(default_factory=Limits)
    tables: frozenset[str] | None = None
    roots: Collection[str] = ()

    def __post_init__(self) -> None:
        # A text is a collection of texts, too, so it would not fail later.
        for name, value in (("tables", self.tables), ("roots", self.roots)):
            if isinstance(value, str):
                raise argument_invalid(name, value, "several names, for example ['p0']")


def check_start(start: object) -> None:
    """Raises `ConfigError` if a text is not one of a `Start`."""
    if isinstance(start, str) and start not in ("beginning", "end"):
        allowed = "beginning, end, a time in microseconds, or positions"
        raise argument_invalid("start", start, allowed)


def check_buffered_bytes(value: int) -> None:
    """Raises `ConfigError` if `max_buffered_bytes` is out of its range."""
    _check_number("max_buffered_bytes", value, *_BUFFERED_BYTES, "bytes")


def _check_number(name: str, value: int, least: int, most: int, unit: str) -> None:
    if not least <= value <= most:
        raise argument_invalid(name, value, f"from {least:,} to {most:,} {unit}")

"""The order of changes. It is total, and it does not depend on arrival (MRG-1 to MRG-3, REC-10).

Every entry of every change has its own `ChangeOrder`. The larger order wins. An order has three
parts, compared from left to right:

    rank          the order at the source. In a table ordered by commit:
                  (commit_timestamp, tie_breaker, record_sequence or 0).
                  In a table ordered by sequence number: its four sections
    position      the order position. It decides only between changes that are equal at the source
    entry_index   the index of the entry in its change: entries apply in order

Do not compare orders of two tables. Within one table, all ranks are of the same kind.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from connector.errors import InvalidChangeError
from connector.records.model import DataChange, Mutation

SECTIONS: Final = 4
SECTION_MAX: Final = 2**64 - 1

Rank = tuple[int, ...]
"""The place of a record in the order of the source. All ranks of a table have the same length."""

_is_position = re.compile(
    r"(0|[1-9][0-9]*)/(0|[1-9][0-9]*)/(0|[1-9][0-9]*)/(0|[1-9][0-9]*)"
).fullmatch
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OrderBy(StrEnum):
    """The field that decides which change of a row is newer. It is the same for the whole table."""

    COMMIT = "commit"
    SEQUENCE_NUMBER = "change_sequence_number"


class OrderPosition(NamedTuple):
    """The place where a change was first delivered (MRG-3).

    `ingest_batch` is the number of the changelog, not the batch id of Spark. A replayed dead letter
    keeps the batch, partition and offset of the dead letter, and has its own attempt. All other
    changes have attempt 0.
    """

    ingest_batch: int
    kafka_partition: int
    offset: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.ingest_batch}/{self.kafka_partition}/{self.offset}/{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> OrderPosition:
        """The inverse of `str()`. Raises `ValueError` for any other text, as `07/0/1/0`."""
        match = _is_position(text)
        if match is None:
            raise ValueError(f"{text!r} is no order position such as 7/0/123/0")
        return cls(*(int(part) for part in match.groups()))

    @classmethod
    def of_letter(cls, text: str) -> OrderPosition:
        """The inverse of `str()`. For any other text, as another program may write it, the position
        after all others: ingest will place the change of the letter there.
        """
        try:
            return cls.parse(text)
        except ValueError:
            return cls(2**62, 0, 0)


class ChangeOrder(NamedTuple):
    """The place of one entry in the order of a table. No two entries have the same."""

    rank: Rank
    position: OrderPosition
    entry_index: int

    def __str__(self) -> str:
        """The name of the entry within its row: the order position of its change, and its index."""
        return f"{self.position}#{self.entry_index}"

    @property
    def age(self) -> int:
        """The value that the horizon is compared with (MRG-10, MRG-12).

        It is the commit timestamp (µs). In a table ordered by sequence number, it is the ingest
        batch.
        """
        return self.position.ingest_batch if len(self.rank) == SECTIONS else self.rank[0]


def change_order(
    change: DataChange, position: OrderPosition, order_by: OrderBy, entry_index: int = 0
) -> ChangeOrder:
    """Return the order of one entry of a change.

    In a table ordered by sequence number, the change must have a sequence number (MRG-2).
    """
    assert 0 <= entry_index < len(change.entries), (entry_index, len(change.entries))
    rank = rank_of(change, order_by)
    assert rank is not None, "a change without a sequence number is a dead letter, not an entry"
    return ChangeOrder(rank, position, entry_index)


def rank_of(record: Mutation, order_by: OrderBy) -> Rank | None:
    """Return the rank of a change or truncation in a table with this order. It has no ingest
    position, so a truncation and a change may be equal (EVO-13).

    None: the table is ordered by sequence number, and the record has none (MRG-2).
    """
    if order_by is OrderBy.COMMIT:
        return commit_rank(record)
    number = record.change_sequence_number
    return None if number is None else sections_of(number)


def commit_rank(record: Mutation) -> Rank:
    """Return the rank in a table ordered by commit."""
    record_sequence = record.transaction.record_sequence if record.transaction else 0
    return (record.commit_timestamp, record.tie_breaker, record_sequence)


def sections_of(number: str) -> tuple[int, ...]:
    """Return the four sections of a valid number. Missing ones are 0 (REC-10)."""
    sections = [int(section, 16) for section in number.split("/")]
    return (*sections, *[0] * (SECTIONS - len(sections)))


def sequence_number(*parts: int | datetime) -> str:
    """Build a change sequence number from 1 to 4 parts, the most significant part first (REC-10).

    For example, `sequence_number(datetime(2024, 4, 30, 11, 19, 44, tzinfo=UTC), 7)` returns
    `"18F2EBB6480/7"`.

    Args:
        parts: Integers from 0 to 2^64 - 1, or times with a zone. A time becomes whole milliseconds
            since 1970, rounded down.

    Returns:
        The sections in upper-case hexadecimal digits, separated by `/`.

    Raises:
        InvalidChangeError: There are no parts or more than 4, or a part is not allowed.
    """
    if not 1 <= len(parts) <= SECTIONS:
        raise InvalidChangeError(
            "INVALID_SEQUENCE_NUMBER", "change_sequence_number", "made of 1 to 4 parts", parts
        )
    return "/".join(f"{_section(part):X}" for part in parts)


def _section(part: int | datetime) -> int:
    if isinstance(part, datetime) and part.utcoffset() is not None:
        part = (part - _EPOCH) // timedelta(milliseconds=1)
    if (
        isinstance(part, (bool, datetime))
        or not isinstance(part, int)
        or not 0 <= part <= SECTION_MAX
    ):
        limit = "made of integers from 0 to 2^64 - 1 and times with a zone, from 1970 on"
        raise InvalidChangeError("INVALID_SEQUENCE_NUMBER", "change_sequence_number", limit, part)
    return part

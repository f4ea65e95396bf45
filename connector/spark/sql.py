"""Parts that several SQL expressions share: constants that keep the generated code the same, and
the limit of a claimed time.
"""

from __future__ import annotations

from connector.records.model import MAX_LONG, MAX_TIMESTAMP


def constant(number: int, place: str) -> str:
    """A number that differs from batch to batch, in generated code that stays the same.

    The JVM then reuses the compiled code. A literal would be part of the code. An array is passed
    to it, and stays an array if the index is not a literal. `place` is any integer column that is
    never null.
    """
    return f"get(array({number}L), {place} * 0)"


def skew_us(max_clock_skew_s: int) -> int:
    """The microseconds by which a time may be ahead of its record's arrival.

    A valid time minus this number cannot overflow. Therefore it is subtracted from the time, and
    not added to the arrival, which can be any number.
    """
    return min(max_clock_skew_s * 1_000_000, MAX_LONG - MAX_TIMESTAMP)

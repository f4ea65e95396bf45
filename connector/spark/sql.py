"""What several expressions in SQL have in common: numbers that keep the generated code the same, and the bound of a claimed time."""

from __future__ import annotations

from connector.records.model import MAX_LONG, MAX_TIMESTAMP


def constant(number: int, place: str) -> str:
    """A number that differs from batch to batch, in code that does not: the JVM then keeps what it has compiled.

    A literal would stand in that code; an array is handed to it, and stays one where the index is not a literal. `place` is any
    integer column, never null.
    """
    return f"get(array({number}L), {place} * 0)"


def skew_us(max_clock_skew_s: int) -> int:
    """The microseconds that a time may lie ahead of its record's arrival, such that a time in range minus them cannot overflow.

    They are taken from the time, not added to the arrival, which may be anything.
    """
    return min(max_clock_skew_s * 1_000_000, MAX_LONG - MAX_TIMESTAMP)

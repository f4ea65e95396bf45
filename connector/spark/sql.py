"""SQL text whose generated code stays the same from batch to batch: the JVM then keeps what it has compiled."""

from __future__ import annotations


def constant(number: int, place: str) -> str:
    """A number that differs from batch to batch, in code that does not.

    A literal would stand in that code; an array is handed to it, and stays one where the index is not a literal. `place` is any
    integer column, never null.
    """
    return f"get(array({number}L), {place} * 0)"

"""Rows that are worked out once and used several times, and let go when the work is over.

Spark forgets a frame's stored rows only when Python and the JVM have both forgotten the frame, which may take many rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from pyspark.sql import DataFrame


class Keep(Protocol):
    """Makes a frame that stores its rows when they are first worked out, or, `eager`, at once."""

    def __call__(self, frame: DataFrame, *, eager: bool = False) -> DataFrame: ...


def keep_on(frame: DataFrame, *, eager: bool = False) -> DataFrame:
    """A `Keep`, for as long as anybody has the frame."""
    return frame.localCheckpoint(eager)


def keep_nothing(frame: DataFrame, *, eager: bool = False) -> DataFrame:  # noqa: ARG001
    """A `Keep` that does not: the rows are worked out each time."""
    return frame


@contextmanager
def keeping() -> Iterator[Keep]:
    """Yields what keeps rows until the end of the block; frames that were made of them are of no use then."""
    kept: list[DataFrame] = []

    def keep(frame: DataFrame, *, eager: bool = False) -> DataFrame:
        kept.append(keep_on(frame, eager=eager))
        return kept[-1]

    try:
        yield keep
    finally:
        for frame in kept:
            stored: Any = frame._jdf.queryExecution().logical()
            stored.rdd().unpersist(False)

"""Rows that are computed once, used several times, and released at the end.

Spark releases the stored rows of a frame only when Python and the JVM have both released the frame.
That may take many rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from pyspark.sql import DataFrame


class Keep(Protocol):
    """Makes a frame that stores its rows when they are first computed. `eager`: it stores them at
    once.
    """

    def __call__(self, frame: DataFrame, *, eager: bool = False) -> DataFrame: ...


def keep_on(frame: DataFrame, *, eager: bool = False) -> DataFrame:
    """A `Keep` that stores the rows while the frame is in use."""
    return frame.localCheckpoint(eager)


def keep_nothing(frame: DataFrame, *, eager: bool = False) -> DataFrame:  # noqa: ARG001
    """A `Keep` that stores nothing: the rows are computed each time."""
    return frame


@contextmanager
def keeping() -> Iterator[Keep]:
    """Yield a `Keep` that stores rows until the end of the block. Then frames made from them can no
    longer be used.
    """
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

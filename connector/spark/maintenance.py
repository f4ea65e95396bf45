"""Maintenance of Delta tables: few files of many small ones, and none that no version needs (TBL-15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from connector.errors import ConnectorError
from connector.spark.delta_log import quoted, session_saying, session_with
from connector.spark.failures import first_line
from connector.upkeep import Mark

KEPT_HOURS: Final = 7 * 24
"""Files of older versions stay so long: for who reads one, or a cut (TBL-17)."""

_COMPACTING: Final = {
    # Files of a good size stay as they are, or every compaction would write the whole table again.
    "spark.databricks.delta.optimize.minFileSize": str(32 * 1024 * 1024),
    "spark.databricks.delta.optimize.maxFileSize": str(128 * 1024 * 1024),
}
_CLEANING: Final = {
    # It would make commits, which say nothing of ours.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # Folders are listed by as many tasks as that, 10,000 unless it is said.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}


class Upkeep:
    """The maintenance of `what`, a table or a changelog, by the process that writes it. What fails is said, and tried again later.

    `mark` asks how many commits it has had. `clean` gets the time in microseconds.
    """

    def __init__(
        self,
        what: str,
        mark: Callable[[], Mark],
        compact: Callable[[], None],
        clean: Callable[[int], None],
        say: Callable[[str], None],
        compact_every: int | None = None,
    ) -> None:
        self._compact_every = compact_every
        self._what, self._mark, self._compact, self._clean, self._say = what, mark, compact, clean, say
        self._compacted = self._cleaned = mark()

    def after_round(self, now: int) -> None:
        """Do what is due. Between applies; raises nothing that an apply should not raise for itself."""
        try:
            reached = Mark(self._mark().number, now)
            if self._compacted.compacts(reached, self._compact_every):
                self._compacted = reached
                self._compact()
                self._say(f"{self._what}: small files are put together")
            if self._cleaned.cleans(reached):
                self._cleaned = reached
                self._clean(now)
                self._say(f"{self._what}: files of old versions are removed")
        except (ConnectorError, PySparkException, Py4JError) as error:
            self._say(f"{self._what}: maintenance failed, and is tried again later: {first_line(error, type(error).__name__)}")


def compact(spark: SparkSession, path: str, metadata: str) -> None:
    """Put the small files of each partition together, in one commit that bears `metadata`, or in none if there are no two of them.

    No row changes. Where others commit meanwhile, `metadata` may be out of date: keep them out.
    """
    session_saying(spark, metadata, _COMPACTING).sql(f"OPTIMIZE {quoted(path)}")


def clean(spark: SparkSession, path: str) -> None:
    """Remove the files that no version of the last `KEPT_HOURS` needs. Makes no commit; others may write meanwhile."""
    session_with(spark, _CLEANING).sql(f"VACUUM {quoted(path)} RETAIN {KEPT_HOURS} HOURS")

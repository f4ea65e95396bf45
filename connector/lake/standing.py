"""Where a stream and its tables stand, from the newest commits of their Delta tables, without a JVM (OPS-5, TBL-20)."""

from __future__ import annotations

from connector.errors import TableError
from connector.lake.plain_table import newest_bookkeeping
from connector.progress import Progress
from connector.watermark import UNKNOWN


def progress_of(warehouse: str, stream: str) -> Progress:
    """The newest progress of a stream, without its frontier; that of a stream that was never ingested, if there is no changelog.

    Raises `TableError` if the changelog cannot be read.
    """
    path = f"{warehouse}/streams/{stream}/changelog"
    said = newest_bookkeeping(path)
    if said is None:
        return Progress()
    if said.get("stream") != stream:
        raise TableError(
            f"The newest commit of {path} is not of stream {stream}",
            "Somebody else wrote to the changelog",
            "Restore it to our last version",
        )
    return Progress.from_json(said["progress"], UNKNOWN)

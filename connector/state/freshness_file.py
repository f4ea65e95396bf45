"""The file beside a changelog with the time at which ingest last asked Kafka and had nothing to
read (TBL-24).

An idle stream overwrites it in place of a commit. It names its batch by the topic and the end
offsets. Readers use it if it is newer than the newest commit. Without it, or if it is damaged, a
state looks older than it is, but never younger.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connector.state.stream_progress import Progress
from connector.stored import from_stored, from_text, to_stored
from connector.watermarks.freshness import EndOffsets


@dataclass(frozen=True, slots=True)
class FreshnessFile:
    """The content of the file: the topic, and its end offsets at a time (µs)."""

    topic_id: str
    at: int
    ends: Mapping[int, int]

    def to_text(self) -> str:
        """Convert to the text of the file: a line with the content, and its checksum."""
        content = json.dumps(to_stored(self), separators=(",", ":"))
        return f"{content}\n{_checksum(content)}"

    @staticmethod
    def from_text(text: str) -> FreshnessFile | None:
        """Read the text of the file. None: it is damaged."""
        content, _, checksum = text.partition("\n")
        if checksum != _checksum(content):
            return None
        try:
            return from_text(FreshnessFile, content)
        except (RecursionError, ValueError):
            return None


def _checksum(content: str) -> str:
    return f"{zlib.crc32(content.encode('utf-8', 'surrogatepass')):08x}"


def with_file(progress: Progress, stored: Mapping[str, Any], text: str | None) -> Progress:
    """Return a progress with the freshness of the file, if the file is newer.

    Args:
        progress: That of the newest commit of the changelog.
        stored: The metadata of this commit.
        text: The text of the file. None: there is no file.
    """
    if text is None or stored["ingest_batch"] != progress.ingest_batch:
        return progress
    known = FreshnessFile.from_text(text)
    if known is None or known.topic_id != stored["topic_id"]:
        return progress
    if known.at <= (progress.freshness.newest or 0):
        return progress
    read_to = from_stored(dict[int, int], stored["end_offsets"])
    asked = EndOffsets(known.at, known.ends)
    return progress.renewed(read_to, asked, progress.open_transactions)

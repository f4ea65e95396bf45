"""Write streams and their releases."""

from __future__ import annotations

from connector.errors import ConfigError, WriteStreamError


def release_unknown(stream: str, write_stream: str, releases: str, remedy: str) -> ConfigError:
    return ConfigError(
        "RELEASE_UNKNOWN",
        f"The write stream {write_stream} of stream {stream} has no such withheld release",
        releases,
        remedy,
        stream=stream,
        write_stream=write_stream,
    )


def release_withheld(stream: str, write_streams: str, commit_timestamp: str) -> WriteStreamError:
    return WriteStreamError(
        "RELEASE_WITHHELD",
        f"The release of {write_streams} of {commit_timestamp} in stream {stream} is withheld: no"
        " table shows its rows",
        "Some of its rows were rejected, or were never sent. The commit itself is done",
        "Repair and replay the dead letters, or release it without the rejected rows",
        stream=stream,
        commit_timestamp=commit_timestamp,
    )


def release_too_late(stream: str, write_streams: str, commit_timestamp: str) -> WriteStreamError:
    return WriteStreamError(
        "RELEASE_TOO_LATE",
        f"The release of {write_streams} of {commit_timestamp} in stream {stream} is too late: no"
        " table shows its rows",
        "Its commit timestamp is below the horizon. The commit itself is done",
        "Release it again, with a new commit timestamp. For a backfill, export the rows again, and"
        " load them while the pipeline runs",
        stream=stream,
        commit_timestamp=commit_timestamp,
    )


def rows_not_shown(
    stream: str, timeout_s: str, commit_timestamp: str, waits_for: str, **fields: object
) -> WriteStreamError:
    return WriteStreamError(
        "ROWS_NOT_SHOWN",
        f"After {timeout_s} s, not every table of stream {stream} shows the rows of the commit of"
        f" {commit_timestamp}",
        f"The commit is done. It waits for {waits_for}",
        "Commit the same write streams again to go on waiting",
        stream=stream,
        **fields,
    )

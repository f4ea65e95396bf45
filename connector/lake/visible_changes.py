"""The changes of a source table that a changelog shows, without a JVM (WRS-19).

Staged rows count as changes of the batch that completed their release. The pipeline decides the
same with `Changelog._changes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from connector.lake.plain_table import PlainTable
from connector.lake.small_tables import quoted
from connector.state.changelog_slots import RELEASED_SLOT, STAGED_SLOT, table_slot
from connector.state.reading import reading
from connector.stored import from_stored

_CHANGES: Final = """
    SELECT {columns} FROM t
    WHERE slot = {slot} AND kind = 'change' AND "table" = {source} AND {where}
"""
_RELEASED: Final = f"""
    WITH ranges AS (
        SELECT release['ranges'][1]['stream'] AS stream, release['ranges'][1]['first'] AS first,
            release['ranges'][1]['upto'] AS upto, commit_timestamp, released_from,
            ingest_batch, stream_partition
        FROM t WHERE slot = {RELEASED_SLOT} AND kind = 'released'),
    staged AS (
        SELECT *, write_stream['stream'] AS stream, write_stream['offset'] AS row FROM t
        WHERE slot = {STAGED_SLOT} AND kind = 'staged' AND "table" = {{source}}),
    released AS (
        SELECT topic, topic_id, ranges.ingest_batch AS ingest_batch, kafka_partition, "offset",
            record_timestamp, "table", row_key, ranges.commit_timestamp AS commit_timestamp,
            tie_breaker, named_struct('server_transaction_id', '', 'record_sequence', row)
                AS "transaction",
            change_sequence_number, entries, order_position,
            ranges.stream_partition AS stream_partition, change_type, source_cluster_id
        FROM staged JOIN ranges ON staged.stream = ranges.stream
            AND row >= ranges.first AND row < ranges.upto
            AND staged.ingest_batch BETWEEN ranges.released_from AND ranges.ingest_batch)
    SELECT {{columns}} FROM released WHERE {{where}}
"""  # noqa: S608, numbers of slots


def visible_changes(
    changelog: PlainTable, columns: str, source: str, where: str = "true"
) -> Iterator[tuple[Any, ...]]:
    """These columns, as SQL, of the visible changes of a source table for which `where` is true.

    Raises `TableError` if the changelog cannot be read.
    """
    parts = {"columns": columns, "source": quoted(source), "where": where}
    yield from changelog.query(_CHANGES.format(slot=table_slot(source), **parts))
    if _may_have_released(changelog):
        yield from changelog.query(_RELEASED.format(**parts))


def _may_have_released(changelog: PlainTable) -> bool:
    """Whether some rows were released. The newest commit says so, if it is one of lowmark."""
    if "release" not in changelog.types:
        return False
    if not changelog.stored:
        return True
    with reading(changelog.path):
        releases = changelog.stored["progress"].get("releases", {})
        return from_stored(int, releases.get("released_to", 0)) > 0

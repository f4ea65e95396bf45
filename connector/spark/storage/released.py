"""The staged rows of a changelog that were released, as changes (WRS-19)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.state.changelog_slots import RELEASED_SLOT, STAGED_SLOT, TABLE_SLOTS

_RANGES: Final = (
    "release.ranges[0].stream AS _stream",
    "release.ranges[0].first AS _first",
    "release.ranges[0].upto AS _upto",
    "commit_timestamp AS _commit_timestamp",
    "released_from AS _since",
    "ingest_batch AS _batch",
    "stream_partition AS _stream_partition",
)

_REPLACED: Final = {
    "slot": f"int(pmod(xxhash64(table), {TABLE_SLOTS}))",
    "stream_partition": "_stream_partition",
    "kind": "'change'",
    "ingest_batch": "_batch",
    "commit_timestamp": "_commit_timestamp",
    "transaction": """named_struct(
        'server_transaction_id', '', 'record_sequence', write_stream.offset,
        'is_last_record_in_transaction_in_partition', false,
        'number_of_records_in_transaction', 1, 'number_of_partitions_in_transaction', 1,
        'transaction_tag', '', 'is_system_transaction', false)""",
}


def released_rows(rows: DataFrame, source: str | None, *, after: int, to: int) -> DataFrame:
    """The staged rows of one source table, or of all, that the batches `(after, to]` released, as
    changes with the columns of `rows`.

    A row is a change of the batch that completed its release, and of the stream partition of the
    release. Its record sequence is its offset. `lake.visible_changes` does the same.
    """
    ranges = rows.where(
        f"slot = {RELEASED_SLOT} AND kind = 'released'"
        f" AND ingest_batch > {after}L AND ingest_batch <= {to}L"
    )
    # With the numbers, only the files of these batches are read.
    first, last = ranges.agg(F.min("released_from"), F.max("ingest_batch")).collect()[0]
    staged = rows.where(
        f"slot = {STAGED_SLOT} AND kind = 'staged'"
        f" AND ingest_batch >= {first or 0}L AND ingest_batch <= {last or 0}L"
    )
    if source is not None:
        staged = staged.where(F.col("table") == source)
    is_in_range = F.expr(
        "write_stream.stream = _stream AND write_stream.offset >= _first"
        " AND write_stream.offset < _upto AND ingest_batch >= _since AND ingest_batch <= _batch"
    )
    found = staged.join(F.broadcast(ranges.selectExpr(*_RANGES)), is_in_range)
    return found.selectExpr(
        *(f"{_REPLACED[name]} AS {name}" if name in _REPLACED else name for name in rows.columns)
    )

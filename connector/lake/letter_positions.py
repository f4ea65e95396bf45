"""The places of dead letters in the order of a changelog (DLQ-10)."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby
from operator import attrgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from connector.dead_letters.envelope import ClaimedLetter
from connector.lake.checks import open_existing
from connector.lake.plain_table import batches, rows_in
from connector.records.ordering import OrderPosition

_POSITIONS: Final = """
    SELECT kafka_partition, "offset", kind IN ('change', 'staged'), order_position FROM t
    WHERE kind {kinds} AND kafka_partition = {kafka_partition}
        AND "offset" BETWEEN {least} AND {greatest}
"""
_RANGE: Final = attrgetter("of_table", "kafka_partition")


def logged_positions(
    changelog: str, letters: Collection[ClaimedLetter]
) -> dict[ClaimedLetter, OrderPosition]:
    """The order positions of dead letters that the changelog at a path has: of rejected records,
    and of the changes and staged rows of table letters. Raises `TableError`.
    """
    positions = dict[ClaimedLetter, OrderPosition]()
    if (table := open_existing(changelog)) is None:
        return positions
    for (of_table, number), of_one in groupby(sorted(letters, key=_RANGE), _RANGE):
        offsets = [letter.offset for letter in of_one]
        kinds = "IN ('change', 'staged')" if of_table else "= 'rejected'"
        bounds = {"least": min(offsets), "greatest": max(offsets)}
        query = _POSITIONS.format(kinds=kinds, kafka_partition=number, **bounds)
        for batch in map(pa.record_batch, batches(table, query)):
            named = batch.filter(pc.is_in(batch.column(1), pa.array(offsets, pa.int64())))
            for *letter, position in rows_in(named):
                positions[ClaimedLetter(*letter)] = OrderPosition(**position)
    return positions

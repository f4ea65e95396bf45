"""The slots of a changelog (ENG-10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.engine.values import Flags, Numbers, flags_of
from connector.warehouse import CONTROL_SLOT, REJECTED_SLOT, STAGED_SLOT, table_slot

_ORDER: Final = [
    (name, "ascending") for name in ("table", "_hash", "ingest_batch", "kafka_partition", "offset")
]


def by_key(rows: pa.Table) -> pa.Table:
    """Rows of a changelog by source table and hash."""
    return rows.take(pc.sort_indices(rows, _ORDER))


def by_slot(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each slot, by source table and hash. `rows` have the schema `CHANGELOG`, and are
    of small batches or not stored yet.
    """
    rows = rows.combine_chunks()  # taking rows of many chunks costs twice as much
    slots = _slots_of(rows)
    for slot in np.unique(slots).tolist():
        is_one = slots == slot
        yield slot, by_key(rows if is_one.all() else rows.filter(pa.array(is_one)))


def _slots_of(rows: pa.Table) -> Numbers:
    sources = rows["table"].combine_chunks().dictionary_encode()
    of_source = [table_slot(source) for source in sources.dictionary.to_pylist()]
    numbers = sources.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    slots: Numbers = np.array([*of_source, REJECTED_SLOT], np.int64)[numbers]
    is_uncommitted = flags_of(pc.is_null(rows["commit_timestamp"]))
    is_erased = _are(rows, "erased") & is_uncommitted & flags_of(rows["write_stream"].is_valid())
    slots[_are(rows, "staged", "expired") | is_erased] = STAGED_SLOT
    slots[_are(rows, "rejected") | flags_of(pc.is_null(rows["table"]))] = REJECTED_SLOT
    slots[_are(rows, "control", "truncate")] = CONTROL_SLOT
    return slots


def _are(rows: pa.Table, *kinds: str) -> Flags:
    return flags_of(pc.is_in(rows["kind"], pa.array(kinds)))

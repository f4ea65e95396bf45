"""Moves the rows of small batches into the slots of the changelog, without Spark (TBL-15, ENG-10).

Nothing is committed here. Files that no commit names are removed later, as those of any writer that
failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.engine.schema import CHANGELOG, STATISTICS
from connector.engine.values import Numbers
from connector.lake.checks import table_error
from connector.lake.small_files import LeftToSpark, adds_of, check_size, opened, read, remove, write
from connector.lake.stores import files_at
from connector.state import apply_level as limits
from connector.warehouse import CONTROL_SLOT, REJECTED_SLOT, table_slot

_SLOTS = {"control": CONTROL_SLOT, "truncate": CONTROL_SLOT, "rejected": REJECTED_SLOT}
_ORDER = [(name, "ascending") for name in ("table", "_hash", "ingest_batch", "offset")]


def fold_batches(changelog: str, actions: Sequence[str]) -> tuple[str, ...] | None:
    """Write the rows of these files of a changelog to one file for each slot. Returns the actions
    that replace the files. None: Spark must do it, because a file has rows of write streams, or is
    large, or was written by an older release. Raises `TableError`.
    """
    try:
        return tuple(_folded(changelog, actions))
    except LeftToSpark:
        return None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise table_error(changelog, "read or written", error) from error


def _folded(changelog: str, actions: Sequence[str]) -> Iterator[str]:
    files, adds, tables, size = files_at(changelog), adds_of(actions), list[pa.Table](), 0
    for add in adds:
        with opened(files, add) as file:
            if set(file.schema_arrow.names) - {"slot"} != set(CHANGELOG.names):
                raise LeftToSpark
            tables.append(read(file, CHANGELOG.names).select(CHANGELOG.names).cast(CHANGELOG))
        size += tables[-1].nbytes
        check_size(size, limits.MAX_IN_MEMORY)
    rows = pa.concat_tables(tables)
    slots = _slots_of(rows)
    for action in remove(changelog, (), adds):
        yield _moved(action)
    for slot in np.unique(slots).tolist():
        of_slot = rows.filter(pa.array(slots == slot))
        of_slot = of_slot.take(pc.sort_indices(of_slot, _ORDER))
        yield _moved(write(changelog, of_slot, STATISTICS, slot=slot))


def _slots_of(rows: pa.Table) -> Numbers:
    """The slot of each row. Raises `LeftToSpark` for rows of other kinds."""
    kinds, sources = _encoded(rows["kind"]), _encoded(rows["table"])
    of_source = [table_slot(source) for source in sources.dictionary.to_pylist()]
    slots = np.array([*of_source, REJECTED_SLOT])[_indices(sources)]
    of_kind = _indices(kinds)
    for number, kind in enumerate(kinds.dictionary.to_pylist()):
        if kind in _SLOTS:
            slots[of_kind == number] = _SLOTS[kind]
        elif kind != "change":
            raise LeftToSpark
    return slots


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    return column.combine_chunks().dictionary_encode()


def _indices(encoded: pa.DictionaryArray) -> Numbers:
    return np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def _moved(action: str) -> str:
    """The action without a change of data: no row is new, and none is gone."""
    return action.replace('"dataChange": true', '"dataChange": false', 1)

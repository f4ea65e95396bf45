"""Moves the rows of small batches into the slots of the changelog, without Spark (TBL-15, ENG-10).

Nothing is committed here. Files that no commit names are removed later, as those of any writer that
failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from connector.engine.schema import CHANGELOG
from connector.engine.slots import by_slot
from connector.lake.checks import table_error
from connector.lake.small_files import (
    LeftToSpark,
    adds_of,
    check_size,
    opened,
    read,
    remove,
    write_to_slot,
)
from connector.lake.stores import files_at
from connector.state import apply_level as limits


def fold_batches(changelog: str, actions: Sequence[str]) -> tuple[str, ...] | None:
    """Write the rows of these files of a changelog to one file for each slot. Returns the actions
    that replace the files. None: Spark must do it, because a file is large, or was written by an
    older release. Raises `TableError`.
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
    for action in remove(changelog, (), adds):
        yield _moved(action)
    for slot, of_slot in by_slot(rows):
        yield _moved(write_to_slot(changelog, of_slot, slot))


def _moved(action: str) -> str:
    """The action without a change of data: no row is new, and none is gone."""
    return action.replace('"dataChange": true', '"dataChange": false', 1)

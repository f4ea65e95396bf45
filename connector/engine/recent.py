"""The changes of the newest small batches, in memory (ENG-6).

The memory belongs to files of the changelog, which never change and whose names are random. The log
of the changelog says which files an apply needs, as if nothing were in memory. So a batch that is
not in memory, an erasure or a compaction cannot make an apply miss a change: it reads the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.engine.schema import CHANGELOG, OF_CHANGE

MOST_FILES: Final = 200
"""An apply that needs older commits of the changelog reads no single files."""
MOST_BYTES: Final = 256_000_000
_NONE: Final = CHANGELOG.empty_table().select(OF_CHANGE)


class RecentFiles:
    """The changes of the newest files of a changelog, at most `MOST_FILES` with `most_bytes`. One
    thread calls `keep`.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._files: Mapping[str, tuple[Mapping[str, pa.Table], int]] = {}

    def keep(self, path: str, rows: pa.Table) -> None:
        """Keep the changes of a new file, which are sorted by source table, in place of the oldest
        ones. `rows` have the schema `CHANGELOG`.
        """
        changes = rows.filter(pc.equal(rows["kind"], "change")).select(OF_CHANGE)
        files = {**self._files, path: (_by_table(changes), changes.nbytes)}
        kept, left = list[str](), self._most_bytes
        for name in islice(reversed(files), MOST_FILES):
            if (left := left - files[name][1]) < 0:
                break
            kept.append(name)
        self._files = {name: files[name] for name in reversed(kept)}

    def changes(self, path: str, source: str) -> pa.Table | None:
        """The changes of a source table in a file, with the columns `OF_CHANGE`. None: the file is
        not in memory.
        """
        by_table, _ = self._files.get(path, (None, 0))
        return None if by_table is None else by_table.get(source, _NONE)


def _by_table(changes: pa.Table) -> dict[str, pa.Table]:
    encoded = changes["table"].combine_chunks().dictionary_encode()
    numbers = encoded.indices.to_numpy()
    begins = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    names = encoded.dictionary.to_pylist()
    return {
        names[numbers[begin]]: changes.slice(begin, end - begin)
        for begin, end in pairwise([*begins, len(changes)])
    }

"""In which slot of a changelog, or bucket of a table, a row is (TBL-4, TBL-13).

The slots of a changelog are:

- -4: ranges of staged rows that were released.
- -3: frontiers that are too large for metadata.
- -2: rejected records.
- -1: control records.
- 16: staged rows of write streams, and those that expired.
- 0 to 15: changes, by the CRC-32 of the name of their source table.
"""

from __future__ import annotations

import zlib
from typing import Final

TABLE_SLOTS: Final = 16
CONTROL_SLOT: Final = -1
REJECTED_SLOT: Final = -2
FRONTIER_SLOT: Final = -3
RELEASED_SLOT: Final = -4
STAGED_SLOT: Final = TABLE_SLOTS


def table_slot(source: str) -> int:
    """Return the slot with the changes of a source table."""
    return bucket_of(source.encode(), TABLE_SLOTS)


def bucket_of(key: bytes, buckets: int) -> int:
    """Return the bucket of a key, from 0 on. It is `pmod(crc32(key), buckets)` in Spark."""
    return zlib.crc32(key) % buckets

"""Where everything is in a warehouse: its paths, the slots of a changelog, and the buckets of a
table (TBL-4, TBL-13).

    streams/<stream>/changelog        the changelog of a stream
    streams/<stream>/freshness.json   when ingest last asked Kafka and had nothing to read
    streams/<stream>/process.json     what the pipeline of the stream does
    streams/<stream>/bridge.json      what its bridge does
    streams/<stream>/erasure.json     which process erases a row of the stream
    streams/<stream>/checkpoint       Spark's checkpoint of its query; it can be removed
    tables/<table>/data               a table
    tables/<table>/tombstones         its tombstone table; after a rebuild, tombstones-<rebuild>
    _connector/positions/<stream>.json how far the tables are that had no change to commit
    _connector/jobs, cuts             the history of applies and of snapshots
    _connector/overrides              bounds and paces that operators set
    _connector/closed_partitions      stream partitions that operators closed
    _connector/released_transactions  incomplete transactions that operators released
    _connector/released_rows          releases that operators want without their rejected rows
    _connector/accepted_losses        records that Kafka deleted unread, as operators accepted it
    _connector/erased_keys            rows that operators erased, by the keyed hash of their key
    _connector/erasure_secret         the secret of these hashes
    _connector/audit_log              the results of audits
    _connector/refused_reload.json    why the pipeline did not take a new configuration
    _connector/source_tables.json     the tables of sources, as bridges have published them
    _connector/probe                  files that try an object store, and are deleted again

A warehouse is a local folder or a URI. These functions join names only; they look at no file.

The slots of a changelog are:

- -4: ranges of staged rows that were released.
- -3: frontiers that are too large for metadata.
- -2: rejected records.
- -1: control records, with the truncations of all source tables.
- 16: staged rows of write streams, and those that expired.
- 0 to 15: changes, by the CRC-32 of the name of their source table.
- 17: all rows of small batches, but for frontiers and released ranges. `in_slot` finds both.
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
MIXED_SLOT: Final = STAGED_SLOT + 1


def streams_folder(warehouse: str) -> str:
    return f"{warehouse}/streams"


def stream_folder(warehouse: str, stream: str) -> str:
    return f"{streams_folder(warehouse)}/{stream}"


def changelog(warehouse: str, stream: str) -> str:
    return f"{stream_folder(warehouse, stream)}/changelog"


def freshness(warehouse: str, stream: str) -> str:
    """The file with the time at which ingest last asked Kafka and had nothing to read (TBL-24)."""
    return freshness_beside(changelog(warehouse, stream))


def freshness_beside(changelog: str) -> str:
    """As `freshness`, for the stream with this changelog."""
    return f"{changelog.rpartition('/')[0]}/freshness.json"


def positions(warehouse: str, stream: str) -> str:
    """The file with the positions of tables that had no change to commit (ENG-7). A backup copies
    it before the tables and changelogs, so it is not ahead of them.
    """
    return f"{warehouse}/_connector/positions/{stream}.json"


def process(warehouse: str, stream: str) -> str:
    """The file in which the pipeline of a stream says what it does (RUN-1)."""
    return f"{stream_folder(warehouse, stream)}/process.json"


def bridge(warehouse: str, stream: str) -> str:
    """The file in which the bridge of a stream says what it does (RUN-1)."""
    return f"{stream_folder(warehouse, stream)}/bridge.json"


def erasure(warehouse: str, stream: str) -> str:
    """The file in which the process of an erasure says that it runs (OPR-2)."""
    return f"{stream_folder(warehouse, stream)}/erasure.json"


def tables_folder(warehouse: str) -> str:
    return f"{warehouse}/tables"


def table_folder(warehouse: str, table: str) -> str:
    return f"{tables_folder(warehouse)}/{table}"


def table_of(folder: str) -> str:
    """The name of the table that has this folder."""
    return folder.rstrip("/").rpartition("/")[2]


def warehouse_of_table(folder: str) -> str:
    """The warehouse of the table that has this folder."""
    return folder.rstrip("/").rpartition("/")[0].rpartition("/")[0]


def data(folder: str) -> str:
    """The Delta table with the rows, in the folder of a table."""
    return f"{folder}/data"


def table(warehouse: str, table: str) -> str:
    """The Delta table with the rows of a table."""
    return data(table_folder(warehouse, table))


def tombstones(folder: str, rebuild: str = "") -> str:
    """The tombstone table, in the folder of a table; each rebuild has its own."""
    return f"{folder}/tombstones-{rebuild}" if rebuild else f"{folder}/tombstones"


def jobs(warehouse: str) -> str:
    return f"{warehouse}/_connector/jobs"


def cuts(warehouse: str) -> str:
    return f"{warehouse}/_connector/cuts"


def refused_reload(warehouse: str) -> str:
    """The file that says why the pipeline did not take a new configuration (EVO-8)."""
    return f"{warehouse}/_connector/refused_reload.json"


def source_tables(warehouse: str) -> str:
    """The file with the tables of sources, as bridges have published them (SRC-5)."""
    return f"{warehouse}/_connector/source_tables.json"


def overrides(warehouse: str) -> str:
    return f"{warehouse}/_connector/overrides"


def closed_partitions(warehouse: str) -> str:
    return f"{warehouse}/_connector/closed_partitions"


def released_transactions(warehouse: str) -> str:
    return f"{warehouse}/_connector/released_transactions"


def released_rows(warehouse: str) -> str:
    return f"{warehouse}/_connector/released_rows"


def accepted_losses(warehouse: str) -> str:
    return f"{warehouse}/_connector/accepted_losses"


def erased_keys(warehouse: str) -> str:
    return f"{warehouse}/_connector/erased_keys"


def erasure_secret(warehouse: str) -> str:
    return f"{warehouse}/_connector/erasure_secret"


def audit_log(warehouse: str) -> str:
    return f"{warehouse}/_connector/audit_log"


def probe(warehouse: str) -> str:
    return f"{warehouse}/_connector/probe"


def table_slot(source: str) -> int:
    return bucket_of(source.encode(), TABLE_SLOTS)


def in_slot(*slots: int) -> str:
    """Whether a row may be one of these slots, as SQL. Rows of small batches have a slot of their
    own, so a query needs the kind of the row, too.
    """
    return f"slot IN ({', '.join(map(str, (*slots, MIXED_SLOT)))})"


IS_CHANGE: Final = f"{in_slot(*range(TABLE_SLOTS))} AND kind = 'change'"
"""Whether a row is a visible change of any source table, as SQL."""


def bucket_of(key: bytes, buckets: int) -> int:
    """Return the bucket of a key, from 0 on. It is `pmod(crc32(key), buckets)` in Spark."""
    return zlib.crc32(key) % buckets

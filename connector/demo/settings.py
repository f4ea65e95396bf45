"""The files that the demo writes for its pipeline, and for users who continue with its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from connector.demo import bank, capture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector.demo.source import Source

STREAM: Final = "demo"
STALL_AFTER_S: Final = 300
"""Longer than any step takes, so no stream partition stalls."""
SHORT_STALL_AFTER_S: Final = 15
"""For the step with a stall. It is short because a user is watching, but longer than a round of
ingest and apply.
"""
TRIGGER: Final = "250ms"
KEYS: Final = {capture.FILES_TABLE: "path", bank.ACCOUNTS_TABLE: "account"}

_HEAD: Final = """\
# Written by `connector demo`. The broker is started again with:
#   connector broker start --folder {broker}

warehouse = "{warehouse}"

[kafka]
bootstrap_servers = "{bootstrap_servers}"

[streams.{stream}]
topic = "{stream}"
partitions = [{partitions}]
trigger = "{trigger}"
stall_after = "{stall_after_s}s"
# The history is old, and a change of it that is mended is late, not too late.
delete_retention = "3650d"
"""

_TABLES: Final = {
    capture.FILES_TABLE: (
        """
# One row for each file of the last commit.
[tables.files]
stream = "demo"
key = { form = "row_key", columns = [{ name = "path", type = "BYTES" }] }
columns = [
  { name = "mode", family = "f", type = "STRING" },
  { name = "blob", family = "f", type = "STRING" },
  { name = "size", family = "f", type = "INT64" },
  { name = "author", family = "f", type = "STRING" },
  { name = "time", family = "f", type = "TIMESTAMP", encoding = "binary" },
  { name = "subject", family = "f", type = "STRING" },
]
"""
    ),
    bank.ACCOUNTS_TABLE: (
        """
# One row for each open account; the balance in cents.
[tables.accounts]
stream = "demo"
key = { form = "row_key", columns = [{ name = "account", type = "STRING" }] }
columns = [
  { name = "balance", family = "a", type = "INT64", encoding = "binary" },
  { name = "owner", family = "a", type = "STRING" },
]
"""
    ),
}

QUERY_SCRIPT: Final = '''\
"""SQL on the tables of this demo, in Spark: python query.py "SELECT count(*) FROM files"."""

import sys
from contextlib import ExitStack
from pathlib import Path

from connector.services.events import log_event
from connector.services.load_config import load_config
from connector.services.local_spark import session_of
from connector.spark.reader import read_table

config = load_config(Path(__file__).resolve().parent / "connector.toml")
with ExitStack() as stack:
    spark = session_of(config, None, stack, log_event)
    for name in config.tables:
        table = read_table(spark, config.warehouse, name, allow_stale=True)
        table.rows.createOrReplaceTempView(name)
    spark.sql(sys.argv[1]).show(100, truncate=False)
'''


def configuration(
    sources: Sequence[Source],
    bootstrap_servers: str,
    broker_folder: str,
    stall_after_s: int,
    *,
    warehouse: str = "warehouse",
) -> str:
    """The text of connector.toml for these sources."""
    head = _HEAD.format(
        broker=broker_folder,
        warehouse=warehouse,
        bootstrap_servers=bootstrap_servers,
        stream=STREAM,
        partitions=", ".join(f'"{source.root}"' for source in sources),
        trigger=TRIGGER,
        stall_after_s=stall_after_s,
    )
    return head + "".join(_TABLES[source.table] for source in sources)

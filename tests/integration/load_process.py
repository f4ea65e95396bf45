"""A program that loads files, and that may be killed on the way (PUB-6).

    python -m tests.integration.load_process WHEN COUNT ARGUMENT…

WHEN and COUNT are as in `tests.integration.write_stream_process`. The arguments are those of the
program `connector`.
"""

from __future__ import annotations

import sys

from connector import cli
from connector.services.rows import load
from tests.integration.write_stream_process import kill_at

TRANSACTION_ROWS = 100

if __name__ == "__main__":
    when, count, *arguments = sys.argv[1:]
    load.TRANSACTION_ROWS = TRANSACTION_ROWS  # type: ignore[misc]
    load.MAX_APPEND_ROWS = TRANSACTION_ROWS  # type: ignore[misc]
    if when != "never":
        kill_at(when, int(count))
    sys.exit(cli.invoke(arguments))

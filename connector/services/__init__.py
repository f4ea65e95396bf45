"""The use cases of lowmark as functions: what the commands do, for Python programs.

A service takes values, returns a value, and raises `ConnectorError`. It prints nothing and handles
no signal. Events, such as warnings, go to `on_event`. Spark, Kafka's client and deltalake are
imported only when a function needs them.

For example:

    from connector.services import load_config, run, read

    config = load_config("connector.toml")
    run(config, once=True)
    with read(config, "orders") as table:
        print(table.as_of, list(table.rows))
"""

from connector.services.alter import AlterReport, alter_table, publish_table
from connector.services.audit import audit
from connector.services.bridge import run_bridge
from connector.services.dead_letters import DeadLetters
from connector.services.drop_table import drop_table, orphaned_tables
from connector.services.erase import EraseReport, erase
from connector.services.load_config import load_config
from connector.services.metrics import Metrics
from connector.services.read import TableRead, read
from connector.services.reload import ConfigFile
from connector.services.requests import (
    accept_loss,
    close_partition,
    confirm_table,
    incomplete_transactions,
    partitions,
    release_transaction,
)
from connector.services.rows.explain import explain
from connector.services.rows.export import export
from connector.services.rows.load import LoadOptions, load
from connector.services.rows.reconcile import reconcile
from connector.services.run import run
from connector.services.status import StatusReport, status
from connector.services.tables import jobs, rebuild, set_apply_every, set_max_staleness
from connector.services.validate_config import validate_config
from connector.services.write_streams import (
    commit_write_streams,
    discard_write_streams,
    finalize_write_stream,
    list_write_streams,
    release_again,
    release_rows,
)

__all__ = [
    "AlterReport",
    "ConfigFile",
    "DeadLetters",
    "EraseReport",
    "LoadOptions",
    "Metrics",
    "StatusReport",
    "TableRead",
    "accept_loss",
    "alter_table",
    "audit",
    "close_partition",
    "commit_write_streams",
    "confirm_table",
    "discard_write_streams",
    "drop_table",
    "erase",
    "explain",
    "export",
    "finalize_write_stream",
    "incomplete_transactions",
    "jobs",
    "list_write_streams",
    "load",
    "load_config",
    "orphaned_tables",
    "partitions",
    "publish_table",
    "read",
    "rebuild",
    "reconcile",
    "release_again",
    "release_rows",
    "release_transaction",
    "run",
    "run_bridge",
    "set_apply_every",
    "set_max_staleness",
    "status",
    "validate_config",
]

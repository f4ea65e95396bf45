"""Read tables and changes with Spark. Ingest, apply and rebuild are in `connector.services`.

This is the only package that imports pyspark and delta.
"""

from __future__ import annotations

from connector.spark.changes import read_changes, stream_changes
from connector.spark.reader import read_snapshot, read_table
from connector.spark.session import check_session, configure_session
from connector.spark.sql_functions import register_functions
from connector.spark.status_view import register_status_view

__all__ = [
    "check_session",
    "configure_session",
    "read_changes",
    "read_snapshot",
    "read_table",
    "register_functions",
    "register_status_view",
    "stream_changes",
]

"""Spark and Delta: ingest into the changelog, apply into tables, read. The only folder that imports pyspark and delta."""

from __future__ import annotations

from connector.spark.apply.apply import apply
from connector.spark.apply.rebuild import Rebuilt, rebuild
from connector.spark.ingest.ingest import Ingest, IngestPorts
from connector.spark.pipeline import JobLog, Pipeline
from connector.spark.reader import Snapshot, SparkRead, plain_rows, read_snapshot, read_table
from connector.spark.session import start_session
from connector.spark.status_view import register_status_view
from connector.spark.storage.changelog import Changelog

__all__ = [
    "Changelog",
    "Ingest",
    "IngestPorts",
    "JobLog",
    "Pipeline",
    "Rebuilt",
    "Snapshot",
    "SparkRead",
    "apply",
    "plain_rows",
    "read_snapshot",
    "read_table",
    "rebuild",
    "register_status_view",
    "start_session",
]

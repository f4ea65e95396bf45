"""Spark and Delta: ingest into the changelog, apply into tables, read. The only folder that imports pyspark and delta."""

from __future__ import annotations

from connector.spark.apply.apply import apply
from connector.spark.apply.rebuild import Rebuilt, rebuild
from connector.spark.ingest.ingest import Ingest, World
from connector.spark.pipeline import Journal, Pipeline
from connector.spark.reader import Reading, Snapshot, plain_rows, read_snapshot, read_table
from connector.spark.session import start_session
from connector.spark.status_view import register_tables
from connector.spark.storage.changelog import Changelog

__all__ = [
    "Changelog",
    "Ingest",
    "Journal",
    "Pipeline",
    "Reading",
    "Rebuilt",
    "Snapshot",
    "World",
    "apply",
    "plain_rows",
    "read_snapshot",
    "read_table",
    "rebuild",
    "register_tables",
    "start_session",
]

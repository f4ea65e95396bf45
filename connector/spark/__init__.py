"""Spark and Delta: ingest into the changelog, apply into tables, read. The only folder that imports pyspark and delta."""

from __future__ import annotations

from connector.spark.apply import apply
from connector.spark.changelog import Changelog
from connector.spark.ingest import Ingest, World
from connector.spark.pipeline import Journal, Pipeline
from connector.spark.reader import Reading, Snapshot, plain_rows, read_snapshot, read_table
from connector.spark.rebuild import Rebuilt, rebuild
from connector.spark.session import start_session
from connector.spark.standing import register_tables

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

"""Spark and Delta: ingest into the changelog, apply into tables, read. The only folder that imports pyspark and delta."""

from __future__ import annotations

from connector.spark.apply import apply
from connector.spark.ingest import Ingest, World
from connector.spark.pipeline import Pipeline
from connector.spark.reader import read_table
from connector.spark.session import start_session

__all__ = ["Ingest", "Pipeline", "World", "apply", "read_table", "start_session"]

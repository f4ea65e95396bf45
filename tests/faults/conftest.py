"""The faults have a broker of their own, which they break, and the Spark session that all suites share."""

from __future__ import annotations

from tests.spark.conftest import spark

__all__ = ["spark"]

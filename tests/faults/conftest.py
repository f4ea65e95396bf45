"""The fault tests have their own broker, which they break, and the Spark session that all suites
share.
"""

from __future__ import annotations

from tests.spark.conftest import spark

__all__ = ["spark"]

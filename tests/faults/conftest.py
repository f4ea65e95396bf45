"""The fault tests have their own broker, which they break, and the Spark session that all suites
share.
"""

from __future__ import annotations

from tests.broker import admin, broker, kafka, new_topic
from tests.object_store import object_store
from tests.spark.conftest import spark, store

__all__ = ["admin", "broker", "kafka", "new_topic", "object_store", "spark", "store"]

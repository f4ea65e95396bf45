from __future__ import annotations

from tests.broker import admin, broker, kafka, new_topic
from tests.object_store import object_store

__all__ = ["admin", "broker", "kafka", "new_topic", "object_store"]

"""The faults run on the broker that all tests share."""

from __future__ import annotations

from tests.broker import admin, broker, kafka, new_topic

__all__ = ["admin", "broker", "kafka", "new_topic"]

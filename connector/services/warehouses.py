"""The warehouse of a configuration, ready to be used by the packages that read and write tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.config.storage import LAKE_DEFAULTS, is_local
from connector.lake.stores import remember

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig


def warehouse_of(config: ConnectorConfig) -> str:
    """The path or URI of the warehouse. From now on, its tables are opened with the storage
    settings of the configuration (STO-1).
    """
    if not is_local(config.warehouse):
        remember(config.warehouse, {**LAKE_DEFAULTS, **config.storage.lake_options()})
    return config.warehouse

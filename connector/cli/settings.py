"""The configuration of a call: `--config FILE`, else connector.toml here, with environment
variables over it (OPS-1).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from connector.config.settings import ConnectorConfig

if TYPE_CHECKING:
    import click


def load(ctx: click.Context) -> ConnectorConfig:
    """The configuration that this call is for. Raises `ConfigError`."""
    from connector.services.load_config import load_config

    assert ctx.find_root().obj is None or isinstance(ctx.find_root().obj, Path)
    return load_config(ctx.find_root().obj)

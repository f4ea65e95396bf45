"""Settings and arguments."""

from __future__ import annotations

from connector.errors import ConfigError


def functions_not_distinct(stream: str, other: str) -> ConfigError:
    return ConfigError(
        "NAME_NOT_DISTINCT",
        f"Streams {other} and {stream} would have the same SQL function",
        "SQL does not distinguish upper and lower case",
        "Keep the streams in two warehouses, or read them with read_changes",
    )

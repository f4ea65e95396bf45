"""The options with which deltalake opens the tables of a warehouse (STO-1).

They belong to a warehouse, as a password belongs to a host: every function of this package takes
the path of a table, and finds them by the start of that path. Without options, deltalake uses the
environment.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

_OPTIONS: Final = dict[str, dict[str, str]]()
_LOCK: Final = threading.Lock()


def remember(warehouse: str, options: Mapping[str, str]) -> None:
    """Use these options for all tables of a warehouse, in this process, from now on."""
    with _LOCK:
        _OPTIONS[warehouse.rstrip("/")] = dict(options)


def warehouse_with(path: str) -> str | None:
    """The warehouse that has this path. None: its options are not known, or it is a local one."""
    if "://" not in path:
        return None
    with _LOCK:
        known = [warehouse for warehouse in _OPTIONS if f"{path}/".startswith(f"{warehouse}/")]
    return max(known, key=len) if known else None


def options_of(path: str) -> dict[str, str] | None:
    """The options of the warehouse that has this path. None: none are known."""
    warehouse = warehouse_with(path)
    return None if warehouse is None else dict(_OPTIONS[warehouse])

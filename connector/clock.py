"""The wall clock. Everything else takes times as arguments."""

from __future__ import annotations

import time


def now_us() -> int:
    """Microseconds since 1970-01-01T00:00:00Z, as this machine's clock shows them."""
    return time.time_ns() // 1000

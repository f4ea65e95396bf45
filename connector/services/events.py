"""Events: how a service tells its caller about progress and about warnings, without printing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

_log = logging.getLogger("lowmark")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened while a service worked.

    Attributes:
        level: `info`, or `warning` for a thing that you should look at.
        code: A stable name in capitals, for example `TOPIC_SETTING`.
        text: One sentence for people. It may contain names from outside: escape it before you show
            it on a terminal.
        fields: Values that belong to it, by name.
    """

    level: Literal["info", "warning"]
    code: str
    text: str
    fields: Mapping[str, object] = field(default_factory=dict)


OnEvent = Callable[[Event], None]
"""Receives each event, in the thread in which it happens."""


def log_event(event: Event) -> None:
    """Log an event with the logger `lowmark`: the default of each service."""
    _log.log(
        logging.WARNING if event.level == "warning" else logging.INFO,
        "%s: %s",
        event.code,
        event.text,
    )


def info(code: str, text: str, **fields: object) -> Event:
    return Event("info", code, text, fields)


def warning(code: str, text: str, **fields: object) -> Event:
    return Event("warning", code, text, fields)

"""Events: how code tells its caller about progress and about warnings, without printing (LOG-1)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened while a service worked.

    Attributes:
        level: `debug` for a step of a batch or of an apply, `info`, `warning` for a thing that you
            should look at, or `error` for a failure that stops a table or the command.
        code: A stable name in capitals, for example `TOPIC_SETTING`.
        text: One sentence for people. It may contain names from outside: escape it before you show
            it on a terminal. It has no contents of records.
        fields: Values that belong to it, by name. `table` or `stream` is its subject.
    """

    level: Level
    code: str
    text: str
    fields: Mapping[str, object] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """For example "table orders". Empty: it is about no table and no stream."""
        for kind in ("table", "stream"):
            if name := self.fields.get(kind):
                return f"{kind} {name}"
        return ""

    @property
    def line(self) -> str:
        """The text after its subject, for example "table orders: 3 changes applied"."""
        return f"{self.subject}: {self.text}" if self.subject else self.text


OnEvent = Callable[[Event], None]
"""Receives each event, in the thread in which it happens."""


def log_event(event: Event) -> None:
    """Log an event with the logger `lowmark`: the default of each service."""
    level = logging.getLevelNamesMapping()[event.level.upper()]
    logging.getLogger("lowmark").log(level, "%s: %s", event.code, event.line)


def ignore(event: Event) -> None:
    """Receive an event, and do nothing."""


def info(code: str, text: str, **fields: object) -> Event:
    return Event("info", code, text, fields)


def warning(code: str, text: str, **fields: object) -> Event:
    return Event("warning", code, text, fields)


def reached(noun: str, done: int, total: int | None = None, **fields: object) -> Event:
    """So many are done, for example of the noun "rows", perhaps of a total (RUN-4)."""
    return Event("debug", "PROGRESS", noun, {**fields, "done": done, "total": total})


def begun(work: str, **fields: object) -> Event:
    """Work without a count has begun, for example "compaction" (RUN-4)."""
    return Event("debug", "PROGRESS", f"{work} begun", fields)


def fields_of(subject: str) -> dict[str, str]:
    """The fields of a subject: `{"table": "orders"}` of "table orders". Empty: it is neither a
    table nor a stream.
    """
    kind, _, name = subject.partition(" ")
    return {kind: name} if kind in {"stream", "table"} else {}


class Steps:
    """Sends an event for each step of a batch or of an apply (OPS-4). Its seconds are those since
    the step before of the same stream or table. Any thread may call `step`.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event, self._last = on_event, dict[str, float]()

    def step(self, step: str) -> None:
        """Send the event of a step, such as "table orders: table committed"."""
        subject, _, name = step.partition(": ")
        now = time.monotonic()
        before, self._last[subject] = self._last.get(subject), now
        seconds = None if before is None else round(now - before, 3)
        self._on_event(Event("debug", "STEP", name, {**fields_of(subject), "seconds": seconds}))


APPLY_ENDS: Final = frozenset({"job recorded", "nothing to apply"})
"""The last step of an apply is one of these."""

"""The progress of a long command: on one line of a terminal, or every ten seconds in a line of the
log (RUN-4).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Self

from connector.cli.terminal import escaped, shortened, show_event, width_of
from connector.events import APPLY_ENDS, Event, OnEvent, fields_of, info, reached
from connector.text import duration

DRAW_EVERY_S: Final = 0.1
LOG_EVERY_S: Final = 10.0
_ENDS: Final = APPLY_ENDS | {"batch ended"}
"""The last step of a batch or of an apply."""
_OTHERWISE: Final = frozenset({"RUNNING", "RELOADED", "WAITING", "STOPPED"})
"""Events after which nothing of before is under way."""


@dataclass(frozen=True, slots=True)
class _Count:
    """How many of how many, since `began` (seconds), when there were `first`."""

    subject: str
    noun: str
    done: int
    total: int | None
    first: int
    began: float

    def rate(self, now: float) -> float:
        return (self.done - self.first) / (now - self.began) if now > self.began else 0.0

    def text(self, now: float) -> str:
        of_total = "" if self.total is None else f" of {self.total:,}"
        text, rate = f"{self.done:,}{of_total} {self.noun}", self.rate(now)
        if not rate:
            return text
        text = f"{text}, {rate:,.0f}/s" if rate >= 10 else f"{text}, {rate:.1f}/s"
        if self.total is None:
            return text
        return f"{text}, {duration(round((self.total - self.done) / rate))} left"


class Progress:
    """Takes the events of a command and shows them, and what is under way between them. Any thread
    may call its methods. Use it in a `with` block.
    """

    def __init__(
        self,
        show: OnEvent = show_event,
        *,
        ends_with: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`show` shows an event. After one with the code `ends_with`, only events are shown."""
        self._show, self._ends_with, self._clock = show, ends_with, clock
        self._is_terminal, self._is_over = sys.stderr.isatty(), False
        self._is_drawn = False
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._count: _Count | None = None
        self._steps: dict[str, tuple[str, float]] = {}
        self._thread = threading.Thread(target=self._work, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._end()

    def on_event(self, event: Event) -> None:
        """Note an event, and show it unless it is a count."""
        with self._lock:
            self._note(event)
            if event.code != "PROGRESS" or "done" not in event.fields:
                self._clear()
                self._show(event)

    def count(self, noun: str, done: int, total: int | None = None) -> None:
        """Note that so many are done, for example of the noun "rows"."""
        self.on_event(reached(noun, done, total))

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Print other lines in the block."""
        with self._lock:
            self._clear()
            yield

    def tick(self) -> None:
        """Show what is under way now, if anything is."""
        with self._lock:
            event = None if self._is_over else self._event(self._clock())
            if event is None:
                self._clear()
            elif not self._is_terminal:
                self._show(event)
            else:
                line = shortened(escaped(event.line), (width_of(sys.stderr) or 80) - 1)
                sys.stderr.write(f"\r\x1b[K{line}")
                sys.stderr.flush()
                self._is_drawn = True

    def _clear(self) -> None:
        if self._is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_drawn = False

    def _end(self) -> None:
        with self._lock:
            self._clear()
            self._is_over = True

    def _work(self) -> None:
        with suppress(OSError):  # the terminal is gone
            while not self._ended.wait(DRAW_EVERY_S if self._is_terminal else LOG_EVERY_S):
                self.tick()

    def _note(self, event: Event) -> None:
        now, subject = self._clock(), event.subject
        if event.code == "PROGRESS" and "done" in event.fields:
            self._counted(event, now)
        elif event.code in {"PROGRESS", "STEP"}:
            self._steps.pop(subject, None)
            if event.text not in _ENDS:
                self._steps[subject] = (event.text, now)
        elif event.code in _OTHERWISE:
            self._count, self._steps = None, {}
        if event.code == self._ends_with:
            self._end()

    def _counted(self, event: Event, now: float) -> None:
        done, total = event.fields["done"], event.fields.get("total")
        assert isinstance(done, int)
        assert total is None or isinstance(total, int)
        before, first, began = self._count, done, now
        if before is not None and (before.subject, before.noun) == (event.subject, event.text):
            first, began = before.first, before.began
        else:
            self._steps = {}
        self._count = _Count(event.subject, event.text, done, total, first, began)

    def _event(self, now: float) -> Event | None:
        """The count, unless it is complete, and the newest step."""
        parts, figures = list[tuple[str, str]](), dict[str, object]()
        if (count := self._count) is not None and count.done != count.total:
            parts.append((count.subject, count.text(now)))
            figures = {"done": count.done, "total": count.total, "per_s": round(count.rate(now), 1)}
        if self._steps:
            subject, (step, since) = next(reversed(self._steps.items()))
            parts.append((subject, f"{step} {duration(int(now - since))} ago"))
        if not parts:
            return None
        (subject, text), *more = parts
        others = (
            f"; {other}: {what}" if other not in {"", subject} else f"; {what}"
            for other, what in more
        )
        return info("PROGRESS", text + "".join(others), **fields_of(subject), **figures)

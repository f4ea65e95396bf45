"""Output: data on standard output, messages on standard error.

Text from outside (of a record, a header, a server) goes through `escaped` before it reaches a
terminal (DLQ-9): control characters, and those that turn the direction of writing, would let a
record rewrite the screen.
"""

from __future__ import annotations

import sys
import unicodedata
from typing import TYPE_CHECKING

import click

from connector.errors import ConnectorError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from connector.events import Event

_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def escaped(text: str, allowed: str = "") -> str:
    r"""`text` with each character that does not print as itself as `\\xNN`, `\\uNNNN` or
    `\\UNNNNNNNN`, but for those in `allowed`.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        (
            c
            if c in allowed or unicodedata.category(c) not in _UNSAFE_CATEGORIES
            else c.encode("unicode_escape").decode()
        )
        for c in text
    )


def shown_bytes(data: bytes | None, limit: int = 64) -> str:
    r"""Bytes for a person: text where they are UTF-8, each byte that is not as `\\xNN`, cut at
    `limit` characters.
    """
    if data is None:
        return "(none)"
    text = escaped(data[: 4 * limit].decode("utf-8", "backslashreplace"))
    return shortened(text, limit)


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def err(message: str) -> None:
    """Print a message: one line on standard error."""
    click.echo(escaped(message, allowed="\n"), err=True)


def show_event(event: Event) -> None:
    """Show an event of a short command."""
    if event.level != "debug":
        err(f"warning: {event.line}" if event.level == "warning" else event.line)


def out(line: str) -> None:
    """Print data: one line on standard output, as it is. Escape what comes from outside before."""
    sys.stdout.write(line)
    sys.stdout.write("\n")


def show_error(error: ConnectorError) -> None:
    """Problem, cause, remedy, the command that helps, and code, on standard error."""
    from connector.cli.remedies import command_for

    for name, text in (
        ("error", error.problem),
        ("cause", error.cause),
        ("remedy", error.remedy),
        ("run", command_for(error)),
        ("code", error.code),
    ):
        if text:
            err(f"{name + ':':<7} {text}")


def console() -> Console:
    """The console of tables for people, in the width of the terminal if there is one."""
    from rich.console import Console

    return Console(
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=not sys.stdout.isatty(),
        width=None if sys.stdout.isatty() else 200,
    )


def table(*columns: str, right: frozenset[str] = frozenset()) -> Table:
    """An empty table; columns in `right` are flush right. Escape what comes from outside."""
    from rich import box
    from rich.table import Table

    empty = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        empty.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return empty


class Progress:
    """A count on one line of the terminal, replaced at most ten times a second."""

    def __init__(self, noun: str, total: int | None = None) -> None:
        """With a `total`, the line has the time left, too, at the rate since the first count."""
        self._noun, self._total = noun, total
        self.is_shown = sys.stderr.isatty()
        self._next = 0.0
        self._first: tuple[int, float] | None = None

    def show(self, count: int, now: float) -> None:
        """Show `count`, if it is time. `now` is a monotonic clock's, in seconds."""
        if self.is_shown and now >= self._next:
            self._next = now + 0.1
            click.echo(f"\r\x1b[K{self.line(count, now)}", err=True, nl=False)

    def line(self, count: int, now: float) -> str:
        if self._total is None:
            return f"{count:,} {self._noun}"
        first, began = self._first = self._first or (count, now)
        left = (
            f", {round((self._total - count) * (now - began) / (count - first)):,} s left"
            if count > first
            else ""
        )
        return f"{count:,} of {self._total:,} {self._noun}{left}"

    def clear(self) -> None:
        if self.is_shown:
            click.echo("\r\x1b[K", err=True, nl=False)

"""Output: data on standard output, messages on standard error.

Text from outside (of a record, a header, a server) goes through `escaped` before it reaches a
terminal (DLQ-9): control characters, and those that turn the direction of writing, would let a
record rewrite the screen.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from typing import TYPE_CHECKING, Final, TextIO

import click

from connector.cli.layout import Table, wrapped
from connector.errors import ConnectorError, as_sentence

if TYPE_CHECKING:
    from connector.events import Event

_COLOURS: Final = {"error": "red", "warning": "yellow"}
_URGENT: Final = frozenset({"dead letters", "hint", "incomplete", "late", "stalled", "undeclared"})
"""The names of facts that need a person."""

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


def width_of(stream: TextIO) -> int | None:
    """The width of the terminal that shows a stream. None: no terminal shows it."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def marked(text: str, colour: str, stream: TextIO) -> str:
    """Text in a colour, for what needs a person. Only a terminal shows colours, unless NO_COLOR is
    set.
    """
    return (
        click.style(text, fg=colour) if stream.isatty() and not os.environ.get("NO_COLOR") else text
    )


def err(message: str) -> None:
    """Print a message: one line on standard error, or several on a terminal that is narrower."""
    for number, line in enumerate(wrapped(escaped(message, "\n"), width_of(sys.stderr), 2)):
        kind, colon, rest = line.partition(":")
        if number == 0 and kind in _COLOURS and colon:
            line = f"{marked(f'{kind}:', _COLOURS[kind], sys.stderr)}{rest}"
        click.echo(line, err=True, color=True)


def show_event(event: Event) -> None:
    """Show an event of a short command."""
    if event.level != "debug":
        err(f"warning: {event.line}" if event.level == "warning" else event.line)


def out(line: str) -> None:
    """Print data: one line on standard output, as it is. Escape what comes from outside before."""
    sys.stdout.write(line)
    sys.stdout.write("\n")


def show_fact(name: str, text: str, name_width: int, indent: str = "") -> None:
    """Print a name and a text on standard output, escaped and in the width of the terminal. Names
    of what needs a person are in colour.
    """
    start = f"{indent}{name:<{name_width}}  "
    first, *more = wrapped(f"{start}{escaped(text)}", width_of(sys.stdout), len(start))
    if name in _URGENT:
        first = first.replace(name, marked(name, "yellow", sys.stdout), 1)
    for line in (first, *more):
        out(line)


def show_text(text: str, urgent: str = "") -> None:
    """Print a text that is escaped on standard output, in the width of the terminal. It may begin
    with an `urgent` word, which is in colour.
    """
    first, *more = wrapped(text, width_of(sys.stdout), 2)
    if urgent:
        first = marked(urgent, "yellow", sys.stdout) + first.removeprefix(urgent)
    for line in (first, *more):
        out(line)


def show_error(error: ConnectorError) -> None:
    """Problem, cause, remedy, the command that helps, and code, on standard error. The command is
    on one line, so that you can copy it.
    """
    from connector.cli.remedies import command_for

    for name, text in (
        ("error", error.problem),
        ("cause", error.cause),
        ("remedy", as_sentence(error.remedy)),
        ("run", command_for(error)),
        ("code", error.code),
    ):
        if text:
            start, shown = f"{name + ':':<8}", escaped(text, "\n")
            width = None if name == "run" else width_of(sys.stderr)
            first, *more = wrapped(f"{start}{shown}", width, len(start))
            if name in _COLOURS:
                first = marked(start, _COLOURS[name], sys.stderr) + first[len(start) :]
            for line in (first, *more):
                click.echo(line, err=True, color=True)


def clear_screen() -> None:
    """Clear the terminal of standard output, if there is one."""
    if sys.stdout.isatty():
        out("\x1b[2J\x1b[H")


def table(*columns: str, right: frozenset[str] = frozenset()) -> Table:
    """An empty table; columns in `right` are flush right. Escape what comes from outside."""
    return Table(columns, right)


def show_table(shown: Table) -> None:
    """Print a table on standard output, in the width of the terminal."""
    for line in shown.lines(width_of(sys.stdout)):
        out(line)

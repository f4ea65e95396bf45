"""The log of commands that run for long: the options, and a line on standard error for each event
(LOG-1).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TextIO, get_args

import click

from connector.cli.remedies import command_for, command_of
from connector.cli.terminal import err, escaped, show_error
from connector.clock import now_us
from connector.errors import ConnectorError
from connector.errors.settings import system_error
from connector.events import Event, Level
from connector.records.views import view_of_time

LEVELS: Final[tuple[Level, ...]] = get_args(Level)
Function = Callable[..., Any]


def log_options(function: Function) -> Function:
    """Adds `--log-format` and `--log-level`."""
    level = "The lowest level that is shown, also of Spark's own lines. debug has each step."
    function = click.option(
        "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help=level
    )(function)
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="How messages are written. json: one object a line.",
    )(function)


def text_line(event: Event) -> str:
    """For example "2024-03-01T12:00:00.000000Z info APPLIED table orders: 3 changes applied"."""
    return escaped(f"{view_of_time(now_us())} {event.level} {event.code} {event.line}")


def json_line(event: Event) -> str:
    """An object with time, level, code, the fields and the text of an event."""
    first = {"time": view_of_time(now_us()), "level": event.level, "code": event.code}
    return json.dumps({**first, **event.fields, "text": event.text}, default=str)


@dataclass(frozen=True, slots=True)
class LogLines:
    """Writes events to standard error, and those of steps to the file `trace`, if there is one."""

    log_format: Literal["text", "json"]
    log_level: Level
    trace: TextIO | None = None

    def show(self, event: Event) -> None:
        """Write an event. Any thread may call it."""
        if event.code == "STEP" and self.trace is not None:
            with suppress(OSError):  # a full disk stops no pipeline
                self.trace.write(f"{json_line(event)}\n")
                self.trace.flush()
        if LEVELS.index(event.level) < LEVELS.index(self.log_level):
            return
        command = command_of(str(event.fields.get("error", "")), event.fields)
        if self.log_format == "json":
            fields = {**event.fields, **({"run": command} if command else {})}
            click.echo(json_line(replace(event, fields=fields)), err=True)
        else:
            err(text_line(event))
            if command:
                click.echo(escaped(f"run: {command}"), err=True)

    @contextmanager
    def showing_error(self) -> Iterator[None]:
        """Show the error that ends the block, and end the command with the exit code 1."""
        logging.getLogger("lowmark").setLevel(self.log_level.upper())
        try:
            yield
        except ConnectorError as error:
            self._show_error(error)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._show_error(system_error(str(error)))
        else:
            return
        raise click.exceptions.Exit(1)

    def _show_error(self, error: ConnectorError) -> None:
        if self.log_format == "text":
            show_error(error)
            return
        fields = {"cause": error.cause, "remedy": error.remedy, "run": command_for(error)}
        self.show(Event("error", error.code, error.problem, fields))

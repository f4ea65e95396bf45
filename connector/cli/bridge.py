"""`connector bridge`: publish the records of foreign topics as the changes of a stream (SRC-1)."""

from __future__ import annotations

from typing import Literal

import click

from connector.cli.log_lines import LogLines, log_options
from connector.cli.parameters import config_and_stream, stop_on_signals, stream_option
from connector.cli.progress import Progress
from connector.events import Level, info
from connector.services.bridge import run_bridge
from connector.text import counted


@click.command()
@stream_option
@click.option(
    "--once", is_flag=True, help="Publish up to the current end of every source topic, and stop."
)
@click.option(
    "--skip-transaction",
    "skip",
    metavar="ID",
    default="",
    help="Publish this transaction without the events that it lacks. `connector status` names it.",
)
@log_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    stream: str | None,
    once: bool,
    skip: str,
    log_format: Literal["text", "json"],
    log_level: Level,
) -> None:
    """Publish the records of the source of a stream as its changes. SIGTERM or Ctrl-C stops the
    command.

    You can kill the command at any time and start it again: it goes on where it was. It needs no
    access to the warehouse. Run it once for each stream.
    """
    log, stop = LogLines(log_format, log_level), stop_on_signals()
    with log.showing_error(), Progress(log.show) as progress:
        config, of_stream = config_and_stream(ctx, stream, source_tables=False)
        show, name = progress.on_event, of_stream.name
        counts = run_bridge(config, name, once=once, skip=skip, stop=stop, on_event=show)
    left_out, letters = sum(counts.left_out.values()), counts.letters
    text = f"{counted(counts.changes, 'change')} and {counted(letters, 'dead letter')} published"
    figures = {"changes": counts.changes, "letters": letters, "left_out": left_out}
    text = f"{text}, {counted(left_out, 'record')} left out"
    log.show(info("BRIDGE_ENDED", text, stream=name, **figures))

"""`connector spool`: show the spool of a producer; accept the loss of records (PUB-3)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from connector.cli.terminal import out, say
from connector.records.json_view import to_line
from connector.records.spooled import describe_losses
from connector.records.views import view_of_time
from connector.services.spool import accept_losses, spool_status
from connector.text import counted

if TYPE_CHECKING:
    from connector.kafka.produce.spool_repair import SpoolStatus

_PATH = click.Path(path_type=Path)


@click.group()
def command() -> None:
    """Show the records that a producer keeps on disk while Kafka is away; accept losses."""


@command.command()
@click.argument("path", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def show(ctx: click.Context, path: Path, as_json: bool) -> None:
    """Show the number of records in the spool PATH, their bytes and times, and its losses.

    Each record is read and checked. Nothing is changed, so the producer may run. Exit code 1: there
    are losses that were not accepted.
    """
    found = spool_status(path)
    if as_json:
        out(to_line(asdict(found)))
    else:
        _print(found)
    if found.losses:
        ctx.exit(1)


@command.command()
@click.argument("path", type=_PATH)
def accept(path: Path) -> None:
    """Accept that records of the spool PATH are lost, so that the producer sends heartbeats again.

    Before that, send the changes of the source again from its resume token. Otherwise the tables
    may lack changes. If the file cannot be read, a new one gets each readable record, and the old
    one is kept as PATH.damaged.
    """
    losses = accept_losses(path)
    if not losses:
        say("there is no loss to accept")
    elif losses[0].first == 0:
        say(f"nothing could be read. The file is kept as {path}.damaged")
    else:
        say(f"accepted: {describe_losses((loss.first, loss.last) for loss in losses)}")


def _print(found: SpoolStatus) -> None:
    use = "a producer uses it" if found.is_in_use else "no producer uses it"
    out(f"topic:   {found.topic or 'none yet'} ({use})")
    out(f"records: {found.records:,}, {found.bytes:,} bytes")
    if found.oldest is not None and found.newest is not None:
        out(f"oldest:  {view_of_time(found.oldest)}")
        out(f"newest:  {view_of_time(found.newest)}")
    if found.refused:
        out(f"refused: {counted(found.refused, 'record')}, which Kafka did not take")
    for why in sorted({loss.why for loss in found.losses}):
        ranges = [(loss.first, loss.last) for loss in found.losses if loss.why == why]
        out(f"{why}: {describe_losses(ranges)}")

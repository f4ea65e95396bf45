"""`connector broker`: a real Kafka broker on this machine, for development (OPS-2)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from connector.cli.terminal import out, say

DEFAULT_FOLDER: Final = Path(".lowmark/broker")
KAFKAS_PORT: Final = 9092

_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="The folder with its data and log.",
)


@click.group()
def command() -> None:
    """Start or stop a local Kafka broker, for development.

    It is Apache Kafka. Its jars are fetched once and checked. It listens only on this machine, and
    continues to run when this command ends. If you start it again in the same folder, it has the
    same topics.
    """


@command.command()
@_folder
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"Default: the last port of the folder, or {KAFKAS_PORT}. 0 chooses a free port.",
)
def start(folder: Path, port: int | None) -> None:
    """Start the broker of a folder if it does not run, and print its address."""
    from connector.jars import JarStore
    from connector.kafka.local.broker import LocalBroker

    if port is None:
        port = 0 if (folder / "broker.json").exists() else KAFKAS_PORT
    broker = LocalBroker.start_or_reuse(
        folder, JarStore.from_environment(os.environ), port=port, daemon=True, on_progress=say
    )
    out(broker.bootstrap_servers)


@command.command()
@_folder
def stop(folder: Path) -> None:
    """Stop the broker of a folder. Its data stays."""
    from connector.jars import JarStore
    from connector.kafka.local.broker import LocalBroker

    broker = LocalBroker.find(folder, JarStore.from_environment(os.environ))
    if broker is None:
        say(f"no broker runs in {folder}")
        return
    broker.stop()
    say(f"stopped the broker at {broker.bootstrap_servers}; its data is still in {folder}")

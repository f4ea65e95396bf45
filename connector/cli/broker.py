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
    help="Where its data and log are.",
)


@click.group()
def command() -> None:
    """Start or stop a local Kafka broker, for development.

    It is Apache Kafka itself, from jars that are fetched once and checked, and listens on this
    machine only. It lives on when this command ends; its topics are there again when it is started
    in the same folder.
    """


@command.command()
@_folder
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"The folder's last port, else {KAFKAS_PORT}, if not given; 0 takes any that is free.",
)
def start(folder: Path, port: int | None) -> None:
    """Start the broker of a folder, if it does not run, and print its address."""
    from connector.jars import JarStore
    from connector.kafka.local.broker import LocalBroker

    if port is None:
        port = 0 if (folder / "broker.json").exists() else KAFKAS_PORT
    broker = LocalBroker.start_or_reuse(
        folder, JarStore.from_environment(os.environ), port=port, daemon=True, say=say
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

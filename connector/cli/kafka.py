"""`connector broker`: a local Kafka, for development (OPS-2). `connector topic`: the topics of a
stream (REC-1, REC-2).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from connector.cli.parameters import DURATION_S, config_and_stream, stream_option
from connector.cli.terminal import err, out

DEFAULT_FOLDER: Final = Path(".lowmark/broker")
DEFAULT_PORT: Final = 9092
HEADROOM_BYTES: Final = 500_000
"""The space of a topic for headers and the framing of a batch, beyond `max_record_bytes`."""

_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="The folder with its data and log.",
)


@click.group()
def broker() -> None:
    """Start or stop a local Kafka broker, for development.

    It is Apache Kafka. Its jars are fetched once and checked. It listens only on this machine, and
    continues to run when this command ends. If you start it again in the same folder, it has the
    same topics.
    """


@broker.command()
@_folder
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"Default: the last port of the folder, or {DEFAULT_PORT}. 0 chooses a free port.",
)
def start(folder: Path, port: int | None) -> None:
    """Start the broker of a folder if it does not run, and print its address."""
    from connector.jars import JarStore
    from connector.kafka.local.broker import LocalBroker

    if port is None:
        port = 0 if (folder / "broker.json").exists() else DEFAULT_PORT
    started = LocalBroker.start_or_reuse(
        folder, JarStore.from_environment(os.environ), port=port, on_progress=err
    )
    out(started.bootstrap_servers)


@broker.command()
@_folder
def stop(folder: Path) -> None:
    """Stop the broker of a folder. Its data stays."""
    from connector.jars import JarStore
    from connector.kafka.local.broker import LocalBroker

    running = LocalBroker.find(folder, JarStore.from_environment(os.environ))
    if running is None:
        err(f"no broker runs in {folder}")
        return
    running.stop()
    err(f"stopped the broker at {running.bootstrap_servers}; its data is still in {folder}")


@click.group()
def topic() -> None:
    """Create the topics of a stream."""


@topic.command()
@stream_option
@click.option(
    "--kafka-partitions",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="The number of Kafka partitions of the change topic.",
)
@click.option(
    "--retention",
    type=DURATION_S,
    default="7d",
    show_default=True,
    help="How long Kafka keeps a record after its arrival: 1 to 7 days.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    help="How many brokers keep each record. Default: 3 with three or more brokers, otherwise the"
    " default of the cluster.",
)
@click.option(
    "--group",
    help="Create only the topics for the dead letters of this group of readers.",
)
@click.pass_context
def create(
    ctx: click.Context,
    stream: str | None,
    kafka_partitions: int,
    retention: int,
    replication_factor: int | None,
    group: str | None,
) -> None:
    """Create the topic of a stream, its dead-letter topic, the ledger, and the catalog of its write
    streams, if they do not exist. Print the name of the topic.

    With --group, the topic of the stream must exist. The topics of the group get its number of
    Kafka partitions and its replication factor.
    """
    from connector.kafka.topics import DEFAULT_MAX_MESSAGE_BYTES, create_group_topics, create_topic

    config, source = config_and_stream(ctx, stream)
    if group is not None:
        facts = create_group_topics(config.kafka, source.topic, group)
        err(f"{facts.topic} exists, with its ledger and its topic for replays")
        out(facts.topic)
        return
    facts = create_topic(
        config.kafka,
        source.topic,
        kafka_partitions=kafka_partitions,
        retention_s=retention,
        replication_factor=replication_factor or -1,
        max_message_bytes=max(
            DEFAULT_MAX_MESSAGE_BYTES, source.limits.max_record_bytes + HEADROOM_BYTES
        ),
    )
    err(
        f"{facts.topic} has {facts.kafka_partitions} Kafka partitions and the id"
        f" {facts.topic_id}; its dead-letter topic, ledger and catalog exist too"
    )
    out(facts.topic)

"""`connector topic`: the topics of a stream (REC-1, REC-2)."""

from __future__ import annotations

import click

from connector.cli import settings
from connector.cli.parameters import DURATION_S
from connector.cli.terminal import out, say
from connector.config.settings import find_stream

HEADROOM_BYTES = 500_000
"""What a topic takes beyond `max_record_bytes`: headers and the framing of a batch."""


@click.group()
def command() -> None:
    """Create the topics of a stream."""


@command.command()
@click.argument("stream", required=False)
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
    """Create the topic of STREAM, its dead-letter topic, the ledger, and the catalog of its write
    streams, if they do not exist. Print the name of the topic.

    STREAM is the name of a stream in the configuration, or the name of its topic. You can leave it
    out if there is only one stream.

    With --group, the topic of STREAM must exist. The topics of the group get its number of Kafka
    partitions and its replication factor.
    """
    from connector.kafka.topics import DEFAULT_MAX_MESSAGE_BYTES, create_group_topics, create_topic

    config = settings.load(ctx)
    of = find_stream(config, stream)
    if group is not None:
        facts = create_group_topics(config.kafka, of.topic, group)
        say(f"{facts.topic} exists, with its ledger and its topic for replays")
        out(facts.topic)
        return
    facts = create_topic(
        config.kafka,
        of.topic,
        kafka_partitions=kafka_partitions,
        retention_s=retention,
        replication_factor=replication_factor or -1,
        max_message_bytes=max(
            DEFAULT_MAX_MESSAGE_BYTES, of.limits.max_record_bytes + HEADROOM_BYTES
        ),
    )
    say(
        f"{facts.topic} has {facts.kafka_partitions} Kafka partitions and the id"
        f" {facts.topic_id}; its dead-letter topic, ledger and catalog exist too"
    )
    out(facts.topic)

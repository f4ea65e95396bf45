"""`connector run`: ingest and apply of everything that is configured, in one process (OPS-4)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from connector.cli import local_spark, settings, terminal
from connector.clock import now_us
from connector.dead_letters.ledger import LetterState
from connector.errors import ConfigError

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.dead_letters.envelope import DeadLetter
    from connector.spark.ingest.ingest import IngestPorts


@click.command("run")
@click.option("--once", is_flag=True, help="Ingest to the present end of every topic, apply, and stop.")
@click.option("--cores", default="*", show_default=True, help="Threads of a local Spark; * for as many as there are processors.")
@click.option("--memory", default="2g", show_default=True, help="Heap of a local Spark driver.")
@click.pass_context
def command(ctx: click.Context, *, once: bool, cores: str, memory: str) -> None:
    """Ingest all streams and apply them to their tables, until SIGTERM or Ctrl-C: then the batch in flight ends first.

    Kill it at any instant and start it again: it goes on where it was.
    """
    config = settings.load(ctx)
    if not config.streams:
        raise ConfigError("No stream is configured", "", 'Add a section such as [streams.orders] with topic = "orders"')
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with ExitStack() as stack:
        worlds = {name: _world(config, stream, stack) for name, stream in config.streams.items()}
        _run(config, worlds, stack, stop, once=once, cores=cores, memory=memory)


def _run(
    config: ConnectorConfig,
    worlds: Mapping[str, IngestPorts],
    stack: ExitStack,
    stop: threading.Event,
    *,
    once: bool,
    cores: str,
    memory: str,
) -> None:
    from connector.lake.jobs import History
    from connector.lake.overrides import Overrides
    from connector.spark.pipeline import JobLog, Pipeline

    spark = local_spark.start(stack, cores=cores, memory=memory)
    history = History(config.warehouse)
    overrides = Overrides(config.warehouse)
    journal = JobLog(
        *(history.add_job, history.add_cut, history.newest_cut, overrides.bounds, overrides.paces),
        last_clean_up=history.last_clean_up,
        forget_cuts=history.forget_cuts,
    )
    earliest = {name: _earliest(config, stream) for name, stream in config.streams.items()}
    pipeline = Pipeline(spark, config, worlds, earliest, journal, terminal.say)
    if once:
        pipeline.run_once(stop)
    else:
        terminal.say("running; stop with Ctrl-C or SIGTERM")
        pipeline.run(stop)
    if stop.is_set():
        terminal.say("stopped: every batch that began has ended")


def _world(config: ConnectorConfig, stream: StreamConfig, stack: ExitStack) -> IngestPorts:
    """Kafka, the registry and the clock of one stream, as functions; checked once before anything starts (REC-2)."""
    from connector.kafka import topics
    from connector.kafka.dead_letters.ledger_topic import read_ledger
    from connector.kafka.dead_letters.topic import DeadLetterPublisher, external_dead_letters
    from connector.lake.overrides import Overrides
    from connector.spark.ingest.ingest import IngestPorts

    facts = topics.describe(config.kafka, stream.topic)
    for warning in topics.check(facts):
        terminal.say(f"warning: {warning}")
    topics.create_dead_letter_topics(config.kafka, facts)
    publisher = stack.enter_context(DeadLetterPublisher(config.kafka, stream.topic))
    one_at_a_time = threading.Lock()

    def publish(letters: Iterable[DeadLetter]) -> int:
        with one_at_a_time:
            return publisher.publish(letters)

    return IngestPorts(
        topic=lambda: topics.describe(config.kafka, stream.topic),
        publish=publish,
        now=now_us,
        high_watermarks=lambda: topics.high_watermarks(config.kafka, topics.describe(config.kafka, stream.topic)),
        schema_by_id=_registry(config, stack),
        ends=lambda taken_to: Overrides(config.warehouse).ends(stream.name, above=taken_to),
        discarded=lambda: read_ledger(config.kafka, stream.topic).ids(LetterState.DISCARDED),
        outside=lambda known, published: external_dead_letters(config.kafka, stream.topic, known, published),
    )


def _registry(config: ConnectorConfig, stack: ExitStack) -> Callable[[int], str | None] | None:
    if config.registry is None:
        return None
    from connector.kafka.schema_registry import RegistryClient

    return stack.enter_context(RegistryClient(config.registry)).schema


def _earliest(config: ConnectorConfig, stream: StreamConfig) -> Callable[[], Mapping[int, int]]:
    from connector.kafka import topics

    return lambda: topics.beginning_offsets(config.kafka, topics.describe(config.kafka, stream.topic))

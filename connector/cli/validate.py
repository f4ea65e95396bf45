"""`connector validate`: would this configuration work here and now? Nothing is started, created or written (OPS-1)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from connector.cli import settings
from connector.cli.status import duration
from connector.cli.terminal import escaped, out, say, show_error
from connector.config import java_settings
from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.dead_letters.envelope import dead_letter_topic, ledger_topic
from connector.errors import BrokerError, ConfigError, ConnectorError, TopicError
from connector.tables.compatibility import check_columns, check_compatible
from connector.tables.definition import TableDefinition
from connector.tables.stored_definition import from_properties
from connector.text import counted

Findings = Iterator[str | ConnectorError]
"""What a check says, one after the other: a line that all is well, or begins with `warning:`; or what is wrong."""


@click.command()
@click.pass_context
def command(ctx: click.Context) -> int:
    """Check the configuration against the running Kafka, the registry and the warehouse; starts, creates and writes nothing.

    Prints a line for each thing that is well; every fault goes to standard error. Exit code 1 if there is one.
    """
    config = settings.load(ctx)
    faults = 0
    for finding in _findings(config):
        if isinstance(finding, ConnectorError):
            faults += 1
            show_error(finding)
        elif finding.startswith("warning:"):
            say(finding)
        else:
            out(escaped(finding))
    say(counted(faults, "fault") if faults else "all is well")
    return 1 if faults else 0


def _findings(config: ConnectorConfig) -> Findings:
    yield f"configuration: {counted(len(config.streams), 'stream')}, {counted(len(config.tables), 'table')}"
    yield from _guarded(_ingest_client(config.kafka))
    yield from _guarded(_warehouse(config.warehouse))
    for table in config.tables.values():
        yield from _guarded(_table(config.warehouse, table))
    for stream in config.streams.values():
        yield from _changelog(stream, has_tables=any(table.stream == stream.name for table in config.tables.values()))
    yield from _guarded(_registry(config))
    for stream in config.streams.values():
        try:
            yield from _stream(config.kafka, stream)
            yield from _ledger(config.kafka, stream)
        except BrokerError as error:
            yield error
            return  # the next stream would wait for the same brokers
        except ConnectorError as error:
            yield error


def _guarded(findings: Findings) -> Findings:
    try:
        yield from findings
    except ConnectorError as error:
        yield error


def _ingest_client(kafka: KafkaConfig) -> Findings:
    java_settings.options(kafka)
    yield f"kafka: {kafka.bootstrap_servers}, settings that Spark can be given, too"


def _warehouse(warehouse: str) -> Findings:
    if "://" in warehouse:
        yield f"warehouse: {warehouse} (a URI: not looked at)"
        return
    nearest_folder = next(folder for folder in (Path(warehouse), *Path(warehouse).parents) if folder.exists())
    if not nearest_folder.is_dir():
        raise ConfigError(f"warehouse is {warehouse}", f"{nearest_folder} is no folder", "name a folder, or where one can be made")
    if not os.access(nearest_folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"warehouse is {warehouse}", f"this user may not write in {nearest_folder}", "give the right, or name another folder"
        )
    yield f"warehouse: {warehouse}" + ("" if nearest_folder == Path(warehouse) else " (will be made)")


def _table(warehouse: str, definition: TableDefinition) -> Findings:
    """What lies in a local warehouse under the table's name must have its definition (TBL-8)."""
    path = Path(warehouse) / "tables" / definition.name / "data"
    if "://" in warehouse or not path.exists():
        return
    from connector.lake.plain_table import open_table

    existing, _ = from_properties(open_table(str(path)).properties)
    check_compatible(existing, definition)
    check_columns(existing, definition)
    yield f"tables.{definition.name}: as in the warehouse"


def _changelog(stream: StreamConfig, *, has_tables: bool) -> Findings:
    """How long the changelog of a stream is kept (TBL-15)."""
    if not has_tables:
        yield f"warning: streams.{stream.name} has no table: its changes go to the changelog only"
    retention_s = stream.changelog_retention_s
    if retention_s is None:
        yield f"streams.{stream.name}: the changelog is kept for ever"
    elif has_tables:
        yield f"streams.{stream.name}: the changelog is kept for {duration(retention_s)} at least, until all its tables have applied it"
    else:
        problem = f"streams.{stream.name}.changelog_retention has no effect"
        yield f"warning: {problem}: a stream without tables keeps its changelog for ever"


def _registry(config: ConnectorConfig) -> Findings:
    if config.registry is None:
        return
    from connector.kafka.schema_registry import RegistryClient
    from connector.records.codec import READER_SCHEMA

    with RegistryClient(config.registry) as registry:
        if config.registry.auto_register:
            registry.schema(1)
            yield f"registry: {config.registry.url} answers; producers register the schema"
            return
        for stream in config.streams.values():
            schema_id = registry.schema_id(stream.topic, READER_SCHEMA)
            yield f"registry: subject {config.registry.subject(stream.topic)} has the schema, as id {schema_id}"


def _stream(kafka: KafkaConfig, stream: StreamConfig) -> Findings:
    from connector.kafka import topics

    facts = topics.describe(kafka, stream.topic)
    warnings = topics.check(facts)
    kept = "for ever" if facts.retention_ms < 0 else f"for {facts.retention_ms / 3_600_000:g} hours"
    yield f"streams.{stream.name}: topic {facts.topic}, {facts.kafka_partitions} Kafka partitions, records kept {kept}"
    yield from (f"warning: {warning}" for warning in warnings)
    if stream.limits.max_record_bytes > facts.max_message_bytes:
        problem = f"streams.{stream.name}.max_record_bytes is {stream.limits.max_record_bytes}"
        allowed = f"never above what the topic takes: max.message.bytes of {facts.topic} is {facts.max_message_bytes}"
        yield ConfigError(problem, allowed, f"write max_record_bytes = {facts.max_message_bytes}, or raise that of the topic")
    try:
        letters = topics.describe(kafka, dead_letter_topic(stream.topic))
    except TopicError:
        yield f"streams.{stream.name}: {dead_letter_topic(stream.topic)} will be created with the first dead letter"
        return
    if "compact" in letters.cleanup_policy:
        problem = f"The topic {letters.topic} is compacted"
        yield TopicError(problem, "dead letters of one row would replace each other", f"set cleanup.policy=delete on {letters.topic}")
    elif letters.max_message_bytes <= facts.max_message_bytes:
        problem = f"The topic {letters.topic} takes {letters.max_message_bytes} bytes, {facts.topic} takes {facts.max_message_bytes}"
        largest = facts.max_message_bytes + topics.LETTER_HEADROOM_BYTES
        yield TopicError(
            problem, "the largest record would not fit as a dead letter", f"set max.message.bytes={largest} on {letters.topic}"
        )
    else:
        yield f"streams.{stream.name}: {letters.topic} takes the dead letters"


def _ledger(kafka: KafkaConfig, stream: StreamConfig) -> Findings:
    from connector.kafka import topics
    from connector.kafka.dead_letters.ledger_topic import check

    name = ledger_topic(stream.topic)
    try:
        facts = topics.describe(kafka, name)
    except TopicError:
        yield f"streams.{stream.name}: {name} will be created with the first dead letter"
        return
    check(facts)
    yield f"streams.{stream.name}: {name} keeps what is done about them"

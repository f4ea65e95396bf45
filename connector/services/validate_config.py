"""Check whether a configuration would work here and now. Nothing is started, created or written
(OPS-1), but in an object store a small file, which is deleted again (STO-4).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from connector import warehouse as paths
from connector.clock import now_us
from connector.config import java_settings
from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.config.spark_settings import check_shared
from connector.config.storage import is_s3
from connector.dead_letters.envelope import dead_letter_topic, ledger_topic
from connector.errors import BrokerError, ConnectorError, TableError, TopicError
from connector.errors.definitions import columns_changed
from connector.errors.kafka import stream_records_deleted, topic_foreign
from connector.errors.settings import setting_invalid, warehouse_unusable
from connector.reports.headroom import least_low
from connector.services.local_spark import check_master
from connector.services.requests import deleted_unread
from connector.services.status import ASK_TIMEOUT_S, headroom_of
from connector.services.warehouses import check_logs, warehouse_of
from connector.state.accepted_losses import AcceptLoss, text_of
from connector.state.incomplete_transactions import ReleaseTransaction
from connector.state.overrides import ClosePartition
from connector.tables.alterations import declared_alteration
from connector.tables.definition import TableDefinition, check_compatible
from connector.tables.published import tables_topic
from connector.tables.stored_definition import from_properties
from connector.text import counted, duration
from connector.write_streams.model import catalog_topic
from connector.write_streams.releases import ReleaseRows

if TYPE_CHECKING:
    from connector.kafka.topics import TopicFacts


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check: `ok`, `warning`, or `fault` with its error."""

    level: Literal["ok", "warning", "fault"]
    text: str
    error: ConnectorError | None = None


def validate_config(config: ConnectorConfig) -> Iterator[Finding]:
    """Check a configuration against the running Kafka, the registry and the warehouse, one finding
    after the other.

    For example: `[check.error for check in validate_config(load_config()) if check.error]`.

    Returns:
        Findings with a `level` (`ok`, `warning` or `fault`) and a `text`. A fault has its `error`:
        nothing is raised.
    """
    streams, tables = counted(len(config.streams), "stream"), counted(len(config.tables), "table")
    yield _ok(f"configuration: {streams}, {tables}")
    yield from _guarded(_ingest_client(config.kafka))
    yield from _guarded(_spark(config))
    warehouse = list(_guarded(_store(config) if is_s3(config.warehouse) else _warehouse(config)))
    yield from warehouse
    is_usable = not any(finding.level == "fault" for finding in warehouse)
    is_usable &= is_s3(config.warehouse) or "://" not in config.warehouse
    if is_usable:
        yield from _guarded(_small_tables(config))
        for table in config.tables.values():
            yield from _guarded(_table(config, table))
    for stream in config.streams.values():
        if is_usable:
            yield from _guarded(_progress(config, stream))
        follows = stream.source is not None and stream.source.follows_tables
        yield from _changelog(stream, has_tables=follows or bool(config.tables_of(stream.name)))
    yield from _guarded(_registry(config))
    for stream in config.streams.values():
        try:
            yield from _stream(config.kafka, stream)
            if is_usable:
                _check_topic(config, stream)
                yield from _headroom(config, stream)
                yield from _deleted(config, stream)
            yield from _records(config, stream)
            yield from _ledger(config.kafka, stream)
            yield from _catalog(config.kafka, stream)
            yield from _definitions(config.kafka, stream)
            yield from _source(config, stream)
            yield from _replicas(config.kafka, stream)
        except ConnectorError as error:
            yield _fault(error)
            if isinstance(error, BrokerError) and error.code != "KAFKA_ACCESS_DENIED":
                return  # the next stream would wait for the same brokers


def _guarded(findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except ConnectorError as error:
        yield _fault(error)


def _ok(text: str) -> Finding:
    return Finding("ok", text)


def _warning(text: str) -> Finding:
    return Finding("warning", text)


def _fault(error: ConnectorError) -> Finding:
    return Finding("fault", error.problem, error)


def _ingest_client(kafka: KafkaConfig) -> Iterator[Finding]:
    java_settings.options(kafka, Path.read_text)
    yield _ok(f"kafka: {kafka.bootstrap_servers}; Spark can use the same settings")


def _spark(config: ConnectorConfig) -> Iterator[Finding]:
    """The master of a cluster answers, and its hosts can reach the warehouse (SCL-7)."""
    if config.spark.is_local:
        return
    master = config.spark.master
    check_shared(master, config.warehouse, shared_folder=config.storage.shared_folder)
    note = "" if check_master(master) else " (not checked)"
    yield _ok(f"spark: {master}{note}")


def _store(config: ConnectorConfig) -> Iterator[Finding]:
    """The object store is reachable, and can be read and written (STO-4)."""
    from connector.lake.checks import check_store, has_streams

    warehouse = warehouse_of(config)
    try:
        check_store(warehouse)
    except TableError as error:
        if error.code != "STORE_ACCESS_DENIED" or not has_streams(warehouse):
            raise
        text = "This user cannot write there: it can read, and nothing else"
        yield _warning(f"warehouse: {warehouse}. {text}")
        return
    yield _ok(f"warehouse: {warehouse}; it can be read and written")


def _warehouse(config: ConnectorConfig) -> Iterator[Finding]:
    warehouse = config.warehouse
    if "://" in warehouse:
        yield _ok(f"warehouse: {warehouse} (a URI, not checked)")
        return
    nearest_folder = next(
        folder for folder in (Path(warehouse), *Path(warehouse).parents) if folder.exists()
    )
    if not nearest_folder.is_dir():
        raise warehouse_unusable(warehouse, f"{nearest_folder} is not a folder")
    if not os.access(nearest_folder, os.W_OK | os.X_OK):
        problem = f"This user cannot write to {nearest_folder}"
        if not (Path(warehouse) / "streams").is_dir() or not os.access(warehouse, os.R_OK):
            raise warehouse_unusable(warehouse, problem)
        yield _warning(f"warehouse: {warehouse}. {problem}: it can read, and nothing else")
        return
    note = "" if nearest_folder == Path(warehouse) else " (will be created)"
    yield _ok(f"warehouse: {warehouse}{note}")


def _small_tables(config: ConnectorConfig) -> Iterator[Finding]:
    """The small tables can be read, and no log is damaged (TBL-14, TBL-20)."""
    from connector.lake.jobs import History
    from connector.lake.overrides import Overrides

    warehouse = warehouse_of(config)
    check_logs(config, config.streams, config.tables)
    overrides, history = Overrides(warehouse), History(warehouse)
    overrides.bounds()
    for stream in config.streams:
        overrides.requests(ClosePartition, stream, above=0)
        overrides.requests(ReleaseTransaction, stream, above=0)
        overrides.requests(ReleaseRows, stream, above=0)
        history.newest_cut(stream)
    for table in config.tables:
        history.jobs(table, limit=1)
    yield from ()


def _table(config: ConnectorConfig, definition: TableDefinition) -> Iterator[Finding]:
    """A table that exists is lowmark's, of this changelog, and as defined (TBL-8, TBL-14)."""
    from connector.lake.overrides import Overrides
    from connector.lake.plain_table import newest_stored, open_table
    from connector.lake.state_reader import logged_progress_of, table_state_of

    warehouse = warehouse_of(config)
    path = paths.table(warehouse, definition.name)
    if newest_stored(path) is None:
        return
    state = table_state_of(warehouse, definition.stream, definition.name)
    existing, ids = from_properties(open_table(path, table=definition.name).properties)
    check_compatible(existing, definition)
    if existing.keep_unmapped != definition.keep_unmapped:
        raise columns_changed(definition.name)
    try:
        overrides = Overrides(warehouse).columns().get(definition.name, ())
        logged = logged_progress_of(warehouse, definition.stream)
    except TableError:  # a finding of its own
        return
    change = declared_alteration(existing, ids, definition, overrides)
    logged.of_table(definition.name, state)
    if change is None:
        yield _ok(f"tables.{definition.name}: as in the warehouse")
    for column in change.added if change else ():
        yield _ok(f"tables.{definition.name}: the pipeline will add the column {column.name}")


def _progress(config: ConnectorConfig, stream: StreamConfig) -> Iterator[Finding]:
    """The changelog of a stream is at a commit of lowmark (TBL-14)."""
    from connector.lake.state_reader import logged_progress_of

    logged = logged_progress_of(warehouse_of(config), stream.name, with_frontier=True)
    if batch := logged.progress.ingest_batch:
        yield _ok(f"streams.{stream.name}: the changelog is at batch {batch}")


def _check_topic(config: ConnectorConfig, stream: StreamConfig) -> None:
    """Raise `TopicError` if the changelog was written from another topic of this name (REC-4)."""
    from connector.kafka import topics
    from connector.lake.plain_table import newest_stored

    with suppress(TableError):  # a finding of its own
        stored = newest_stored(paths.changelog(warehouse_of(config), stream.name)) or {}
        if (topic_id := stored.get("topic_id")) is not None:
            topics.check_identity(topic_id, topics.describe(config.kafka, stream.topic))


def _records(config: ConnectorConfig, stream: StreamConfig) -> Iterator[Finding]:
    """The newest records of the topic are records of lowmark (REC-11, DLQ-5)."""
    from connector.kafka.probe_offsets import newest_records

    newest, unreadable = newest_records(config.kafka, stream.topic, config.registry)
    if not newest:
        yield _ok(f"streams.{stream.name}: topic {stream.topic} has no new records")
    elif not unreadable:
        records = counted(newest, "newest record")
        yield _ok(f"streams.{stream.name}: the {records} can be read")
    elif len(unreadable) < newest:
        text = (
            f"streams.{stream.name}: {len(unreadable)} of the {newest} newest records of topic"
            f" {stream.topic} cannot be read, for example {unreadable[0]}. They become dead letters"
        )
        yield _warning(text)
    else:
        cause = f"None of the newest {newest} can be read, for example {unreadable[0]}"
        yield _fault(topic_foreign(stream.topic, cause))


def _headroom(config: ConnectorConfig, stream: StreamConfig) -> Iterator[Finding]:
    """Kafka keeps the records that ingest lacks for a day at least (RUN-7)."""
    with suppress(TableError):  # a finding of its own
        now = now_us()
        low = least_low(headroom_of(config, stream, timeout_s=ASK_TIMEOUT_S), now)
        if low is not None:
            yield _warning(f"streams.{stream.name}: {low.describe(now)}")


def _deleted(config: ConnectorConfig, stream: StreamConfig) -> Iterator[Finding]:
    """Kafka has deleted no record that ingest lacks, or a person accepted it (RUN-7)."""
    from connector.lake.overrides import Overrides

    with suppress(TableError):  # a finding of its own
        lost = deleted_unread(config, stream)
        accepted = Overrides(warehouse_of(config)).requests(AcceptLoss, stream.name, above=0)
        if lost and not any(request.covers(lost) for request in accepted):
            yield _fault(stream_records_deleted(stream.name, text_of(lost), ""))


def _changelog(stream: StreamConfig, *, has_tables: bool) -> Iterator[Finding]:
    """How long the changelog of a stream is kept (TBL-15)."""
    if not has_tables:
        yield _warning(f"streams.{stream.name} has no table: its changes go to the changelog only")
    retention_s = stream.changelog_retention_s
    if retention_s is None:
        yield _ok(f"streams.{stream.name}: the changelog is kept for ever")
    elif has_tables:
        yield _ok(
            f"streams.{stream.name}: the changelog is kept for {duration(retention_s)} at least,"
            " until all its tables have applied it",
        )
    else:
        problem = f"streams.{stream.name}.changelog_retention has no effect"
        yield _warning(f"{problem}: a stream without tables keeps its changelog for ever")


def _registry(config: ConnectorConfig) -> Iterator[Finding]:
    if config.registry is None:
        return
    from connector.kafka.schema_registry import RegistryClient
    from connector.records.codec import SCHEMA

    with RegistryClient(config.registry) as registry:
        if config.registry.auto_register:
            registry.schema(1)
            yield _ok(f"registry: {config.registry.url} answers; producers register the schema")
            return
        for stream in config.streams.values():
            schema_id = registry.schema_id(stream.topic, SCHEMA)
            yield _ok(
                f"registry: subject {config.registry.subject(stream.topic)} has the schema, as id"
                f" {schema_id}",
            )


def _stream(kafka: KafkaConfig, stream: StreamConfig) -> Iterator[Finding]:
    from connector.kafka import topics

    facts = topics.describe(kafka, stream.topic)
    warnings = topics.check(facts)
    kept = "for ever" if facts.retention_ms < 0 else f"for {facts.retention_ms / 3_600_000:g} hours"
    yield _ok(
        f"streams.{stream.name}: topic {facts.topic}, {facts.kafka_partitions} Kafka partitions,"
        f" records kept {kept}",
    )
    yield from (_warning(warning) for warning in warnings)
    if (limit := stream.limits.max_record_bytes) > (most := facts.max_message_bytes):
        allowed = f"at most {most}, the max.message.bytes of {facts.topic}"
        remedy = f"Write max_record_bytes = {most}, or raise max.message.bytes of the topic"
        setting = f"streams.{stream.name}.max_record_bytes"
        yield _fault(setting_invalid(setting, str(limit), allowed, remedy))
    try:
        yield from _letters(kafka, stream, facts)
    except TopicError as error:
        yield _fault(error)


def _letters(kafka: KafkaConfig, stream: StreamConfig, facts: TopicFacts) -> Iterator[Finding]:
    from connector.kafka import topics

    name = dead_letter_topic(stream.topic)
    if (letters := _existing(kafka, name)) is None:
        yield _ok(f"streams.{stream.name}: {name} will be created with the first dead letter")
        return
    topics.check_dead_letters(facts, letters)
    yield _ok(f"streams.{stream.name}: {name} accepts the dead letters")


def _existing(kafka: KafkaConfig, name: str) -> TopicFacts | None:
    from connector.kafka import topics

    try:
        return topics.describe(kafka, name)
    except TopicError:
        return None


def _ledger(kafka: KafkaConfig, stream: StreamConfig) -> Iterator[Finding]:
    from connector.kafka import topics
    from connector.kafka.dead_letters.ledger_topic import read_ledger

    name = ledger_topic(stream.topic)
    if (facts := _existing(kafka, name)) is None:
        yield _ok(f"streams.{stream.name}: {name} will be created with the first dead letter")
        return
    topics.check_compacted(facts)
    read_ledger(kafka, stream.topic)
    yield _ok(f"streams.{stream.name}: {name} keeps the history of the dead letters")


def _definitions(kafka: KafkaConfig, stream: StreamConfig) -> Iterator[Finding]:
    """The topic with the definitions of the tables of a stream (EVO-1)."""
    from connector.kafka import topics

    name = tables_topic(stream.topic)
    if (facts := _existing(kafka, name)) is None:
        yield _ok(f"streams.{stream.name}: {name} will be created with the first definition")
        return
    topics.check_compacted(facts)
    yield _ok(f"streams.{stream.name}: {name} has the definitions of its tables")


def _catalog(kafka: KafkaConfig, stream: StreamConfig) -> Iterator[Finding]:
    """A stream needs a catalog only for write streams (WRS-3)."""
    from connector.kafka.write_streams import catalog

    name = catalog_topic(stream.topic)
    try:
        catalog.describe(kafka, stream.topic)
    except TopicError as error:
        if error.code != "TOPIC_MISSING":
            raise
        text = f"streams.{stream.name}: there is no {name}, so write sessions cannot be opened"
        yield _ok(text)
        return
    yield _ok(f"streams.{stream.name}: {name} is the catalog of its write streams")


def _source(config: ConnectorConfig, stream: StreamConfig) -> Iterator[Finding]:
    from connector.kafka.bridge.checks import source_findings

    for result in source_findings(config, stream):
        if isinstance(result, ConnectorError):
            yield _fault(result)
        else:
            yield Finding(*result)


def _replicas(kafka: KafkaConfig, stream: StreamConfig) -> Iterator[Finding]:
    """Warn if the loss of one broker may lose records of a topic of the stream (SEC-3)."""
    from connector.kafka import topics

    name_functions = (str, dead_letter_topic, ledger_topic, catalog_topic, tables_topic)
    described = [_existing(kafka, name_of(stream.topic)) for name_of in name_functions]
    for warning in topics.check_replicas(stream.name, [facts for facts in described if facts]):
        yield _warning(warning)

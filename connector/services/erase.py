"""Erase a row: the data of a person leaves the warehouse, and does not come back (OPR-2)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from connector import warehouse as paths
from connector.clock import now_us
from connector.config.settings import find_table
from connector.dead_letters.envelope import dead_letter_topic
from connector.dead_letters.ledger import OPEN_STATES
from connector.errors import TopicError, check_note
from connector.errors.changelog import pipeline_running
from connector.events import OnEvent, log_event
from connector.records.views import Shown, Time, Viewed
from connector.services.dead_letters import DeadLetters
from connector.services.load_config import who
from connector.services.local_spark import session_of
from connector.services.process import recorded, status_of_pipeline
from connector.services.rows.letters import is_of, rejected_letters
from connector.services.warehouses import check_logs, only_use, warehouse_of
from connector.state.erased_keys import EraseKey, key_hash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connector.config.settings import ConnectorConfig, KafkaConfig
    from connector.dead_letters.envelope import DeadLetter
    from connector.lake.overrides import Overrides
    from connector.records.codec import Schemas
    from connector.records.rejection import Position
    from connector.spark.storage.changelog import Changelog
    from connector.spark.storage.table import Table
    from connector.tables.definition import TableDefinition


@dataclass(frozen=True, slots=True)
class KafkaRecords:
    """Records of an erased row that a topic may still have: their number, the first and the last
    offset, and the time at which Kafka may delete the newest one (µs). None: never.

    `kept_by` is the id of the first open dead letter of another row before them. A Kafka partition
    of a dead-letter topic can only be deleted up to it.
    """

    topic: str
    kafka_partition: int
    records: int
    first_offset: int
    last_offset: int
    kept_until: Time | None
    kept_by: str | None = None


@dataclass(frozen=True, slots=True)
class EraseReport(Viewed):
    """The result of an erasure. `erase` documents the fields."""

    tables: tuple[str, ...]
    found_in: tuple[str, ...]
    changelog_records: int
    erased_to: Time
    kafka: tuple[KafkaRecords, ...]
    letters: int = 0
    deleted_to: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @property
    def is_known(self) -> Shown[bool]:
        """Whether the changelog, a table or Kafka had the row."""
        return bool(self.found_in or self.changelog_records or self.kafka or self.letters)


def erase(
    config: ConnectorConfig,
    table: str,
    row_key: bytes,
    *,
    why: str,
    by: str | None = None,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    on_event: OnEvent = log_event,
) -> EraseReport:
    """Erase a row from the changelog and from all tables of its source table, with all old versions
    of them, and close its dead letters.

    Stop the pipeline first. Cuts and versions from before cannot be read any more. Ingest then
    refuses changes of the row up to `erased_to`, for ever; later ones are applied. If the process
    dies, call it again. For example:
    `erase(config, "orders", b"order-7", why="ticket 12")`.

    Args:
        config: It has the table.
        table: The name of the table.
        row_key: The row key.
        why: The reason. It is stored, so it must not have the data.
        by: The person or program that asks. None: the user and the host of this process.
        dry_run: Change nothing.
        spark: Your own session, which is neither changed nor stopped. None: a local session.
        on_event: Receives events.

    Returns:
        The `tables` of the source table, those where the row was `found_in`, the number of its
        `changelog_records`, the newest commit timestamp that is refused (µs), the records that
        `kafka` still has, in the change topic and in the dead-letter topics of the stream and of
        groups of readers, and how many dead `letters` are closed as erased. `deleted_to` has by
        dead-letter topic the offset up to which each Kafka partition was deleted.

    Raises:
        ConfigError: There is no such table, or `why` or `by` cannot be stored.
        WriterConflictError: The pipeline runs, or another process writes.
        ConnectorError: Kafka or the warehouse cannot be used, or the newest batch is incomplete.
    """
    definition, by = find_table(config, table), who() if by is None else by
    check_note("why", why)
    check_note("by", by)
    check_logs(config, [definition.stream], [table])
    begun_at = now_us()
    pipeline = status_of_pipeline(config, definition.stream, begun_at)
    if pipeline.is_running and not dry_run:
        raise pipeline_running(
            f"The erasure in {table}", pipeline.text_of_rival(), definition.stream
        )
    with only_use(config, [definition.stream]), ExitStack() as stack:
        if not dry_run:
            of_erasure = recorded(config, on_event, once=True, erasure=definition.stream)
            on_event = stack.enter_context(of_erasure)
        letters = _letters_of(config, definition, row_key, by, on_event)
        session = session_of(config, spark, stack, on_event, for_writing=not dry_run)
        stored = _Stored.open(config, definition, row_key, letters[0].service.schemas, session)
        found_in, logged = stored.extent()
        if dry_run:
            return EraseReport(
                (*stored.tables,), found_in, logged, now_us(), _in_kafka(stored, letters)
            )
        record = stored.erase(why, by, begun_at)
        closed = {of_topic.topic: of_topic.close(why) for of_topic in letters}
        stored.overrides.add(replace(record, ended_at=now_us()))
        kafka = _in_kafka(stored, letters)
    deleted_to = {topic: offsets for topic, (_, offsets) in closed.items() if offsets}
    count = sum(count for count, _ in closed.values())
    return EraseReport(
        (*stored.tables,), found_in, logged, record.erased_to, kafka, count, deleted_to
    )


@dataclass(frozen=True, slots=True)
class _Stored:
    """A row in the warehouse: its stream, the tables that have it, and where its content is in the
    changelog, as SQL.
    """

    config: ConnectorConfig
    definition: TableDefinition
    row_key: bytes
    changelog: Changelog
    tables: Mapping[str, Table]
    where: str
    overrides: Overrides

    @classmethod
    def open(
        cls,
        config: ConnectorConfig,
        definition: TableDefinition,
        row_key: bytes,
        schemas: Schemas,
        spark: SparkSession,
    ) -> _Stored:
        from connector.lake.changelog_changes import rejected_of
        from connector.lake.overrides import Overrides
        from connector.lake.plain_table import open_table
        from connector.spark.storage.changelog import Changelog
        from connector.spark.storage.erase import rows_of, tables_of

        warehouse, stream, source = warehouse_of(config), definition.stream, definition.source
        path = paths.changelog(warehouse, stream)
        rejected = rejected_of(open_table(path, table=definition.name), row_key)
        letters = [it.id for it in rejected_letters(rejected, source, row_key, schemas)]
        return cls(
            *(config, definition, row_key),
            changelog=Changelog(spark, path, stream),
            tables=tables_of(spark, warehouse, stream, source),
            where=rows_of(source, row_key, letters),
            overrides=Overrides(warehouse),
        )

    def erase(self, why: str, by: str, begun_at: int) -> EraseKey:
        """Record the erasure, so that ingest refuses the row from then on, and erase it. No
        pipeline ran at `begun_at` (µs).
        """
        from connector.lake.jobs import History
        from connector.spark.storage.erase import erase_row

        stream, source, now = self.definition.stream, self.definition.source, now_us()
        secret = self.overrides.erasure_secret(secrets.token_bytes(32))
        hashed = key_hash(secret, source, self.row_key)
        before = self.overrides.erased(stream).erased_to.get(hashed, 0)
        erased_to = max(now, before, self.changelog.newest_change(self.where))
        record = EraseKey(0, stream, source, hashed, erased_to, why, now, by)
        self.overrides.add(record)
        of_row = (self.changelog, self.tables.values(), self.row_key, self.where)
        erase_row(*of_row, hashed, begun_at)
        versions = {name: table.newest()[0] for name, table in self.tables.items()}
        History(warehouse_of(self.config)).forget_cuts(stream, versions)
        return record

    def extent(self) -> tuple[tuple[str, ...], int]:
        """The tables that have the row, and the number of its records in the changelog."""
        from connector.spark.storage.erase import has_row

        names = (name for name, table in self.tables.items() if has_row(table, self.row_key))
        return (*names,), self.changelog.rows().where(self.where).count()

    def in_topic(self) -> Iterator[KafkaRecords]:
        """The records of the row that the change topic may still have."""
        from connector.kafka import topics
        from connector.lake.plain_table import open_table

        kafka, stream = self.config.kafka, self.config.streams[self.definition.stream]
        facts = topics.describe(kafka, stream.topic)
        begin = topics.beginning_offsets(kafka, facts)
        where = self.where.replace("`table`", '"table"')
        erased = self.overrides.erased(stream.name)
        if erased.erased_to:
            hashed = key_hash(erased.secret, self.definition.source, self.row_key)
            where += f" OR (kind = 'erased' AND row_key = X'{hashed}')"
        query = (
            'SELECT kafka_partition, count(*), min("offset"), max("offset"),'  # noqa: S608
            f" max(arrow_cast(record_timestamp, 'Int64')) FROM t WHERE {where}"
            " GROUP BY kafka_partition ORDER BY kafka_partition"
        )
        for number, count, first, last, newest in open_table(self.changelog.path).query(query):
            if last >= begin.get(number, 0):
                until = None if facts.retention_ms < 0 else newest + topics.retention_us(facts)
                yield KafkaRecords(facts.topic, number, count, first, last, until)


@dataclass(frozen=True, slots=True)
class _Letters:
    """The dead letters of a row in one topic."""

    kafka: KafkaConfig
    service: DeadLetters
    source: str
    row_key: bytes

    @property
    def topic(self) -> str:
        return dead_letter_topic(self.service.topic, self.service.group)

    def close(self, why: str) -> tuple[int, dict[int, int]]:
        """Close them, and delete the begin of the topic up to the last of them in each Kafka
        partition before which all are closed. Returns their number and these offsets.
        """
        from connector.kafka import topics

        ids = {letter.id for letter, _ in self._all() if self._is_of_row(letter)}
        closed = self.service.erase(ids, why=why) if ids else 0
        ledger, deletable, is_open = self.service.ledger(), dict[int, int](), set[int]()
        for letter, position in self._all():
            state = ledger.status(letter).state
            if state in OPEN_STATES:
                is_open.add(position.kafka_partition)
            elif letter.id in ids and position.kafka_partition not in is_open:
                deletable[position.kafka_partition] = position.offset + 1
        if deletable:
            topics.delete_before(self.kafka, self.topic, deletable)
        return closed, deletable

    def left(self) -> Iterator[KafkaRecords]:
        """Those that the topic still has. It keeps them for ever."""
        ledger, offsets = self.service.ledger(), dict[int, list[int]]()
        first_open, kept_by = dict[int, str](), dict[int, str]()
        for letter, position in self._all():
            number = position.kafka_partition
            if self._is_of_row(letter):
                offsets.setdefault(number, []).append(position.offset)
                if number in first_open:
                    kept_by[number] = first_open[number]
            elif ledger.status(letter).state in OPEN_STATES:
                first_open.setdefault(number, letter.id)
        for number, at in sorted(offsets.items()):
            kept = kept_by.get(number)
            yield KafkaRecords(self.topic, number, len(at), at[0], at[-1], None, kept)

    def _is_of_row(self, letter: DeadLetter) -> bool:
        key, schemas = self.row_key, self.service.schemas
        return is_of(letter.key, letter.value, self.source, key, schemas) is not None

    def _all(self) -> Iterator[tuple[DeadLetter, Position]]:
        from connector.kafka.dead_letters.topic import read_letters

        try:
            yield from read_letters(self.kafka, self.service.topic, group=self.service.group)
        except TopicError as error:
            if error.code != "TOPIC_MISSING":
                raise


def _in_kafka(stored: _Stored, letters: Iterable[_Letters]) -> tuple[KafkaRecords, ...]:
    """The records of a row that Kafka still has."""
    return (*stored.in_topic(), *(record for of_topic in letters for record in of_topic.left()))


def _letters_of(
    config: ConnectorConfig, definition: TableDefinition, row_key: bytes, by: str, on_event: OnEvent
) -> list[_Letters]:
    """The dead letters of a row: those of its stream, and those of each group of readers."""
    from connector.kafka import topics

    name, kafka = definition.stream, config.kafka
    groups = (None, *topics.groups_of(kafka, config.streams[name].topic))
    services = (DeadLetters(config, name, by=by, group=it, on_event=on_event) for it in groups)
    return [_Letters(kafka, service, definition.source, row_key) for service in services]

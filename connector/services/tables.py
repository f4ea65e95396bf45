"""Operate tables: rebuild one, list its jobs, set its bound and its pace (TBL-19, TBL-20,
TBL-21).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from connector import warehouse as paths
from connector.clock import now_us
from connector.config.settings import find_source, find_table
from connector.dead_letters.envelope import letter_id
from connector.dead_letters.filter import LetterFilter
from connector.dead_letters.ledger import ALLOWED, Action, LetterState
from connector.errors import ConnectorError, argument_invalid
from connector.events import OnEvent, Steps, log_event
from connector.records.model import MAX_LONG
from connector.services.dead_letters import DeadLetters
from connector.services.load_config import who
from connector.services.local_spark import session_of
from connector.services.warehouses import check_logs, naming_damage, only_use, warehouse_of
from connector.state.jobs import Job, JobKind, text_of_misfits
from connector.state.overrides import APPLY_EVERY, MAX_STALENESS, Override, pace_in_force
from connector.tables.alterations import with_overrides

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connector.config.settings import ConnectorConfig
    from connector.sources.columns import SourceTable
    from connector.spark.apply.rebuild import Rebuilt
    from connector.spark.storage.changelog import Changelog


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The result of a rebuild. `rebuild` documents the fields."""

    changes: int
    dead_letters: int
    misfits: int
    to_batch: int
    covered: int


def rebuild(
    config: ConnectorConfig,
    table: str,
    *,
    spark: SparkSession | None = None,
    on_event: OnEvent = log_event,
    cores: str | None = None,
    memory: str | None = None,
    start_from: str | None = None,
) -> RebuildReport:
    """Make a table again from the whole changelog, with the columns that are declared now, and put
    it in the place of the old one. Then close the dead letters of the table whose changes it has.

    Stop the pipeline first. Readers see the old table until the new one is complete. If the process
    dies, the old table stays. For example: `rebuild(config, "orders").changes`.

    Args:
        config: It has the table.
        table: The name of the table.
        spark: Your own session, which is neither changed nor stopped. None: a local session.
        on_event: Receives events.
        cores: Threads of a local session, or `*` for all processors. None: as in [spark].
        memory: Heap of the driver, for example `2g`. None: as in [spark].
        start_from: The table of which it becomes a copy. Later applies add what that table lacks.
            None: it is made from the changelog.

    Returns:
        The numbers of merged `changes`, of `dead_letters` (changes that the table could not hold),
        and of `misfits` (cells of new columns that cannot be read as declared, and stay in
        `_unmapped`). `to_batch` is the last ingest batch that the table contains, and `covered` the
        number of closed dead letters. The rebuild is in the history of the table, also if it
        failed. If the process dies before all are closed, the next rebuild closes them.

    Raises:
        ConfigError: There is no such table.
        WriterConflictError: Another call of this process runs the stream or rebuilds the table.
        ConnectorError: Kafka or the warehouse cannot be used, the changelog is incomplete, or
            another process writes to the table.
    """
    find_table(config, table)
    from connector.lake.jobs import History

    stream = config.tables[table].stream
    check_logs(config, [stream], [table])
    history, started_at = History(warehouse_of(config)), now_us()
    job = Job(JobKind.REBUILD, table, started_at, started_at)
    with only_use(config, [stream], table), ExitStack() as stack:
        try:
            with naming_damage(config, [stream], []):
                settings = cores, memory
                rebuilt, changelog = _rebuild(
                    config, table, start_from, spark, stack, on_event, *settings
                )
        except ConnectorError as error:
            history.add_job(replace(job, ended_at=now_us(), error=error.problem))
            raise
        history.add_job(_ended(job, rebuilt))
        covered = _close_covered(config, table, changelog, rebuilt, on_event)
    to_batch = rebuilt.table_state.to_batch
    return RebuildReport(rebuilt.changes, rebuilt.letters, rebuilt.misfits, to_batch, covered)


def _close_covered(
    config: ConnectorConfig, table: str, changelog: Changelog, rebuilt: Rebuilt, on_event: OnEvent
) -> int:
    """Close the dead letters of a table whose changes it has since a rebuild (RUN-6). Returns how
    many there were. Kafka is asked only if the table ever had some.
    """
    from connector.spark.apply.rebuild import covered_letters
    from connector.spark.cluster import watching

    if not rebuilt.table_state.letters:
        return 0
    state, stream = rebuilt.table_state, config.tables[table].stream
    service = DeadLetters(config, stream, by="rebuild", on_event=on_event)
    ledger, which = service.ledger(), LetterFilter(states=ALLOWED[Action.COVERED])
    letters = [
        letter.position
        for letter, status in service.list(which, ledger)
        if letter.table == table
        and not (
            status.state is LetterState.COVERED
            and ledger.history(letter.id)[-1].selection in state.covered_by
        )
    ]
    if not letters:
        return 0
    with watching(changelog.spark):
        ids = {letter_id(at, table) for at in covered_letters(changelog, rebuilt, letters)}
    why = f"table {table} has the change since its rebuild up to batch {state.to_batch}"
    return service.cover(ids, rebuild=state.rebuild, why=why) if ids else 0


def _ended(job: Job, rebuilt: Rebuilt) -> Job:
    return replace(
        job,
        ended_at=now_us(),
        to_batch=rebuilt.table_state.to_batch,
        changes=rebuilt.changes,
        letters=rebuilt.letters,
        misfits=text_of_misfits({}, rebuilt.table_state.misfits),
        watermark_before=rebuilt.before.apply_watermark,
        watermark_after=rebuilt.table_state.apply_watermark,
    )


def jobs(
    config: ConnectorConfig,
    table: str | None = None,
    *,
    since: int = 0,
    kinds: Collection[JobKind] = tuple(JobKind),
    limit: int | None = None,
) -> list[Job]:
    """The jobs of a table, or of all tables and streams, that ended at `since` (µs) or later, the
    newest first (TBL-19, JOB-1). Batches are jobs of a stream. They are read from the commits of
    its changelog, as far as the log has them.

    For example: `jobs(config, "orders", limit=1)[0].duration_s`. Raises `ConfigError` if there is
    no such table or `limit` is not allowed, `TableError` if the warehouse cannot be read.
    """
    from connector.lake.jobs import History

    if table is not None:
        find_table(config, table)
    is_number = isinstance(limit, int) and not isinstance(limit, bool)
    if limit is not None and not (is_number and 0 < limit <= MAX_LONG):
        raise argument_invalid("limit", limit, "a whole number above 0, or None for all jobs")
    ended = History(warehouse_of(config)).jobs(table, limit=limit, kinds=kinds, since=since)
    if table is None and JobKind.BATCH in kinds:
        for stream in config.streams:
            ended += islice(batches(config, stream, since=since), limit)
    return sorted(ended, key=lambda job: -job.ended_at)[:limit]


def batches(config: ConnectorConfig, stream: str, *, since: int = 0) -> Iterator[Job]:
    """Yield the batches of a stream that were committed at `since` (µs) or later, the newest first
    (JOB-1). Raises `TableError` if the warehouse cannot be read.
    """
    from connector.lake.jobs import batches

    return batches(warehouse_of(config), stream, since=since)


def set_max_staleness(config: ConnectorConfig, table: str, seconds: int | None) -> Override:
    """Set the `max_staleness` of a table while the pipeline runs. None: the one of the
    configuration counts again (TBL-20).

    Readers see it at once, and a running pipeline within ten seconds (90 in an object store).
    For example:
    `set_max_staleness(config, "orders", 60)`. Raises `ConfigError` if there is no such table, or if
    the number is not allowed, `TableError` if it cannot be stored.
    """
    return _set(config, Override(MAX_STALENESS, table, seconds, now_us(), who()))


def set_apply_every(config: ConnectorConfig, table: str, seconds: int | None) -> Override:
    """Set the time from one apply of a table to the next. None: the one of the configuration counts
    again (JOB-2).

    For example: `set_apply_every(config, "orders", 3600)`. Raises as `set_max_staleness` does.
    """
    return _set(config, Override(APPLY_EVERY, table, seconds, now_us(), who()))


def apply_every_s(config: ConnectorConfig, table: str) -> float:
    """The pace in force, in seconds (JOB-2). Raises as `set_max_staleness` does."""
    from connector.lake.overrides import Overrides

    overrides = Overrides(warehouse_of(config))
    return pace_in_force(find_table(config, table), overrides.bounds(), overrides.paces())


def _set(config: ConnectorConfig, override: Override) -> Override:
    from connector.lake.overrides import Overrides

    find_table(config, override.table)
    Overrides(warehouse_of(config)).set(override)
    return override


def _rebuild(
    config: ConnectorConfig,
    name: str,
    start_from: str | None,
    spark: SparkSession | None,
    stack: ExitStack,
    on_event: OnEvent,
    cores: str | None,
    memory: str | None,
) -> tuple[Rebuilt, Changelog]:
    from connector.kafka.dead_letters.ledger_topic import published_letters, read_ledger
    from connector.kafka.dead_letters.topic import DeadLetterPublisher
    from connector.lake.overrides import Overrides
    from connector.spark.apply.base import copy_base
    from connector.spark.apply.rebuild import rebuild as rebuild_table
    from connector.spark.apply.select import LetterRules
    from connector.spark.cluster import follow_cores, repeating, watching
    from connector.spark.storage.changelog import Changelog

    overrides = Overrides(warehouse_of(config)).columns().get(name, ())
    definition = with_overrides(config.tables[name], overrides)
    stream = config.streams[definition.stream]
    # Kafka is needed for letters only.
    publisher = stack.enter_context(DeadLetterPublisher(config.kafka, stream.topic))
    session = session_of(
        config, spark, stack, on_event, cores=cores, memory=memory, for_writing=True
    )
    changelog = Changelog(session, paths.changelog(warehouse_of(config), stream.name), stream.name)

    folder, steps = paths.table_folder(warehouse_of(config), name), Steps(on_event)

    def step(reached: str) -> None:
        steps.step(f"table {name}: {reached}")

    def discarded() -> frozenset[str]:
        return read_ledger(config.kafka, stream.topic).ids(LetterState.DISCARDED)

    def once() -> Rebuilt:
        if start_from is not None:
            copy = replace(definition, start_from=start_from)
            return copy_base(session, folder, copy, on_step=step)
        cut = changelog.progress().cut(now_us(), stream.stall_after_s, stream.wait_s)
        return rebuild_table(
            *(session, folder, definition, changelog, cut),
            publish=publisher.publish,
            on_step=step,
            rules=LetterRules(
                *(discarded, stream.rejects_too_many),
                published=partial(published_letters, config.kafka, stream.topic),
            ),
        )

    follow_cores(session)
    with watching(session):
        return repeating(once, f"table {name}", on_event), changelog


def tables_of_topic(config: ConnectorConfig, stream: str, topic: str) -> list[SourceTable]:
    """Return the tables that the newest records of a topic show, with their columns (SRC-5).

    Args:
        config: The stream has a source, whose format the records have.
        stream: The name of the stream.
        topic: The name of the topic.

    Raises:
        ConfigError: There is no such stream, or it has no source.
        TopicError: There is no such topic.
        BrokerError: Kafka or the registry does not answer.
    """
    from connector.kafka.bridge.checks import tables_in

    _, source = find_source(config, stream)
    return tables_in(config, source, topic)

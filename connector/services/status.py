"""The status of streams and tables, from their newest commits and the totals of ledgers, without a
JVM (OPS-5, TBL-20).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from connector.clock import now_us
from connector.dead_letters.ledger import NONE_SENT
from connector.errors import BrokerError, TableError, TopicError, check_time
from connector.records.views import Time, Viewed
from connector.reports.stream_status import (
    NONE_OPEN,
    OpenLetters,
    StreamStatus,
    open_letters,
    stream_status,
)
from connector.reports.table_status import TableStatus, table_status
from connector.services.warehouses import warehouse_of
from connector.state.jobs import RECOMMENDED_OVER_S, Job, JobKind
from connector.state.overrides import bound_in_force, pace_in_force
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig

ASK_TIMEOUT_S: Final = 1.0
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class StatusReport(Viewed):
    """The status of the streams and tables of a configuration at the time `at` (microseconds).

    A stream or table that cannot be read is in `errors`, by its path, for example `tables.orders`.
    """

    at: Time
    streams: dict[str, StreamStatus] = field(default_factory=dict)
    tables: dict[str, TableStatus] = field(default_factory=dict)
    errors: dict[str, TableError] = field(default_factory=dict)

    @staticmethod
    def _read(config: ConnectorConfig, at: int) -> StatusReport:
        from connector.lake.overrides import Overrides
        from connector.lake.state_reader import logged_progress_of, table_state_of

        found = StatusReport(at)
        bounds = found._try("settings", Overrides(warehouse_of(config)).bounds) or {}
        paces = found._try("settings", Overrides(warehouse_of(config)).paces) or {}
        tables = {
            name: found._try(f"tables.{name}", partial(table_state_of, warehouse_of(config), name))
            for name in config.tables
        }
        for name, stream in config.streams.items():
            logged = found._try(
                f"streams.{name}",
                partial(logged_progress_of, warehouse_of(config), name, with_frontier=True),
            )
            if logged is None:
                continue
            progress = logged.progress
            of_stream = {
                of: book
                for of, book in tables.items()
                if book is not None and config.tables[of].stream == name
            }
            letters, of_tables = open_letters_of(config, stream, progress, of_stream)
            uncounted = tuple(
                of
                for of, book in tables.items()
                if book is None and config.tables[of].stream == name
            )
            found.streams[name] = stream_status(
                *(name, progress, at),
                stall_after_s=stream.stall_after_s,
                dead_letters=replace(letters, uncounted_tables=uncounted),
                roots=stream.partitions,
                maintenance=found._maintenance(config, f"streams.{name}", stream=name),
                wait_s=stream.wait_s,
                undefined_sources=found._undefined_sources(config, name, progress),
            )
            for of, book in of_stream.items():
                of_table = found._try(f"tables.{of}", partial(logged.of_table, of, book))
                every_s = pace_in_force(config.tables[of], bounds, paces)
                found.tables[of] = found._table(
                    config, of, book, of_table, bounds, every_s, of_tables[of]
                )
        return found

    def _table(
        self,
        config: ConnectorConfig,
        name: str,
        book: TableState,
        progress: Progress | None,
        bounds: Mapping[str, int],
        apply_every_s: float,
        dead_letters: OpenLetters,
    ) -> TableStatus:
        from connector.lake.changelog_changes import waiting_changes
        from connector.lake.jobs import History

        history, definition = History(warehouse_of(config)), config.tables[name]
        jobs = (
            self._try(
                f"tables.{name}",
                partial(history.jobs, name, limit=1, kinds=(JobKind.APPLY, JobKind.REBUILD)),
            )
            or []
        )
        durations = (
            self._try(
                f"tables.{name}",
                partial(history.durations_us, name, since=self.at - RECOMMENDED_OVER_S * 1_000_000),
            )
            or []
        )
        bound, last_job = bound_in_force(definition, bounds), next(iter(jobs), None)
        return table_status(
            *(definition, book, progress, self.at),
            dead_letters=dead_letters if progress else replace(dead_letters, is_known=False),
            max_staleness_s=bound,
            apply_every_s=apply_every_s,
            last_job=last_job,
            durations_us=durations,
            bound_buffer_s=config.streams[definition.stream].buffer_s,
            maintenance=self._maintenance(config, f"tables.{name}", table=name),
            waiting_changes=0
            if progress is None
            else self._try(
                f"tables.{name}", partial(waiting_changes, warehouse_of(config), definition, book)
            )
            or 0,
        )

    def _undefined_sources(
        self, config: ConnectorConfig, stream: str, progress: Progress
    ) -> tuple[str, ...]:
        from connector.lake.changelog_changes import undefined_sources

        if not progress.unknown_tables:
            return ()
        defined = [table.source for table in config.tables.values() if table.stream == stream]
        read = partial(
            undefined_sources, warehouse_of(config), stream, defined, progress.ingest_batch
        )
        return self._try(f"streams.{stream}", read) or ()

    def _maintenance(
        self, config: ConnectorConfig, path: str, *, table: str = "", stream: str = ""
    ) -> list[Job]:
        from connector.lake.jobs import History

        found = self._try(
            path, partial(History(warehouse_of(config)).maintenance, table=table, stream=stream)
        )
        return list(found.values()) if found else []

    def _try(self, path: str, read: Callable[[], _Read]) -> _Read | None:
        for error in self.errors.values():
            if error.code == "STORE_UNREACHABLE":
                self.errors[path] = error  # each further read would wait for the same store
                return None
        try:
            return read()
        except TableError as error:
            self.errors[path] = error
            return None


def status(config: ConnectorConfig, *, now: int | None = None) -> StatusReport:
    """Report how far each stream is ingested and complete, and how old each table is. Of a table
    that was not made from the changelog that is there, only its own commit is reported.

    It reads the warehouse. It asks Kafka only for the state of dead letters, and only if there ever
    was one. For example: `status(config).tables["orders"].age_s`.

    Args:
        config: All its streams and tables are reported.
        now: The time in microseconds that ages are counted to. None: the clock.

    Returns:
        The report. It raises nothing for a stream or table that cannot be read: see its `errors`.

    Raises:
        ConfigError: `now` is not a time.
    """
    check_time("now", now)
    return StatusReport._read(config, now_us() if now is None else now)


def open_letters_of(
    config: ConnectorConfig,
    stream: StreamConfig,
    progress: Progress,
    tables: Mapping[str, TableState],
) -> tuple[OpenLetters, dict[str, OpenLetters]]:
    """Those of a stream, and those that are, or may be, of each of its tables, with the withheld
    releases (WRS-18). Kafka is asked only where there ever was a dead letter.

    Raises `TableError` if the warehouse cannot be read.
    """
    letters, of_tables = _letters_of(config, stream, progress, tables)
    withheld = len(progress.releases.withheld)
    return replace(letters, withheld=withheld), {
        name: replace(one, withheld=withheld) for name, one in of_tables.items()
    }


def _letters_of(
    config: ConnectorConfig,
    stream: StreamConfig,
    progress: Progress,
    tables: Mapping[str, TableState],
) -> tuple[OpenLetters, dict[str, OpenLetters]]:
    rejected = sum(progress.rejected.values())
    letters = {name: book.letters for name, book in tables.items()}
    outside = progress.external_dead_letters
    if not rejected + sum(letters.values()) + outside.count:
        return NONE_OPEN, dict.fromkeys(tables, NONE_OPEN)
    from connector.kafka import client, topics
    from connector.kafka.dead_letters.ledger_topic import read_totals
    from connector.lake.state_reader import batch_with

    first = min(
        filter(
            None,
            (
                progress.rejected_since,
                outside.since,
                *(book.dead_letters_since for book in tables.values()),
            ),
        ),
        default=None,
    )
    try:
        facts = topics.describe(
            config.kafka, stream.topic, client.admin(config.kafka, timeout_s=ASK_TIMEOUT_S)
        )
        totals = read_totals(config.kafka, stream.topic)
    except (BrokerError, TopicError):
        return open_letters(rejected, letters, outside, "", None, first, is_known=False)
    sent = NONE_SENT if totals is None else totals.sent
    under_way = (
        sent.topic_id == facts.topic_id
        and batch_with(warehouse_of(config), stream.name, sent.ends) is None
    )
    return open_letters(
        rejected, letters, outside, facts.topic_id, totals, first, under_way=under_way
    )

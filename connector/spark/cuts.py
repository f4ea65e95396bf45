"""The cuts that a pipeline records: all tables of a stream were at each of them (TBL-17)."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from connector.config.settings import ConnectorConfig
from connector.errors import WriterConflictError
from connector.spark.ingest.ports import IngestPorts
from connector.spark.job_log import JobLog
from connector.spark.open_tables import OpenTables
from connector.spark.storage.table import AtVersion
from connector.state.jobs import CutRecord
from connector.state.maintenance_schedule import NEWEST_CUT_KEPT_US
from connector.state.stream_progress import Cut

CUTS_EVERY_S: Final = 10.0
"""How often the cut of a stream is recorded: each record is a commit."""


class Cuts:
    """The newest cut of each stream, and the one that is recorded next. Any thread may use it."""

    def __init__(
        self,
        config: ConnectorConfig,
        tables: OpenTables,
        job_log: JobLog,
        ports: Mapping[str, IngestPorts],
    ) -> None:
        self._config, self._tables = config, tables
        self._job_log, self._ports = job_log, ports
        self._newest = {name: job_log.newest_cut(name) for name in config.streams}
        self._reached = dict[str, CutRecord]()
        self._recorded_at = dict.fromkeys(config.streams, -math.inf)
        self._recording = threading.Lock()

    def newest(self, stream: str) -> CutRecord | None:
        """The newest cut that is recorded."""
        return self._newest[stream]

    def reach(self, stream: str, cut: Cut, reached: Mapping[str, AtVersion]) -> None:
        """Record the cut, now or later, if all tables of the stream are at it, or were in
        `reached`.
        """
        names = self._config.tables_of(stream)
        if self._tables.is_stopped(names):
            return
        try:
            newest = {
                name: reached[name] if name in reached else self._tables[name].newest()
                for name in names
            }
        except WriterConflictError:  # a table is altered meanwhile, which left the round
            return
        if (
            not newest
            or cut.low_watermark is None
            or not all(state.is_at(cut.low_watermark, cut.batch) for _, state in newest.values())
        ):
            return
        self._reached[stream] = self._record_of(stream, cut.low_watermark, cut.batch, newest)
        self.record()

    def record(self, *, at_once: bool = False) -> None:
        """Record the newest cut of each stream, `at_once` or if the last one was recorded
        `CUTS_EVERY_S` ago.
        """
        now = time.monotonic()
        for stream in [*self._reached]:
            if not at_once and now < self._recorded_at[stream] + CUTS_EVERY_S:
                continue
            with self._recording:
                reached = self._reached.pop(stream, None)
                follows = None if reached is None else reached.follows(self._newest[stream])
                if follows is not None:
                    self._add(stream, follows)
                    self._recorded_at[stream] = now

    def forget_old(self, stream: str, now: int) -> None:
        """Forget the cuts that name versions older than `snapshot_retention`, and thin out others.

        The newest cut is first recorded with today's versions. It stays, unless a table left it
        `NEWEST_CUT_KEPT_US` ago.
        """
        self._record_again(stream)
        before = now - self._config.streams[stream].retention.snapshot_s * 1_000_000
        going_on = self._tables.going_on()
        versions = {
            name: going_on[name].log.version_at(before)
            for name in going_on.keys() & self._config.tables_of(stream)
        }
        oldest = {table: version for table, version in versions.items() if version is not None}
        cuts = self._job_log.cuts(stream)
        for table in versions:  # reads of cuts that are deleted now may have begun
            named = [cut.versions[table] for cut in cuts if table in cut.versions]
            going_on[table].keep(named, now)
        self._job_log.forget_cuts(stream, oldest, self._kept(stream, now), now)

    def versions_of(self, stream: str, name: str) -> list[int]:
        """The older versions of a table that cuts of the stream name."""
        newest, _ = self._tables[name].newest()
        named = {cut.versions.get(name, newest) for cut in self._job_log.cuts(stream)}
        return sorted(version for version in named if version < newest)

    def _kept(self, stream: str, now: int) -> CutRecord | None:
        """The newest cut, if each table was in it less than `NEWEST_CUT_KEPT_US` ago, or is."""
        cut, going_on = self._newest[stream], self._tables.going_on()
        left = (
            going_on[name].superseded_at(version)
            for name, version in (cut.versions if cut else {}).items()
            if name in going_on
        )
        return cut if all(at is None or now - at < NEWEST_CUT_KEPT_US for at in left) else None

    def _record_again(self, stream: str) -> None:
        """Record the newest cut with today's versions, if they show the same rows.

        Then the files of the versions recorded before can be deleted (TBL-15, TBL-17).
        """
        self.record(at_once=True)  # the newest record is the one with the latest time
        recorded, names = self._newest[stream], self._config.tables_of(stream)
        if self._tables.is_stopped(names):
            return
        newest = {name: self._tables[name].newest() for name in names}
        if recorded is None or recorded.versions.keys() != newest.keys():
            return
        again = self._record_of(stream, recorded.low_watermark, recorded.to_batch, newest)
        if again.versions != recorded.versions and again.attempts == recorded.attempts:
            with self._recording:
                if self._newest[stream] is not recorded or stream in self._reached:
                    return  # a round has ended meanwhile, and snapshots must not go back
                self._add(stream, replace(again, revision=recorded.revision))

    def _add(self, stream: str, cut: CutRecord) -> None:
        """Record a cut as the newest one: with the latest time, also if the clock went back."""
        if (before := self._newest[stream]) is not None:
            cut = replace(cut, recorded_at=max(cut.recorded_at, before.recorded_at + 1))
        self._job_log.add_cut(cut)
        self._newest[stream] = cut

    def _record_of(
        self, stream: str, low_watermark: int, batch: int, tables: Mapping[str, AtVersion]
    ) -> CutRecord:
        """The record of a cut that these tables show, without its revision."""
        return CutRecord(
            stream=stream,
            low_watermark=low_watermark,
            to_batch=batch,
            revision=0,
            merged=sum(state.merged for _, state in tables.values()),
            recorded_at=self._ports[stream].now(),
            versions={name: version for name, (version, _) in tables.items()},
            attempts={name: state.attempt_id for name, (_, state) in tables.items()},
        )

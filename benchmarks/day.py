"""The disk space of one table after a day of small applies, simulated: live and old files, the log,
and the bytes written for each byte that came in (ENG-8, TBL-23).

    python -m benchmarks.day [--hours H] [--rate N] [--rows N] [--pace S] [--log-retention D]
    [--snapshot-retention D]

No row is written and no process runs. Each apply is a commit of the real writer of the log, as
small applies make it: a new file, and a deletion vector for each file that has an old row of its
changes. The real rules choose the files that it folds, and those that a compaction rewrites.
Changes are of random rows, 3 % of them are deletes. Files are empty, but have the size that the log
says. A row has 60 bytes, and a commit the metadata of its size, as in a run of
`benchmarks.freshness` with default settings.

Cuts are recorded every 10 s. Every five minutes, the real clean-up runs: cuts expire and are
thinned out, old versions get checkpoints, log files and data files go. So the clock is simulated,
too, and VACUUM is left out. The changelog, the tombstones and the table of cuts are not counted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import machine
from benchmarks.report import Figure, finish
from connector.config.settings import DEFAULT_FILE_RETENTION_S, VersionRetention
from connector.config.settings_reader import parse_duration_ms
from connector.delta_log import log as of_logs
from connector.delta_log.actions import encoded
from connector.delta_log.log import Log
from connector.delta_log.old_versions import OldVersions
from connector.delta_log.put import LocalFolder
from connector.state.jobs import thinned_out
from connector.state.log_damage import commit_file
from connector.state.maintenance_schedule import (
    CLEAN_APART_US,
    LOG_EVERY,
    CommitCount,
    Compactions,
    DataFile,
    KeptVersions,
    removable_log_files,
    to_compact,
    to_fold,
)

MIB = 2**20
ROW_BYTES: Final = 60
DELETES: Final = 0.03
CUTS_EVERY_S: Final = 10.0
S_US: Final = 1_000_000
COMPACTION_US: Final = 3 * S_US
"""How long a compaction takes in Spark. The next one begins ten times as long after it."""
METADATA: Final = json.dumps({"lowmark": {"state": "x" * 1_500}})
"""As long as the state of a table in its commits."""
STATS: Final = json.dumps({"minValues": {"id": "a" * 16}, "maxValues": {"id": "z" * 16}})


@dataclass(slots=True)
class Clock:
    """The time of the simulation, in place of the module `time` of the log."""

    at_us: int

    def time_ns(self) -> int:
        return self.at_us * 1_000


@dataclass(slots=True)
class Rows:
    """A file of the newest version: its path, rows and live rows, and its vector."""

    path: str
    rows: int
    live: int
    vector: dict[str, Any] | None = None

    @property
    def size(self) -> int:
        return self.rows * ROW_BYTES

    @property
    def data(self) -> DataFile:
        return DataFile("0", self.size, self.rows, self.rows - self.live)


@dataclass(slots=True)
class Day:
    """The table, its cuts, and the counts of what was written."""

    root: Path
    clock: Clock
    retention: VersionRetention
    rng: np.random.Generator
    rows: int
    files: list[Rows] = field(default_factory=list)
    at: deque[tuple[int, int]] = field(default_factory=deque)
    """The time of each version, and its number."""
    cuts: dict[int, int] = field(default_factory=dict)
    """The version of each cut, by the time of its record."""
    named: KeptVersions = field(default_factory=KeptVersions)
    kept: list[int] = field(default_factory=list)
    superseded: dict[int, int] = field(default_factory=dict)
    folder: LocalFolder = field(init=False)
    log: Log = field(init=False)
    old: OldVersions = field(init=False)
    written: int = 0
    commits: int = 0
    clean_s: float = 0.0

    def __post_init__(self) -> None:
        folder = self.root / "_delta_log"
        folder.mkdir(parents=True)
        kept = f"interval {self.retention.table_file_s} seconds"
        metadata = {
            "id": "1",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": "x" * 1_500,
            "partitionColumns": ["_bucket"],
            "createdTime": 1,
            "configuration": {"delta.deletedFileRetentionDuration": kept, "lowmark.x": "x" * 1_500},
        }
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        }
        lines = [json.dumps({"protocol": protocol}), json.dumps({"metaData": metadata})]
        (folder / commit_file(0)).write_text("\n".join(lines))
        self.folder = LocalFolder(str(folder))
        self.log = Log(self.folder)
        self.old = OldVersions(self.folder, self.log)
        self.commit([], [self.new(self.rows)])

    def new(self, rows: int) -> Rows:
        return Rows(f"_bucket=0/part-{uuid.uuid4()}.parquet", rows, rows)

    def make(self, name: str, size: int) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
        self.written += size

    def commit(
        self, gone: list[Rows], new: list[Rows], marked: dict[str, int] | None = None
    ) -> None:
        """Commit files that go and files that come, and deletion vectors of files that stay, which
        mark so many rows more.
        """
        now = self.clock.at_us
        actions = [self.removed(file) for file in gone]
        self.files = [file for file in self.files if file not in gone]
        if marked:
            id_, offset = uuid.uuid4(), 1
            for file in self.files:
                if not (count := marked.get(file.path)):
                    continue
                actions.append(self.removed(file))
                file.live -= count
                size = vector_bytes(file)
                file.vector = {
                    "storageType": "u",
                    "pathOrInlineDv": encoded(id_.bytes),
                    "offset": offset,
                    "sizeInBytes": size,
                    "cardinality": file.rows - file.live,
                }
                offset += size + 8
                actions.append(self.added(file))
            self.make(f"deletion_vector_{id_}.bin", offset)
        for file in new:
            self.make(file.path, file.size)
            actions.append(self.added(file))
        self.files += new
        version = self.log.state().version
        self.log.commit(version, actions, METADATA, app_id="lowmark/t", number=self.commits + 1)
        self.written += self.log_bytes()
        self.commits += 1
        self.at.append((now, version + 1))
        self.superseded[version] = now

    def log_bytes(self) -> int:
        """The bytes of the newest commit and its checksum."""
        version = self.log.state().version
        paths = (self.root / "_delta_log" / f"{version:020}.{kind}" for kind in ("json", "crc"))
        return sum(path.stat().st_size for path in paths if path.exists())

    def added(self, file: Rows) -> str:
        stats = {"numRecords": file.rows, **json.loads(STATS), "tightBounds": file.vector is None}
        add = {
            "path": file.path,
            "partitionValues": {"_bucket": "0"},
            "size": file.size,
            "modificationTime": self.clock.at_us // 1_000,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
        return json.dumps({"add": add | self.described(file)})

    def removed(self, file: Rows) -> str:
        remove = {
            "path": file.path,
            "deletionTimestamp": self.clock.at_us // 1_000,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {"_bucket": "0"},
            "size": file.size,
        }
        return json.dumps({"remove": remove | self.described(file)})

    @staticmethod
    def described(file: Rows) -> dict[str, Any]:
        return {"deletionVector": file.vector} if file.vector else {}

    def apply(self, changes: int) -> CommitCount:
        """An apply of changes of random rows."""
        live = np.array([file.live for file in self.files], np.float64)
        touched = int(self.rows * (1 - np.exp(-changes / self.rows)))
        counts = self.rng.multinomial(touched, live / live.sum())
        deleted = int(touched * DELETES)
        back = self.rows - int(live.sum())
        new = self.new(touched - deleted + int(min(back, deleted)))
        marked = {
            file.path: int(min(count, file.live))
            for file, count in zip(self.files, counts, strict=True)
            if count
        }
        chosen = to_fold([file.data for file in self.files])
        folded = [self.files[number] for number in chosen]
        copied = sum(file.live - marked.pop(file.path, 0) for file in folded)
        new.rows = new.live = new.rows + copied
        before = self.written
        self.commit(folded, [new], marked)
        sizes = sum(file.size for file in folded)
        return CommitCount(
            *(self.clock.at_us, 1, len(folded), sizes), added_bytes=self.written - before
        )

    def compact(self) -> None:
        groups = to_compact([file.data for file in self.files])
        gone = [self.files[number] for group in groups for number in group]
        new = [self.new(sum(self.files[number].live for number in group)) for group in groups]
        if gone:
            self.commit(gone, new)

    def clean(self) -> None:
        """As `Pipeline._clean_table`."""
        began, now = time.monotonic(), self.clock.at_us
        expired = now - self.retention.snapshot_s * S_US
        gone = thinned_out(self.cuts, now)
        self.cuts = {
            at: version
            for at, version in self.cuts.items()
            if at not in gone and self.superseded.get(version, now) > expired
        }
        self.kept = self.named.with_left(self.cuts.values(), now)
        self.old.delete_unneeded(self.kept, now - self.retention.log_s * S_US)
        self.clean_s += time.monotonic() - began

    def clean_log(self) -> None:
        began, before = time.monotonic(), self.clock.at_us - self.retention.log_s * S_US
        first = None
        while len(self.at) > 1 and self.at[1][0] <= before:
            self.at.popleft()
        if self.at[0][0] <= before:
            first = self.at[0][1]
            self.old.settle([version for version in self.kept if version < first])
        newest = self.log.state().version
        for name in removable_log_files(self.folder.names(), first, newest, self.kept):
            self.folder.delete(name)
        self.clean_s += time.monotonic() - began

    def run(self, hours: float, rate: float, pace_s: float) -> None:
        begun, compactions = self.clock.at_us, Compactions()
        end, cut_at, cleaned_at, shown_at = begun + int(hours * 3_600 * S_US), begun, begun, begun
        while (now := self.clock.at_us) < end:
            self.clock.at_us = now = now + int(pace_s * S_US)
            compactions.passed([self.apply(round(rate * pace_s))])
            version = self.log.state().version
            if now >= cut_at + CUTS_EVERY_S * S_US:
                cut_at = now
                self.cuts[now] = version
            if compactions.begins(now, lambda: False):
                self.compact()
                compactions.ended(now, COMPACTION_US, sum(file.size for file in self.files))
            self.log.checkpoint()
            if now >= cleaned_at + CLEAN_APART_US:
                cleaned_at = now
                self.clean()
            if version % LOG_EVERY == 0:
                self.clean_log()
            if now >= shown_at + 3_600 * S_US:
                shown_at = now
                print(self.line((now - begun) / S_US / 3_600), flush=True)

    def sizes(self) -> dict[str, float]:
        live = self.log.state().files()
        size = {
            name: path.stat().st_size
            for path in machine.files_below(self.root)
            if "_delta_log" not in (name := str(path.relative_to(self.root)))
        }
        log = [
            path.stat().st_size
            for path in machine.files_below(self.root)
            if "_delta_log" in str(path)
        ]
        return {
            "live_mib": sum(size[name] for name in live) / MIB,
            "old_mib": sum(count for name, count in size.items() if name not in live) / MIB,
            "log_mib": sum(log) / MIB,
            "files": len(size),
            "log_files": len(log),
            "cuts": len(self.cuts),
        }

    def line(self, hours: float) -> str:
        shown = ", ".join(f"{name} {value:,.0f}" for name, value in self.sizes().items())
        return f"{hours:.0f} h: {shown}, commits {self.commits:,}, cleaned in {self.clean_s:.0f} s"


def vector_bytes(file: Rows) -> int:
    """The size of a deletion vector with random rows: a bitmap of at most 8 KiB for each 65,536."""
    count = file.rows - file.live
    parts = max(1, -(-file.rows // 65_536))
    return int(40 + parts * min(2 * count / parts, 8_192))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.day")
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--rate", type=float, default=2_000, help="changes a second")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--pace", type=float, default=2.0, help="seconds from apply to apply")
    parser.add_argument("--log-retention", default="1h")
    parser.add_argument("--snapshot-retention", default="1d")
    chosen = parser.parse_args()
    seconds = [
        int(parse_duration_ms(text) / 1000)
        for text in (chosen.snapshot_retention, chosen.log_retention)
    ]
    clock = Clock(time.time_ns() // 1_000)
    of_logs.time = clock  # type: ignore[assignment]
    root = Path(tempfile.mkdtemp(prefix="lowmark-day-"))
    try:
        retention = VersionRetention(DEFAULT_FILE_RETENTION_S, *seconds)
        day = Day(root / "data", clock, retention, np.random.default_rng(1), chosen.rows)
        day.run(chosen.hours, chosen.rate, chosen.pace)
        sizes = day.sizes()
        came_in = chosen.hours * 3_600 * chosen.rate * ROW_BYTES
        total = sizes["live_mib"] + sizes["old_mib"] + sizes["log_mib"]
        figures = [Figure(f"day_{name}", value) for name, value in sizes.items()]
        figures += [
            Figure("day_commits", day.commits),
            Figure("day_clean_up_s", day.clean_s),
            Figure("day_written_to_ingested", day.written / came_in, "<4"),
            Figure("day_live_and_retained_mib", total, "<3000"),
        ]
        return finish(figures, validate_record=chosen.hours >= 24)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())

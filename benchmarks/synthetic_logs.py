"""Warehouses with long Delta logs, for `benchmarks.scale`: the logs of many batches and of many
files, without the files.

They continue the warehouse in tests/golden, so the stored forms are those that lowmark writes. A
log has a checkpoint after each 50 commits, as Delta would have it. Of these only the newest is
written, because no reader opens another one. Checksums beside commits are not written: Delta asks
for them, and in a table of more than 500 files they do not list the files.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from connector import warehouse as places
from connector.warehouse import table_slot

GOLDEN: Final = Path(__file__).parents[1] / "tests/golden/warehouse"
STREAM, TABLE = "s", "accounts"
CHECKPOINT_EVERY: Final = 50
COMPACT_EVERY: Final = 100
"""The files of so many batches are joined into one."""
TRIGGER_MS: Final = 5_000
BATCH_BYTES, JOINED_BYTES, ROWS_A_BATCH = 1_500_000, 128_000_000, 12_000
FILES_A_COMMIT: Final = 5_000


@dataclass(slots=True)
class SyntheticLog:
    """The log of a copied Delta table, which `commit` continues. `metadata` is what lowmark stored
    in its newest commit.
    """

    path: Path
    version: int = field(init=False)
    metadata: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        commits = sorted(self._folder.glob("*.json"))
        self.version = int(commits[-1].stem)
        actions = [json.loads(line) for line in commits[-1].read_text().splitlines()]
        (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
        self.metadata = json.loads(info["userMetadata"])["lowmark"]

    @property
    def _folder(self) -> Path:
        return self.path / "_delta_log"

    def commit(self, metadata: Mapping[str, Any], actions: Iterator[Any], *, at_ms: int) -> None:
        """Write the next version."""
        self.metadata = metadata
        self.version += 1
        info = {
            "timestamp": at_ms,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append"},
            "readVersion": self.version - 1,
            "isBlindAppend": True,
            "operationMetrics": {},
            "userMetadata": json.dumps({"lowmark": metadata}),
            "engineInfo": "Apache-Spark/4.1.1 Delta-Lake/4.4.0",
        }
        lines = [json.dumps(action) for action in ({"commitInfo": info}, *actions)]
        (self._folder / f"{self.version:020}.json").write_text("\n".join(lines) + "\n")

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version."""
        for checksum in self._folder.glob("*.crc"):
            checksum.unlink()
        DeltaTable(self.path).create_checkpoint()


class SyntheticChangelog:
    """The changelog of a stream with many batches. Compaction has joined the files of old ones."""

    def __init__(self, warehouse: Path, batches: int) -> None:
        self.log = SyntheticLog(Path(places.changelog(str(warehouse), STREAM)))
        self._slot = str(table_slot("t"))
        begun = time.time_ns() // 1_000_000 - batches * TRIGGER_MS
        last_checkpoint = batches // CHECKPOINT_EVERY * CHECKPOINT_EVERY - CHECKPOINT_EVERY // 2
        for number in range(int(self.log.metadata["ingest_batch"]) + 1, batches + 1):
            self.add_batch(number, begun + number * TRIGGER_MS)
            if number == last_checkpoint:
                self.log.checkpoint()

    def add_batch(self, number: int, at_ms: int) -> None:
        """Log a batch, and a compaction if it is due."""
        stored = self.log.metadata
        end = {name: offset + ROWS_A_BATCH // 2 for name, offset in stored["end_offsets"].items()}
        progress = {
            **stored["progress"],
            "ingest_batch": number,
            "changes": stored["progress"]["changes"] + ROWS_A_BATCH,
            # Without dead letters, nobody asks Kafka for them.
            "rejected": {},
            "rejected_since": None,
        }
        following = {
            **stored,
            "commit": "batch",
            "ingest_batch": number,
            "start_offsets": stored["end_offsets"],
            "end_offsets": end,
            "topic_end_offsets": end,
            "topic_read_at": at_ms * 1000,
            "progress": progress,
        }
        file = self._file(f"batch-{number}", number, number, BATCH_BYTES, at_ms)
        batches = {"txn": {"appId": f"lowmark/{STREAM}/batches", "version": number << 32}}
        self.log.commit(following, iter(({"add": file}, batches)), at_ms=at_ms)
        first = number - COMPACT_EVERY + 1
        # Half a period before round numbers, so that the newest commit is a batch.
        if number % COMPACT_EVERY == COMPACT_EVERY // 2 and first > 3:
            self.log.commit(
                {**following, "commit": "compacted"},
                self._joined(first, number, at_ms),
                at_ms=at_ms,
            )

    def _joined(self, first: int, last: int, at_ms: int) -> Iterator[Any]:
        joined = self._file(f"joined-{last}", first, last, JOINED_BYTES, at_ms)
        yield {"add": {**joined, "dataChange": False}}
        for number in range(first, last + 1):
            file = self._file(f"batch-{number}", number, number, BATCH_BYTES, at_ms)
            yield {
                "remove": {
                    "path": file["path"],
                    "deletionTimestamp": at_ms,
                    "dataChange": False,
                    "extendedFileMetadata": True,
                    "partitionValues": file["partitionValues"],
                    "size": file["size"],
                }
            }

    def _file(self, name: str, first: int, last: int, size: int, at_ms: int) -> dict[str, Any]:
        def bounds(batch: int) -> dict[str, Any]:
            return {"ingest_batch": batch, "kafka_partition": 0, "offset": batch, "table": "t"}

        stats = {
            "numRecords": ROWS_A_BATCH * (last - first + 1),
            "minValues": bounds(first),
            "maxValues": bounds(last),
            "nullCount": dict.fromkeys(bounds(0), 0),
        }
        return _file(
            f"slot={self._slot}/{name}.zstd.parquet", "slot", self._slot, size, at_ms, stats
        )


class SyntheticTable:
    """A table with many files, of which the applies of the changelog left the newest."""

    def __init__(self, warehouse: Path, files: int, *, to_batch: int) -> None:
        self.log = SyntheticLog(Path(places.table(str(warehouse), TABLE)))
        self._files = 0
        at_ms = time.time_ns() // 1_000_000 - CHECKPOINT_EVERY // 2 * TRIGGER_MS
        while self._files < files:
            self._add(min(FILES_A_COMMIT, files - self._files), at_ms, to_batch)
        self.log.checkpoint()
        for number in range(CHECKPOINT_EVERY // 2):
            self._add(2, at_ms + number * TRIGGER_MS, to_batch)

    def add_apply(self, to_batch: int) -> None:
        """Log an apply that leaves a file in each bucket."""
        self._add(2, time.time_ns() // 1_000_000, to_batch)

    def _add(self, files: int, at_ms: int, to_batch: int) -> None:
        number = self.log.metadata["apply_number"] + 1
        stored = {
            **self.log.metadata,
            "apply_number": number,
            "to_batch": to_batch,
            "complete_to_batch": to_batch,
            "has_tombstones": False,
            "attempt_ids": {},
            "vacuumed_to": number,
        }
        adds = [{"add": self._file(self._files + place, at_ms)} for place in range(files)]
        self._files += files
        applied = {"txn": {"appId": f"lowmark/{TABLE}", "version": number}}
        self.log.commit(stored, iter((*adds, applied)), at_ms=at_ms)

    def _file(self, number: int, at_ms: int) -> dict[str, Any]:
        bucket = str(number % 2)
        stats = {
            "numRecords": 100_000,
            "minValues": {"id": "a"},
            "maxValues": {"id": "z"},
            "nullCount": {"id": 0},
            "tightBounds": True,
        }
        path = f"_bucket={bucket}/part-{number}.zstd.parquet"
        return _file(path, "_bucket", bucket, 10_000_000, at_ms, stats)


def _file(
    path: str, partition: str, value: str, size: int, at_ms: int, stats: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "path": path,
        "partitionValues": {partition: value},
        "size": size,
        "modificationTime": at_ms,
        "dataChange": True,
        "stats": json.dumps(stats),
    }


def copied(folder: Path) -> Path:
    """A copy of the golden warehouse."""
    return Path(shutil.copytree(GOLDEN, folder))

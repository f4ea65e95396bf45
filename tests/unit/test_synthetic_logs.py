"""The logs that `benchmarks.scale` measures are read as those of lowmark are (SCL-11)."""

from __future__ import annotations

import json
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.synthetic_logs import (
    COMPACT_EVERY,
    STREAM,
    TABLE,
    SyntheticChangelog,
    SyntheticTable,
    copied,
)
from connector import warehouse as places
from connector.lake.state_reader import logged_progress_of, table_state_of

BATCHES, FILES = 2 * COMPACT_EVERY, 30


def test_a_long_log_has_the_batches_and_files_that_were_asked_for(tmp_path: Path) -> None:
    warehouse = copied(tmp_path / "warehouse")
    changelog = SyntheticChangelog(warehouse, BATCHES)
    table = SyntheticTable(warehouse, FILES, to_batch=BATCHES - 1)
    assert logged_progress_of(str(warehouse), STREAM).progress.ingest_batch == BATCHES
    assert table_state_of(str(warehouse), STREAM, TABLE).to_batch == BATCHES - 1
    assert FILES <= _live_files(places.table(str(warehouse), TABLE)) < FILES + 100

    path = places.changelog(str(warehouse), STREAM)
    assert _live_files(path) < BATCHES, "the files of old batches are joined"
    delta = DeltaTable(path)
    last = json.loads((changelog.log.path / "_delta_log/_last_checkpoint").read_text())["version"]
    assert 0 <= delta.version() - last <= 50, "there is a checkpoint for each 50 commits"

    changelog.add_batch(BATCHES + 1, 0)
    table.add_apply(BATCHES)
    assert logged_progress_of(str(warehouse), STREAM).progress.ingest_batch == BATCHES + 1
    assert table_state_of(str(warehouse), STREAM, TABLE).to_batch == BATCHES


def _live_files(path: str) -> int:
    return len(DeltaTable(path).get_add_actions().column("path").to_pylist())

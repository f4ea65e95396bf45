"""Delta's log, read by several threads while it grows: ingest, apply and who asks Kafka share what they know of the changelog."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

from connector.spark.delta_log import DeltaLog, user_metadata

COMMITS = 200


def test_several_threads_find_the_newest_commit(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-5: nobody looks for a commit that nobody has made."""
    folder = tmp_path / "_delta_log"
    folder.mkdir()

    def commit(version: int) -> None:
        info = {"commitInfo": {"operation": "WRITE", "userMetadata": user_metadata({"version": version})}}
        (folder / f"{version:020}.json").write_text(json.dumps(info))

    commit(0)
    log = DeltaLog(spark, str(tmp_path))
    log.newest()
    for version in range(1, COMMITS):
        commit(version)

    def look(_: int) -> int:
        commit = log.newest()
        assert commit is not None
        return commit.version

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(look, range(20))) == {COMMITS - 1}

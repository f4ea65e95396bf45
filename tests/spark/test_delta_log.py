"""Delta's log, read by several threads while it grows: ingest, apply and who asks Kafka share what
they know of the changelog.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from connector.errors import TableError
from connector.spark.storage.delta_log import DeltaLog, metadata_session, quoted
from connector.state.commits import user_metadata

COMMITS = 200


def test_several_threads_find_the_newest_commit(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-5: no thread reads a commit that does not exist."""
    folder = tmp_path / "_delta_log"
    folder.mkdir()

    def commit(version: int) -> None:
        info = {
            "commitInfo": {
                "operation": "WRITE",
                "userMetadata": user_metadata({"version": version}),
            }
        }
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


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x1e", "\r\n"])
def test_a_commit_with_any_line_separator_in_a_key_is_read(
    spark: SparkSession, tmp_path: Path, separator: str
) -> None:
    """`nothing_lost`: statistics have the smallest and the greatest key of a file, as it is."""
    path, key = str(tmp_path / "t"), f"a{separator}b"
    rows = spark.range(1).select(lit(key).alias("id")).write.format("delta")
    rows.option("delta.dataSkippingStatsColumns", "id").save(path)
    commit = DeltaLog(spark, path).newest()
    assert commit is not None
    (added,) = commit.added
    assert json.loads(json.loads(added)["add"]["stats"])["maxValues"] == {"id": key}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        *((content, "TABLE_DAMAGED") for content in ("", '{"commitInfo":{"tim', "x", "5")),
        ('{"add":{}}', "COMMIT_UNREADABLE"),
    ],
)
def test_a_damaged_commit_is_named(
    spark: SparkSession, tmp_path: Path, content: str, code: str
) -> None:
    """TBL-14: it is not told as the commit of another program."""
    folder = tmp_path / "_delta_log"
    folder.mkdir()
    file = folder / f"{3:020}.json"
    file.write_text(content)
    with pytest.raises(TableError) as caught:
        DeltaLog(spark, str(tmp_path)).newest()
    assert caught.value.code == code
    assert str(file) in caught.value.cause or "Commit 3 of " in caught.value.problem


@pytest.mark.long
def test_the_metadata_of_a_command_is_not_visible_to_other_threads(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-5, TBL-10: commands of several tables at once, each with metadata of its own; a commit
    that has none beside them.
    """
    names, silent = ["a", "b", "c", "d"], f"{tmp_path}/silent"
    for path in (silent, *(f"{tmp_path}/{name}" for name in names)):
        spark.range(3).write.format("delta").save(path)

    def command(name: str) -> None:
        for row in range(3):
            session = metadata_session(spark, user_metadata({"said_by": name}))
            DeltaTable.forPath(session, f"{tmp_path}/{name}").delete(f"id = {row}")

    with ThreadPoolExecutor(len(names)) as threads:
        told = [threads.submit(command, name) for name in names]
        for _ in range(4):
            spark.range(1).write.format("delta").mode("append").save(silent)
        for each in told:
            each.result()
    for name in names:
        said = (
            spark.sql(f"DESCRIBE HISTORY {quoted(f'{tmp_path}/{name}')}")
            .where("version > 0")
            .select("userMetadata")
            .collect()
        )
        assert [row[0] for row in said] == [user_metadata({"said_by": name})] * 3
    assert (
        spark.sql(f"DESCRIBE HISTORY {quoted(silent)}").where("userMetadata IS NOT NULL").isEmpty()
    )


def test_properties_are_those_of_the_newest_version_with_and_without_its_checksum(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-8: they are read from the log, without a query; a checksum that is damaged, or
    missing, as of a foreign commit, is done without.
    """
    path = str(tmp_path / "t")
    spark.range(1).write.format("delta").save(path)
    for value in ("first", "second"):
        spark.sql(f"ALTER TABLE {quoted(path)} SET TBLPROPERTIES ('lowmark.test' = '{value}')")
        assert DeltaLog(spark, path).properties()["lowmark.test"] == value
    checksum = tmp_path / "t" / "_delta_log" / f"{2:020}.crc"
    (checksum.parent / f".{checksum.name}.crc").unlink(missing_ok=True)
    for damaged in ("", "[]", '{"metadata": null}', '{"metad'):
        checksum.write_text(damaged)
        assert DeltaLog(spark, path).properties()["lowmark.test"] == "second"
    checksum.unlink()
    assert DeltaLog(spark, path).properties()["lowmark.test"] == "second"

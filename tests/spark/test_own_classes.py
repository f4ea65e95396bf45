"""The Java classes of lowmark: what they are compiled from, and local files without processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from connector.spark.session import S3_LOG_STORE, SETTINGS
from tests.own_jar import compiled, packed


def test_the_jar_is_what_its_sources_compile_to(spark: SparkSession) -> None:
    """STO-3: a class file is not readable, so it must be that of the source beside it."""
    assert packed() == compiled(spark._jvm)
    assert f"{SETTINGS[S3_LOG_STORE].replace('.', '/')}.class" in packed()


@pytest.fixture
def files(spark: SparkSession) -> Any:
    """Hadoop's view of local files that Delta's commits use."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    uri = jvm.java.net.URI("file:///")
    context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(uri, conf)
    name = context.getDefaultFileSystem().getClass().getName()
    assert name == "io.github.lowmark.LocalFiles$Context"
    assert (
        jvm.org.apache.hadoop.fs.Path("/").getFileSystem(conf).getClass().getName()
        == "io.github.lowmark.LocalFiles$Checked"
    )
    return context


def rename(spark: SparkSession, files: Any, source: Path, target: Path, *, overwrite: bool) -> None:
    jvm: Any = spark._jvm
    option = jvm.org.apache.hadoop.fs.Options.Rename
    options = spark.sparkContext._gateway.new_array(option, 1)  # type: ignore[union-attr]
    options[0] = option.OVERWRITE if overwrite else option.NONE
    path = jvm.org.apache.hadoop.fs.Path
    files.rename(path(str(source)), path(str(target)), options)


def test_a_rename_replaces_a_file_only_if_it_may(
    spark: SparkSession, files: Any, tmp_path: Path
) -> None:
    """TBL-14, `nothing_lost`: a commit that another writer has made is not replaced."""
    first, second, commit = tmp_path / "first", tmp_path / "second", tmp_path / "commit"
    first.write_text("1")
    second.write_text("2")
    rename(spark, files, first, commit, overwrite=False)
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        rename(spark, files, second, commit, overwrite=False)
    assert (commit.read_text(), second.read_text()) == ("1", "2")
    rename(spark, files, second, commit, overwrite=True)
    assert (commit.read_text(), second.exists()) == ("2", False)


def test_a_commit_is_not_replaced_if_another_program_makes_it_meanwhile(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-14, `nothing_lost`: behind Hadoop's look for the target."""
    jvm: Any = spark._jvm
    path, log = jvm.org.apache.hadoop.fs.Path, tmp_path / "_delta_log"
    log.mkdir()
    written, commit = log / "written", log / f"{7:020}.json"
    written.write_text("1")
    raw = jvm.io.github.lowmark.LocalFiles()
    raw.initialize(
        jvm.java.net.URI("file:///"), spark._jsparkSession.sessionState().newHadoopConf()
    )
    assert raw.rename(path(str(written)), path(str(commit)))
    written.write_text("2")
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        raw.rename(path(str(written)), path(str(commit)))
    assert (commit.read_text(), written.read_text()) == ("1", "2")
    other = tmp_path / "other.json"
    other.write_text("0")
    assert raw.rename(path(str(written)), path(str(other)))
    assert other.read_text() == "2"


def test_the_checksum_of_a_deleted_commit_hinders_no_later_one(
    spark: SparkSession, files: Any, tmp_path: Path
) -> None:
    """TBL-14: Hadoop has left it, and would compare it with the new commit. The checksum of a
    commit that is there stays.
    """
    log = tmp_path / "_delta_log"
    log.mkdir()
    written, commit = log / "written", log / f"{7:020}.json"
    written.write_text("1")
    checksum = log / f".{commit.name}.crc"
    checksum.write_bytes(b"crc\0\0\0\2\0" + b"\1\2\3\4")
    rename(spark, files, written, commit, overwrite=False)
    assert [row[0] for row in spark.read.text(str(commit)).collect()] == ["1"]
    checksum.write_bytes(b"of the commit")
    written.write_text("2")
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        rename(spark, files, written, commit, overwrite=False)
    assert checksum.exists()


def test_permissions_are_set(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "folder"))
    permission = jvm.org.apache.hadoop.fs.permission.FsPermission
    local = path.getFileSystem(conf)
    local.mkdirs(path)
    for mode in (0o750, 0o1777):  # the second one has a sticky bit, which Java cannot set
        local.setPermission(path, permission(mode))
        assert (tmp_path / "folder").stat().st_mode & 0o7777 == mode

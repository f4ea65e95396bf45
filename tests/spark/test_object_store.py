"""A warehouse in an object store, with the real server (STO-1 to STO-3)."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from connector import jars
from connector.jars.store import OWN_JAR
from connector.spark.session import S3_LOG_STORE, SETTINGS
from tests.object_store import ObjectStore

PACKAGE = Path(jars.__file__).parent
Commit = Callable[[str, str], None]


@pytest.fixture
def commit(spark: SparkSession, store: ObjectStore) -> Commit:
    """Writes a file of a log, as Delta does. Raises `Py4JJavaError`."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    ours = jvm.io.github.lowmark.S3ConditionalLogStore(conf)

    def write(path: str, text: str) -> None:
        lines = jvm.java.util.ArrayList()
        lines.add(text)
        ours.write(jvm.org.apache.hadoop.fs.Path(path), lines.iterator(), False, conf)

    return write


def test_the_jar_is_what_its_source_compiles_to(spark: SparkSession) -> None:
    """STO-3: nobody can read a class file, so it must be that of the text beside it."""
    compiler: Any = spark._jvm.org.codehaus.janino.SimpleCompiler()  # type: ignore[union-attr]
    compiler.setSourceVersion(8)
    compiler.setTargetVersion(8)
    compiler.cook((PACKAGE / "S3ConditionalLogStore.java").read_text("ascii"))
    ((name, code),) = dict(compiler.getBytecodes()).items()
    assert name == SETTINGS[S3_LOG_STORE]
    with zipfile.ZipFile(PACKAGE / OWN_JAR) as jar:
        (entry,) = jar.namelist()
        assert entry == f"{name.replace('.', '/')}.class"
        assert jar.read(entry) == bytes(code)


def test_of_two_writers_of_one_version_one_succeeds(commit: Commit, store: ObjectStore) -> None:
    """STO-3, `nothing_lost`: a commit is never replaced, however late its writer is."""
    for version in range(10):
        path = f"{store.warehouse()}/t/_delta_log/{version:020}.json"

        def attempt(number: int, path: str = path) -> bool:
            try:
                commit(path, f"commit {number}")
            except Py4JJavaError as error:
                assert "FileAlreadyExistsException" in str(error.java_exception)
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(attempt, range(4))) == 1
        assert not attempt(5)


def test_a_commit_whose_answer_was_lost_is_a_success(commit: Commit, store: ObjectStore) -> None:
    """STO-3: the client repeats the request, and finds its own commit. Delta would commit again."""
    path = f"{store.warehouse()}/t/_delta_log/{0:020}.json"
    commit(path, "commit 1")
    commit(path, "commit 1")
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        commit(path, "commit 2")


def test_delta_commits_with_it(spark: SparkSession, store: ObjectStore) -> None:
    jvm: Any = spark._jvm
    found = jvm.org.apache.spark.sql.delta.storage.LogStore.apply(spark._jsparkSession)
    of_path = found.getDelegate(jvm.org.apache.hadoop.fs.Path(store.warehouse()))
    assert of_path.logStoreImpl().getClass().getName() == SETTINGS[S3_LOG_STORE]

"""A warehouse in an object store, with the real server (STO-1 to STO-3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import ConnectorError, TableError
from connector.kafka.local.folder import free_port
from connector.services.local_spark import session_of
from connector.spark.failures import applying
from connector.spark.session import (
    S3_LOG_STORE,
    SETTINGS,
    check_second_put,
    check_session,
    is_not_atomic,
    log_store_of,
)
from tests.object_store import KEY, READER_KEY, READER_SECRET, SECRET, ObjectStore
from tests.store_proxy import StoreProxy, Weather

pytestmark = pytest.mark.systems

WITHIN_S = 90
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
    assert log_store_of(spark, store.warehouse()) == SETTINGS[S3_LOG_STORE]
    assert not is_not_atomic(log_store_of(spark, "s3://bucket/w"))
    assert log_store_of(spark, "/folder").endswith("HDFSLogStore")


OTHER_CLASSES = {
    "io.delta.storage.HDFSLogStore": "io.delta.storage.HDFSLogStore",
    "no.such.LogStore": "ClassNotFoundException",
    "": "io.delta.storage.S3SingleDriverLogStore",
}


@pytest.mark.parametrize("name", OTHER_CLASSES)
def test_a_session_whose_class_is_not_atomic_is_refused(spark: SparkSession, name: str) -> None:
    """STO-3: whichever setting names the class, and without a stack of Java."""
    check_session(spark, for_writing=True, warehouse="s3a://lake/w")
    conf = spark.sparkContext._jsc.sc().conf()  # type: ignore[union-attr]
    conf.remove(S3_LOG_STORE)
    try:
        if name:
            conf.set("spark.delta.logStore.class", name)
        with pytest.raises(ConnectorError) as caught:
            check_session(spark, for_writing=True, warehouse="s3a://lake/w")
    finally:
        conf.remove("spark.delta.logStore.class")
        conf.set(S3_LOG_STORE, SETTINGS[S3_LOG_STORE])
    assert caught.value.code == "SPARK_SETTING_MISSING"
    assert OTHER_CLASSES[name] in caught.value.cause
    assert "\n" not in str(caught.value)


def test_a_store_that_does_not_refuse_a_second_put_is_not_used(
    spark: SparkSession, store: ObjectStore
) -> None:
    """STO-3, STO-4, `nothing_lost`: a second writer could replace a commit there."""
    check_second_put(spark, store.warehouse())
    with StoreProxy(store.port) as proxy:
        behind = spark.newSession()
        for name, value in {
            "fs.s3a.endpoint": f"http://127.0.0.1:{proxy.port}",
            "fs.s3a.impl.disable.cache": "true",
        }.items():
            behind.conf.set(name, value)
        config = ConnectorConfig(store.warehouse(), KafkaConfig("127.0.0.1:1"))
        check_second_put(behind, config.warehouse)
        proxy.look()
        proxy.change(Weather(is_unconditional=True))
        with pytest.raises(TableError) as caught, ExitStack() as stack:
            session_of(config, behind, stack, print, for_writing=True)
        assert caught.value.code == "STORE_NOT_CONDITIONAL"
        kinds = proxy.look().kinds
        assert (kinds["PUT"], kinds["DELETE"]) == (2, 1)


SHOWN_WITHOUT_SPARK = ("endpoint", "host", "secret")
"""`tests/integration/test_object_store.py` shows them by default."""

WRONG = {
    "endpoint": (
        {"fs.s3a.endpoint": f"http://127.0.0.1:{free_port()}"},
        "STORE_UNREACHABLE",
        "no server listens there",
    ),
    "host": (
        {"fs.s3a.endpoint": "http://nowhere.invalid"},
        "STORE_UNREACHABLE",
        "no host has this name",
    ),
    "key": ({"fs.s3a.access.key": "not-a-key"}, "STORE_ACCESS_DENIED", "refuses"),
    "secret": (
        {"fs.s3a.secret.key": "not-the-secret"},
        "STORE_ACCESS_DENIED",
        "refuses",
    ),
    "reader": (
        {"fs.s3a.access.key": READER_KEY, "fs.s3a.secret.key": READER_SECRET},
        "STORE_ACCESS_DENIED",
        "do not allow it",
    ),
    "bucket": ({}, "BUCKET_MISSING", "no bucket of this name"),
}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(wrong, marks=pytest.mark.long) if wrong in SHOWN_WITHOUT_SPARK else wrong
        for wrong in WRONG
    ],
)
def test_a_wrong_setting_is_named_without_a_secret(
    spark: SparkSession, store: ObjectStore, wrong: str
) -> None:
    """STO-1, STO-4: within seconds, and without a text of Java."""
    settings, code, cause = WRONG[wrong]
    session = spark.newSession()
    for name, value in {**settings, "fs.s3a.impl.disable.cache": "true"}.items():
        session.conf.set(name, value)
    path = f"{'s3a://nowhere/w' if wrong == 'bucket' else store.warehouse()}/tables/t/data"
    began = time.monotonic()
    with pytest.raises(TableError) as caught, applying("t"):
        session.range(3).write.format("delta").save(path)
    assert time.monotonic() - began < WITHIN_S
    error = caught.value
    assert (error.code, cause in error.cause) == (code, True), str(error)
    for secret in (KEY, SECRET, READER_KEY, READER_SECRET, "not-the-secret", "\n", "software."):
        assert secret not in str(error)

"""The Spark session of a service: yours, or a local one that ends with the call."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from connector.config.spark_settings import check_shared, is_local_master
from connector.config.storage import SPARK_DEFAULTS, is_s3
from connector.errors import argument_invalid
from connector.errors.settings import setting_invalid
from connector.errors.spark import spark_master_unreachable, spark_session_exists
from connector.events import OnEvent, begun, info
from connector.text import duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connector.config.settings import ConnectorConfig

MASTER_WITHIN_S: Final = 5.0
_STARTING: Final = threading.Lock()


def session_of(
    config: ConnectorConfig,
    spark: SparkSession | None,
    stack: ExitStack,
    on_event: OnEvent,
    *,
    cores: str | None = None,
    memory: str | None = None,
    for_writing: bool = False,
    is_short: bool = False,
) -> SparkSession:
    """Your session, checked and otherwise untouched; without one a session as the configuration
    says (SCL-1), which ends with `stack`. With `for_writing`, the store must refuse a second put of
    one file (STO-4).

    `cores` are the threads of a local master, `memory` is the heap of the driver; None: as
    configured. `is_short`: the process ends soon, and most of its code runs a few times. The
    session uses the locked jars. They are fetched first where they are missing. A process has room
    for one session: `ConnectorError` if there is one already, because it would be yours.
    """
    from connector.spark.cluster import NO_EXECUTOR_S
    from connector.spark.session import check_second_put, check_session

    is_yours = spark is not None
    if spark is None:
        spark = _started(config, stack, on_event, _settings(config, cores, memory, is_short))
    check_is_shared(config, spark)
    master, warehouse = spark.sparkContext.master or "", config.warehouse
    if not is_yours and not is_local_master(master):
        waits = f"the first job waits for an executor, up to {duration(NO_EXECUTOR_S)}"
        on_event(info("SPARK", f"Spark runs on {master}; {waits}"))
    check_session(spark, for_writing=for_writing, warehouse=warehouse)
    if for_writing:
        check_second_put(spark, warehouse)
    return spark


@contextmanager
def interrupted_by(stop: threading.Event) -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the block if a handler of SIGINT or SIGTERM sets `stop`. The
    start of a session takes seconds, or minutes if jars are missing, and it has no work to end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread has handlers
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def handle(number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(number)]
        assert callable(handler)
        handler(number, frame)
        if stop.is_set():
            raise KeyboardInterrupt

    mine = [number for number, handler in before.items() if callable(handler)]
    for number in mine:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])


def _settings(
    config: ConnectorConfig,
    cores: str | None,
    memory: str | None,
    is_short: bool,
) -> dict[str, str]:
    from connector.spark.session import SHORT_JVM_OPTIONS

    defaults = SPARK_DEFAULTS if is_s3(config.warehouse) else {}
    settings = {**defaults, **config.spark.settings(), **config.storage.spark_settings()}
    if cores is not None:
        if not config.spark.is_local:
            allowed = f"None: the cores are those of the master, {config.spark.master}"
            raise argument_invalid("cores", cores, allowed)
        settings["spark.master"] = f"local[{cores}]"
    if memory is not None:
        settings["spark.driver.memory"] = memory
    if is_short:
        options = "spark.driver.extraJavaOptions"
        settings[options] = f"{SHORT_JVM_OPTIONS} {settings.get(options, '')}"
    return settings


def _started(
    config: ConnectorConfig, stack: ExitStack, on_event: OnEvent, settings: dict[str, str]
) -> SparkSession:
    from connector.spark.jvm import stop_session
    from connector.spark.session import start_session

    check_is_shared(config, None)
    if not _is_submitted():
        check_master(settings["spark.master"])
    jars = _jars(config, on_event)
    scratch = Path(tempfile.mkdtemp(prefix="lowmark-"))
    stack.callback(shutil.rmtree, scratch, ignore_errors=True)
    with _STARTING:
        _check_no_session()
        on_event(begun("start of Spark"))
        started = start_session(jars, scratch=scratch, settings=settings, on_event=on_event)
    stack.callback(stop_session, started)
    return started


def check_is_shared(config: ConnectorConfig, spark: SparkSession | None) -> None:
    """Raise `ConfigError` if the warehouse is a folder that the hosts of a cluster may not share
    (SCL-7). Nothing is written before. None: the session is not started yet.
    """
    if spark is not None:
        master = spark.sparkContext.master or ""
    elif _is_submitted():
        return
    else:
        master = config.spark.master
    check_shared(master, config.warehouse, shared_folder=config.storage.shared_folder)


def _is_submitted() -> bool:
    """Whether spark-submit started the process. It may have another master than [spark]."""
    return "SPARK_ENV_LOADED" in os.environ


def check_master(master: str) -> bool:
    """Raise `ConnectorError` if no server listens where the master of a standalone cluster should
    be. Spark would ask for a minute. Returns whether the master was asked: others are not.
    """
    if not master.startswith("spark://"):
        return False
    causes = list[str]()
    for host in master.removeprefix("spark://").split(","):
        name, _, port = host.rpartition(":")
        try:
            socket.create_connection((name.strip("[]"), int(port)), MASTER_WITHIN_S).close()
        except (OSError, ValueError) as error:
            causes.append(f"{host}: {error}")
        else:
            return True
    raise spark_master_unreachable(master, "; ".join(causes))


def _jars(config: ConnectorConfig, on_event: OnEvent) -> list[Path]:
    from connector.jars import JarStore, fetch

    store = JarStore.from_environment(os.environ)

    def on_progress(text: str) -> None:
        on_event(info("JARS", text))

    locked = fetch("spark", store, on_progress)
    if is_s3(config.warehouse):
        locked += fetch("s3", store, on_progress)
    extra = [Path(jar) for jar in config.spark.extra_jars]
    for jar in extra:
        if not jar.is_file():
            remedy = "Correct the path, or remove it"
            raise setting_invalid(
                "spark.extra_jars", f"{jar}, which is no file", "paths of files", remedy
            )
    return [*locked, *extra]


def _check_no_session() -> None:
    from connector.spark.jvm import forget_ended_session, is_any_live

    if not is_any_live():
        forget_ended_session()
        return
    raise spark_session_exists()

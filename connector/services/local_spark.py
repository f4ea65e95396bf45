"""The Spark session of a service: yours, or a local one that ends with the call."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from sys import __stderr__, __stdout__
from typing import TYPE_CHECKING, Final

from connector.errors import ConnectorError, ErrorCode
from connector.services.events import OnEvent, info

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STARTING: Final = threading.Lock()


def session_of(
    spark: SparkSession | None,
    stack: ExitStack,
    on_event: OnEvent,
    *,
    cores: str,
    memory: str,
    for_writing: bool = False,
) -> SparkSession:
    """Your session, checked and otherwise untouched; without one a local session, which ends with
    `stack`.

    A local session uses the locked jars. They are fetched first where they are missing. A process
    has room for one session: `ConnectorError` if there is one already, because it would be yours.
    """
    from connector import jars
    from connector.spark.jvm import stop_session
    from connector.spark.session import check_session, start_session

    if spark is not None:
        check_session(spark, for_writing=for_writing)
        return spark
    paths = jars.fetch(
        "spark",
        jars.JarStore.from_environment(os.environ),
        lambda text: on_event(info("JARS", text)),
    )
    scratch = Path(tempfile.mkdtemp(prefix="lowmark-"))
    stack.callback(shutil.rmtree, scratch, ignore_errors=True)
    with _STARTING, _output_is_ours():
        _check_that_there_is_none()
        started = start_session(
            paths, scratch=scratch, cores=cores, settings={"spark.driver.memory": memory}
        )
    stack.callback(stop_session, started)
    return started


def _check_that_there_is_none() -> None:
    from connector.spark.jvm import forget_ended_session, is_any_live

    if not is_any_live():
        forget_ended_session()
        return
    raise ConnectorError(
        ErrorCode.SPARK_SESSION_EXISTS,
        "A local Spark session cannot start",
        "This process already has a Spark session. It is yours, or that of another call of lowmark"
        " that has not ended",
        "Give your session to each call as `spark`, or stop it. Build a session that several calls"
        " can use with connector.spark.configure_session",
    )


@contextmanager
def _output_is_ours() -> Iterator[None]:
    """Whatever process is started meanwhile has standard error in place of standard output: a JVM's
    warnings would stand between rows.
    """
    if __stdout__ is None or __stderr__ is None:  # closed, as daemons have them
        yield
        return
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(output, 1)
        os.close(output)

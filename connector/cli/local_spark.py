"""A Spark in this process, for the commands that need one."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from connector.cli import terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start(stack: ExitStack, *, cores: str, memory: str) -> SparkSession:
    """A session on the pinned jars, which are fetched first where they are missing; it ends with `stack`."""
    from connector import jars
    from connector.spark.session import start_session

    paths = jars.fetch("spark", jars.JarStore.from_environment(os.environ), terminal.say)
    scratch = Path(tempfile.mkdtemp(prefix="lowmark-"))
    stack.callback(shutil.rmtree, scratch, ignore_errors=True)
    with _output_is_ours():
        spark = start_session(paths, scratch=scratch, cores=cores, settings={"spark.driver.memory": memory})
    stack.callback(spark.stop)
    return spark


@contextmanager
def _output_is_ours() -> Iterator[None]:
    """Whatever process is started meanwhile has standard error in place of standard output: a JVM's warnings would stand between rows."""
    if sys.__stdout__ is None or sys.__stderr__ is None:  # closed, as daemons have them
        yield
        return
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(output, 1)
        os.close(output)

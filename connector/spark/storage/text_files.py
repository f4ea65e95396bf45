"""Reads and overwrites a small text file of a warehouse. Readers see the old or the new text."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from connector.config.storage import is_local
from connector.state.damage import explained


def read_text(spark: SparkSession, path: str) -> str | None:
    """The text of a file. None: there is no file, or it cannot be read."""
    file, files = _opened(spark, path)
    if is_local(path):
        with suppress(OSError, UnicodeDecodeError):
            return _local(file).read_text("utf-8")
        return None
    jvm: Any = spark._jvm
    with suppress(Py4JJavaError):
        stream = files.open(file)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
    return None


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a file, in place of an older one. Its folder exists. Raises `TableError` if a local
    folder is full or cannot be written.
    """
    file, files = _opened(spark, path)
    if is_local(path):
        # Hadoop would write a checksum file beside it, and a reader could see only one of the two.
        target = _local(file)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            beside.write_text(text, "utf-8")
            beside.replace(target)
        except OSError as error:
            if (known := explained(path, "written", str(error))) is not None:
                raise known from error
            raise
        return
    stream = files.create(file, True)
    try:
        stream.write(text.encode())
    finally:
        stream.close()


def _opened(spark: SparkSession, path: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    file = jvm.org.apache.hadoop.fs.Path(path)
    return file, file.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())


def _local(file: Any) -> Path:
    return Path(str(file.toUri().getPath()))

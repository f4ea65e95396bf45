"""Files and folders of a warehouse, as Hadoop sees them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from connector.config.storage import is_local
from connector.state.damage import explained

_LOCAL: Final = dict[str, Path]()
"""The local paths of files that were read: each call to the JVM takes longer than to read one."""


def opened(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's path of a file or folder, and its file system."""
    jvm: Any = spark._jvm
    file = jvm.org.apache.hadoop.fs.Path(path)
    return file, file.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())


def content_of(spark: SparkSession, path: str) -> str:
    """The text of a small file. Raises the error of the JVM if it cannot be read."""
    (file, files), jvm = opened(spark, path), spark._jvm
    stream: Any = files.open(file)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))  # type: ignore[union-attr]
    finally:
        stream.close()


def read_text(spark: SparkSession, path: str) -> str | None:
    """The text of a small file that is overwritten. None: there is no file, or it is unreadable."""
    if is_local(path):
        if path not in _LOCAL:
            jvm: Any = spark._jvm
            _LOCAL[path] = _local(jvm.org.apache.hadoop.fs.Path(path))
        with suppress(OSError, UnicodeDecodeError):
            return _LOCAL[path].read_text("utf-8")
        return None
    with suppress(Py4JJavaError):
        return content_of(spark, path)
    return None


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a file, in place of an older one, and its folder. Raises `TableError` if a local folder
    refuses it.
    """
    file, files = opened(spark, path)
    if is_local(path):
        # Hadoop would write a checksum file beside it, and a reader could see only one of the two.
        target = _local(file)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            beside.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(text, "utf-8")
            beside.replace(target)
        except OSError as error:
            if (explanation := explained(path, "written", str(error))) is not None:
                raise explanation from error
            raise
        return
    stream = files.create(file, True)
    try:
        stream.write(text.encode())
    finally:
        stream.close()


def _local(file: Any) -> Path:
    return Path(str(file.toUri().getPath()))


def remove_folder(spark: SparkSession, path: str) -> None:
    """Remove a folder with its content."""
    folder, files = opened(spark, path)
    files.delete(folder, True)


def names_in(spark: SparkSession, path: str, *, folders: bool = False) -> list[str]:
    """The sorted names of the files and folders at `path`, or of the `folders` alone, if any."""
    folder, files = opened(spark, path)
    statuses = files.listStatus(folder) if files.exists(folder) else []
    return sorted(
        str(status.getPath().getName())
        for status in statuses
        if status.isDirectory() or not folders
    )


def bytes_on_disk(spark: SparkSession, path: str) -> int:
    """The size of all files below a folder. 0: unknown, as others remove files meanwhile."""
    folder, files = opened(spark, path)
    for _ in range(3):
        with suppress(Py4JError):
            return int(files.getContentSummary(folder).getLength())
    return 0

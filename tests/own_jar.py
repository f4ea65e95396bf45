"""The Java classes of lowmark, compiled: `python -m tests.own_jar` writes them to the package."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import connector.jars
from connector.jars.store import OWN_JAR

PACKAGE = Path(connector.jars.__file__).parent


def compiled(jvm: Any) -> dict[str, bytes]:
    """The class files by their path in the jar. Janino, which is a part of Spark, makes them."""
    classes = dict[str, bytes]()
    for source in sorted(PACKAGE.glob("*.java")):
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setSourceVersion(8)
        compiler.setTargetVersion(8)
        compiler.cook(source.read_text("ascii"))
        for name, code in dict(compiler.getBytecodes()).items():
            classes[f"{name.replace('.', '/')}.class"] = bytes(code)
    return classes


def packed() -> dict[str, bytes]:
    """The files of the jar."""
    with zipfile.ZipFile(PACKAGE / OWN_JAR) as jar:
        return {name: jar.read(name) for name in jar.namelist()}


def main() -> int:
    from pyspark.sql import SparkSession

    from connector import jars

    listed = jars.fetch("spark", jars.JarStore.from_environment(os.environ))
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", ",".join(str(jar) for jar in listed if jar.name != OWN_JAR))
        .getOrCreate()
    )
    with zipfile.ZipFile(PACKAGE / OWN_JAR, "w", zipfile.ZIP_DEFLATED) as jar:
        for name, code in sorted(compiled(spark._jvm).items()):
            jar.writestr(zipfile.ZipInfo(name), code)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

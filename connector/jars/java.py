"""Finds the Java runtime of this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connector.errors import ErrorCode, JarError

if TYPE_CHECKING:
    from collections.abc import Mapping

OLDEST_JAVA: Final = 17
"""The oldest version that Kafka 4 and Spark 4 support."""

_REMEDY: Final = f"Install Java {OLDEST_JAVA} or 21, or set JAVA_HOME to its folder"


def find_java(environment: Mapping[str, str]) -> Path:
    """The `java` that `JAVA_HOME` names, else the first one on `PATH`.

    Raises `JarError` if there is no Java, if it does not start, or if it is older than 17. It
    starts a JVM for a short time.
    """
    java = _look_up(environment)
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JarError(
            ErrorCode.JAVA_UNUSABLE, f"{java} does not start", str(error), _REMEDY
        ) from error
    said = answer.stderr + answer.stdout
    found = re.search(r'version "(\d+)', said)
    if answer.returncode != 0 or found is None:
        raise JarError(
            ErrorCode.JAVA_UNUSABLE,
            f"{java} does not report its version",
            said.strip()[-300:],
            _REMEDY,
        )
    if int(found[1]) < OLDEST_JAVA:
        raise JarError(
            ErrorCode.JAVA_TOO_OLD,
            f"Java {found[1]} at {java} is too old",
            f"Kafka and Spark need Java {OLDEST_JAVA} or newer",
            _REMEDY,
        )
    return java


def _look_up(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").is_file():
        return Path(home) / "bin" / "java"
    # An empty PATH has no folder. Without the "or", the PATH of this process would be searched.
    found = shutil.which("java", path=environment.get("PATH") or "/nonexistent")
    if found is None:
        raise JarError(
            ErrorCode.JAVA_MISSING,
            "No Java was found",
            "Neither JAVA_HOME nor PATH has a Java program",
            _REMEDY,
        )
    return Path(found)

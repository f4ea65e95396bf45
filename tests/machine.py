"""The features of this machine that tests need. Each check runs once. Its result is "" or the
reason why a feature is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from connector.errors import ConnectorError
from connector.jars import JarStore
from tests import debezium, mariadb, postgres

JAVA_NEEDED = 17
REGISTRY_JAVA = 21


@cache
def why_no_java() -> str:
    """Why tests with a JVM cannot run here, or "" if they can."""
    if shutil.which("java") is None:
        return (
            f"no `java` on the path; Spark and the local Kafka broker need Java {JAVA_NEEDED} or 21"
        )
    answer = subprocess.run(
        ["java", "-version"], capture_output=True, text=True, check=False, timeout=60
    )
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        return (
            "`java -version` does not answer; Spark and the local Kafka broker need Java"
            f" {JAVA_NEEDED} or 21"
        )
    if int(version[1]) < JAVA_NEEDED:
        return (
            f"Java {version[1]} is too old; Spark and the local Kafka broker need Java"
            f" {JAVA_NEEDED} or 21"
        )
    return ""


@cache
def newest_java() -> tuple[Path | None, int]:
    """The newest `java` of this machine, and its version: of JAVA_HOME, PATH and /usr/lib/jvm."""
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    candidates = [Path(home) / "bin/java"] if home else []
    candidates += [Path(on_path)] if on_path else []
    candidates += sorted(Path("/usr/lib/jvm").glob("*/bin/java"))
    newest: tuple[Path | None, int] = (None, 0)
    for java in candidates:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
        version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
        if version is not None and int(version[1]) > newest[1]:
            newest = java, int(version[1])
    return newest


@cache
def why_no_registry() -> str:
    """Why tests with a real schema registry cannot run here, or "" if they can."""
    _, version = newest_java()
    if version >= REGISTRY_JAVA:
        return ""
    newest = f"the newest here is {version}" if version else "there is none here"
    return f"Apicurio Registry needs Java {REGISTRY_JAVA}, and {newest}"


@cache
def why_no_postgres() -> str:
    """Why tests with PostgreSQL cannot run here, or "" if they can."""
    if postgres.programs() is None:
        return "no PostgreSQL (neither /usr/lib/postgresql/*/bin nor `postgres` on the path)"
    return ""


@cache
def why_no_mariadb() -> str:
    """Why tests with MariaDB cannot run here, or "" if they can."""
    return "" if mariadb.SERVER.exists() else f"no MariaDB ({mariadb.SERVER} is not there)"


def why_no_debezium(store: JarStore) -> str:
    """Why tests with Debezium cannot run here, or "" if they can. The first call on a machine
    downloads its jars.
    """
    try:
        debezium.jars(store)
    except ConnectorError as error:
        if error.code != "JAR_MISSING":
            raise
        return f"no jars of Debezium. {error.cause}"
    return ""


@cache
def why_no_docker() -> str:
    """Why the broker of the tests cannot be a container here, or "" if it can."""
    if shutil.which("docker") is None:
        return "no Docker engine answers (no `docker` on the path)"
    try:
        answer = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            check=False,
            timeout=20,
        )
    except subprocess.TimeoutExpired:
        return "no Docker engine answers (`docker version` did not end within 20 s)"
    return "" if answer.returncode == 0 else "no Docker engine answers"


def report() -> list[str]:
    """The tests that this machine skips, one sentence each."""
    lacks = []
    if why := why_no_java():
        lacks.append(
            f"everything in tests/spark, tests/integration, tests/faults and tests/e2e: {why}"
        )
    if why := why_no_registry():
        lacks.append(f"the real schema registry: {why}")
    if why := why_no_postgres():
        lacks.append(f"a database and Debezium: {why}")
    if why := why_no_mariadb():
        lacks.append(f"MariaDB and Debezium: {why}")
    return lacks


if __name__ == "__main__":
    for lack in report():
        print(f"left out: {lack}")

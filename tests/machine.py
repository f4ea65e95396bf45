"""What this machine can run. Each question is asked once; the answer is "" or the reason why not, in words for a person."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache

JAVA_NEEDED = 17


@cache
def why_no_java() -> str:
    """Why nothing that needs a JVM can run here, or "" if it can."""
    if shutil.which("java") is None:
        return f"no `java` on the path; Spark and the local Kafka broker need Java {JAVA_NEEDED} or 21"
    answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        return f"`java -version` does not answer; Spark and the local Kafka broker need Java {JAVA_NEEDED} or 21"
    if int(found[1]) < JAVA_NEEDED:
        return f"Java {found[1]} is too old; Spark and the local Kafka broker need Java {JAVA_NEEDED} or 21"
    return ""


@cache
def why_no_docker() -> str:
    """Why nothing that needs containers can run here, or "" if it can."""
    if shutil.which("docker") is None:
        return "no Docker engine answers (no `docker` on the path)"
    try:
        answer = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, check=False, timeout=20)
    except subprocess.TimeoutExpired:
        return "no Docker engine answers (`docker version` did not end within 20 s)"
    return "" if answer.returncode == 0 else "no Docker engine answers"


def report() -> list[str]:
    """What will be left out on this machine, one sentence each."""
    lacks = []
    if why := why_no_java():
        lacks.append(f"everything in tests/spark, tests/integration, tests/faults and tests/e2e: {why}")
    if why := why_no_docker():
        lacks.append(f"the broker in a container (testcontainers): {why}")
    return lacks


if __name__ == "__main__":
    for lack in report():
        print(f"left out: {lack}")

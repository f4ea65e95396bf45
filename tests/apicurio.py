"""Apicurio Registry, a real schema registry with Confluent's API, for tests (SEC-4).

It needs Java 21 or newer. Its archive of 159 MB is downloaded once, with the Ivy inside pyspark,
checked, and kept unpacked beside the jars.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import pytest

from connector.jars import find_java
from connector.jars.store import _find_ivy
from connector.kafka.local.folder import HOST, free_port
from tests.broker import jar_store
from tests.machine import newest_java

VERSION = "3.3.3"
SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
START_TIMEOUT_S = 180
_MODULE = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="local" module="registry"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{VERSION}"
        conf="default->default" transitive="false">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def application() -> Path:
    """The unpacked application. If it cannot be downloaded, the test is skipped. If it differs, the
    test fails.
    """
    store = jar_store()
    folder = store.folder / f"apicurio-registry-{VERSION}"
    store.folder.mkdir(parents=True, exist_ok=True)
    with (store.folder / ".apicurio.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=store.folder) as work:
                archive = _download(Path(work))
                with tarfile.open(archive) as packed:
                    packed.extractall(Path(work) / "unpacked", filter="data")
                os.replace(Path(work) / "unpacked", folder)
    (found,) = folder.rglob("quarkus-run.jar")
    return found


def _download(work: Path) -> Path:
    store = jar_store()
    (work / "ivy.xml").write_text(_MODULE)
    command = [str(find_java(store.environment)), "-jar", str(_find_ivy())]
    command += ["-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache"), "-confs", "default"]
    command += ["-retrieve", f"{work}/[artifact].[ext]"]
    if store.ivy_settings is not None:
        command += ["-settings", str(store.ivy_settings)]
    subprocess.run(command, capture_output=True, check=False, timeout=900)
    archive = work / "apicurio-registry-app.tar.gz"
    if not archive.is_file():
        pytest.skip("the archive of Apicurio Registry cannot be downloaded")
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    assert found == SHA256, f"the archive differs: its SHA-256 is {found}"
    return archive


@contextmanager
def running_apicurio(folder: Path) -> Iterator[str]:
    """The URL of the Confluent-compatible API of a new, empty registry."""
    java, _ = newest_java()
    assert java is not None
    port = free_port()
    management = free_port(port)
    jar = application()
    options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options += [f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={port}"]
    options += [
        f"-Dquarkus.management.host={HOST}",
        f"-Dquarkus.management.port={management}",
    ]
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            [str(java), *options, "-jar", str(jar)],
            cwd=jar.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    url = f"http://{HOST}:{port}/apis/ccompat/v7"
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(f"{url}/subjects"):
            assert process.poll() is None, (folder / "registry.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the registry does not answer"
            time.sleep(0.2)
        yield url
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def set_compatibility(url: str, level: str) -> None:
    """Set the rule for new versions of all subjects: NONE unless it is set."""
    request = urllib.request.Request(
        f"{url}/config",
        data=f'{{"compatibility": "{level}"}}'.encode(),
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200

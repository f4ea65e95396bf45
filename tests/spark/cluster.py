"""A Spark standalone cluster of local processes, and a driver of it in a process of its own.

A process has room for one Spark session, and the suites share theirs. So the driver of a cluster is
another process: `Driver.call` runs a function of a module there.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, ParamSpec, Self, TypeVar

import pyspark
from pyspark.sql import SparkSession

from connector.kafka.local.folder import free_port
from connector.spark.session import configure_session

HOST: Final = "127.0.0.1"
TIMEOUT_S: Final = 600
HOME: Final = Path(pyspark.__file__).parent
# Two cores have no room for the threads of collectors and compilers.
JVM_OPTIONS: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions"
    " -XX:-BytecodeVerificationRemote"
)

Given = ParamSpec("Given")
Result = TypeVar("Result")


@dataclass
class Cluster:
    """A master and workers with one core each. Processes are ended by their ids.

    `recovers`: a new master continues with the workers and applications of the old one
    (`spark.deploy.recoveryMode=FILESYSTEM`). `options` are those of all JVMs but the driver's.
    """

    folder: Path
    recovers: bool = False
    options: str = JVM_OPTIONS
    port: int = field(default_factory=free_port)
    web_port: int = 0
    master: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    @contextmanager
    def running(
        cls, folder: Path, *, workers: int = 2, recovers: bool = False, options: str = JVM_OPTIONS
    ) -> Iterator[Self]:
        folder.mkdir(parents=True, exist_ok=True)
        cluster = cls(folder, recovers, options)
        cluster.web_port = free_port(cluster.port)
        try:
            cluster.start_master()
            for _ in range(workers):
                cluster.start_worker()
            cluster.wait_for(workers)
            yield cluster
        finally:
            cluster.stop()

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    def start_master(self) -> None:
        self.master = self._start(
            *("master.Master", "--host", HOST),
            *("--port", str(self.port), "--webui-port", str(self.web_port)),
        )

    def start_worker(self) -> None:
        """A worker in a folder of its own, on free ports."""
        folder = self.folder / f"worker-{len(self.workers)}-{time.monotonic_ns()}"
        port = free_port(self.port, self.web_port)
        self.workers.append(
            self._start(
                *("worker.Worker", "--host", HOST, "--port", str(port), "--webui-port", "0"),
                *("--cores", "1", "--memory", "1200m", "--work-dir", str(folder), self.url),
            )
        )

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        recovery = (
            "-Dspark.deploy.recoveryMode=FILESYSTEM"
            f" -Dspark.deploy.recoveryDirectory={self.folder / 'recovery'}"
        )
        environment = {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": recovery if self.recovers else "",
            "JDK_JAVA_OPTIONS": self.options,  # of the executors, too
        }
        with (self.folder / "daemons.log").open("ab") as log:
            return subprocess.Popen(
                [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def state(self) -> dict[str, Any]:
        """What the master says about itself."""
        with urllib.request.urlopen(f"http://{HOST}:{self.web_port}/json/", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def wait_for(self, workers: int) -> None:
        """Wait until the master is up and has this many workers."""

        def is_up() -> bool:
            try:
                state = self.state()
            except (OSError, json.JSONDecodeError):  # its page has no content yet
                return False
            return bool(state["status"] == "ALIVE" and state["aliveworkers"] >= workers)

        wait_until(is_up, f"no cluster: see {self.folder / 'daemons.log'}")

    def executors(self) -> list[int]:
        """The process ids of the executors: the children of the workers."""
        return executors_of(self.worker_ids())

    def worker_ids(self) -> list[int]:
        return [worker.pid for worker in self.workers]

    def kill_executor(self, number: int) -> int:
        """SIGKILL to one of the executors, once there is one. Returns its process id."""
        wait_until(lambda: bool(self.executors()), "there is no executor")
        alive = self.executors()
        pid = alive[number % len(alive)]
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_worker(self, number: int) -> None:
        """SIGKILL to one of the workers. Its executors end, because they watch it."""
        worker = self.workers.pop(number % len(self.workers))
        worker.kill()
        worker.wait()

    def kill_master(self) -> None:
        assert self.master is not None
        self.master.kill()
        self.master.wait()
        self.master = None

    def stop(self) -> None:
        left = [process for process in (*self.workers, self.master) if process is not None]
        for process in left:
            process.terminate()
        for process in left:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Driver:
    """A process with a Spark session on a cluster. It ends with the block."""

    def __init__(self, url: str, scratch: Path, settings: Mapping[str, str]) -> None:
        self._process = ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_session,
            initargs=(url, scratch, dict(settings)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in list(self._process._processes.values()):
            process.kill()  # a call may never return; the JVM ends with the process
        self._process.shutdown(cancel_futures=True)

    def begin(
        self, act: Callable[Given, Result], *args: Given.args, **named: Given.kwargs
    ) -> Future[Result]:
        """Call a function of a module in the driver. `session` returns the session there."""
        return self._process.submit(act, *args, **named)

    def call(
        self, act: Callable[Given, Result], *args: Given.args, **named: Given.kwargs
    ) -> Result:
        return self.begin(act, *args, **named).result(TIMEOUT_S)


_sessions: list[SparkSession] = []


def session() -> SparkSession:
    """The session of a driver. Call it in its process."""
    return _sessions[0]


def _start_session(url: str, scratch: Path, settings: Mapping[str, str]) -> None:
    """As a program of a user does it."""
    os.environ |= {
        "PYSPARK_PYTHON": settings.get("spark.pyspark.python", sys.executable),
        "SPARK_LOCAL_IP": HOST,
        "JDK_JAVA_OPTIONS": JVM_OPTIONS,
    }
    builder = configure_session(SparkSession.builder.master(url), scratch=scratch)
    for name, value in {"spark.executor.memory": "1g", **settings}.items():
        builder = builder.config(name, value)
    _sessions.append(builder.getOrCreate())


def executors_of(workers: Iterable[int]) -> list[int]:
    return [child for worker in workers for child in _children(worker)]


def _children(pid: int) -> list[int]:
    """Any thread of a JVM may have started them."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def wait_until(holds: Callable[[], bool], otherwise: str, *, seconds: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)

"""Runs an Apache Kafka broker as a local process, for users without a cluster and for tests
(OPS-2).

A folder contains one broker: its settings, data, log and `broker.json` with its process. If you
start a broker in the same folder again, its topics are still there. It listens on loopback only
(OPS-7).

    <folder>/server.properties   written at each start
    <folder>/data/               the data of Kafka, formatted once
    <folder>/broker.log          the log of the last start
    <folder>/broker.json         pid and ports. It may be out of date after a crash, so the process
                                 is checked
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from connector.errors.kafka import (
    broker_folder_in_use,
    broker_not_started,
    broker_not_stopping,
)
from connector.jars import JarStore, fetch, find_java
from connector.kafka.local.folder import (
    HOST,
    START_TIMEOUT_S,
    choose_port,
    format_data,
    free_port,
    is_broker,
    locked,
    prepare,
    read_state,
    tail,
    write_settings,
    write_state,
)

if TYPE_CHECKING:
    from pathlib import Path

    from connector.errors import BrokerError

OnProgress = Callable[[str], None]

STOP_TIMEOUT_S: Final = 15.0
_JAVA_OPTIONS: Final = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
)
# A shell that waits on a pipe of this process. When this process ends for any reason, the shell
# stops the broker.
_GUARD: Final = (
    'read -r _; if [ -d /proc/self ]; then grep -qs kafka.Kafka "/proc/$0/cmdline"; '
    'else ps -ww -o command= -p "$0" | grep -q kafka.Kafka; fi && kill -TERM "$0"'
)


@dataclass(slots=True)
class LocalBroker:
    """One broker in one folder. Create it with `start`, `start_or_reuse` or `find`.

    As a context manager, it stops the broker at the end of the block.
    """

    folder: Path
    port: int
    controller_port: int
    pid: int
    store: JarStore = field(repr=False)
    extra: dict[str, str] = field(default_factory=dict, repr=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _guard: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def bootstrap_servers(self) -> str:
        """Host and port of the broker, for Kafka clients."""
        return f"{HOST}:{self.port}"

    @classmethod
    def start(
        cls,
        folder: Path,
        store: JarStore,
        *,
        port: int = 0,
        daemon: bool = False,
        settings: dict[str, str] | None = None,
        on_progress: OnProgress = lambda _: None,
    ) -> LocalBroker:
        """Start a broker in `folder`. Returns when it accepts topics, after about two seconds.

        Args:
            folder: The folder of the broker. It may be new.
            store: The store of the pinned jars.
            port: 0: the last port of the folder if it is free. Otherwise any free port.
            daemon: The broker continues when this process ends, and ignores Ctrl-C in its terminal.
                Other brokers stop when this process ends for any reason.
            settings: Additional server properties.
            on_progress: Called with progress messages.

        Returns:
            The running broker.

        Raises:
            BrokerError: The port is in use, the folder has a running broker, is not the folder of a
                broker or is damaged, or the broker does not start. In the last case, the error has
                the end of its log.
            ConnectorError: Java or a jar is missing.
        """
        folder = folder.absolute()
        jars = fetch("broker", store, on_progress)
        java = find_java(store.environment)
        prepare(folder)
        with locked(folder):
            running = cls.find(folder, store)
            if running is not None:
                raise running._in_use()
            before = read_state(folder)
            chosen = choose_port(port, before.get("port", 0))
            controller = free_port(chosen)
            write_settings(folder, chosen, controller, settings or {})
            command = [str(java), *_JAVA_OPTIONS, "-cp", ":".join(str(jar) for jar in jars)]
            format_data(folder, command)
            command[-2:-2] = [f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"]
            command += ["kafka.Kafka", str(folder / "server.properties")]
            broker = cls(folder, chosen, controller, 0, store, dict(settings or {}))
            try:
                broker._launch(command, daemon)
                write_state(folder, pid=broker.pid, port=chosen, controller_port=controller)
                broker._wait_until_ready()
            except BaseException:
                broker.kill()
                raise
        on_progress(
            f"Kafka is running at {broker.bootstrap_servers}, process {broker.pid}, data in"
            f" {folder}"
        )
        return broker

    @classmethod
    def start_or_reuse(
        cls,
        folder: Path,
        store: JarStore,
        *,
        port: int = 0,
        on_progress: OnProgress = lambda _: None,
    ) -> LocalBroker:
        """Return the running broker of `folder`, or start one that continues when this process
        ends.

        The arguments are as in `start`.

        Raises:
            BrokerError: As `start` does, or the broker runs with another port.
            ConnectorError: Java or a jar is missing.
        """
        running = cls.find(folder, store)
        if running is None:
            return cls.start(folder, store, port=port, daemon=True, on_progress=on_progress)
        if port not in (0, running.port):
            raise running._in_use()
        running._wait_until_ready()
        return running

    @classmethod
    def find(cls, folder: Path, store: JarStore) -> LocalBroker | None:
        """Return the running broker of a folder, or None. Any process may have started it.

        Another process with the same pid is not mistaken for the broker.
        """
        folder = folder.absolute()
        state = read_state(folder)
        if not state or not is_broker(state["pid"], folder):
            return None
        return cls(folder, state["port"], state["controller_port"], state["pid"], store)

    def stop(self) -> None:
        """Stop the broker. If it takes longer than 15 s, kill it. Does nothing if it has ended."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker without a flush, like a crash."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again with the same folder and port, after `stop`, `kill` or a crash. Not for
        daemons.
        """
        again = LocalBroker.start(self.folder, self.store, port=self.port, settings=self.extra)
        self.pid, self.controller_port = again.pid, again.controller_port
        self._process, self._guard = again._process, again._guard

    def is_alive(self) -> bool:
        """Return whether the broker's process runs."""
        has_ended = self._process is not None and self._process.poll() is not None
        return not has_ended and self.pid > 0 and is_broker(self.pid, self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _in_use(self) -> BrokerError:
        return broker_folder_in_use(self.folder, self.pid, self.bootstrap_servers)

    def _end(self, how: signal.Signals) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        for signal_number in (how, signal.SIGKILL):
            if self.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal_number)
                deadline = time.monotonic() + STOP_TIMEOUT_S
                while self.is_alive() and time.monotonic() < deadline:
                    time.sleep(0.02)
        if self.is_alive():
            raise broker_not_stopping(self.folder, str(self.pid))
        if self._process is not None:
            self._process.wait(STOP_TIMEOUT_S)

    def _launch(self, command: list[str], daemon: bool) -> None:
        """Start the JVM in a new session. Ctrl-C in the terminal must end only the command, not the
        broker.
        """
        (self.folder / "broker.log").unlink(missing_ok=True)
        with (self.folder / "broker.out").open("wb") as out:
            if daemon:
                # The shell ends at once, so the broker is not our child and cannot become a zombie.
                shell = [
                    "/bin/sh",
                    "-c",
                    'out=$1; shift; "$@" >"$out" 2>&1 </dev/null & echo $!',
                    "sh",
                    str(self.folder / "broker.out"),
                ]
                answer = subprocess.run(
                    [*shell, *command],
                    cwd=self.folder,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                    check=True,
                )
                self.pid = int(answer.stdout)
            else:
                nothing = subprocess.DEVNULL
                self._process = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    stdin=nothing,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
                self.pid = self._process.pid
                self._guard = subprocess.Popen(
                    ["/bin/sh", "-c", _GUARD, str(self.pid)],
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                )
        deadline = time.monotonic() + 2
        while not self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)  # between fork and exec, the process has another command line

    def _wait_until_ready(self) -> None:
        """Wait until the broker lists itself, and a topic was created and deleted. An open port is
        not enough.
        """
        admin = AdminClient(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "log_level": 0,
                "reconnect.backoff.max.ms": 200,
            }
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        probe = f"lowmark.probe.{os.getpid()}.{time.monotonic_ns()}"
        while not self._answers(admin, probe):
            if not self.is_alive():
                problem = "ended during its start"
                raise broker_not_started(self.folder, problem, tail(self.folder))
            if time.monotonic() > deadline:
                problem = f"did not answer within {START_TIMEOUT_S:.0f} s"
                raise broker_not_started(self.folder, problem, tail(self.folder))
            time.sleep(0.05)

    def _answers(self, admin: AdminClient, probe: str) -> bool:
        with socket.socket() as knock:
            if knock.connect_ex((HOST, self.port)) != 0:
                return False
        try:
            if not admin.list_topics(timeout=2).brokers:
                return False
            admin.create_topics([NewTopic(probe, 1, 1)], request_timeout=5)[probe].result()
            admin.delete_topics([probe], request_timeout=5)[probe].result()
        except KafkaException:
            return False
        return True

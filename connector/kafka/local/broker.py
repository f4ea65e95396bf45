"""A real Apache Kafka broker as a process of this machine, for people without a cluster and for tests (OPS-2).

One folder holds one broker: its settings, its data, its log, and `broker.json`, which says who runs. A folder outlives its
broker: start it again and the topics are there. It listens on loopback only (OPS-7).

    <folder>/server.properties   written at each start
    <folder>/data/               Kafka's own, formatted once
    <folder>/broker.log          of the last start
    <folder>/broker.json         pid and ports; stale after a crash, hence checked against the process before it is believed
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

from connector.errors import BrokerError
from connector.jars import JarStore, fetch, find_java
from connector.kafka.local.folder import (
    HOST,
    START_REMEDY,
    START_TIMEOUT_S,
    choose_port,
    format_data,
    free_port,
    is_broker,
    only_one,
    prepare,
    read_state,
    tail,
    write_settings,
    write_state,
)

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

Say = Callable[[str], None]

STOP_TIMEOUT_S: Final = 15.0
_JAVA_OPTIONS: Final = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.awt.headless=true")
# A shell that waits at a pipe which only we hold: when we are gone, however we went, it ends the broker, if that is still it.
_GUARD: Final = (
    'read -r _; if [ -d /proc/self ]; then grep -qs kafka.Kafka "/proc/$0/cmdline"; '
    'else ps -ww -o command= -p "$0" | grep -q kafka.Kafka; fi && kill -TERM "$0"'
)


@dataclass(slots=True)
class LocalBroker:
    """One broker in one folder. Made by `start`, `start_or_reuse` or `find`; a context manager that stops it at the end."""

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
        say: Say = lambda _: None,
    ) -> LocalBroker:
        """Start a broker in `folder` and return once it takes topics, after about two seconds.

        `port` 0: the folder's last port if it is free, else any. A `daemon` lives on when this process ends, and Ctrl-C at
        its terminal does not reach it; any other broker is stopped when this process dies, however it dies. `settings` are
        further server properties. Raises `BrokerError`: the port is taken, the folder has a live broker, is not a broker's,
        or is broken, or the broker does not start (with the end of its log); and `JarError` of `fetch` and `find_java`.
        """
        folder = folder.absolute()
        jars = fetch("broker", store, say)
        java = find_java(store.environment)
        prepare(folder)
        with only_one(folder):
            running = cls.find(folder, store)
            if running is not None:
                raise BrokerError(
                    f"The folder {folder} is in use by a live broker",
                    f"process {running.pid} serves {running.bootstrap_servers}",
                    "Use that one, stop it first (connector broker stop), or take another folder",
                )
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
        say(f"Kafka is running at {broker.bootstrap_servers}, process {broker.pid}, data in {folder}")
        return broker

    @classmethod
    def start_or_reuse(cls, folder: Path, store: JarStore, *, port: int = 0, daemon: bool = True, say: Say = lambda _: None) -> LocalBroker:
        """The live broker of `folder`, or a new one; a live one at another port than the one asked for is a `BrokerError`."""
        running = cls.find(folder, store)
        if running is None:
            return cls.start(folder, store, port=port, daemon=daemon, say=say)
        if port not in (0, running.port):
            raise BrokerError(
                f"The broker of {running.folder} serves port {running.port}, not {port}",
                f"it runs already, as process {running.pid}",
                "Leave the port out, or stop it first: connector broker stop",
            )
        running._wait_until_ready()
        return running

    @classmethod
    def find(cls, folder: Path, store: JarStore) -> LocalBroker | None:
        """The live broker of a folder, whoever started it, or None. A recycled pid is not mistaken for it."""
        folder = folder.absolute()
        state = read_state(folder)
        if not state or not is_broker(state["pid"], folder):
            return None
        return cls(folder, state["port"], state["controller_port"], state["pid"], store)

    def stop(self) -> None:
        """End the broker in good order; with SIGKILL when it takes longer than 15 s. No effect on one that is gone."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a crash would: nothing is flushed."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again on the same folder and port, after `stop`, `kill` or a crash. Not for daemons."""
        again = LocalBroker.start(self.folder, self.store, port=self.port, settings=self.extra)
        self.pid, self.controller_port, self._process, self._guard = again.pid, again.controller_port, again._process, again._guard

    def is_alive(self) -> bool:
        gone = self._process is not None and self._process.poll() is not None
        return not gone and self.pid > 0 and is_broker(self.pid, self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _end(self, how: signal.Signals) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        for signal_number in (how, signal.SIGKILL):
            if self.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal_number)
                self._gone_within(STOP_TIMEOUT_S)
        if self.is_alive():
            raise BrokerError(
                f"The broker of {self.folder} does not end", f"process {self.pid} survived SIGKILL", "Look at its state with ps"
            )
        if self._process is not None:
            self._process.wait(STOP_TIMEOUT_S)

    def _launch(self, command: list[str], daemon: bool) -> None:
        """Start the JVM in a session of its own: Ctrl-C at the terminal is meant for the command that waits there."""
        (self.folder / "broker.log").unlink(missing_ok=True)
        with (self.folder / "broker.out").open("wb") as out:
            if daemon:
                # Through a shell that ends at once: the broker is nobody's child, and leaves no zombie in a long-lived process.
                shell = ["/bin/sh", "-c", 'out=$1; shift; "$@" >"$out" 2>&1 </dev/null & echo $!', "sh", str(self.folder / "broker.out")]
                answer = subprocess.run([*shell, *command], cwd=self.folder, stdout=subprocess.PIPE, start_new_session=True, check=True)
                self.pid = int(answer.stdout)
            else:
                nothing = subprocess.DEVNULL
                self._process = subprocess.Popen(command, cwd=self.folder, stdin=nothing, stdout=out, stderr=out, start_new_session=True)
                self.pid = self._process.pid
                self._guard = subprocess.Popen(["/bin/sh", "-c", _GUARD, str(self.pid)], stdin=subprocess.PIPE, start_new_session=True)
        deadline = time.monotonic() + 2
        while not self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)  # between fork and exec it is not yet itself

    def _gone_within(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _wait_until_ready(self) -> None:
        """An open port is not enough: ready is who lists itself and has created and deleted a topic."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0, "reconnect.backoff.max.ms": 200})
        deadline = time.monotonic() + START_TIMEOUT_S
        probe = f"lowmark.probe.{os.getpid()}.{time.monotonic_ns()}"
        while not self._answers(admin, probe):
            if not self.is_alive():
                raise BrokerError(
                    "The broker ended while it started", f"the end of {self.folder}/broker.log: {tail(self.folder)}", START_REMEDY
                )
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"The broker did not answer within {START_TIMEOUT_S:.0f} s",
                    f"the end of {self.folder}/broker.log: {tail(self.folder)}",
                    START_REMEDY,
                )
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

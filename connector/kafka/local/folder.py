"""The folder of a local broker: settings, format, ports, and the file that names its process."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import socket
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

from connector.errors.kafka import (
    broker_folder_damaged,
    broker_folder_unusable,
    broker_not_started,
    broker_starting,
    port_in_use,
)
from connector.kafka import client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.config.settings import KafkaConfig

HOST: Final = "127.0.0.1"
# A constant, because a random id may begin with a dash, and the format tool would read it as an
# option.
CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
START_TIMEOUT_S: Final = 60.0
# Below the ephemeral ports. Otherwise, a client that connects to a stopped broker could get its
# port as a local port.
PORTS: Final = range(20_000, 32_000)

PORT_TRIES: Final = 200

SERVER_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "num.partitions": "1",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "controlled.shutdown.enable": "false",
    # A killed broker cannot register again until its old session has ended. The default is 9 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
"""The common settings of all brokers, here and in docker-compose.yml. Ports and folders are added.
"""

_LOG4J: Final = """\
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.append = false
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c{{1}}: %m%n
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
"""


def prepare(folder: Path) -> None:
    """Create the folder, or check that it is a broker's folder. Nothing is written into other
    folders.
    """
    if "," in str(folder):
        raise broker_folder_unusable(folder, "Kafka separates folders with commas")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()}
        if names and not names & {"server.properties", ".lock"}:
            cause = f"It is not one: it contains {min(names)!r}, but no server.properties"
            raise broker_folder_unusable(folder, cause)
        (folder / ".lock").touch()
    except OSError as error:
        raise broker_folder_unusable(folder, str(error)) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise broker_starting(folder) from error
        yield


def choose_port(port: int, last: int) -> int:
    if port:
        if not _is_free(port):
            raise port_in_use(str(port), HOST)
        return port
    return last if last and _is_free(last) else free_port()


def free_port(*taken: int) -> int:
    for _ in range(PORT_TRIES):
        port = random.choice(PORTS)
        if port not in taken and _is_free(port):
            return port
    raise port_in_use(f"{PORTS.start} to {PORTS.stop - 1}", HOST)


def _is_free(port: int) -> bool:
    with socket.socket() as attempt:
        # Like Kafka, ignore connections in TIME_WAIT that the last broker left.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def write_settings(folder: Path, port: int, controller_port: int, extra: dict[str, str]) -> None:
    settings = SERVER_SETTINGS | {
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "log.dirs": str(folder / "data"),
    }
    lines = "".join(f"{name}={_escape(value)}\n" for name, value in (settings | extra).items())
    (folder / "server.properties").write_text(lines, "ascii")
    (folder / "log4j2.properties").write_text(
        _LOG4J.format(log=_escape(str(folder / "broker.log"))), "ascii"
    )


def _escape(value: str) -> str:
    """Escape a value for a Java property file: ASCII only, and each backslash is written twice."""
    return "".join(
        c if " " <= c <= "~" and c != "\\" else "\\\\" if c == "\\" else _unicode_escapes(c)
        for c in value
    )


def _unicode_escapes(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def format_data(folder: Path, java: list[str]) -> None:
    meta = folder / "data" / "meta.properties"
    if meta.exists():
        if f"cluster.id={CLUSTER_ID}" not in meta.read_text("utf-8", "replace").splitlines():
            raise broker_folder_damaged(folder, f"{meta} is not as lowmark wrote it")
        return
    if (folder / "data").is_dir() and any((folder / "data").iterdir()):
        raise broker_folder_damaged(folder, f"It has data, but no {meta}")
    command = [
        *java,
        "kafka.tools.StorageTool",
        "format",
        "-t",
        CLUSTER_ID,
        "-c",
        str(folder / "server.properties"),
    ]
    answer = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=START_TIMEOUT_S,
    )
    if answer.returncode != 0 or not meta.exists():
        # At the next start, a partly formatted folder would count as damaged.
        shutil.rmtree(folder / "data", ignore_errors=True)
        output = _errors_in((answer.stderr + answer.stdout).splitlines())
        raise broker_not_started(folder, "cannot be formatted", output)


def read_state(folder: Path) -> dict[str, int]:
    try:
        state = json.loads((folder / "broker.json").read_text("ascii"))
        return {name: int(state[name]) for name in ("pid", "port", "controller_port")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_state(folder: Path, *, pid: int, port: int, controller_port: int) -> None:
    new = folder / "broker.json.new"
    new.write_text(
        json.dumps({"pid": pid, "port": port, "controller_port": controller_port}), "ascii"
    )
    os.replace(new, folder / "broker.json")


def free_bytes(kafka: KafkaConfig, timeout_s: float) -> int | None:
    """Return the least free space of the disks with the data of the brokers of this machine
    (RUN-7). None: no broker is here, or this process may not read its folder.

    A broker in a container names a folder of the container. Therefore the file in the folder must
    name the cluster.
    Raises `BrokerError` if Kafka does not answer within about `timeout_s`.
    """
    if not any(
        _is_here(server.rpartition(":")[0]) for server in kafka.bootstrap_servers.split(",")
    ):
        return None
    admin, what = client.admin(kafka, timeout_s), "describe the brokers"
    cluster = client.wait_for(admin.describe_cluster(), kafka, what)
    free = []
    for node in cluster.nodes:
        if not _is_here(node.host):
            continue
        broker = ConfigResource(ConfigResource.Type.BROKER, str(node.id))
        configs = client.wait_for(
            admin.describe_configs([broker])[broker], kafka, what, "DescribeConfigs"
        )
        for folder in (configs["log.dirs"].value or configs["log.dir"].value or "").split(","):
            with suppress(OSError):
                meta = Path(folder, "meta.properties").read_text("utf-8", "replace")
                if f"cluster.id={cluster.cluster_id}" in meta.splitlines():
                    free.append(shutil.disk_usage(folder).free)
    return min(free, default=None)


def _is_here(host: str) -> bool:
    return host.strip() in (HOST, "localhost")


def is_broker(pid: int, folder: Path) -> bool:
    """Return whether this process is the broker of this folder: its command line ends with our
    settings file.

    A zombie process has no command line.
    """
    ours = str(folder / "server.properties")
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .endswith(b"\0kafka.Kafka\0" + os.fsencode(ours) + b"\0")
        )
    except OSError:
        if Path("/proc/self").exists():
            return False
    answer = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip().endswith(f"kafka.Kafka {ours}")


def tail(folder: Path) -> str:
    """Return the lines of the log and the JVM output that show the error, or the last lines."""
    lines: list[str] = []
    for name in ("broker.out", "broker.log"):
        try:
            lines += (folder / name).read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
    return _errors_in(lines)


def _errors_in(lines: list[str]) -> str:
    errors = [
        line.strip()
        for line in lines
        if " ERROR " in line
        or " FATAL " in line
        or ("Exception" in line and not line.startswith("\tat "))
    ]
    return " | ".join((errors or lines)[-6:])[-1500:]

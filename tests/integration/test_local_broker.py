"""The local broker: starting, stopping, crashing, and every way in which it cannot start (OPS-2,
OPS-7).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.config.settings import KafkaConfig
from connector.errors import BrokerError, ConnectorError
from connector.jars import JarStore
from connector.kafka import topics
from connector.kafka.local.broker import LocalBroker
from connector.kafka.local.folder import PORTS, is_broker
from tests.broker import jar_store

pytestmark = pytest.mark.systems

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker.start(tmp_path_factory.mktemp("live"), jar_store()) as broker:
        yield broker


def wait_until_gone(pid: int, folder: Path) -> None:
    deadline = time.monotonic() + 20
    while is_broker(pid, folder):
        assert time.monotonic() < deadline, f"broker {pid} is still there"
        time.sleep(0.05)


def test_topics_outlive_a_crash_and_a_restart(tmp_path: Path) -> None:
    with LocalBroker.start(tmp_path, jar_store()) as broker:
        kafka = KafkaConfig(broker.bootstrap_servers)
        before = topics.create_topic(kafka, "kept", kafka_partitions=2)
        broker.kill()
        assert not broker.is_alive()
        broker.restart()
        assert broker.bootstrap_servers == kafka.bootstrap_servers
        assert topics.describe(kafka, "kept") == before
        broker.stop()
        assert not broker.is_alive()
        broker.stop()


def test_a_folder_with_a_live_broker_is_refused(live: LocalBroker) -> None:
    with pytest.raises(BrokerError, match="A running broker uses the folder") as caught:
        LocalBroker.start(live.folder, jar_store())
    assert f"Process {live.pid} serves {live.bootstrap_servers}" in caught.value.cause
    assert f"correct bootstrap_servers in your configuration to {live.bootstrap_servers}" in (
        caught.value.remedy
    )


def test_a_live_broker_is_found_and_used_again(live: LocalBroker) -> None:
    again = LocalBroker.start_or_reuse(live.folder, jar_store())
    assert (again.pid, again.port) == (live.pid, live.port)
    with pytest.raises(BrokerError, match="A running broker uses the folder"):
        LocalBroker.start_or_reuse(live.folder, jar_store(), port=9)


def test_a_taken_port_is_named(live: LocalBroker, tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=f"Port {live.port} of 127.0.0.1 is in use"):
        LocalBroker.start(tmp_path, jar_store(), port=live.port)
    assert LocalBroker.find(tmp_path, jar_store()) is None


def test_it_listens_on_loopback_only(live: LocalBroker) -> None:
    """OPS-7, as configured and as it is."""
    settings = dict(
        line.split("=", 1) for line in (live.folder / "server.properties").read_text().splitlines()
    )
    for listener in f"{settings['listeners']},{settings['advertised.listeners']}".split(","):
        assert listener.split("://")[1].startswith("127.0.0.1:")
    with socket.socket() as knock:
        knock.settimeout(1)
        with pytest.raises(OSError):
            knock.connect(("127.0.0.2", live.port))


def test_ports_lie_below_those_that_clients_are_given(live: LocalBroker) -> None:
    assert live.port in PORTS
    assert live.controller_port in PORTS


def test_two_starts_at_once_make_one_broker(tmp_path: Path) -> None:
    outcomes: list[LocalBroker | BrokerError] = []

    def start() -> None:
        try:
            outcomes.append(LocalBroker.start(tmp_path, jar_store()))
        except BrokerError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    started = [outcome for outcome in outcomes if isinstance(outcome, LocalBroker)]
    for broker in started:
        broker.stop()
    refused = [outcome for outcome in outcomes if isinstance(outcome, BrokerError)]
    assert (len(started), len(refused)) == (1, 1)
    assert "Another process is starting a broker" in str(refused[0]) or "in use" in str(refused[0])


def test_a_recycled_pid_is_not_taken_for_the_broker(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text(
        json.dumps({"pid": os.getpid(), "port": 20001, "controller_port": 20002})
    )
    assert LocalBroker.find(tmp_path, jar_store()) is None


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"pid": "x"}', "\x00"])
def test_a_damaged_broker_file_means_that_no_broker_runs(tmp_path: Path, content: str) -> None:
    (tmp_path / "broker.json").write_text(content)
    assert LocalBroker.find(tmp_path, jar_store()) is None


def test_a_folder_of_another_program_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("…")
    with pytest.raises(BrokerError, match="cannot be that of a broker"):
        LocalBroker.start(tmp_path, jar_store())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerError, match="cannot be that of a broker"):
        LocalBroker.start(tmp_path / "file", jar_store())


@pytest.mark.parametrize(
    "content", [None, "cluster.id=somebody-elses\n"], ids=["no meta.properties", "another cluster"]
)
def test_a_broken_folder_is_an_error_of_its_own(tmp_path: Path, content: str | None) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / "data" / "topic-0").mkdir(parents=True)
    if content is not None:
        (tmp_path / "data" / "meta.properties").write_text(content)
    with pytest.raises(BrokerError, match="is damaged") as caught:
        LocalBroker.start(tmp_path, jar_store())
    assert "Delete the folder" in caught.value.remedy


def test_a_failed_start_has_the_errors_of_the_broker(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="cannot be formatted") as caught:
        LocalBroker.start(tmp_path, jar_store(), settings={"num.io.threads": "-1"})
    assert "num.io.threads" in caught.value.cause
    LocalBroker.start(tmp_path, jar_store()).stop()
    with pytest.raises(BrokerError, match="ended during its start") as caught:
        LocalBroker.start(tmp_path, jar_store(), settings={"num.io.threads": "-1"})
    assert "num.io.threads" in caught.value.cause
    assert LocalBroker.find(tmp_path, jar_store()) is None


def test_missing_java_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match="No Java was found"):
        LocalBroker.start(tmp_path / "new", JarStore(jar_store().folder, {"PATH": ""}))


def test_odd_names_of_folders_are_no_obstacle(tmp_path: Path) -> None:
    with LocalBroker.start(tmp_path / "Bröker ☕ #1=a:b!", jar_store()) as broker:
        topics.create_topic(KafkaConfig(broker.bootstrap_servers), "t", kafka_partitions=1)
    with pytest.raises(BrokerError, match="comma"):
        LocalBroker.start(tmp_path / "a,b", jar_store())


START = """
import os, sys, time
from pathlib import Path
from connector.jars import JarStore
from connector.kafka.local.broker import LocalBroker
store = JarStore.from_environment(os.environ)
say = lambda line: print(line, flush=True)
daemon = sys.argv[2] == "daemon"
broker = LocalBroker.start(Path(sys.argv[1]), store, daemon=daemon, on_progress=say)
time.sleep(60)
"""


def start_elsewhere(folder: Path, kind: str) -> tuple[subprocess.Popen[str], LocalBroker]:
    """Another process starts a broker; returns once it runs."""
    command = [sys.executable, "-c", START, str(folder), kind]
    starter = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert starter.stdout is not None
    for line in starter.stdout:
        if line.startswith("Kafka is running"):
            break
    broker = LocalBroker.find(folder, jar_store())
    assert broker is not None
    return starter, broker


def test_a_daemon_outlives_its_starter_and_its_ctrl_c(tmp_path: Path) -> None:
    starter, broker = start_elsewhere(tmp_path, "daemon")
    try:
        os.killpg(starter.pid, signal.SIGINT)
        starter.communicate(timeout=20)
        assert broker.is_alive()
        topics.create_topic(KafkaConfig(broker.bootstrap_servers), "t", kafka_partitions=1)
    finally:
        broker.stop()
    assert not broker.is_alive()


def test_any_other_broker_goes_with_its_starter_even_after_sigkill(tmp_path: Path) -> None:
    starter, broker = start_elsewhere(tmp_path, "child")
    starter.kill()
    starter.communicate(timeout=20)
    wait_until_gone(broker.pid, tmp_path)


def test_a_port_taken_by_another_program_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        began = time.monotonic()
        with pytest.raises(BrokerError, match="is in use"):
            LocalBroker.start(tmp_path, jar_store(), port=other.getsockname()[1])
        assert time.monotonic() - began < 5

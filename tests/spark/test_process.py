"""Processes with a Spark of their own: signals, and sessions that have ended (OPS-4, OPS-10)."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from connector import KafkaConfig
from connector.jars import fetch
from connector.records import codec
from connector.records.model import kafka_key
from connector.services import load_config, status
from connector.spark.session import JVM_OPTIONS as SPARK_OPTIONS
from tests.broker import NewTopic, jar_store
from tests.spark.cluster import HOME, wait_until
from tests.spark.conftest import QUICK_PROCESS
from tests.spark.streams import account

pytestmark = pytest.mark.systems

TIMEOUT_S = 120
QUICKLY_S = 10
"""A start of Spark takes longer on a busy machine, and its end does not wait for it."""
ENTRY = "from connector.cli import main; main()"

ENDED_SESSIONS = """
import os, signal, sys
from pathlib import Path
from contextlib import ExitStack
from pyspark.sql import SparkSession
from connector import KafkaConfig, jars
from connector.errors import ConnectorError
from connector.config.settings import ConnectorConfig
from connector.services.local_spark import session_of
from connector.spark import check_session, read_changes, register_functions
from connector.spark.session import start_session

def said(call):
    try:
        call()
    except ConnectorError as error:
        print("said", error.code)
    else:
        print("said fine")

def local():
    with ExitStack() as stack:
        config = ConnectorConfig(sys.argv[1], KafkaConfig("127.0.0.1:9092"))
        session = session_of(config, None, stack, lambda event: None, cores="1", memory="1g")
        assert session.range(3).count() == 3

paths = jars.fetch("spark", jars.JarStore.from_environment(os.environ))
first = start_session(paths, scratch=Path(sys.argv[1]), cores="1")
said(lambda: check_session(first))
said(local)
first.stop()
said(lambda: check_session(first, for_writing=True))
said(lambda: read_changes(first, sys.argv[1], "s"))
second = start_session(paths, scratch=Path(sys.argv[1]), cores="1")
said(lambda: check_session(second))
os.kill(second.sparkContext._gateway.proc.pid, signal.SIGKILL)
second.sparkContext._gateway.proc.wait()
said(lambda: check_session(second))
said(lambda: register_functions(second, sys.argv[1]))
said(local)
said(lambda: check_session("a text"))
"""


def test_a_session_that_has_ended_is_an_error_and_makes_room_for_another(tmp_path: Path) -> None:
    """OPS-4: a session that was stopped, and one whose JVM was killed, like by the system when
    there is no memory left.
    """
    done = subprocess.run(
        [sys.executable, "-c", ENDED_SESSIONS, str(tmp_path)],
        env=os.environ | QUICK_PROCESS,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    said = [line.removeprefix("said ") for line in done.stdout.splitlines() if "said" in line]
    assert said == [  # the JVM prints warnings, too
        "fine",
        "SPARK_SESSION_EXISTS",
        "SPARK_SESSION_ENDED",
        "SPARK_SESSION_ENDED",
        "fine",
        "SPARK_SESSION_ENDED",
        "SPARK_SESSION_ENDED",
        "fine",
        "ARGUMENT_INVALID",
    ]


START = """
import signal, sys, threading
from contextlib import ExitStack
from connector import KafkaConfig
from connector.config.settings import ConnectorConfig
from connector.services.local_spark import interrupted_by, session_of

stop, config = threading.Event(), ConnectorConfig(sys.argv[1], KafkaConfig("127.0.0.1:9092"))
signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.argv[2] == "handled":
    signal.signal(signal.SIGINT, lambda *_: stop.set())
try:
    with ExitStack() as stack, interrupted_by(stop):
        show = lambda event: print(event.text, flush=True)
        session_of(config, None, stack, show, cores="1", memory="1g")
        print("started")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="it looks for a child in /proc")
@pytest.mark.parametrize("handler", ["handled", "default"])
@pytest.mark.parametrize(
    "after_s", [0.5, 2.5, *(pytest.param(s, marks=pytest.mark.long) for s in (0, 1.5, 4))]
)
def test_an_interrupt_ends_the_start_of_spark_at_once(
    tmp_path: Path, handler: str, after_s: float
) -> None:
    """OPS-4: at each moment, with the JVM, and no file is left. Every command that starts Spark has
    one of these handlers.
    """
    command = [sys.executable, "-c", START, str(tmp_path / "wh"), handler]
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = os.environ | QUICK_PROCESS | {"TMPDIR": str(temporary)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("Spark" in line for line in process.stdout)
            time.sleep(after_s)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=QUICKLY_S)
        finally:
            process.kill()
    assert (process.returncode, said.splitlines()[-1:]) == (0, ["interrupted"])
    # A session that had started was stopped: its JVM ends by itself.
    wait_until(
        lambda: not any(Path(f"/proc/{child}").exists() for child in children), "the JVM is left"
    )
    assert [path.name for path in temporary.iterdir() if "hsperf" not in path.name] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_that_is_stopped_while_spark_starts_ends_at_once(
    kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path, number: signal.Signals
) -> None:
    """OPS-4: it has no batch to end, and says so."""
    command = run_command(kafka, new_topic().topic, tmp_path)
    with subprocess.Popen(
        [*command, "--log-level", "debug"],
        env=os.environ | QUICK_PROCESS,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert any("start of Spark" in line for line in process.stderr)
            process.send_signal(number)
            _, said = process.communicate(timeout=QUICKLY_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "stopped: Spark had not started" in said
    assert "Traceback" not in said


def run_command(kafka: KafkaConfig, topic: str, folder: Path) -> list[str]:
    """The command line of a `connector run` in a folder."""
    config = folder / "connector.toml"
    config.write_text(
        f'warehouse = "wh"\n[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
        f'[streams.s]\ntopic = "{topic}"\ntrigger = "200ms"\n'
    )
    command = [sys.executable, "-c", ENTRY, "--config", str(config), "run", "--memory", "1g"]
    return [*command, "--cores", "1"]


@contextmanager
def running(kafka: KafkaConfig, topic: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A `connector run` that has started, in a process group of its own."""
    with subprocess.Popen(
        run_command(kafka, topic, folder),
        env=os.environ | QUICK_PROCESS,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        try:
            assert any("running; stop with" in line for line in process.stderr)
            yield process
        finally:
            process.kill()


def jvm_of(process: subprocess.Popen[str]) -> int:
    """The process id of its only child."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


def to_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGTERM)


def to_each(process: subprocess.Popen[str]) -> None:
    os.kill(jvm_of(process), signal.SIGTERM)
    process.terminate()


def interrupt(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


def kill_the_jvm(process: subprocess.Popen[str]) -> None:
    jvm = jvm_of(process)
    process.terminate()
    os.kill(jvm, signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="it looks for a child in /proc")
@pytest.mark.parametrize(
    ("stop", "says"),
    [
        (to_group, "every batch that began has ended"),
        pytest.param(to_each, "every batch that began has ended", marks=pytest.mark.long),
        pytest.param(interrupt, "every batch that began has ended", marks=pytest.mark.long),
        pytest.param(kill_the_jvm, "stopped: ", marks=pytest.mark.long),
    ],
)
def test_a_stop_of_the_whole_service_ends_run_as_one_of_its_process_does(
    kafka: KafkaConfig,
    new_topic: NewTopic,
    tmp_path: Path,
    stop: Callable[[subprocess.Popen[str]], None],
    says: str,
) -> None:
    """OPS-4: a shell signals the group, a service manager every process of the service. If the JVM
    dies all the same, the command was asked to stop, and stops.
    """
    with running(kafka, new_topic().topic, tmp_path) as process:
        stop(process)
        _, said = process.communicate(timeout=TIMEOUT_S)
        ended = status(load_config(tmp_path / "connector.toml")).pipelines["s"]
        assert (ended.is_running, ended.problem) == (False, ""), "RUN-1: a clean stop"
    assert process.returncode == 0, said
    assert says in said
    assert "Traceback" not in said


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="it looks for a child in /proc")
def test_the_jvm_ends_with_a_process_that_is_killed(
    kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """OPS-4: it has a process group of its own, and ignores SIGTERM."""
    with running(kafka, new_topic().topic, tmp_path) as process:
        jvm = os.pidfd_open(jvm_of(process))
        settings = load_config(tmp_path / "connector.toml")
        runs = status(settings).pipelines["s"]
        assert (runs.is_running, runs.pid) == (True, process.pid), "RUN-1"
        process.kill()
        process.wait(timeout=TIMEOUT_S)
        killed = status(settings).pipelines["s"]
        assert (killed.is_running, killed.is_done) == (False, False), "RUN-1"
        readable, _, _ = select.select([jvm], [], [], TIMEOUT_S)
        os.close(jvm)
    assert readable, "the JVM goes on"


def test_the_log_for_programs_has_no_contents_of_records(
    kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """LOG-1: each line of standard error is an object, also those of the JVM. Of changes, of a
    record that cannot be decoded, and of a cell that its column cannot hold, no byte is in the log.
    """
    topic, secret = new_topic().topic, "s3cr3t"
    config = tmp_path / "connector.toml"
    config.write_text(
        f'warehouse = "wh"\n[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
        f'[streams.s]\ntopic = "{topic}"\n[tables.accounts]\nstream = "s"\nsource = "t"\n'
        'key = { form = "delimited", columns = [{ name = "id", type = "STRING" }] }\n'
        'columns = [{ name = "amount", family = "f", type = "INT64" }]\n'
    )
    changes = [account(f"{secret}-row", 1, amount="1"), account("b", 2, amount=f"{secret}-cell")]
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for change in changes:
        value = codec.frame(codec.encode(change, 1), None)
        producer.produce(topic, value, kafka_key(change), 0)
    producer.produce(
        topic, f"{secret}-value", f"{secret}-key", 0, headers={"h": f"{secret}-header"}
    )
    assert producer.flush(30) == 0
    command = [sys.executable, "-c", ENTRY, "--config", str(config), "run", "--once"]
    done = subprocess.run(
        [
            *command,
            "--memory",
            "1g",
            "--cores",
            "1",
            "--log-format",
            "json",
            "--log-level",
            "debug",
        ],
        env=os.environ | QUICK_PROCESS,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(line["time"] and line["level"] and line["code"] for line in lines)
    by_code = {line["code"]: line for line in lines}
    logged, applied = by_code["BATCH_LOGGED"], by_code["APPLIED"]
    assert (logged["stream"], logged["changes"], logged["rejected"]) == ("s", 2, 1)
    assert (applied["table"], applied["changes"] + applied["letters"]) == ("accounts", 2)
    assert applied["seconds"] > 0
    assert {"STEP", "SPARK"} <= by_code.keys()
    ours = [line for line in lines if line["code"] != "SPARK"]
    assert secret not in json.dumps(ours)
    assert not [line for line in lines if secret in line["text"] and line["level"] != "info"]


SUBMITTED = """
import sys
from pathlib import Path
from connector.cli import terminal
from connector.events import info
from connector.spark.session import start_session

spark = start_session([], scratch=Path(sys.argv[1]))
assert spark.range(3).count() == 3
terminal.show_event(info("RUN", "a line of ours"))
spark.stop()
"""


@pytest.mark.parametrize(
    "of_the_user",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["ours", "a file of the user"],
)
def test_spark_submit_shows_our_lines_and_those_that_the_user_asked_for(
    of_the_user: bool, tmp_path: Path
) -> None:
    """SCL-8: a session under `spark-submit`, on this machine. Spark's INFO lines are left out, and
    standard output has our lines only. A configuration file that the user names stays as it is.
    """
    program, logging = tmp_path / "program.py", tmp_path / "log4j2.properties"
    program.write_text(SUBMITTED)
    logging.write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.console.ref = console\n"
        "appender.console.type = Console\nappender.console.name = console\n"
        "appender.console.target = SYSTEM_ERR\nappender.console.layout.type = PatternLayout\n"
        "appender.console.layout.pattern = the user's %p %m%n\n"
    )
    # Without the options of the session of the tests: of them, the JVM warns on standard output.
    environment = {name: one for name, one in os.environ.items() if name not in QUICK_PROCESS}
    named = f"-Dlog4j2.configurationFile={logging.as_uri()}" if of_the_user else ""
    done = subprocess.run(
        [
            *(HOME / "bin" / "spark-submit", "--master", "local[1]"),
            *("--driver-memory", "1g", "--driver-java-options", f"{SPARK_OPTIONS} {named}"),
            *("--jars", ",".join(map(str, fetch("spark", jar_store()))), program, tmp_path),
        ],
        env=environment | {"PYTHONPATH": os.getcwd(), "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["a line of ours"]
    assert ("the user's INFO" in done.stderr) is of_the_user
    assert of_the_user or " INFO " not in done.stderr, done.stderr

"""A load of several workers with write streams, beside live changes and the pipeline, and the
faults that a test makes in it.

The programs are those of `tests/faults/write_stream_programs.py`. The pipeline is one in the
process of the test, which ends at a named point: then a new one starts.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.kafka import topics
from connector.kafka.local.broker import LocalBroker
from connector.services.load_config import load_config
from tests.broker import jar_store
from tests.faults.applying import PATIENCE_S, POINTS, Applying
from tests.faults.history import History
from tests.faults.process import Folder
from tests.faults.system import KAFKA_PARTITIONS
from tests.faults.write_stream_programs import TAKEN_OVER, TOPIC, WORKERS

ROOT = Path(__file__).parents[2]
CONFIG = """
warehouse = "warehouse"
[kafka]
bootstrap_servers = "{servers}"
[streams.s]
topic = "t"
trigger = "200ms"
max_offsets_per_trigger = {max_offsets}
[tables.rows]
stream = "s"
source = "t"
max_staleness = "2s"
key = {{ columns = [{{ name = "id", type = "STRING" }}] }}
columns = [
  {{ name = "name", family = "f", qualifier = "q", type = "STRING" }},
  {{ name = "loaded", family = "g", qualifier = "q", type = "STRING" }},
]
"""


class Program:
    """A process, and the lines of its output."""

    def __init__(self, name: str, said: Path, **arguments: object) -> None:
        self._said, self.log = said, said.with_suffix(".log")
        command = [sys.executable, "-m", "tests.faults.write_stream_programs", name]
        arguments |= {"said": str(said)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, json.dumps(arguments)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def tell(self, line: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def said(self, what: str) -> list[dict[str, Any]]:
        lines = self._said.read_text().split("\n")[:-1] if self._said.exists() else []
        return [one for one in map(json.loads, lines) if one["what"] == what]

    def wait(self, until: Callable[[], object], wanted: str) -> None:
        """Wait until something is true. The program must not end before."""
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            code = self.process.poll()
            if code is not None and not until():
                raise AssertionError(f"{wanted}: ended with {code}: {self.log.read_text()[-4000:]}")
            assert time.monotonic() < deadline, f"{wanted}: {self.log.read_text()[-4000:]}"
            time.sleep(0.005)

    def ends(self, code: int) -> None:
        found = self.process.wait(PATIENCE_S)
        assert found == code, f"ended with {found}: {self.log.read_text()[-4000:]}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()


@dataclass
class Load:
    """Made by `loading`. `rows` are those of each worker, appended `size` at a time."""

    rng: Random
    history: History
    broker: LocalBroker
    folder: Folder
    applying: Applying
    rows: int
    size: int
    programs: list[Program]
    workers: list[Program] = field(default_factory=list)
    starts: dict[int, list[Program]] = field(default_factory=dict)
    allowed: int = 0

    def __post_init__(self) -> None:
        self.start_app()
        for number in range(WORKERS):
            self.open_worker(number)
        self.applying.start()
        self.applying.rounds_done(1)

    @property
    def kafka(self) -> KafkaConfig:
        return KafkaConfig(self.broker.bootstrap_servers)

    @property
    def config(self) -> ConnectorConfig:
        return load_config(self.folder.config, {})

    @property
    def source(self) -> Path:
        return self.folder.root / "source"

    # Programs.

    def start_worker(self, number: int, kill: str = "") -> Program:
        """Another start of a worker. It opens its session when it reads the first line."""
        known = self.starts.setdefault(number, [])
        started = Program(
            "load",
            self.folder.root / f"w{number}-{len(known)}",
            servers=self.kafka.bootstrap_servers,
            session=f"w{number}",
            start=len(known),
            size=self.size,
            seed=self.rng.randrange(2**32),
            kill=kill,
        )
        self.programs.append(started)
        known.append(started)
        return started

    def open_worker(self, number: int, kill: str = "") -> None:
        started = self.start_worker(number, kill)
        self.workers[number : number + 1] = [started]
        started.tell("open")
        started.tell(self.allowed)

    def start_app(self) -> None:
        path = self.folder.root / f"app-{len(self.programs)}"
        servers = self.kafka.bootstrap_servers
        self.app = Program("app", path, servers=servers, source=str(self.source))
        self.programs.append(self.app)
        self.app.wait(lambda: self.app.said("opened"), "the application")

    def allow(self, part: float) -> None:
        """Let all workers load up to this part of their rows."""
        self.allowed = round(self.rows * part / self.size) * self.size
        for worker in self.workers:
            worker.tell(self.allowed)

    def wait_for_rows(self) -> None:
        """Wait until the workers have appended what they may."""
        for number, worker in enumerate(self.workers):
            self._wait_for_end(number, worker, self.allowed)

    def _wait_for_end(self, number: int, worker: Program, end: int) -> None:
        def is_there() -> bool:
            taken = [one["offset"] + one["rows"] for one in worker.said("taken")]
            return max([*taken, *(one["end"] for one in worker.said("opened"))], default=-1) >= end

        worker.wait(is_there, f"worker {number} up to {end}")

    def _busy_worker(self, part: float) -> int:
        """Allow more rows, and wait until a worker has appended some of them, up to a random one.
        Return its number.
        """
        self.wait_for_rows()
        number, before = self.rng.randrange(WORKERS), self.allowed
        self.allow(part)
        appends = max(1, (self.allowed - before) // self.size)
        end = before + self.size * self.rng.randint(1, appends)
        self._wait_for_end(number, self.workers[number], end)
        return number

    # Faults. Each one lets the workers load up to a part of their rows.

    def kill_worker(self, part: float) -> None:
        """SIGKILL at a random instant."""
        number = self._busy_worker(part)
        time.sleep(self.rng.uniform(0, 0.02))
        self.workers[number].kill()
        self.open_worker(number)

    def kill_worker_at_a_line(self, part: float) -> None:
        """SIGKILL before or after a Kafka transaction is committed. The first one opens the
        session.
        """
        number, kill = self.rng.randrange(WORKERS), self._transaction(3)
        self.history.note("worker dies", number=number, at=kill)
        self.workers[number].kill()
        self.open_worker(number, kill)
        self.allow(part)
        self.workers[number].ends(-signal.SIGKILL)
        self.open_worker(number)

    def _transaction(self, count: int) -> str:
        return f"{self.rng.choice(('before', 'after'))} {self.rng.randint(1, count)}"

    def take_over(self, part: float) -> None:
        """A second owner of a session: the first one stops."""
        number = self.rng.randrange(WORKERS)
        first, second = self.workers[number], self.start_worker(number)
        second.wait(lambda: second.said("ready"), "the second owner")
        self.wait_for_rows()
        before = self.allowed
        self.allow(part)
        self._wait_for_end(number, first, before + self.size)
        second.tell("open")
        second.tell(self.allowed)
        second.wait(lambda: second.said("opened"), "the second owner")
        self.workers[number] = second
        # It may have appended everything before. It learns of the second owner when it appends.
        with suppress(BrokenPipeError):
            first.tell(self.rows + self.size)
        first.ends(TAKEN_OVER)
        assert first.said("taken over")

    def restart_broker(self, part: float) -> None:
        """The broker is killed and started again. In half of the cases a worker dies meanwhile."""
        number, dies = self._busy_worker(part), self.rng.random() < 0.5
        self.applying.broker_is_down = True
        self.broker.kill()
        if dies:
            self.workers[number].kill()
        self.broker.restart()
        if dies:
            self.open_worker(number)
        self.wait_for_rows()
        self.applying.rounds_done(1)
        self.applying.broker_is_down = False

    def crash_pipeline(self, part: float) -> None:
        self.allow(part)
        self.applying.arm(self.rng.choice(POINTS))
        self.applying.wait_for_crash()

    def kill_app(self, part: float) -> None:
        """The application dies at a random instant, and continues at its resume token."""
        self._busy_worker(part)
        self.app.kill()
        self.start_app()

    # The end.

    def finalize(self) -> None:
        """Load the rest and finalize. A worker dies around its finalization, and repeats it."""
        self.history.note("event", kind="finalize")
        self.allow(1)
        self.wait_for_rows()
        number, kill = self.rng.randrange(WORKERS), f"{self.rng.choice(('before', 'after'))} 2"
        self.workers[number].kill()
        self.open_worker(number, kill)
        for worker in self.workers:
            worker.tell("finalize")
        self.workers[number].ends(-signal.SIGKILL)
        self.open_worker(number)
        self.workers[number].tell("finalize")
        for worker in self.workers:
            worker.ends(0)
            assert [one["rows"] for one in worker.said("finalized")] == [self.rows]

    def kill_committer(self) -> None:
        """The committer dies between two steps, and the application starts again."""
        kill = self.rng.choice(("start 1", "before 1", "after 1"))
        self.history.note("committer dies", at=kill)
        self.app.tell(f"commit {kill}")
        app = self.app
        deadline = time.monotonic() + PATIENCE_S
        while app.process.poll() is None and not app.said("committed"):
            assert not app.said("broken"), app.said("broken")
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if app.process.poll() is None:
            return  # a commit that is recorded makes no transaction
        app.ends(-signal.SIGKILL)
        self.start_app()

    def commit(self) -> int:
        """Return the commit timestamp."""
        before = len(self.app.said("committed"))
        self.app.tell("commit")

        def is_over() -> bool:
            assert not self.app.said("broken"), self.app.said("broken")
            return len(self.app.said("committed")) > before

        self.app.wait(is_over, "the commit")
        return int(self.app.said("committed")[-1]["commit_timestamp"])

    def close(self) -> None:
        """End the application and the pipeline after everything was applied."""
        self.app.tell("close")
        self.app.ends(0)
        self.applying.rounds_done()
        self.applying.stop()
        self.applying.check()


@contextmanager
def loading(spark: SparkSession, rng: Random, history: History, rows: int) -> Iterator[Load]:
    """A load before its first row. At the end of the block all its programs have ended."""
    of_worker = rows // WORKERS
    size = max(1, min(1_000, of_worker // 50))
    of_worker -= of_worker % size
    with ExitStack() as stack:
        broker = stack.enter_context(LocalBroker.start(history.folder / "broker", jar_store()))
        topics.create_topic(
            KafkaConfig(broker.bootstrap_servers), TOPIC, kafka_partitions=KAFKA_PARTITIONS
        )
        folder = Folder(history.folder)
        folder.config.write_text(
            CONFIG.format(servers=broker.bootstrap_servers, max_offsets=max(1_000, rows // 5))
        )
        config = load_config(folder.config, {})
        applying = Applying(spark, config, history, of_worker * WORKERS)
        programs: list[Program] = []
        stack.callback(lambda: [program.kill() for program in programs])
        stack.callback(applying.stop)
        yield Load(rng, history, broker, folder, applying, of_worker, size, programs)

"""Three brokers, of which one and then two are killed, while a producer, `connector run` and a
replay are at work (SEC-3).
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Producer

from connector.clock import now_us
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.dead_letters.filter import LetterFilter
from connector.dead_letters.repair import Step
from connector.dead_letters.replay import Verdict
from connector.errors import ConnectorError
from connector.kafka import ChangeProducer, create_topic
from connector.records import codec
from connector.records.model import DataChange, SetCell
from connector.services import DeadLetters, load_config, read
from tests.cluster import Cluster, cluster
from tests.faults.history import History, kept_on_failure
from tests.faults.process import Folder, outcome, running
from tests.spark.conftest import QUICK_PROCESS

TOPICS = ("t", "t.dead-letters", "t.dead-letters.ledger", "t.write-streams")
KAFKA_PARTITIONS = 3
OUTAGE_S = 60
CONFIG = """
warehouse = "warehouse"
[kafka]
bootstrap_servers = "{servers}"
[streams.s]
topic = "t"
trigger = "1s"
max_dead_letter_ratio = 1.0
[tables.rows]
stream = "s"
source = "t"
max_staleness = "5s"
key = {{ columns = [{{ name = "id" }}] }}
columns = [{{ name = "v", family = "f", qualifier = "q", type = "STRING" }}]
"""
LOSABLE = {"BROKER_UNREACHABLE", "KAFKA_REFUSED", "SPARK_FAILED", "DEAD_LETTERS_UNDELIVERED"}
"""The codes with which `connector run` may end while brokers are away."""
ARGUMENTS = ("--cores", "2", "--memory", "1g")


@dataclass
class Load:
    """What is sent: `rows` has the last value of each row. One change in a hundred goes out with a
    wrong key, for a row of its own.
    """

    kafka: KafkaConfig
    begin: int = field(default_factory=now_us)
    sent: int = 0
    rows: dict[str, str] = field(default_factory=dict)

    def change(self, row: str) -> DataChange:
        self.sent += 1
        self.rows[row] = str(self.sent)
        return DataChange(
            stream_partition="p",
            table="t",
            row_key=row.encode(),
            commit_timestamp=self.begin + self.sent,
            entries=(SetCell("f", b"q", str(self.sent).encode()),),
        )

    def run(self, producer: ChangeProducer, ended: threading.Event) -> None:
        others = Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        while not ended.wait(0.02):
            producer.send(self.change(f"row {self.sent % 300}"))
            producer.reached("p", self.begin + self.sent)
            if self.sent % 100 == 1:
                wrong = codec.encode(self.change(f"repaired {self.sent}"), KAFKA_PARTITIONS)
                others.produce("t", codec.frame(wrong, None), b"wrong")
            others.poll(0)
        assert others.flush(120) == 0


@dataclass
class Work:
    """The pipeline and the replay beside the load. `ends` has the output of each run that ended by
    itself, `replayed` counts letters, `failed` replays that stopped.
    """

    folder: Folder
    history: History
    ends: list[str] = field(default_factory=list)
    runs: int = 0
    replayed: int = 0
    failed: int = 0

    @property
    def config(self) -> ConnectorConfig:
        return load_config(self.folder.config, {})

    def supervise(self, ended: threading.Event) -> None:
        """Start `connector run` again whenever it ends, as a supervisor does."""
        while not ended.is_set():
            self.runs += 1
            with running(self.folder, self.runs, *ARGUMENTS, settings=QUICK_PROCESS) as process:
                while process.process.poll() is None and not ended.wait(0.2):
                    pass
                if process.process.poll() is None:
                    process.process.send_signal(signal.SIGTERM)
                    process.process.wait(120)
                else:
                    self.ends.append(process.tail())
                    self.history.note("run ended", tail=process.tail())

    def replay(self, ended: threading.Event) -> None:
        while not ended.wait(1):
            self.replay_once()

    def replay_once(self) -> int:
        """How many letters were sent. -1: the brokers are away."""
        try:
            letters = DeadLetters(self.config, by="test")
            steps = [Step.parse("unset key")]
            tally = letters.replay(LetterFilter(), why="the key was wrong", steps=steps)
        except ConnectorError as error:
            self.failed += 1
            self.history.note("replay failed", by=str(error)[:300])
            return -1
        sent = tally.verdicts[Verdict.REPLAY]
        self.replayed += sent
        return sent


@contextmanager
def beside(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run each in a thread during the block. Raises what they raise."""
    ended, failures = threading.Event(), []

    def guarded(work: Callable[[threading.Event], None]) -> None:
        try:
            work(ended)
        except BaseException as error:  # noqa: BLE001, raised below, in the thread of the test
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 180) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def lose_brokers(three: Cluster, producer: ChangeProducer, work: Work) -> None:
    """The leader first. When all replicas are in sync again, two brokers for a minute."""
    leader = three.leader("t")
    work.history.note("leader killed", node=leader)
    three.brokers[leader].kill()
    before = producer.delivered
    wait_until(lambda: producer.delivered > before + 200, "no record is acknowledged by two")
    three.restart(leader)
    three.wait_until_in_sync(*TOPICS)
    lost = [node for node in three.brokers if node != three.leader("t")]
    work.history.note("two killed", nodes=lost)
    for node in lost:
        three.brokers[node].kill()
    time.sleep(5)  # what two brokers have acknowledged before arrives here
    before = producer.delivered
    time.sleep(OUTAGE_S - 5)
    assert producer.delivered == before, "one broker alone acknowledged a record"
    three.restart(*lost)
    three.wait_until_in_sync(*TOPICS)
    wait_until(lambda: producer.delivered > before + 200, "nothing is acknowledged again")
    replayed = work.replayed
    wait_until(lambda: work.replayed > replayed, "nothing is replayed again")


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_nothing_is_lost_with_a_leader_or_with_two_of_three_brokers(seed: int) -> None:
    """SEC-3, nothing_lost, newest_wins, resumable: the producer goes on by itself, and a supervisor
    starts `connector run` again.
    """
    with kept_on_failure(seed) as history, ExitStack() as stack:
        three = stack.enter_context(cluster(history.folder / "cluster"))
        create_topic(three.kafka, "t", kafka_partitions=KAFKA_PARTITIONS)
        folder = Folder(history.folder)
        folder.config.write_text(CONFIG.format(servers=three.kafka.bootstrap_servers))
        work, load = Work(folder, history), Load(three.kafka)
        with ChangeProducer(three.kafka, "t", heartbeat_s=1) as producer:
            with beside(lambda ended: load.run(producer, ended), work.supervise, work.replay):
                wait_until(lambda: work.replayed > 0, "nothing is replayed", 300)
                lose_brokers(three, producer, work)
            producer.reached("p", load.begin + load.sent)
            producer.flush()
            assert producer.undelivered() == {}
        codes = [
            code for end in work.ends for code in re.findall(r"^code: +(\w+)", end, re.MULTILINE)
        ]
        assert len(codes) == len(work.ends)
        assert set(codes) <= LOSABLE

        def complete() -> list[str]:
            outcome(folder, "run", "--once", *ARGUMENTS, settings=QUICK_PROCESS)
            return outcome(folder, "audit")[1]

        complete()
        while work.replay_once() != 0:
            complete()
        proof = complete()
        assert "no record is lost or duplicated" in " ".join(proof)
        with read(work.config, "rows", allow_stale=True) as found:
            names = list(found.columns)
            places = names.index("id"), names.index("v")
            assert {row[places[0]]: row[places[1]] for row in found.rows} == load.rows
        print(
            f"{load.sent} changes, {work.replayed} replayed, {work.failed} replays failed,"
            f" {work.runs} runs, ended with {codes}; {proof}"
        )

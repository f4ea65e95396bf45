"""A source with a log of its own, and what brings its changes to Kafka: it dies, resumes from its
token, and keeps REC-18 throughout.

Two source tables: `accounts`, between which transfers go on, each a transaction over two rows; and
`t`, whose rows are written in part or as a whole, deleted, and written again. Beside them others
write into the topic: poison, and old records a second time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random

from confluent_kafka import Producer

from connector.config.settings import KafkaConfig
from connector.errors import BrokerError, ConnectorError, DeliveryError, TopicError
from connector.kafka import ChangeProducer
from connector.records import codec
from connector.records.json_view import to_json
from connector.records.model import DataChange, Entry, Heartbeat, kafka_key
from tests.changes import change, delete_family, put
from tests.faults.history import History

S = 1_000_000
ACCOUNTS = [b"account %d" % number for number in range(8)]
OPENING = 100
TOTAL = OPENING * len(ACCOUNTS)
ROWS = [b"row %d" % number for number in range(12)]
POISON = (b"rubbish", b"\x00\x00\x00\x00\x07rubbish", b"\xc3\x01" + 8 * b"\x00", b"")


def _balance(row_key: bytes, at: int, amount: object) -> DataChange:
    return change(put(str(amount), qualifier=b"amount"), at=at, row_key=row_key, table="accounts")


@dataclass
class Source:
    """What the source has committed, in rounds, oldest first. A round is over before the next one
    begins, in its own time too.
    """

    rng: Random
    rounds: list[list[DataChange]] = field(default_factory=list)
    clock: int = 1_000_000 * S
    balances: dict[bytes, int] = field(default_factory=lambda: dict.fromkeys(ACCOUNTS, OPENING))

    @property
    def changes(self) -> list[DataChange]:
        return [change for of_round in self.rounds for change in of_round]

    def commit(self) -> None:
        """Another round."""
        before = self.clock
        done = [] if self.rounds else self._at_once(*ACCOUNTS)
        for _ in range(self.rng.randint(3, 9)):
            one, other = self.rng.sample(ACCOUNTS, 2)
            amount = self.rng.randint(1, 50)
            self.balances[one] -= amount
            self.balances[other] += amount
            done += self._at_once(one, other)
        done += [self._write() for _ in range(self.rng.randint(3, 12))]
        if self.rng.random() < 0.3:
            self.clock += S
            done.append(_balance(b"bad", self.clock, "much"))
        self.rounds.append(
            [replace(one, estimated_low_watermark=self.rng.choice((0, before + 1))) for one in done]
        )

    def _at_once(self, *rows: bytes) -> list[DataChange]:
        self.clock += S
        return [_balance(row, self.clock, self.balances[row]) for row in rows]

    def _write(self) -> DataChange:
        """Of a few rows and values that say when they were written, so that a mix-up shows; or an
        end.
        """
        self.clock += S
        deletes: tuple[Entry, ...] = (delete_family("f"), delete_family("g"))
        cells: tuple[Entry, ...] = (put(f"{self.clock} f", "f"), put(f"{self.clock} g", "g"))
        entries = self.rng.choice(
            (
                deletes,
                cells,
                cells[:1],
                cells[1:],
                deletes[1:],
                (*deletes, *cells),
                (*deletes, cells[0]),
            )
        )
        return change(*entries, at=self.clock, row_key=self.rng.choice(ROWS))


class _DiesError(Exception):
    """The producer's process is gone."""


class Traffic:
    """Brings the rounds of a source to a topic, in half of the runs each as one Kafka transaction.
    One thread at a time.
    """

    def __init__(self, kafka: KafkaConfig, topic: str, rng: Random, history: History) -> None:
        self._kafka, self._topic, self._rng, self._history = kafka, topic, rng, history
        self.source = Source(Random(rng.random()))
        self._transactional_id = rng.choice((None, f"{topic}-source"))
        self._producer: ChangeProducer | None = None
        self._delivered = 0
        """How many rounds are known to be in Kafka."""
        self.deaths = 0

    def round(self, *, dies: bool = False) -> bool:
        """The source commits, and everything that was not delivered is; returns whether it was.
        `dies`: the producer does, half way.
        """
        self.source.commit()
        for one in self.source.rounds[-1]:
            self._history.note("committed", record=to_json(one, None))
        self._others()
        try:
            self._deliver(dies=dies)
        except (_DiesError, DeliveryError, BrokerError) as error:
            self._history.note("producer died", of=repr(error)[:200])
            self.deaths += 1
            self.close()
            return False
        return True

    @contextmanager
    def flowing(self, *, dies: bool) -> Iterator[None]:
        """Some rounds follow one another during the block; a slow machine gets no more to do than a
        quick one.
        """
        ended, failures = threading.Event(), []
        pauses_s = [self._rng.uniform(0.5, 4) for _ in range(self._rng.randint(0, 5))]

        def flow() -> None:
            try:
                self.round(dies=dies)
                for pause_s in pauses_s:
                    if ended.wait(pause_s):
                        break
                    self.round()
            except BaseException as error:  # noqa: BLE001, raised below, in the thread of the test
                failures.append(error)

        thread = threading.Thread(target=flow)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Without a flush: what is in the producer's hands is lost with it, as with its process."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(ConnectorError):
                producer.close(timeout_s=0)

    def _deliver(self, *, dies: bool) -> None:
        producer = self._producer or self._resume()
        for number in range(self._delivered, len(self.source.rounds)):
            changes = self._rng.sample(self.source.rounds[number], len(self.source.rounds[number]))
            last = self._rng.randint(0, len(changes)) if dies else None
            if self._transactional_id is None:
                self._send(producer, number, changes, last)
            else:
                with producer.transaction():
                    self._send(producer, number, changes, last)
        if self._transactional_id is None:
            producer.flush(30)
        self._delivered = len(self.source.rounds)
        self._history.note("delivered", rounds=self._delivered)

    def _send(
        self, producer: ChangeProducer, number: int, changes: list[DataChange], last: int | None
    ) -> None:
        """A round, and behind it a heartbeat whose token is the number of rounds."""
        for place, one in enumerate(changes):
            if place == last:
                raise _DiesError
            producer.send(one)
        if last == len(changes):
            raise _DiesError
        until = max(one.commit_timestamp for one in changes)
        producer.send(Heartbeat("p", until, resume_token=b"%d" % (number + 1)))

    def _resume(self) -> ChangeProducer:
        """A new process knows nothing but what the topic says (REC-19)."""
        self._producer = ChangeProducer(
            self._kafka, self._topic, transactional_id=self._transactional_id
        )
        try:
            self._delivered = int(self._producer.resume_token("p"))
        except TopicError:
            assert self._delivered == 0, "the tokens of delivered heartbeats are gone"
        self._history.note("producer resumed", at=self._delivered)
        return self._producer

    def _others(self) -> None:
        """Poison, and records of long ago that come again. Whether Kafka takes them does not
        matter: the topic says what it has.
        """
        producer = Producer(
            {
                "bootstrap.servers": self._kafka.bootstrap_servers,
                "partitioner": "murmur2_random",
                "log_level": 0,
            }
        )
        known = [one for of_round in self.source.rounds[: self._delivered] for one in of_round]
        for one in self._rng.sample(known, min(len(known), 4)):
            producer.produce(self._topic, codec.frame(codec.encode(one, 1), None), kafka_key(one))
        for value in self._rng.sample(POISON, self._rng.randint(0, 2)):
            producer.produce(self._topic, value, b"%d" % self._rng.randrange(9))
        producer.flush(5)
        producer.purge()
        producer.flush(1)

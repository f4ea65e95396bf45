"""A bank on the simulation of `deliveries.py`: accounts on stream partitions that split and merge,
and transfers between them.

A transfer is a transaction of two changes. Each change belongs to the stream partition that has the
account's key. It goes to the Kafka partition of its key, among those that this stream partition
knows. Changes may overtake each other up to the next control record of their stream partition, and
some are sent twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from random import Random

from connector.records.model import DataChange
from tests.changes import change, put
from tests.property.deliveries import Producer, Sent, Simulation

ACCOUNTS = [bytes([first]) + b" account" for first in range(16, 256, 32)]
OPENING = 100
TOTAL = OPENING * len(ACCOUNTS)


@dataclass(frozen=True)
class Written(Sent):
    """A change in flight."""

    change: DataChange | None = None


class BankSimulation(Simulation):
    """`balances` has the balances after every commit timestamp. `lies`: heartbeats do not wait for
    changes in flight, against REC-18.
    """

    def __init__(self, rng: Random, *, lies: bool = False) -> None:
        self.lies = lies
        self.balances: dict[int, dict[bytes, int]] = {}
        super().__init__(rng)
        self._commit(dict.fromkeys(ACCOUNTS, OPENING))
        self.arrive()
        self._speak()

    def step(self) -> None:
        """One random event, as in any simulation. But splits, merges and growth only happen in
        `turn`, because otherwise heartbeats would be too rare.
        """
        self.rng.choices(
            [self._change, self._deliver, self._beat, self._learn, self._announce_again],
            [8, 16, 4, 1, 1],
        )[0]()

    def turn(self) -> None:
        """A stream partition splits, two merge, and the topic grows. The last changes are still in
        flight at the end.
        """
        for what in (self._split, self._grow, self._merge, self._split):
            for _ in range(20):
                self.step()
            what()
        self._speak()
        for _ in range(20):
            self.step()
        if self.lies:
            for of in self._live():
                self._beat_of(of)

    def _speak(self) -> None:
        """All records in flight arrive. Every live stream partition learns all Kafka partitions,
        and sends a heartbeat.
        """
        while any(
            queue
            for of in [*self.producers, *self.controls]
            for queue in of.unacknowledged.values()
        ):
            self._deliver()
        for of in self._live():
            of.kafka_partitions = len(self.logs)
            self._beat_of(of)
            self._flush(of)

    def arrive(self) -> None:
        """Every change in flight arrives in Kafka. Control records in flight do not."""
        for of in self.producers:
            for k, queue in of.unacknowledged.items():
                self.logs[k].extend(sent for sent in queue if sent.commit_timestamp)
                of.unacknowledged[k] = deque(sent for sent in queue if not sent.commit_timestamp)

    def at(self, low_watermark: int) -> dict[bytes, int]:
        """The balances after everything below the watermark was committed. Empty: the bank was not
        open yet.
        """
        known = [at for at in self.balances if at < low_watermark]
        return self.balances[max(known)] if known else {}

    def _change(self) -> None:
        one, other = self.rng.sample(ACCOUNTS, 2)
        amount = self.rng.randint(1, 50)
        before = self.balances[max(self.balances)]
        self._commit({one: before[one] - amount, other: before[other] + amount})

    def _commit(self, balances: dict[bytes, int]) -> None:
        self.clock += 1
        for account, balance in balances.items():
            of = next(
                one
                for one in self._live()
                if one.keys.start <= account and (one.keys.end is None or account < one.keys.end)
            )
            assert of.floor <= self.clock
            claims = not self.lies and self.rng.random() < 0.3
            claim = (
                min(self.rng.randint(of.floor, self.clock), of.oldest_change_in_flight())
                if claims
                else 0
            )
            written = change(
                put(str(balance), qualifier=b"amount"),
                at=self.clock,
                row_key=account,
                stream_partition=of.name,
                estimated_low_watermark=claim,
            )
            of.send(
                Written(of.name, of.kafka_partitions, self.clock, claim, change=written),
                sum(account) % of.kafka_partitions,
            )
        self.balances[self.clock] = {
            **self.balances.get(max(self.balances, default=0), {}),
            **balances,
        }

    def _beat(self) -> None:
        self._beat_of(self.rng.choice(self._live()))

    def _beat_of(self, of: Producer) -> None:
        until = self.clock + 1 if self.lies else min(self.clock + 1, of.oldest_change_in_flight())
        if of.floor < until:
            of.floor = until
            beat = Sent(of.name, of.kafka_partitions, claim=until)
            # A wrong heartbeat overtakes the changes that it claims.
            for k in range(of.kafka_partitions):
                self.logs[k].append(beat) if self.lies else of.send(beat, k)

    def _deliver(self) -> None:
        waiting = [
            (of, k)
            for of in [*self.producers, *self.controls]
            for k, queue in of.unacknowledged.items()
            if queue
        ]
        if not waiting:
            return
        of, k = self.rng.choice(waiting)
        queue = of.unacknowledged[k]
        free = next(
            (place for place, sent in enumerate(queue) if not sent.commit_timestamp), len(queue)
        )
        place = self.rng.randrange(free) if free else 0
        sent = queue[place]
        del queue[place]
        self.logs[k].append(sent)
        if sent.commit_timestamp and self.rng.random() < 0.1:
            self.logs[k].append(replace(sent, again=True))

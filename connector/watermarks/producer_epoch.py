"""The epoch of a producer shows which of two producers of a stream partition began later (PUB-4).

Each control record of a producer has the Kafka header `EPOCH_HEADER`, with the epoch in decimal.
Kafka cannot fence an older producer without a transactional id. But an older epoch behind a
newer one in the same Kafka partition shows that both producers write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

EPOCH_HEADER: Final = "connector.producer-epoch"

_is_epoch = re.compile(rb"[0-9]{1,18}").fullmatch


def epoch_of(headers: Iterable[tuple[str, bytes | None]]) -> int | None:
    """Return the epoch of a control record. None: the headers have none, or no number."""
    epoch = next((value for name, value in headers if name == EPOCH_HEADER), None)
    return int(epoch) if epoch is not None and _is_epoch(epoch) else None


class ProducerEpoch:
    """The epoch of one producer. `value` is in microseconds, if no newer epoch was read."""

    def __init__(self, now: int) -> None:
        self.value, self._is_used = now, False

    def on(
        self, headers: Iterable[tuple[str, str | bytes | None]]
    ) -> list[tuple[str, str | bytes | None]]:
        """Return the headers of a control record of this producer. An epoch in them is replaced."""
        self._is_used = True
        others = [header for header in headers if header[0] != EPOCH_HEADER]
        return [*others, (EPOCH_HEADER, b"%d" % self.value)]

    def follows(self, newest: int) -> None:
        """Make the epoch newer than the newest one that was read from the topic.

        An equal one is that of this producer, if it has sent control records.
        """
        if newest > self.value or (newest == self.value and not self._is_used):
            self.value = newest + 1


class EpochRun(NamedTuple):
    """The control records with one epoch that a batch has from a stream partition in a Kafka
    partition: the first and the last offset.
    """

    epoch: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class OlderProducer:
    """A producer that writes behind a newer one: both epochs, and the Kafka partition."""

    kafka_partition: int
    older: int
    newer: int


def older_producer(
    kafka_partition: int, runs: Iterable[EpochRun], newest_before: int
) -> OlderProducer | None:
    """Return the greatest epoch of a batch that is behind a newer one, with the newest of these
    (PUB-4). None: each record has at least the epoch of those before it.

    `runs` has each epoch once. `newest_before` is that of the batches before, or 0.
    """
    ordered = sorted(runs, reverse=True)
    for run in ordered:
        before = [
            other.epoch for other in ordered if other.epoch > run.epoch and other.first < run.last
        ]
        newer = max([*before, newest_before])
        if newer > run.epoch:
            return OlderProducer(kafka_partition, run.epoch, newer)
    return None


def newest_epochs(runs: Mapping[int, Iterable[EpochRun]]) -> dict[int, int]:
    """Return the newest epoch of each Kafka partition."""
    return {k: max(run.epoch for run in epoch_runs) for k, epoch_runs in runs.items()}

"""A record as a reader gets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from connector.records.model import Record
from connector.records.rejection import Position, Rejection
from connector.validation import KafkaRecord

Start = Literal["beginning", "end"] | int | tuple[Position, ...]
"""Where to start. An `int` is a record timestamp in microseconds. Positions are a value of
`ChangeConsumer.positions`.
"""

ARRIVAL_MARGIN_S: Final = 60.0
"""The assumed maximum difference between the clocks of the brokers and of this machine, when
arrival times are compared.
"""


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """The decoded record of a Kafka record, and the Kafka record.

    - `record` is the change, control record or `Rejection`.
    - `kafka_partitions` is the number that its producer used (REC-24). It is 0 for a rejection.
    - `source` is the Kafka record.
    """

    record: Record | Rejection
    kafka_partitions: int
    source: KafkaRecord

    @property
    def position(self) -> Position:
        """The coordinates of the Kafka record."""
        return self.source.position

    @property
    def record_timestamp(self) -> int:
        """The time of arrival in Kafka, in microseconds. If the record timestamp is not possible,
        it is the time of reading (REC-25).
        """
        return self.source.record_timestamp

"""A consumer group: its stored positions, its events, and what it reads again if a program ends
without `commit` (REC-21, PUB-8). After some events, the client joins again. Others are about a
setting.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from connector.errors.kafka import group_unavailable, positions_not_stored
from connector.kafka import client, transactions
from connector.kafka.unclosed import Unclosed, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from connector.config.settings import KafkaConfig
    from connector.errors import BrokerError

LEFT: Final = frozenset(
    {
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
    }
)
"""The group has taken the Kafka partitions away. The client joins the group again."""

PASSING: Final = LEFT | {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError._WAIT_COORD,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.MEMBER_ID_REQUIRED,
}
"""The group or its coordinator changes, or a transaction ends. The client tries again."""

_TOO_SLOW: Final = (
    "The program did not call `poll` within max.poll.interval.ms, or the group did not hear of it"
    " within session.timeout.ms"
)
_OF_GROUP: Final = (
    KafkaError.GROUP_MAX_SIZE_REACHED,
    KafkaError.INVALID_SESSION_TIMEOUT,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.UNRELEASED_INSTANCE_ID,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError.UNSUPPORTED_ASSIGNOR,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.INVALID_GROUP_ID,
)
"""The errors about a setting of the group."""


def explain(error: KafkaError, kafka: KafkaConfig, group: str | None, what: str) -> BrokerError:
    """Return the error for a reader that the group does not accept, or for a request `what` that
    Kafka refused or did not answer.
    """
    text = error.str()
    # A fatal error has the code of its reason only in its text.
    is_of_group = error.code() in _OF_GROUP or (
        error.code() == KafkaError._FATAL
        and any(KafkaError(code).str() in text for code in _OF_GROUP)
    )
    if is_of_group:
        return group_unavailable(str(group), text)
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        what = f"join the group {group}"
    return client.explain(error, kafka, what, "Read")


def not_stored(error: KafkaError, group: str | None) -> BrokerError:
    """Return the error for positions that Kafka did not store."""
    return positions_not_stored(str(group), _with_reason(error))


def log_passing(error: KafkaError, group: str | None) -> None:
    """Log an event after which the reader goes on."""
    client.log.warning("reader of the group %s: %s", group, _with_reason(error))


def _with_reason(error: KafkaError) -> str:
    return f"{error.str()}. {_TOO_SLOW}" if error.code() in LEFT else error.str()


def committed(
    consumer: Consumer,
    partitions: Collection[TopicPartition],
    kafka: KafkaConfig,
    group: str | None,
) -> list[TopicPartition]:
    """Return the stored positions of a group. Raises `BrokerError`."""
    if not partitions:
        return []
    deadline = time.monotonic() + transactions.START_TIMEOUT_S
    while True:
        try:
            stored = consumer.committed(list(partitions), timeout=client.REACH_TIMEOUT_S)
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in PASSING and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            what = f"read the positions of the group {group}"
            raise explain(cause, kafka, group, what) from error
        return [partition for partition in stored if partition.offset >= 0]


class Uncommitted(Unclosed):
    """The records that a consumer of a group has read, or acknowledged, since its last `commit`.

    It is never committed at the end of the program, because lowmark does not know whether the
    program has handled it. The client is not closed, because a thread may still use it.
    """

    def __init__(self, topic: str, group: str, count: Callable[[], int]) -> None:
        self._topic, self._group, self._count = topic, group, count

    def finish(self, timeout_s: float) -> str:  # noqa: ARG002, it does not wait
        count = self._count()
        return (
            f"The group {self._group} reads up to {count} records of {self._topic} again, because"
            " they came after the last `commit`"
            if count
            else ""
        )

    def dropped(self) -> bool:
        if text := self.finish(0):
            warn(f"A consumer was dropped without `close`. {text}")
        return False

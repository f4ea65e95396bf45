"""A consumer group: its stored positions, its events, and what it reads again if a program ends
without `commit` (REC-21, PUB-8). After some events, the client joins again. Others are about a
setting.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from connector.errors import BrokerError, ErrorCode
from connector.kafka import client, transactions
from connector.kafka.unclosed import say

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

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
_POLL_SOONER: Final = (
    "You can go on: the reader reads the records after its last stored positions again. Handle"
    " fewer records between two calls of `poll`, or set max.poll.interval.ms of [kafka] above the"
    " longest time that you need"
)
_ONE_INSTANCE: Final = (
    "Another reader has the same group.instance.id. Give each reader of the group its own"
)
_REMEDIES: Final[Mapping[int, str]] = {
    KafkaError.GROUP_MAX_SIZE_REACHED: "End another reader of the group, or increase"
    " group.max.size of the brokers",
    KafkaError.INVALID_SESSION_TIMEOUT: "Set session.timeout.ms of [kafka] to a value from"
    " group.min.session.timeout.ms to group.max.session.timeout.ms of the brokers",
    KafkaError.FENCED_INSTANCE_ID: _ONE_INSTANCE,
    KafkaError.UNRELEASED_INSTANCE_ID: _ONE_INSTANCE,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "Set partition.assignment.strategy and group.protocol"
    " of [kafka] to the same values in all readers of the group, or use another group",
    KafkaError.UNSUPPORTED_ASSIGNOR: "Set group.remote.assignor of [kafka] to an assignor that the"
    " brokers have, or leave it out",
    KafkaError.UNSUPPORTED_VERSION: "Leave out group.protocol of [kafka], or use newer brokers",
    KafkaError.INVALID_GROUP_ID: "Use another group",
    KafkaError.GROUP_AUTHORIZATION_FAILED: client.GIVE_RIGHTS,
}
"""The remedy of each error about a setting of the group."""


def is_about_group(error: KafkaError) -> bool:
    return _code_of(error) in _REMEDIES


def unavailable(error: KafkaError, group: str | None) -> BrokerError:
    """Return the error for a reader that the group does not take, or that lost its place."""
    code = _code_of(error)
    return BrokerError(
        ErrorCode.GROUP_UNAVAILABLE,
        f"The reader cannot be in the group {group}",
        error.str(),
        _REMEDIES.get(code) or client.REMEDIES.get(code, client.LOOK_UP),
        group=group,
    )


def not_stored(error: KafkaError, group: str | None) -> BrokerError:
    """Return the error for positions that Kafka did not store."""
    has_left = error.code() in LEFT
    return BrokerError(
        ErrorCode.POSITIONS_NOT_STORED,
        f"The positions of the group {group} were not stored",
        f"{error.str()}. {_TOO_SLOW}" if has_left else error.str(),
        _POLL_SOONER
        if has_left
        else "You need not do anything: the reader reads the records after its last stored"
        " positions again",
        group=group,
    )


def log_passing(error: KafkaError, group: str | None) -> None:
    """Log an event after which the reader goes on."""
    why = f". {_TOO_SLOW}. {_POLL_SOONER}" if error.code() in LEFT else ""
    client.log.warning("reader of the group %s: %s%s", group, error.str(), why)


def committed(
    consumer: Consumer, asked: Collection[TopicPartition], group: str | None
) -> list[TopicPartition]:
    """Return the stored positions of a group. Raises `BrokerError`."""
    deadline = time.monotonic() + transactions.START_TIMEOUT_S
    while True:
        try:
            found = consumer.committed(list(asked), timeout=client.REACH_TIMEOUT_S) if asked else []
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in PASSING and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            raise unavailable(cause, group) from error
        return [place for place in found if place.offset >= 0]


def _code_of(error: KafkaError) -> int:
    """The code of an error. A fatal error has that of its reason only in its text."""
    if error.code() != KafkaError._FATAL:
        return error.code()
    text = error.str()
    return next((code for code in _REMEDIES if KafkaError(code).str() in text), error.code())


class Uncommitted:
    """The records that a consumer of a group has read, or acknowledged, since its last `commit`.

    It is never committed at the end of the program, because lowmark does not know whether the
    program has handled it. The client is not closed, because a thread may still use it.
    """

    def __init__(self, topic: str, group: str, count: Callable[[], int]) -> None:
        self._topic, self._group, self._count = topic, group, count

    def finish(self, _timeout_s: float) -> str:
        count = self._count()
        return (
            f"The group {self._group} reads up to {count} records of {self._topic} again, because"
            " they came after the last `commit`"
            if count
            else ""
        )

    def dropped(self) -> bool:
        if text := self.finish(0):
            say(f"A consumer was dropped without `close`. {text}")
        return False

    def is_finished(self) -> bool:
        return True

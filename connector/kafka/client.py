"""Builds all Kafka clients: their settings, the errors when brokers do not answer, and reads of a
part of a topic up to its end.

Settings of the user have priority, except those that guarantees depend on (REC-1, REC-4, REC-17,
REC-21). Another value for one of these is a `ConfigError`. A setting that only producers know is
not given to other clients. The same is true for consumers.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from contextlib import closing
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from connector.clock import now_us
from connector.errors import argument_invalid
from connector.errors.kafka import (
    access_denied,
    broker_unreachable,
    kafka_setting_refused,
    kafka_setting_reserved,
    login_failed,
    request_refused,
    tls_failed,
)
from connector.records.rejection import Position
from connector.validation import KafkaRecord, arrival

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    from connector.config.settings import KafkaConfig
    from connector.errors import BrokerError

REACH_TIMEOUT_S: Final = 5.0
"""How long to wait for the first answer of a broker, before it counts as unreachable."""

QUEUE_TIMEOUT_S: Final = 60.0
"""How long a full queue blocks, and how long a heartbeat of the application waits for the
acknowledgements of its changes.
"""

READ_TIMEOUT_S: Final = 30.0
"""How long a read of existing records waits for the next one, and an admin request for its answer.
"""

SHORT_WAIT: Final = {"fetch.wait.max.ms": "10"}
"""For a topic of transactions, each of which ends with a marker. After it, a fetch would wait for
more records before it reports the end.
"""

READER: Final = "lowmark.reader"
"""The `group.id` of readers without a group, which librdkafka requires."""

MAX_ID_CHARACTERS: Final = 255
"""The longest `group` or `transactional_id`."""

_COMMON: Final = {
    "client.id": "lowmark",
    "reconnect.backoff.max.ms": "2000",
    "socket.keepalive.enable": "true",
}

_PRODUCER: Final = {
    "enable.idempotence": "true",
    "partitioner": "murmur2_random",
    "compression.type": "zstd",
    "linger.ms": "20",
    "batch.size": "1000000",
    "batch.num.messages": "10000",
    "queue.buffering.max.messages": "100000",
    "queue.buffering.max.kbytes": "262144",
    "message.timeout.ms": "120000",
}
_CONSUMER: Final = {
    "isolation.level": "read_committed",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
    "queued.max.messages.kbytes": "65536",
}

_ONCE: Final = "a retried record would otherwise be written twice or out of order"
_ALL_REPLICAS: Final = "a record counts as delivered once all replicas have it"
_IN_FLIGHT: Final = "an idempotent producer may have at most five requests in flight"
_AFTER_RECORDS: Final = "a position is committed only after its records were handled"
_RESERVED: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "enable.idempotence": (("true",), _ONCE),
    "acks": (("all", "-1"), _ALL_REPLICAS),
    "request.required.acks": (("all", "-1"), _ALL_REPLICAS),
    "partitioner": (
        ("murmur2_random",),
        "producers in every language must choose the same Kafka partition for a key",
    ),
    "max.in.flight": (("1", "2", "3", "4", "5"), _IN_FLIGHT),
    "max.in.flight.requests.per.connection": (("1", "2", "3", "4", "5"), _IN_FLIGHT),
    "delivery.report.only.error": (("false",), "flush needs all delivery reports"),
    "transactional.id": ((), "it is an argument of ChangeProducer, and other clients have none"),
    "isolation.level": (("read_committed",), "readers must see only committed transactions"),
    "enable.auto.commit": (("false",), _AFTER_RECORDS),
    "enable.auto.offset.store": (("false",), _AFTER_RECORDS),
    "auto.offset.reset": (("error", "none"), "deleted records are an error, never skipped"),
    "enable.partition.eof": (("true",), "a bounded reader needs it to find the end"),
}
"""The settings that guarantees depend on: the allowed values, and the reason."""

_OF_PRODUCERS: Final = """
acks batch.num.messages compression.codec compression.level delivery.timeout.ms dr_cb
enable.gapless.guarantee message.send.max.retries queue.buffering.backpressure.threshold
queue.buffering.max.ms queuing.strategy request.required.acks request.timeout.ms retries
sticky.partitioning.linger.ms transaction.timeout.ms transactional.id
"""
_OF_CONSUMERS: Final = """
auto.commit.interval.ms check.crcs coordinator.query.interval.ms fetch.error.backoff.ms
fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms
group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
max.partition.fetch.bytes max.poll.interval.ms offset.store.method partition.assignment.strategy
queued.min.messages session.timeout.ms
"""
_PRODUCER_ONLY: Final = frozenset({*_PRODUCER, *_OF_PRODUCERS.split()})
_CONSUMER_ONLY: Final = frozenset({*_CONSUMER, *_OF_CONSUMERS.split()})

_FORBIDDEN: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)

_NO_ANSWER: Final = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError._RESOLVE,
)

PERMANENT: Final = frozenset(_FORBIDDEN) | {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.POLICY_VIOLATION,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
}
"""The errors that come again if the same records are sent again, until the cause is removed."""

_LOGIN_SIGNS: Final = (
    "SASL authentication error",
    "SASL OAUTHBEARER token",
    "mechanism handshake failed",
    "Authentication failed",
)
_TLS_SIGNS: Final = ("SSL handshake failed", "SSL routines", "SSL connection")
_CLOSED: Final = re.compile(r"closed by peer.*in state (APIVERSION_QUERY|UP)")
_CLOSED_CAUSE: Final = (
    "The broker closes each new connection without an answer, as it does if it requires TLS or a"
    " login that security.protocol does not name"
)

# librdkafka writes to a logger, because commands use standard error. It is silent by default.
log: Final = logging.getLogger("lowmark.kafka")
log.addHandler(logging.NullHandler())

_Client = TypeVar("_Client")
_Result = TypeVar("_Result")


UNREACHABLE_AFTER_S: Final = 30.0


class LastError:
    """An `error_cb` that stores the last error of the client, for the text of a `BrokerError`."""

    def __init__(self) -> None:
        self.clear()
        self.fatal: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal = error
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.all_down = True
            return  # the errors before it have more information
        self.text = error.str()

    def log(self, level: int, text: str, *values: object) -> None:
        """Be the logger of the client: its text goes on to the logger `lowmark.kafka`."""
        if _CLOSED.search(text % values if values else text):
            self.is_closed_at_once = True
        log.log(level, text, *values)

    def clear(self) -> None:
        """Forget the error: a broker has answered now.

        `is_closed_at_once`: brokers close new connections without an answer. The client only logs
        this.
        """
        self.text, self.all_down, self.is_closed_at_once = "", False, False
        self.answered_at = time.monotonic()

    def check_reachable(self, consumer: Consumer, kafka: KafkaConfig) -> None:
        """Raise `BrokerError` if no broker has answered a consumer for 30 s, and none does now."""
        if not self.all_down or time.monotonic() - self.answered_at < UNREACHABLE_AFTER_S:
            return
        last_error = self.text
        try:
            # The client does not report when a broker is back, so ask.
            consumer.list_topics(timeout=REACH_TIMEOUT_S)
        except KafkaException as error:
            raise unreachable(kafka, last_error or error.args[0].str()) from error
        self.clear()


class SafeProducer(Producer):
    """A producer that fails with a `KafkaException`.

    The client of a fenced producer may raise a `KafkaError`, which is no exception. And if an
    exception is raised during a report, Python raises a `SystemError` in its place.
    """

    def poll(self, timeout: float = -1) -> int:
        return _with_exception(super().poll, timeout)

    def flush(self, timeout: float = -1) -> int:
        return _with_exception(super().flush, timeout)

    def init_transactions(self, timeout: float = -1) -> None:
        _with_exception(super().init_transactions, timeout)

    def begin_transaction(self) -> None:
        _with_exception(super().begin_transaction)

    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], group_metadata: object, timeout: float = -1
    ) -> None:
        _with_exception(super().send_offsets_to_transaction, positions, group_metadata, timeout)

    def commit_transaction(self, timeout: float = -1) -> None:
        _with_exception(super().commit_transaction, timeout)

    def abort_transaction(self, timeout: float = -1) -> None:
        _with_exception(super().abort_transaction, timeout)


def _with_exception(call: Callable[..., _Result], *values: object) -> _Result:
    try:
        return call(*values)
    except SystemError as error:
        hidden = error.__cause__
        cause = hidden.args[0] if isinstance(hidden, KafkaException) else str(error)
        if not isinstance(cause, KafkaError):
            cause = KafkaError(KafkaError._FAIL, str(cause))
        raise KafkaException(cause) from error
    except BaseException:
        raise
    except:  # noqa: E722, a KafkaError is no exception
        raised = sys.exc_info()[1]
    raise KafkaException(raised)


def check_id(name: str, value: object) -> None:
    """Raise `ConfigError` if an argument cannot be the id of a group or of transactions. librdkafka
    ends the process for some texts.
    """
    if not (
        isinstance(value, str) and 1 <= len(value) <= MAX_ID_CHARACTERS and value.isprintable()
    ):
        allowed = f"a text of 1 to {MAX_ID_CHARACTERS} printable characters"
        raise argument_invalid(name, value, allowed)


def producer(kafka: KafkaConfig, errors: LastError, further: Mapping[str, str]) -> SafeProducer:
    """Return an idempotent producer with Java's partitioner. It has not contacted a broker."""
    return _build(SafeProducer, _settings(kafka, {**_PRODUCER, **further}, _CONSUMER_ONLY), errors)


def sizes(max_message_bytes: int) -> dict[str, str]:
    """Return the producer settings for a topic with this message size limit.

    For the broker, a batch is one message. So a batch must not exceed the limit of the topic.
    """
    largest = min(max(max_message_bytes, 1000), 1_000_000_000)
    return {"message.max.bytes": str(largest), "batch.size": str(min(largest, 1_000_000))}


def consumer(kafka: KafkaConfig, errors: LastError, further: Mapping[str, Any]) -> Consumer:
    """Return a consumer that reads committed transactions only. It never skips deleted records
    without an error.
    """
    settings = _settings(kafka, {**_CONSUMER, **further}, _PRODUCER_ONLY)
    check_id("group", settings["group.id"])
    return _build(Consumer, settings, errors)


def admin(kafka: KafkaConfig, timeout_s: float = REACH_TIMEOUT_S) -> AdminClient:
    """Return a client for topics, after a broker has answered. Raises `BrokerError` within about
    `timeout_s`.
    """
    errors = LastError()
    built = new_admin(kafka, errors)
    try:
        built.describe_cluster(request_timeout=timeout_s).result(timeout_s + 5)
    except (KafkaException, TimeoutError) as error:
        built.poll(0)  # delivers the errors from before the time-out
        closed = _CLOSED_CAUSE if errors.is_closed_at_once else ""
        raise unreachable(kafka, errors.text or closed or str(error)) from error
    return built


def new_admin(kafka: KafkaConfig, errors: LastError | None = None) -> AdminClient:
    """Return a client for topics. It has not contacted a broker."""
    settings = _settings(kafka, {}, _PRODUCER_ONLY | _CONSUMER_ONLY)
    return _build(AdminClient, settings, errors or LastError())


def unreachable(kafka: KafkaConfig, cause: str) -> BrokerError:
    """Return the error for brokers that do not answer, that refuse the login, or that do not agree
    on TLS (SEC-1). `cause` is the text of the client.

    If no broker answers, its `port` is that of a broker on this machine, or None.
    """
    servers = kafka.bootstrap_servers
    if any(sign in cause for sign in _LOGIN_SIGNS):
        return login_failed(f"at {servers}", cause)
    if cause == _CLOSED_CAUSE or any(sign in cause for sign in _TLS_SIGNS):
        return tls_failed(f"at {servers}", cause)
    host, _, port = servers.rpartition(":")
    is_local = host in ("127.0.0.1", "localhost")
    return broker_unreachable(servers, cause, port if is_local else None)


def wait_for(
    future: Future[_Result], kafka: KafkaConfig, what: str, right: str = "Describe"
) -> _Result:
    """Return the answer to the admin request `what`, which needs a `right`. Raises
    `BrokerError`.
    """
    try:
        return future.result(READ_TIMEOUT_S)
    except KafkaException as error:
        raise explain(error.args[0], kafka, what, right) from error
    except TimeoutError as error:
        raise unreachable(kafka, f"{what}: no answer within {READ_TIMEOUT_S:.0f} s") from error


def coordinates(message: Message) -> tuple[int, int]:
    """Return the Kafka partition and the offset of a record."""
    kafka_partition, offset = message.partition(), message.offset()
    assert kafka_partition is not None
    assert offset is not None
    return kafka_partition, offset


def contents(
    message: Message, read_at: int | None = None
) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...] | None, int]:
    """Return the unchanged key, value and headers of a record, and its time of arrival in
    microseconds. Empty is not null.

    If the record timestamp is not believed, it is `read_at` (µs, None: now), when the reader asked
    Kafka (REC-25). The headers are None if the name of one is not UTF-8: the client then cannot
    read any of them.
    """
    read_at = now_us() if read_at is None else read_at
    headers: tuple[tuple[str, bytes | None], ...] | None
    try:
        headers = tuple(_headers_of(message) or ())
    except SystemError:  # a name is not UTF-8
        headers = None
    key: Any = message.key()
    value: Any = message.value()
    arrived = arrival_of(message, read_at)
    return key, value, headers, read_at if arrived is None else arrived


_headers_of = methodcaller("headers")
"""`message.headers()`, at most once for a message.

If a name is not UTF-8, the client returns a broken list and leaves an error behind. The call of a
method by the interpreter does not always look for an error, and a second call returns the broken
list without one.
"""


def arrival_of(message: Message, read_at: int) -> int | None:
    """Return the time of arrival (µs) of a record that was asked for at `read_at` (µs). None: its
    record timestamp is not believed.
    """
    kind, milliseconds = message.timestamp()
    by_broker = kind == TIMESTAMP_LOG_APPEND_TIME
    return arrival(milliseconds, by_broker=by_broker, read_at=read_at)


def record_of(message: Message, topic: str, topic_id: str) -> KafkaRecord:
    """Return the record of a message of this topic. It has no headers if they cannot be read."""
    number, offset = coordinates(message)
    key, value, headers, arrived = contents(message)
    return KafkaRecord(
        Position(topic, topic_id, number, offset), arrived, key, value, headers or ()
    )


def records_between(
    kafka: KafkaConfig,
    topic: str,
    topic_id: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    further: Mapping[str, str] | None = None,
    timeout_s: float = READ_TIMEOUT_S,
) -> Iterator[KafkaRecord]:
    """Yield the records of `messages_between`, with a client of their own, which has `further`
    settings. Raises the same.
    """
    errors = LastError()
    with closing(consumer(kafka, errors, {"group.id": READER, **(further or {})})) as reader:
        for message in messages_between(reader, kafka, errors, ranges, topic, timeout_s):
            yield record_of(message, topic, topic_id)


def messages_between(
    consumer: Consumer,
    kafka: KafkaConfig,
    errors: LastError,
    ranges: Mapping[int, tuple[int, int]],
    topic: str,
    timeout_s: float = READ_TIMEOUT_S,
) -> Iterator[Message]:
    """Yield every record between these offsets that a reader of committed transactions can see.

    Within a Kafka partition, records come in order. `ranges` has the first offset and the end
    offset (exclusive) of each Kafka partition. The offsets must exist in the topic. Raises
    `BrokerError`, also if no record arrives within `timeout_s`. Behind an open transaction, none
    arrives until it ends.
    """
    left = {number for number, (begin, end) in ranges.items() if begin < end}
    consumer.assign([TopicPartition(topic, number, ranges[number][0]) for number in sorted(left)])
    read_at = time.monotonic()
    while left:
        message = consumer.poll(0.5)
        if message is None:
            if time.monotonic() - read_at > timeout_s:
                raise unreachable(
                    kafka,
                    errors.text or f"{topic}: no record arrived within {timeout_s:.0f} s",
                )
            continue
        error = message.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            continue  # this read needs no group, and no right to one
        read_at = time.monotonic()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise explain(error, kafka, f"read {topic}", "Read")
        number, offset = coordinates(message)
        end = ranges[number][1]
        if number not in left:
            continue
        if error is None and offset < end:
            yield message
            read_at = time.monotonic()  # the caller may be slow
        if offset + (error is None) >= end:
            left.discard(number)


def windows_before(
    ends: dict[int, int], first: Mapping[int, int], window: int
) -> Iterator[dict[int, tuple[int, int]]]:
    """Yield the ranges to read backwards, from the `ends` to the `first` offsets: `window` offsets
    of each Kafka partition, then ten times as many before them, and so on. The caller removes the
    Kafka partitions from `ends` that it need not read further.
    """
    while left := {number: end for number, end in ends.items() if end > first[number]}:
        windows = {number: (max(first[number], end - window), end) for number, end in left.items()}
        yield windows
        ends.update({number: windows[number][0] for number in windows.keys() & ends.keys()})
        window *= 10


def explain(error: KafkaError, kafka: KafkaConfig, what: str, right: str) -> BrokerError:
    """Return the error for a request `what` that Kafka refused or did not answer. It needs a
    `right`.
    """
    if error.code() in _NO_ANSWER:
        return unreachable(kafka, f"{what}: {error.str()}")
    if error.code() in _FORBIDDEN:
        return access_denied(what, error.str(), right)
    return request_refused(what, error.str())


def _settings(
    kafka: KafkaConfig, ours: Mapping[str, Any], unknown: frozenset[str]
) -> dict[str, Any]:
    for name, value in kafka.settings.items():
        allowed, reason = _RESERVED.get(name, ((value,), ""))
        if value not in allowed:
            words = " or ".join(allowed) or "left out"
            raise kafka_setting_reserved(name, repr(value), words, reason)
    # The Python client requires a bool here. Its default is the required value.
    excluded = unknown | {"delivery.report.only.error"}
    allowed_settings = {
        name: value for name, value in kafka.settings.items() if name not in excluded
    }
    return {**_COMMON, **ours, **allowed_settings, "bootstrap.servers": kafka.bootstrap_servers}


def _build(kind: Callable[..., _Client], settings: dict[str, Any], errors: LastError) -> _Client:
    try:
        return kind(settings | {"error_cb": errors}, logger=errors)
    except KafkaException as error:
        # "No such configuration property: ...": the text has the name of the setting, never its
        # value.
        raise kafka_setting_refused(error.args[0].str()) from error

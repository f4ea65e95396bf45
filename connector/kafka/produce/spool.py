"""Opens the spool of a producer, also while Kafka is away (PUB-3)."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connector.errors import (
    BrokerError,
    ConfigError,
    ConnectorError,
    ErrorCode,
    RegistryError,
    TopicError,
    argument_invalid,
)
from connector.kafka import topics
from connector.kafka.produce.record_bytes import RecordBytes
from connector.kafka.produce.spool_file import SpoolFile, Sync, losses_text
from connector.kafka.produce.spool_queue import SpoolQueue, WhenFull
from connector.kafka.topics import TopicFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.config.settings import KafkaConfig, RegistryConfig
    from connector.kafka.produce.results import Results
    from connector.kafka.produce.turns import Turns

DEFAULT_MAX_BYTES: Final = 4_000_000_000
LEAST_MAX_BYTES: Final = 10_000
LONGEST_AFTER_S: Final = 60.0
VERIFY_EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """The arguments of `ChangeProducer` for a spool. Raises `ConfigError`."""

    path: Path
    max_bytes: int
    after_s: float
    full: WhenFull
    sync: Sync

    def __post_init__(self) -> None:
        """Raises `ConfigError` if a value is not allowed."""
        allowed = {
            "spool_max_bytes": (
                _is_number(self.max_bytes) and self.max_bytes >= LEAST_MAX_BYTES,
                f"at least {LEAST_MAX_BYTES:,}",
                self.max_bytes,
            ),
            "spool_after_s": (
                _is_number(self.after_s) and 0 < self.after_s <= LONGEST_AFTER_S,
                f"above 0 and at most {LONGEST_AFTER_S:g} seconds",
                self.after_s,
            ),
            "spool_full": (self.full in ("block", "raise"), "block or raise", self.full),
            "spool_sync": (self.sync in ("normal", "full"), "normal or full", self.sync),
        }
        for name, (is_allowed, what, value) in allowed.items():
            if not is_allowed:
                raise ConfigError(
                    ErrorCode.SETTING_INVALID,
                    f"{name} is {value!r}",
                    f"allowed: {what}",
                    "Choose another value, or leave it out",
                )


def settings_of(
    path: str | os.PathLike[str] | None,
    transactional_id: str | None,
    max_bytes: int,
    after_s: float,
    full: WhenFull,
    sync: Sync,
) -> SpoolSettings | None:
    """Return the settings of a spool, or None without one. Raises `ConfigError`."""
    if path is None:
        return None
    if transactional_id is not None:
        raise ConfigError(
            ErrorCode.SETTING_INVALID,
            "A producer with a transactional_id cannot have a spool",
            "A commit says that Kafka has the records. With a spool, they may be on your disk only",
            "Leave out spool or transactional_id",
        )
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise argument_invalid("spool", path, "the path of a file")
    return SpoolSettings(Path(path), max_bytes, after_s, full, sync)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class OpenSpool:
    """An open spool, the facts of its topic, and its queue."""

    def __init__(
        self,
        settings: SpoolSettings,
        file: SpoolFile,
        facts: TopicFacts,
        *,
        is_verified: bool,
        asks_again: bool,
        queue_timeout_s: float,
    ) -> None:
        """`is_verified`: Kafka gave the facts now. `asks_again`: it is asked for the topic again
        after each outage.
        """
        self._asks_again = asks_again
        self._settings, self.file, self.facts = settings, file, facts
        self._is_verified, self._queue_timeout_s = is_verified, queue_timeout_s
        self._queue: SpoolQueue | None = None
        self._stopped = threading.Event()

    @property
    def warnings(self) -> list[str]:
        """Sentences about losses."""
        losses = self.file.losses
        return [f"The spool {self.file.path} has lost {losses_text(losses)}"] if losses else []

    def record_bytes(
        self,
        registry: RegistryConfig | None,
        max_record_bytes: int,
        min_commit_timestamp: int,
    ) -> RecordBytes:
        """Look up the schema. While the registry does not answer, the id in the spool counts.
        Raises `RegistryError`.
        """
        content = self.file.content
        assert content is not None
        given = self.facts, registry, max_record_bytes, min_commit_timestamp
        try:
            found = RecordBytes(*given)
        except RegistryError as error:
            if error.code != ErrorCode.REGISTRY_UNREACHABLE or content.schema_id is None:
                raise
            return RecordBytes(*given, content.schema_id)
        if found.schema_id != content.schema_id:
            self.file.keep_schema_id(found.schema_id)
        return found

    def new_queue(
        self, kafka: KafkaConfig, results: Results, turns: Turns, found: RecordBytes
    ) -> SpoolQueue:
        """Return the queue. Raises `SpoolError`."""
        self._queue = SpoolQueue(
            kafka,
            self.facts,
            results,
            self.file,
            turns,
            kafka_partitions=lambda: found.kafka_partitions,
            queue_timeout_s=self._queue_timeout_s,
            max_bytes=self._settings.max_bytes,
            after_s=self._settings.after_s,
            when_full=self._settings.full,
        )
        return self._queue

    def start(self, kafka: KafkaConfig) -> None:
        """Start to write and to send. If the facts are not verified, ask Kafka for the topic in a
        thread until it answers. Until then, nothing is sent from the spool.
        """
        assert self._queue is not None
        arguments = weakref.ref(self._queue), kafka, self.facts, self._stopped

        def ask() -> None:
            threading.Thread(
                target=_verify, args=arguments, name="connector-spool-topic", daemon=True
            ).start()

        if self._asks_again:
            self._queue.on_trip = ask
        if not self._is_verified:
            self._queue.is_verified = False
            ask()
        self._queue.start()

    def stop(self) -> None:
        """Stop to ask for the topic."""
        self._stopped.set()

    def drop(self) -> None:
        """Move what is in memory to the spool, and unlock it: the producer was collected without
        `close`.
        """
        self.stop()
        assert self._queue is not None
        self._queue.drop()


def open_spool(
    settings: SpoolSettings,
    kafka: KafkaConfig,
    topic: str | TopicFacts,
    *,
    queue_timeout_s: float,
) -> OpenSpool:
    """Open the file, and ask Kafka for the topic. While no broker answers, the facts of the spool
    count.

    Raises `SpoolError`, `TopicError`, and `BrokerError` if the spool has no facts.
    """
    file = SpoolFile(settings.path, settings.sync)
    try:
        file.check_topic(topic if isinstance(topic, str) else topic.topic)
        is_verified = True
        try:
            facts = topics.describe(kafka, topic) if isinstance(topic, str) else topic
        except BrokerError:
            if file.content is None:
                raise
            facts, is_verified = file.content.topic, False
        else:
            file.bind(facts)
    except BaseException:
        file.close()
        raise
    return OpenSpool(
        settings,
        file,
        facts,
        is_verified=is_verified,
        asks_again=isinstance(topic, str),
        queue_timeout_s=queue_timeout_s,
    )


def newest_of(
    position: tuple[int, bytes] | None, in_topic: Callable[[], tuple[int, bytes]]
) -> tuple[int, bytes]:
    """Return the newer one of the position in the spool and that in the topic, if Kafka answers."""
    try:
        found = in_topic()
    except (BrokerError, TopicError):
        if position is None:
            raise
        return position
    return found if position is None else max(position, found)


def _verify(
    queue: weakref.ref[SpoolQueue], kafka: KafkaConfig, facts: TopicFacts, stopped: threading.Event
) -> None:
    while queue() is not None and not stopped.is_set():
        trouble: ConnectorError | None = None
        try:
            topics.check_identity(facts.topic_id, topics.describe(kafka, facts.topic))
        except BrokerError:
            stopped.wait(VERIFY_EVERY_S)
            continue
        except ConnectorError as error:
            trouble = error
        if (found := queue()) is not None:
            found.trouble, found.is_verified = trouble, trouble is None
        return

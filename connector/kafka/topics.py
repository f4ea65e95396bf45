"""Creates and checks change topics (REC-1, REC-2, REC-4, DLQ-1)."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, TopicCollection, TopicPartition, murmur2
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from connector.config.settings import TOPICS_OF_KAFKA
from connector.dead_letters.envelope import (
    change_topic,
    check_group,
    dead_letter_topic,
    ledger_topic,
    replay_topic,
)
from connector.errors import BrokerError, TopicError, argument_invalid
from connector.errors.kafka import (
    dead_letter_topic_too_small,
    topic_compacted,
    topic_exists,
    topic_missing,
    topic_not_compacted,
    topic_replaced,
)
from connector.kafka import client
from connector.tables.published import tables_topic, topic_of_tables
from connector.write_streams.model import catalog_topic, topic_of_catalog

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from concurrent.futures import Future

    from confluent_kafka import TopicPartitionInfo
    from confluent_kafka.admin import TopicDescription  # type: ignore[attr-defined]

    from connector.config.settings import KafkaConfig

DAY_S: Final = 86_400
MIN_RETENTION_S: Final = DAY_S
MAX_RETENTION_S: Final = 7 * DAY_S
CREATE_TIMEOUT_S: Final = 15.0
DEFAULT_MAX_MESSAGE_BYTES: Final = 10_500_000
"""Enough for a record with the default `max_record_bytes` and its headers."""

LETTER_HEADROOM_BYTES: Final = 1_048_576
"""How much larger a dead letter may be than its record. This is several times the size of the
headers of DLQ-1.
"""

_MAX_MESSAGE_BYTES: Final = 2**31 - 1
_COMPACTED: Final = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(LETTER_HEADROOM_BYTES),
}
"""The settings of ledgers and catalogs."""

REPLICAS: Final = 3
MIN_INSYNC_REPLICAS: Final = 2
"""With three replicas, two of them in sync, each acknowledged record survives the loss of a broker,
and producers go on without one (SEC-3).
"""

is_topic_name: Final = re.compile(r"(?!\.{1,2}$)[-_.a-zA-Z0-9]{1,249}").fullmatch
"""Kafka's rule. librdkafka ends the process for some other names."""

_ASK_TIMEOUT_S: Final = 15.0
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The properties of a topic at the time of a request.

    - `topic_id` is Kafka's id in the form of Java. A topic with the same name and another id is
      another topic (REC-4).
    - `cleanup_policy`, `timestamp_type`, `retention_ms`, `max_message_bytes` and
      `min_insync_replicas` are its settings. A `retention_ms` of -1 means for ever.
    """

    topic: str
    topic_id: str
    kafka_partitions: int
    replication_factor: int
    cleanup_policy: str
    timestamp_type: str
    retention_ms: int
    max_message_bytes: int
    min_insync_replicas: int = 1


def retention_us(facts: TopicFacts) -> int:
    """Return the retention (µs). For an unlimited one, return the maximum of a change topic."""
    return facts.retention_ms * 1000 if facts.retention_ms >= 0 else MAX_RETENTION_S * 1_000_000


def partition_of(key: bytes, kafka_partitions: int) -> int:
    """Return the Kafka partition of a key among so many Kafka partitions (REC-1)."""
    return murmur2(key, kafka_partitions)


def describe(kafka: KafkaConfig, topic: str, admin: AdminClient | None = None) -> TopicFacts:
    """Ask Kafka for the properties of a topic. `admin` is a client of `client.admin`, to reuse it.

    Raises `TopicError` if there is no such topic, and `BrokerError`.
    """
    if not is_topic_name(topic):
        allowed = "1 to 249 of the characters - _ . a-z A-Z 0-9, and not . or .."
        raise argument_invalid("topic", topic, allowed)
    if admin is None:  # a client is false: it has no messages
        admin = client.admin(kafka)
    topic_id, partitions = identity_of(ask_identity(admin, topic), kafka, topic)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    configs = client.wait_for(
        admin.describe_configs([resource], request_timeout=_ASK_TIMEOUT_S)[resource],
        kafka,
        f"describe the settings of topic {topic}",
        "DescribeConfigs",
    )
    return TopicFacts(
        topic=topic,
        topic_id=topic_id,
        kafka_partitions=len(partitions),
        replication_factor=len(partitions[0].replicas),
        cleanup_policy=configs["cleanup.policy"].value,
        timestamp_type=configs["message.timestamp.type"].value,
        retention_ms=int(configs["retention.ms"].value),
        max_message_bytes=int(configs["max.message.bytes"].value),
        min_insync_replicas=int(configs["min.insync.replicas"].value),
    )


def ask_identity(admin: AdminClient, topic: str) -> Future[TopicDescription]:
    """Ask Kafka for the id and the Kafka partitions of a topic. It does not wait."""
    return admin.describe_topics(TopicCollection([topic]), request_timeout=_ASK_TIMEOUT_S)[topic]


def identity_of(
    answer: Future[TopicDescription], kafka: KafkaConfig, topic: str
) -> tuple[str, list[TopicPartitionInfo]]:
    """Return the id and the Kafka partitions of `ask_identity`. Raises as `describe` does."""
    try:
        description = client.wait_for(answer, kafka, f"describe topic {topic}")
    except BrokerError as error:
        if _code_of(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise topic_missing(topic, kafka.bootstrap_servers) from error
        raise
    return id_of(description), description.partitions


def id_of(description: TopicDescription) -> str:
    """Return the id of a topic in the form of Java."""
    # librdkafka writes standard base 64. Java, and so Kafka's tools and metadata, use the URL-safe
    # form.
    return str(description.topic_id).replace("+", "-").replace("/", "_")


def check(facts: TopicFacts) -> list[str]:
    """Return warnings about a change topic, as sentences. Raises `TopicError` if it is compacted,
    because it would lose changes (REC-2).
    """
    if "compact" in facts.cleanup_policy:
        raise topic_compacted(facts.topic)
    warnings = []
    if facts.timestamp_type != "LogAppendTime":
        warnings.append(
            f"The topic {facts.topic} has message.timestamp.type={facts.timestamp_type}."
            " Retention then uses the timestamps of producers: it may delete old changes at"
            " once, and keep others for ever. Set it to LogAppendTime"
        )
    if 0 <= facts.retention_ms < MIN_RETENTION_S * 1000:
        warnings.append(
            f"The topic {facts.topic} keeps records for only {facts.retention_ms / 3_600_000:g}"
            " hours. Set a retention of at least a day"
        )
    return warnings


def check_replicas(stream: str, topics: Collection[TopicFacts]) -> list[str]:
    """Return warnings, as sentences, about those topics of a stream that may lose acknowledged
    records with one broker (SEC-3).
    """
    exposed = [facts for facts in topics if facts.replication_factor < REPLICAS]
    alone = [
        facts
        for facts in topics
        if facts not in exposed and facts.min_insync_replicas < MIN_INSYNC_REPLICAS
    ]
    warnings = []
    if exposed:
        have = "has" if len(exposed) == 1 else "have"
        warnings.append(
            f"streams.{stream}: {_names(exposed)} {have} fewer than {REPLICAS} replicas. If one"
            " broker is lost, acknowledged records may be lost with it. Raise the replication"
            f" factor to {REPLICAS}"
        )
    if alone:
        warnings.append(
            f"streams.{stream}: one broker alone may acknowledge a record of {_names(alone)},"
            f" and be lost with it. Set min.insync.replicas={MIN_INSYNC_REPLICAS}"
        )
    return warnings


def _names(topics: Iterable[TopicFacts]) -> str:
    return ", ".join(facts.topic for facts in topics)


def check_identity(remembered_topic_id: str, facts: TopicFacts) -> None:
    """Raises `TopicError` if the topic was deleted and created again (REC-4)."""
    if remembered_topic_id != facts.topic_id:
        raise topic_replaced(facts.topic, remembered_topic_id, facts.topic_id)


def create_topic(
    kafka: KafkaConfig,
    topic: str,
    *,
    kafka_partitions: int,
    retention_s: int = MAX_RETENTION_S,
    replication_factor: int = -1,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
) -> TopicFacts:
    """Create a change topic (REC-2), its dead-letter topic and its ledger (DLQ-1), the catalog of
    its write streams (WRS-3), and the topic with the definitions of its tables (EVO-1).

    Existing topics are not changed. An existing change topic with the same properties is accepted.
    The topic is never compacted.

    Args:
        kafka: The brokers and client settings.
        topic: The name of the change topic.
        kafka_partitions: The number of Kafka partitions.
        retention_s: The retention in seconds, from 1 to 7 days.
        replication_factor: -1 is 3 on a cluster of three or more brokers, and otherwise the default
            of the cluster. With 3 or more, `min.insync.replicas` of the new topics is 2 (SEC-3).
        max_message_bytes: The limit for a message.

    Returns:
        The properties of the change topic, as `describe` does.

    Raises:
        ConfigError: A value is not allowed.
        TopicError: The topic exists with other properties. The error names them.
        BrokerError: No broker answers.
    """
    _check_new(topic, kafka_partitions, retention_s)
    settings = {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": str(retention_s * 1000),
        "max.message.bytes": str(max_message_bytes),
    }
    admin = client.admin(kafka)
    replicas = _replicas(admin, kafka) if replication_factor == -1 else replication_factor
    if _create(admin, kafka, topic, kafka_partitions, replicas, settings):
        facts = _describe_new(admin, kafka, topic)
    else:
        facts = describe(kafka, topic, admin)
        _check_as_requested(facts, kafka_partitions, settings)
    _create_dead_letter_topics(admin, kafka, facts)
    for name in (catalog_topic(topic), tables_topic(topic)):
        _create(admin, kafka, name, 1, facts.replication_factor, _COMPACTED)
    return facts


def create_tables_topic(kafka: KafkaConfig, topic: str) -> TopicFacts:
    """Create the topic with the definitions of the tables of a change topic, if it does not exist
    (EVO-1). Returns its properties. Raises `TopicError` and `BrokerError`.
    """
    name = tables_topic(topic)
    try:
        return describe(kafka, name)
    except TopicError as error:
        if error.code != "TOPIC_MISSING":
            raise
    admin = client.admin(kafka)
    _create(admin, kafka, name, 1, describe(kafka, topic, admin).replication_factor, _COMPACTED)
    return _describe_new(admin, kafka, name)


def _check_new(topic: str, kafka_partitions: int, retention_s: int) -> None:
    if kafka_partitions < 1:
        raise argument_invalid("kafka_partitions", kafka_partitions, "at least 1")
    owner = topic_of_tables(topic_of_catalog(topic))
    if topic in TOPICS_OF_KAFKA or not topic == owner == change_topic(topic):
        allowed = "the name of a change topic. Kafka itself or another change topic uses this one"
        raise argument_invalid("topic", topic, allowed)
    if not MIN_RETENTION_S <= retention_s <= MAX_RETENTION_S:
        allowed = (
            f"from {MIN_RETENTION_S} (1 day) to {MAX_RETENTION_S} (7 days). With less, an outage"
            " over a long weekend loses changes. The changelog keeps changes for longer"
        )
        raise argument_invalid("retention_s", retention_s, allowed)


def create_group_topics(kafka: KafkaConfig, topic: str, group: str) -> TopicFacts:
    """Create the topics for the dead letters of a group of readers: the letters, their ledger, and
    the replays (SUB-4). Existing topics are not changed.

    Args:
        kafka: The brokers and client settings.
        topic: The name of the change topic, which must exist.
        group: The consumer group. It has 1 to 64 characters of a-z A-Z 0-9 . - _

    Returns:
        The properties of the topic of the letters.

    Raises:
        ConfigError: The group cannot have such topics.
        TopicError: There is no such change topic.
        BrokerError: No broker answers.
    """
    admin = client.admin(kafka)
    source = describe(kafka, topic, admin)
    _create_dead_letter_topics(admin, kafka, source, check_group(group))
    return _describe_new(admin, kafka, dead_letter_topic(topic, group))


def groups_of(kafka: KafkaConfig, topic: str) -> list[str]:
    """Return the groups that have dead letters of a change topic, sorted (SUB-4)."""
    prefix = dead_letter_topic(topic, "")
    names = client.admin(kafka).list_topics(timeout=client.REACH_TIMEOUT_S).topics
    # The ledger and the replays of a group have its name, and more.
    return sorted(
        group
        for group in (name.removeprefix(prefix) for name in names if name.startswith(prefix))
        if ledger_topic(topic, group) in names
    )


def check_dead_letters(source: TopicFacts, letters: TopicFacts) -> None:
    """Raise `TopicError` if a dead-letter topic is compacted, or does not take the largest record
    of the change topic together with the headers of a dead letter (DLQ-1, DLQ-6).
    """
    if "compact" in letters.cleanup_policy:
        raise topic_compacted(letters.topic)
    headers = LETTER_HEADROOM_BYTES // 8
    if letters.max_message_bytes < min(source.max_message_bytes + headers, _MAX_MESSAGE_BYTES):
        raise dead_letter_topic_too_small(
            letters.topic,
            str(letters.max_message_bytes),
            source.topic,
            str(source.max_message_bytes),
            str(_largest_letter(source)),
        )


def check_compacted(facts: TopicFacts) -> None:
    """Raise `TopicError` if a ledger or a catalog could lose records or their order."""
    if facts.cleanup_policy != "compact" or facts.kafka_partitions != 1:
        raise topic_not_compacted(facts.topic, facts.cleanup_policy, str(facts.kafka_partitions))


def _largest_letter(source: TopicFacts) -> int:
    return min(source.max_message_bytes + LETTER_HEADROOM_BYTES, _MAX_MESSAGE_BYTES)


def create_dead_letter_topics(kafka: KafkaConfig, source: TopicFacts) -> None:
    """Create the dead-letter topic and the ledger of a change topic, if they do not exist (DLQ-1).

    If both exist, only the right to describe them is necessary.
    """
    admin = client.admin(kafka)
    if (
        not {dead_letter_topic(source.topic), ledger_topic(source.topic)}
        <= admin.list_topics(timeout=client.REACH_TIMEOUT_S).topics.keys()
    ):
        _create_dead_letter_topics(admin, kafka, source)


def end_offsets(kafka: KafkaConfig, facts: TopicFacts) -> dict[int, int]:
    """Return, by Kafka partition, the offset after the last record that a reader of committed
    transactions can see.
    """
    return _offsets(client.admin(kafka), kafka, facts, LATEST)


class TopicIdentity(NamedTuple):
    """The id of a topic, and the number of its Kafka partitions."""

    topic_id: str
    kafka_partitions: int


class TopicLooks:
    """Looks at a topic again and again with one client, because each new one logs in and asks for
    the cluster first. Any thread may use it.
    """

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self._admin: AdminClient | None = None

    def topic(self) -> TopicIdentity:
        """Return what the topic is. Raises `TopicError` if it is missing, and `BrokerError`."""
        return self._look()[0]

    def committed_ends(self) -> dict[int, int]:
        """Return the same as `end_offsets`. Raises as `topic` does."""
        return self._look(IsolationLevel.READ_COMMITTED)[1]

    def high_watermarks(self) -> dict[int, int]:
        """Return the same as `high_watermarks`. Raises as `topic` does."""
        return self._look(IsolationLevel.READ_UNCOMMITTED)[1]

    def _look(self, ends_for: IsolationLevel | None = None) -> tuple[TopicIdentity, dict[int, int]]:
        kafka, admin = self._kafka, self._admin
        if admin is None:
            admin = client.admin(kafka)
        self._admin = None  # after an error, the next look has another client
        topic_id, partitions = identity_of(ask_identity(admin, self._topic), kafka, self._topic)
        identity, ends = TopicIdentity(topic_id, len(partitions)), dict[tuple[str, int], int]()
        if ends_for is not None:
            asked = [(self._topic, partition.id) for partition in partitions]
            ends = offsets_of(admin, kafka, LATEST, asked, ends_for)
        self._admin = admin
        return identity, {number: offset for (_, number), offset in ends.items()}


def delete_before(kafka: KafkaConfig, topic: str, offsets: Mapping[int, int]) -> None:
    """Delete the records before an offset in each of these Kafka partitions."""
    until = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
    admin = client.admin(kafka)  # without it, no answer comes
    for deleted in admin.delete_records(until).values():
        client.wait_for(deleted, kafka, f"delete records of {topic}", "Delete")


def high_watermarks(kafka: KafkaConfig, facts: TopicFacts) -> dict[int, int]:
    """Return, by Kafka partition, the offset after the last record, including open and aborted
    transactions.
    """
    return _offsets(client.admin(kafka), kafka, facts, LATEST, IsolationLevel.READ_UNCOMMITTED)


def beginning_offsets(kafka: KafkaConfig, facts: TopicFacts) -> dict[int, int]:
    """Return, by Kafka partition, the first offset that retention has not deleted."""
    return _offsets(client.admin(kafka), kafka, facts, EARLIEST)


def offsets_at(kafka: KafkaConfig, facts: TopicFacts, record_timestamp: int) -> dict[int, int]:
    """Return, by Kafka partition, the first offset with at least this record timestamp (µs), or the
    end offset.
    """
    admin = client.admin(kafka)
    offsets = _offsets(admin, kafka, facts, OffsetSpec.for_timestamp(-(-record_timestamp // 1000)))
    if min(offsets.values()) >= 0:
        return offsets
    ends = _offsets(admin, kafka, facts, LATEST)
    return {number: offset if offset >= 0 else ends[number] for number, offset in offsets.items()}


def _create_dead_letter_topics(
    admin: AdminClient, kafka: KafkaConfig, source: TopicFacts, group: str | None = None
) -> None:
    letters = {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(_largest_letter(source)),
    }
    names = [dead_letter_topic(source.topic, group)]
    if group is not None:
        names.append(replay_topic(source.topic, group))
    for name in names:
        _create(admin, kafka, name, source.kafka_partitions, source.replication_factor, letters)
    _create(
        admin, kafka, ledger_topic(source.topic, group), 1, source.replication_factor, _COMPACTED
    )


def _create(
    admin: AdminClient,
    kafka: KafkaConfig,
    topic: str,
    partitions: int,
    replicas: int,
    settings: Mapping[str, str],
) -> bool:
    """Create a topic. Return False if it exists."""
    config = dict(settings)
    if replicas >= REPLICAS:
        config["min.insync.replicas"] = str(MIN_INSYNC_REPLICAS)
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=config)
    try:
        client.wait_for(admin.create_topics([new])[topic], kafka, f"create topic {topic}", "Create")
    except BrokerError as error:
        if _code_of(error) == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    _wait_for_topic(admin, topic, partitions)
    return True


def _replicas(admin: AdminClient, kafka: KafkaConfig) -> int:
    """The replication factor of new topics. -1: the default of the cluster."""
    cluster = admin.describe_cluster(request_timeout=_ASK_TIMEOUT_S)
    brokers = len(client.wait_for(cluster, kafka, "describe the cluster").nodes)
    return REPLICAS if brokers >= REPLICAS else -1


def _wait_for_topic(admin: AdminClient, topic: str, partitions: int) -> None:
    """Wait until all brokers know the new topic. Its creation returns earlier. Without the right to
    describe the topic, there is nothing to wait for.
    """
    deadline = time.monotonic() + CREATE_TIMEOUT_S
    while time.monotonic() < deadline:
        metadata = admin.list_topics(topic, timeout=client.REACH_TIMEOUT_S).topics[topic]
        error = metadata.error
        if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return
        if (
            error is None
            and len(metadata.partitions) == partitions
            and all(partition.leader >= 0 for partition in metadata.partitions.values())
        ):
            return
        time.sleep(0.02)


def _describe_new(admin: AdminClient, kafka: KafkaConfig, topic: str) -> TopicFacts:
    """Describe a new topic. Any broker may answer, also one that does not know the topic yet."""
    deadline = time.monotonic() + CREATE_TIMEOUT_S
    while True:
        try:
            return describe(kafka, topic, admin)
        except (BrokerError, TopicError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _check_as_requested(facts: TopicFacts, partitions: int, settings: Mapping[str, str]) -> None:
    requested = {"Kafka partitions": str(partitions), **settings}
    actual = {
        "Kafka partitions": str(facts.kafka_partitions),
        "cleanup.policy": facts.cleanup_policy,
        "message.timestamp.type": facts.timestamp_type,
        "retention.ms": str(facts.retention_ms),
        "max.message.bytes": str(facts.max_message_bytes),
    }
    differences = [
        f"{name} is {actual[name]}, but {requested[name]} was requested"
        for name in requested
        if actual[name] != requested[name]
    ]
    if differences:
        raise topic_exists(facts.topic, "; ".join(differences))


def _offsets(
    admin: AdminClient,
    kafka: KafkaConfig,
    facts: TopicFacts,
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[int, int]:
    partitions = [(facts.topic, number) for number in range(facts.kafka_partitions)]
    answers = offsets_of(admin, kafka, spec, partitions, isolation)
    return {number: offset for (_, number), offset in answers.items()}


def offsets_of(
    admin: AdminClient,
    kafka: KafkaConfig,
    spec: OffsetSpec,
    partitions: Iterable[tuple[str, int]],
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[tuple[str, int], int]:
    """Return the first or the next offset of Kafka partitions. Raises `BrokerError`."""
    asked = {TopicPartition(*partition): spec for partition in partitions}
    if not asked:
        return {}
    answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=_ASK_TIMEOUT_S)
    return {
        (at.topic, at.partition): client.wait_for(
            answer, kafka, f"list offsets of {at.topic}"
        ).offset
        for at, answer in answers.items()
    }


def _code_of(error: BrokerError) -> int:
    cause = error.__cause__
    return (
        cause.args[0].code()
        if cause is not None and cause.args and isinstance(cause.args[0], KafkaError)
        else 0
    )

"""The configuration as values (OPS-1). Each field declares a setting: its type, default, range and
form. `connector.config.parse` makes the values from a document.

The values of secrets are never shown, neither in an error nor in a `repr`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Final

from connector.config.settings_reader import Form
from connector.config.spark_settings import SparkConfig
from connector.config.storage import StorageConfig, spelled, warehouse_fault
from connector.errors import argument_invalid, shown_value
from connector.errors.settings import (
    source_missing,
    stream_unknown,
    table_unknown,
    warehouse_unusable,
)
from connector.records.field_types import Between, check_ranges
from connector.records.model import MAX_INT
from connector.sources.model import OnMissingValue, OnTruncate, SourceFormat
from connector.tables.definition import TableDefinition
from connector.tables.retention import DELETE_RETENTION_S
from connector.text import nearest, one_of, without_credentials
from connector.validation import Limits

TOPIC_PATTERN: Final = r"(?!\.{1,2}$)[-_.a-zA-Z0-9]{1,229}"
"""Kafka's own rule, with a length for which `<topic>.dead-letters.ledger` is a valid topic too."""

TOPICS_OF_KAFKA: Final = frozenset(
    {
        "__cluster_metadata",
        "__consumer_offsets",
        "__remote_log_metadata",
        "__share_group_state",
        "__transaction_state",
    }
)
"""Topics in which Kafka keeps its own state. They are no change topics."""

_SERVER: Final = r"([A-Z_]+://)?([-_.a-zA-Z0-9]+|\[[0-9a-fA-F:]+\]):\d{1,5}"
_SERVERS: Final = Form(
    rf"\s*{_SERVER}\s*(,\s*{_SERVER}\s*)*",
    "host:port, several separated by commas",
    "127.0.0.1:9092",
)
_REGISTRY_URL: Final = Form(
    r"https?://[^\s/@]+[^\s@]*",
    "http:// or https:// and a host. User and password are settings of their own",
    "http://127.0.0.1:8081",
)
DEFAULT_FILE_RETENTION_S: Final = 86_400
DEFAULT_LOG_RETENTION_S: Final = 3_600
MIN_RECORDS_FOR_RATIO: Final = 1_000
"""Fewer records are too few for the ratio of rejected ones (DLQ-5, RUN-6)."""
_LEAST_DEFAULT_SNAPSHOT_RETENTION_S: Final = 3_600
_SECOND: Final = Between(1)
_MINUTE: Final = Between(60)


class IncompleteTransactions(StrEnum):
    """How a stream treats transactions that lack records (ING-2)."""

    COUNT = "count"
    WAIT = "wait"


class UnknownTables(StrEnum):
    """How ingest treats a change of a source table that no definition names (TBL-7)."""

    KEEP = "keep"
    REJECT = "reject"


class SourceTables(StrEnum):
    """The tables of a source that are followed: all that its topics have, or those that are
    declared (SRC-5).
    """

    FROM_SOURCE = "from-source"
    DECLARED = "declared"


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """The Kafka cluster. `settings` are passed to every client unchanged, with librdkafka's names.
    They cannot break a guarantee.
    """

    bootstrap_servers: Annotated[str, _SERVERS]
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """A schema registry. It has `user` with `password`, or `bearer_token`, or neither.
    `ca_location` is a file of PEM certificates.
    """

    url: Annotated[str, _REGISTRY_URL]
    user: str = ""
    password: str = field(default="", repr=False)
    bearer_token: str = field(default="", repr=False)
    ca_location: str = ""
    timeout_s: Annotated[float, Between(0.001)] = 10.0
    auto_register: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        object.__setattr__(self, "url", self.url.rstrip("/"))

    def subject(self, topic: str) -> str:
        """The subject of a topic's values, according to Confluent's TopicNameStrategy."""
        return f"{topic}-value"


@dataclass(frozen=True, slots=True)
class VersionRetention:
    """How long a stream keeps old versions (TBL-23). The time begins when a newer version is
    committed.

    - `file_s`: the changelog.
    - `snapshot_s`: its tables, the versions of recorded cuts.
    - `log_s`: its tables, every version.
    """

    file_s: int = DEFAULT_FILE_RETENTION_S
    snapshot_s: int = DEFAULT_FILE_RETENTION_S
    log_s: int = DEFAULT_LOG_RETENTION_S

    @property
    def table_file_s(self) -> int:
        """How long VACUUM keeps the files of tables, in seconds. So it deletes no file that a cut
        or a version needs. It is longer than the rows of cuts, so that a read that has begun can
        finish.
        """
        cut_s = self.snapshot_s + min(self.snapshot_s // 10, 3_600)
        return max(self.file_s, cut_s, self.log_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """The foreign topics that a bridge publishes as the changes of a stream (SRC-1).

    - `topics`: their names, with `*` for any characters and `?` for one.
    - `transactions`: Debezium's topic with the ends of transactions. Empty: it has none, so no
      cut is consistent.
    - `heartbeats`: the table at the source that a heartbeat query writes. Its rows are not sent.
    - `sections`: the sections of the tables of the stream as the user wrote them.
    """

    format: SourceFormat
    topics: tuple[str, ...] = ()
    transactions: str = ""
    heartbeats: str = ""
    tables: SourceTables = SourceTables.FROM_SOURCE
    on_truncate: OnTruncate = OnTruncate.DELETE
    on_missing_value: OnMissingValue = OnMissingValue.LETTER
    sections: Mapping[str, Mapping[str, object]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def follows_tables(self) -> bool:
        """Whether the definitions of tables follow from the source."""
        return self.tables is SourceTables.FROM_SOURCE

    def has_topic(self, topic: str) -> bool:
        """Whether a topic is one of the source."""
        return topic == self.transactions or any(self.matches(p, topic) for p in self.topics)

    @staticmethod
    def matches(pattern: str, topic: str) -> bool:
        """Whether a topic is one of a name in `topics`."""
        return fnmatchcase(topic, pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """One change stream: its topic, and how its records are validated, ingested and kept.

    - `partitions`: the root stream partitions that must send a record before the low watermark is
      known (WMK-6). Empty: the announced ones.
    - `staging_retention_s`: how long a write stream may have no append before it expires (WRS-21).
    - `changelog_retention_s`: None never deletes batches of the changelog (TBL-15).
    - `file_retention_s`, `snapshot_retention_s`, `log_retention_s`: how long old versions are kept
      (TBL-23). `retention` has the values in force.
    - `halt_on_first`: stop the stream at the first rejected record (DLQ-5).
    - `incomplete_after_s`: how long tables wait for an incomplete transaction, if they do (ING-2).
      None: `stall_after_s`. `wait_s` has the value in force.
    - `bound_buffer_s`: added to the bound that is recommended for a table (JOB-4). None: twice the
      trigger, see `buffer_s`.
    - `source`: what `connector bridge` publishes as the changes of the stream (SRC-1). None: other
      programs publish them.
    """

    name: str
    topic: str
    partitions: tuple[str, ...] = ()
    delete_retention_s: Annotated[int, _SECOND] = DELETE_RETENTION_S
    changelog_retention_s: Annotated[int, _SECOND] | None = None
    staging_retention_s: Annotated[int, _SECOND] = 7 * 86_400
    file_retention_s: Annotated[int, _MINUTE] = DEFAULT_FILE_RETENTION_S
    snapshot_retention_s: Annotated[int, _MINUTE] | None = None
    log_retention_s: Annotated[int, _MINUTE] = DEFAULT_LOG_RETENTION_S
    stall_after_s: Annotated[int, _SECOND] = 300
    limits: Limits = field(default_factory=Limits)
    unknown_tables: UnknownTables = UnknownTables.KEEP
    max_dead_letter_ratio: Annotated[float, Between(0, 1)] = 0.5
    halt_on_first: bool = False
    trigger_s: Annotated[float, Between(0)] = 2.0
    max_offsets_per_trigger: Annotated[int, Between(1, MAX_INT)] = 1_000_000
    bound_buffer_s: Annotated[int, Between(0)] | None = None
    incomplete_transactions: IncompleteTransactions = IncompleteTransactions.COUNT
    incomplete_after_s: Annotated[int, _SECOND] | None = None
    source: SourceConfig | None = None

    def __post_init__(self) -> None:
        check_ranges(self)

    def rejects_too_many(self, records: int, rejected: int) -> bool:
        """Whether so many rejected of so many records have a common cause (DLQ-5, RUN-6)."""
        is_large = records >= MIN_RECORDS_FOR_RATIO
        return is_large and rejected > self.max_dead_letter_ratio * records

    @property
    def wait_s(self) -> int | None:
        """How long tables wait for an incomplete transaction (ING-2). None: they do not wait."""
        if self.incomplete_transactions is IncompleteTransactions.COUNT:
            return None
        return self.stall_after_s if self.incomplete_after_s is None else self.incomplete_after_s

    @property
    def buffer_s(self) -> int:
        """The seconds added to the recommended bound of a table, rounded up (JOB-4)."""
        return math.ceil(2 * self.trigger_s) if self.bound_buffer_s is None else self.bound_buffer_s

    @property
    def retention(self) -> VersionRetention:
        """How long old versions are kept. By default, cuts are kept as long as the changelog, and
        for at least one hour (TBL-23).
        """
        least_s = max(self.file_retention_s, _LEAST_DEFAULT_SNAPSHOT_RETENTION_S)
        return VersionRetention(
            self.file_retention_s,
            least_s if self.snapshot_retention_s is None else self.snapshot_retention_s,
            self.log_retention_s,
        )


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """All settings of a user. `warehouse` is a path, or a URI such as `s3a://bucket/prefix`. The
    reader of the file resolves a relative path.
    """

    warehouse: str
    kafka: KafkaConfig
    registry: RegistryConfig | None = None
    streams: Mapping[str, StreamConfig] = field(default_factory=dict)
    tables: Mapping[str, TableDefinition] = field(default_factory=dict)
    spark: SparkConfig = field(default_factory=SparkConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if allowed := warehouse_fault(self.warehouse):
            shown = shown_value(without_credentials(self.warehouse))
            raise warehouse_unusable(shown, f"allowed: {allowed}")
        # With another spelling, Spark would use other settings and other checks.
        object.__setattr__(self, "warehouse", spelled(self.warehouse))

    def tables_of(self, stream: str) -> dict[str, TableDefinition]:
        """The tables of a stream, by name."""
        return {name: table for name, table in self.tables.items() if table.stream == stream}


def find_stream(config: ConnectorConfig, name: str | None) -> StreamConfig:
    """The stream of that name, or whose topic has it; without a name the only one there is. Raises
    `ConfigError`.
    """
    remedy = "Name one of them" if config.streams else "Add a section [streams.NAME]"
    if name is None:
        if len(config.streams) == 1:
            return next(iter(config.streams.values()))
        raise stream_unknown(None, one_of(config.streams), remedy)
    if not isinstance(name, str):
        raise argument_invalid("stream", name, "the name or topic of a stream")
    by_topic = {stream.topic: stream for stream in config.streams.values()}
    if (stream := config.streams.get(name) or by_topic.get(name)) is not None:
        return stream
    remedy = nearest(name, [*config.streams, *by_topic]) or remedy
    raise stream_unknown(name, one_of(config.streams), remedy)


def find_source(
    config: ConnectorConfig, name: str | None = None
) -> tuple[StreamConfig, SourceConfig]:
    """The stream of that name, and its source. Raises `ConfigError`, also if it has none."""
    stream = find_stream(config, name)
    if stream.source is None:
        raise source_missing(stream.name)
    return stream, stream.source


def find_table(config: ConnectorConfig, name: str) -> TableDefinition:
    """The table of that name. Raises `ConfigError`."""
    if not isinstance(name, str):
        raise argument_invalid("table", name, "the name of a table")
    if (table := config.tables.get(name)) is not None:
        return table
    remedy = f"add a section [tables.{name}] to the configuration"
    if any(s.source is not None and s.source.follows_tables for s in config.streams.values()):
        remedy = (
            "a table of a source needs a primary key there and at least one row. It is known as"
            " soon as the bridge and the pipeline have read a row"
        )
    remedy = nearest(name, config.tables) or remedy
    raise table_unknown(name, one_of(config.tables), remedy)

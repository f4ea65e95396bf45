"""Reads the configuration: one document and environment variables, parsed once into values (OPS-1).

A document is the result of `tomllib` for `connector.toml`. An environment variable
`CONNECTOR__SECTION__KEY` has priority over the key that it names. Names are compared without case.
In a variable's name, `_` replaces characters that are not possible there: `-` in the name of a
stream or table, `.` in a Kafka setting. For example, `CONNECTOR__KAFKA__SASL_PASSWORD` is
`sasl.password`.

All errors are reported together. Each one names the setting, its value, the allowed values and a
remedy. An unknown key is an error that names the nearest known one. The values of secrets are never
shown, neither in an error nor in a `repr`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from connector.config.retention import DEFAULT_FILE_RETENTION_S
from connector.config.settings import (
    TOPIC_PATTERN,
    TOPICS_OF_KAFKA,
    ConnectorConfig,
    IncompleteTransactions,
    KafkaConfig,
    RegistryConfig,
    StreamConfig,
    UnknownTables,
)
from connector.config.settings_reader import (
    FromEnvironment,
    Section,
    all_in_one,
    apply_environment,
    flat,
    is_plain,
    written,
)
from connector.config.spark_settings import (
    DEFAULT_DRIVER_MEMORY,
    LOCAL_MASTER,
    MAX_PARALLEL_APPLIES,
    MEMORY_PATTERN,
    SparkConfig,
    conf_fault,
)
from connector.config.storage import StorageConfig, warehouse_fault, without_credentials
from connector.dead_letters.envelope import change_topic, dead_letter_topic
from connector.errors import ConfigError, ErrorCode
from connector.records.ordering import OrderBy
from connector.tables.column_names import NAME_PATTERN
from connector.tables.definition import MAX_BUCKETS, Column, TableDefinition, Versions
from connector.tables.keys import DEFAULT_DELIMITER, Key, KeyForm, KeyPart
from connector.tables.values import DataType, Encoding
from connector.text import nearest, one_of
from connector.validation import Limits, RowImages, UnknownFields
from connector.write_streams.model import catalog_topic, topic_of_catalog

_Built = TypeVar("_Built")
_BOOTSTRAP = re.compile(r"([A-Z_]+://)?([-_.a-zA-Z0-9]+|\[[0-9a-fA-F:]+\]):\d{1,5}")

_MASTER = r"local(\[(\*|[1-9][0-9]*)(,[ 0-9]+)?\])?|local-cluster\[.+\]|yarn|[a-z0-9+]+://\S+"


def parse(document: Mapping[str, object], environment: Mapping[str, str]) -> ConnectorConfig:
    """The configuration from a document and an environment. Raises `ConfigError`, which lists every
    error.
    """
    faults: list[ConfigError] = []
    root = Section("", apply_environment(document, environment, faults), faults)
    warehouse = _warehouse(root)
    kafka = _kafka(
        root.section("kafka", remedy='write [kafka] and below it bootstrap_servers = "host:port"')
    )
    registry = _registry(root.section("registry")) if root.has("registry") else None
    streams = {
        name: _stream(name, section) for name, section in root.named("streams", NAME_PATTERN)
    }
    _check_topics(streams, faults)
    tables = {
        name: _table(name, section, streams) for name, section in root.named("tables", NAME_PATTERN)
    }
    spark, storage = _spark(root.section("spark")), _storage(root.section("storage"))
    root.finish()
    if faults:
        raise all_in_one(faults)
    return ConnectorConfig(
        warehouse,
        kafka,
        registry,
        streams,
        {name: table for name, table in tables.items() if table},
        spark,
        storage,
    )


def _warehouse(root: Section) -> str:
    remedy = 'write warehouse = "./warehouse"'
    written_as = root.text("warehouse", allowed="a path or a URI", remedy=remedy)
    if allowed := warehouse_fault(written_as):
        form = "s3a://bucket/prefix" if "://" in written_as else "./warehouse"
        shown = without_credentials(written_as)
        root.fault("warehouse", shown, allowed, f'write warehouse = "{form}"')
    return written_as


def _spark(section: Section) -> SparkConfig:
    spark = SparkConfig(
        master=section.text("master", LOCAL_MASTER),
        driver_memory=_memory(section, "driver_memory", DEFAULT_DRIVER_MEMORY),
        executor_memory=_memory(section, "executor_memory", ""),
        executor_cores=section.number("executor_cores", 0, 1, 1024) or None,
        max_parallel_applies=section.number("max_parallel_applies", 0, 1, MAX_PARALLEL_APPLIES)
        or None,
        extra_jars=section.texts("extra_jars"),
        conf=_conf(section.section("conf")),
    )
    if not re.fullmatch(_MASTER, spark.master):
        section.fault(
            "master",
            spark.master,
            "local[*], local[N], yarn, or a URL such as spark://host:7077",
            f'write master = "{LOCAL_MASTER}"',
        )
    section.finish()
    return spark


def _memory(section: Section, key: str, default: str) -> str:
    value = section.text(key, default)
    if value and not re.fullmatch(MEMORY_PATTERN, value):
        section.fault(key, value, "a number with m or g, for example 2g", f'write {key} = "2g"')
    return value


def _conf(section: Section) -> dict[str, str]:
    settings = _passed_on(section)
    for name, value in settings.items():
        allowed, remedy = conf_fault(name, value)
        if allowed:
            section.fault(name, value, allowed, remedy)
    return settings


def _storage(section: Section) -> StorageConfig:
    storage = StorageConfig(
        endpoint=section.text("endpoint", "").rstrip("/"),
        region=section.text("region", ""),
        path_style=section.flag("path_style", False) if section.has("path_style") else None,
        access_key=section.text("access_key", ""),
        secret_key=section.text("secret_key", ""),
        session_token=section.text("session_token", ""),
        shared_folder=section.flag("shared_folder", False),
        options=_passed_on(section.section("options")),
    )
    if storage.endpoint and not re.fullmatch(r"https?://[^\s/@?#]+", storage.endpoint):
        allowed = "http:// or https:// with a host, without credentials and without a path"
        shown = without_credentials(storage.endpoint)
        section.fault("endpoint", shown, allowed, 'write endpoint = "http://127.0.0.1:8333"')
    if bool(storage.access_key) != bool(storage.secret_key):
        lacking = "secret_key" if storage.access_key else "access_key"
        section.fault(lacking, "", "both keys, or none of them", f"set {lacking}, or remove both")
    section.finish()
    return storage


def _passed_on(section: Section) -> dict[str, str]:
    """The settings of a section whose names lowmark does not know."""
    settings: dict[str, str] = {}
    for name, value in flat(dict(section.rest())).items():
        if isinstance(value, bool):
            settings[name] = str(value).lower()
        elif isinstance(value, str | int | float) and is_plain(written(value)):
            settings[name] = written(value)
        else:
            section.fault(name, value, "text, a number, true or false", "put it in quotes")
    return settings


def _kafka(section: Section) -> KafkaConfig:
    allowed = "host:port, several separated by commas"
    remedy = 'write bootstrap_servers = "127.0.0.1:9092"'
    servers = (
        section.text("bootstrap_servers", allowed=allowed, remedy=remedy)
        if section.is_given
        else ""
    )
    if servers and not all(_BOOTSTRAP.fullmatch(server.strip()) for server in servers.split(",")):
        section.fault("bootstrap_servers", servers, allowed, remedy)
    settings: dict[str, str] = {}
    for given_name, value in flat(dict(section.rest())).items():
        name = given_name.replace("_", ".") if isinstance(value, FromEnvironment) else given_name
        if not is_plain(name) or not is_plain(written(value)):
            allowed = "text without NUL characters and lone surrogates"
            section.fault(name, value, allowed, "remove the character")
        elif name == "bootstrap.servers":
            section.fault(name, value, "only the spelling bootstrap_servers", remedy)
        elif isinstance(value, bool):
            settings[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            settings[name] = written(value)
        else:
            section.fault(
                name,
                value,
                "text, a number, true or false",
                "see librdkafka's CONFIGURATION page",
            )
    return KafkaConfig(servers, settings)


def _registry(section: Section) -> RegistryConfig:
    allowed = "http:// or https://, a host, no credentials"
    remedy = 'write url = "http://127.0.0.1:8081"'
    url = section.text("url", allowed=allowed, remedy=remedy)
    if "@" in url:
        section.fault("url", "***", allowed, "write user and password as separate settings")
    elif url and not re.fullmatch(r"https?://[^\s/]+\S*", url):
        section.fault("url", url, allowed, remedy)
    registry = RegistryConfig(
        url=url.rstrip("/"),
        user=section.text("user", ""),
        password=section.text("password", ""),
        bearer_token=section.text("bearer_token", ""),
        ca_location=section.text("ca_location", ""),
        timeout_s=section.duration_ms("timeout", 10_000, least_ms=1) / 1000,
        auto_register=section.flag("auto_register", False),
    )
    if registry.bearer_token and (registry.user or registry.password):
        section.fault(
            "bearer_token",
            "***",
            "only without user and password",
            "set bearer_token, or user and password",
        )
    section.finish()
    return registry


def _stream(name: str, section: Section) -> StreamConfig:
    topic = section.text("topic", name)
    if not re.fullmatch(TOPIC_PATTERN, topic):
        section.fault(
            "topic",
            topic,
            "1 to 229 of the characters - _ . a-z A-Z 0-9",
            "name the Kafka topic of this stream",
        )
    elif topic in TOPICS_OF_KAFKA:
        section.fault(
            "topic",
            topic,
            "a change topic: Kafka itself uses this topic",
            "name the topic to which the changes are published",
        )
    elif change_topic(topic_of_catalog(topic)) != topic:
        section.fault(
            "topic",
            topic,
            f"a change topic: a name with {dead_letter_topic('')} at its end, or before a group, is"
            f" that of a topic for dead letters, and {catalog_topic('')} that of a catalog",
            "name the topic to which the changes are published",
        )
    stream = StreamConfig(
        name=name,
        topic=topic,
        partitions=section.texts("partitions"),
        delete_retention_s=section.duration_s("delete_retention", 2 * 86_400, least_s=1),
        staging_retention_s=section.duration_s("staging_retention", 7 * 86_400, least_s=1),
        changelog_retention_s=section.duration_s("changelog_retention", None, least_s=1),
        file_retention_s=section.duration_s("file_retention", DEFAULT_FILE_RETENTION_S, least_s=60),
        snapshot_retention_s=section.duration_s("snapshot_retention", None, least_s=60),
        stall_after_s=section.duration_s("stall_after", 300, least_s=1),
        limits=Limits(
            max_clock_skew_s=section.duration_s("max_clock_skew", 300),
            max_record_bytes=section.number("max_record_bytes", 10_000_000, 1, 1_000_000_000),
            min_commit_timestamp=section.time_us("min_commit_timestamp", 0),
            unknown_fields=section.choice(
                "unknown_fields", UnknownFields, UnknownFields.KEEP_AND_COUNT
            ),
            row_images=section.choice("row_images", RowImages, RowImages.COUNT),
        ),
        unknown_tables=section.choice("unknown_tables", UnknownTables, UnknownTables.KEEP),
        max_dead_letter_ratio=section.ratio("max_dead_letter_ratio", 0.5),
        halt_on_first=section.flag("halt_on_first", False),
        trigger_s=section.duration_ms("trigger", 5_000) / 1000,
        max_offsets_per_trigger=section.number("max_offsets_per_trigger", 1_000_000, 1, 2**63 - 1),
        bound_buffer_s=section.duration_s("bound_buffer", None),
        incomplete_transactions=section.choice(
            "incomplete_transactions", IncompleteTransactions, IncompleteTransactions.COUNT
        ),
        incomplete_after_s=section.duration_s("incomplete_after", None, least_s=1),
    )
    section.finish()
    return stream


def _check_topics(streams: Mapping[str, StreamConfig], faults: list[ConfigError]) -> None:
    """Each stream has its own topic (REC-1). Two streams of one topic would publish each dead
    letter twice.
    """
    owners: dict[str, str] = {}
    for stream in streams.values():
        if (owner := owners.setdefault(stream.topic, stream.name)) != stream.name:
            problem = f'streams.{stream.name}.topic is "{stream.topic}"'
            faults.append(
                ConfigError(
                    ErrorCode.TOPIC_OF_TWO_STREAMS,
                    problem,
                    f"Each stream has its own topic, and streams.{owner} already has this one",
                    "Set another topic, or remove one of the streams",
                    topic=stream.topic,
                )
            )


def _table(
    name: str, section: Section, streams: Mapping[str, StreamConfig]
) -> TableDefinition | None:
    """The definition. None: it has an error. `connector.tables.definition` checks it as a whole
    (TBL-8).
    """
    faults_before = len(section.faults)
    stream = section.text(
        "stream",
        allowed="the name of a stream",
        remedy='write stream = "NAME", and a section [streams.NAME]',
    )
    if stream and stream not in streams:
        section.fault(
            "stream",
            stream,
            one_of(streams),
            nearest(stream, streams) or f"add a section [streams.{stream}]",
        )
    source = section.text("source", name)
    key = (
        _key(section.section("key")) if section.has("key") else _row_key("row_key", DataType.BYTES)
    )
    columns = [
        _column(below)
        for below in section.sections(
            "columns", f"write [[{section.path}.columns]] with name, family and type"
        )
    ]
    order = section.choice("order", OrderBy, OrderBy.COMMIT)
    versions = section.choice("versions", Versions, Versions.LATEST)
    max_staleness_s = section.duration_s("max_staleness", None)
    apply_every_s = section.duration_s("apply_every", None, least_s=1)
    keep_unmapped = section.flag("keep_unmapped", True)
    deletion_vectors = section.flag("deletion_vectors", True)
    block_rows = section.flag("block_rows", False)
    buckets = section.number("buckets", 1, 1, MAX_BUCKETS)
    section.finish()

    def definition() -> TableDefinition:
        assert key is not None, "a key that is none has left a fault"
        return TableDefinition(
            name=name,
            stream=stream,
            source=source,
            key=key,
            columns=tuple(column for column in columns if column),
            order=order,
            versions=versions,
            max_staleness_s=max_staleness_s,
            apply_every_s=apply_every_s,
            keep_unmapped=keep_unmapped,
            deletion_vectors=deletion_vectors,
            block_rows=block_rows,
            buckets=buckets,
        )

    return _built(definition, section, faults_before)


def _built(build: Callable[[], _Built], section: Section, faults_before: int) -> _Built | None:
    """The result of `build`, if the section has no error so far. An error that `build` raises
    becomes an error of the section.
    """
    if len(section.faults) > faults_before:
        return None
    try:
        return build()
    except ConfigError as error:
        problem = (
            error.problem if section.path in error.problem else f"{section.path}: {error.problem}"
        )
        section.faults.append(ConfigError(error.code, problem, error.cause, error.remedy))
        return None


def _row_key(name: str, column_type: DataType) -> Key:
    return Key(parts=(KeyPart(name, column_type),), form=KeyForm.ROW_KEY)


def _key(section: Section) -> Key | None:
    """The key, from `form`, `delimiter` and `columns`.

    Without a form, one column of text or bytes is the row key itself, and several columns are
    joined.
    """
    faults_before = len(section.faults)
    found = [
        _part(below)
        for below in section.sections(
            "columns", f"write [[{section.path}.columns]] with name and type"
        )
    ]
    parts = [part for part in found if part is not None]
    if not section.has("columns"):
        section.faults.append(
            ConfigError(
                ErrorCode.SETTING_MISSING,
                f"{section.path}.columns is not set",
                "A key has 1 to 16 columns",
                f"write [[{section.path}.columns]]",
            )
        )
    whole = (
        len(parts) == 1
        and parts[0].type in {DataType.STRING, DataType.BYTES}
        and not section.has("delimiter")
    )
    form = section.choice("form", KeyForm, KeyForm.ROW_KEY if whole else KeyForm.DELIMITED)
    delimiter = section.text("delimiter", DEFAULT_DELIMITER, with_nul=True)
    section.finish()
    return _built(
        lambda: Key(parts=tuple(parts), form=form, delimiter=delimiter), section, faults_before
    )


def _part(section: Section) -> KeyPart | None:
    faults_before = len(section.faults)
    name = section.text("name", allowed="the name of a key column", remedy='write name = "id"')
    type_ = section.choice("type", DataType, DataType.STRING)
    section.finish()
    return _built(lambda: KeyPart(name, type_), section, faults_before)


_TYPES_ELSEWHERE: Final = {
    **dict.fromkeys(("DECIMAL", "NUMBER", "BIGNUMERIC"), DataType.NUMERIC),
    **dict.fromkeys(("INT", "INTEGER", "BIGINT", "SMALLINT", "LONG", "INT32"), DataType.INT64),
    **dict.fromkeys(("DOUBLE", "FLOAT", "REAL"), DataType.FLOAT64),
    **dict.fromkeys(("DATETIME", "TIMESTAMPTZ"), DataType.TIMESTAMP),
    **dict.fromkeys(("BINARY", "VARBINARY", "BLOB", "BYTEA"), DataType.BYTES),
    **dict.fromkeys(("BOOLEAN",), DataType.BOOL),
    **dict.fromkeys(("JSONB",), DataType.JSON),
}
"""The names that other databases use for the types."""


def _column(section: Section) -> Column | None:
    faults_before = len(section.faults)
    name = section.text("name", allowed="the column's name", remedy='write name = "balance"')
    family = section.text(
        "family", allowed="the family of the column's cell", remedy='write family = "f"'
    )
    qualifier = _qualifier(section, name)
    column_type = section.choice("type", DataType, DataType.STRING, _TYPES_ELSEWHERE)
    encoding = section.choice("encoding", Encoding, Encoding.TEXT)
    if not section.has("type"):
        section.faults.append(
            ConfigError(
                ErrorCode.SETTING_MISSING,
                f"{section.path}.type is not set",
                f"allowed: {one_of(DataType)}",
                'write type = "STRING"',
            )
        )
    section.finish()
    return _built(
        lambda: Column(
            name=name, family=family, qualifier=qualifier, type=column_type, encoding=encoding
        ),
        section,
        faults_before,
    )


def _qualifier(section: Section, name: str) -> bytes:
    """The qualifier: text as its UTF-8 bytes, or `{ base64 = "…" }` as in the JSON view (REC-22).
    The default is the column's name.
    """
    if not section.has("qualifier"):
        return name.encode()
    value = section.raw("qualifier")
    if isinstance(value, str):
        return value.encode()
    try:
        if isinstance(value, Mapping) and set(value) == {"base64"}:
            return base64.b64decode(str(value["base64"]), validate=True)
    except (binascii.Error, ValueError):
        pass
    section.fault("qualifier", value, 'text, or { base64 = "…" }', f'write qualifier = "{name}"')
    return b""

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
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

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
from connector.tables.column_names import NAME_PATTERN, name_fault
from connector.tables.definition import (
    MAX_BUCKETS,
    Column,
    TableDefinition,
    Versions,
    column_faults,
    columns_faults,
    setting_faults,
)
from connector.tables.keys import (
    DEFAULT_DELIMITER,
    MAX_KEY_COLUMNS,
    Key,
    KeyForm,
    KeyPart,
    key_faults,
    key_types,
)
from connector.tables.values import TEXT_ONLY, DataType, Encoding
from connector.text import nearest, one_of
from connector.validation import Limits, RowImages, UnknownFields
from connector.write_streams.model import catalog_topic, topic_of_catalog

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
        trigger_s=section.duration_ms("trigger", 2_000) / 1000,
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
    key = _key(section.section("key")) if section.has("key") else _ROW_KEY
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
    faults = [
        *setting_faults(name, stream or None, source, max_staleness_s, apply_every_s, buckets),
        *columns_faults(
            name,
            [part or None for part, _ in key.columns],
            [column.name for column in columns],
            [
                (column.name, column.family, column.qualifier)
                for column in columns
                if column.name and column.family
            ],
            keep_unmapped,
        ),
    ]
    section.faults += faults
    if len(section.faults) > faults_before:
        return None
    return TableDefinition(
        name=name,
        stream=stream,
        source=source,
        key=Key(
            tuple(KeyPart(part, type_) for part, type_ in key.columns if type_),
            key.form,
            key.delimiter,
        ),
        columns=tuple(
            Column(column.name, column.family, column.qualifier, column.type, column.encoding)
            for column in columns
            if column.name and column.family and column.type and column.encoding
        ),
        order=order,
        versions=versions,
        max_staleness_s=max_staleness_s,
        apply_every_s=apply_every_s,
        keep_unmapped=keep_unmapped,
        deletion_vectors=deletion_vectors,
        block_rows=block_rows,
        buckets=buckets,
    )


class _Key(NamedTuple):
    """The known parts of a key: names and types of its columns (None: not known), and its form."""

    columns: list[tuple[str, DataType | None]]
    form: KeyForm
    delimiter: str


_ROW_KEY: Final = _Key([("row_key", DataType.BYTES)], KeyForm.ROW_KEY, DEFAULT_DELIMITER)


def _key(section: Section) -> _Key:
    """The key, from `form`, `delimiter` and `columns`.

    Without a form, the key is ordered, or delimited if there is a delimiter.
    """
    sections = section.sections("columns", f"write [[{section.path}.columns]] with name and type")
    delimiter = section.text("delimiter", DEFAULT_DELIMITER, with_nul=True)
    default = KeyForm.DELIMITED if section.has("delimiter") else KeyForm.ORDERED
    types = key_types(section.spelt("form", KeyForm) or default, delimiter)
    columns = [_part(below, types) for below in sections]
    if not section.has("columns"):
        section.faults.append(
            ConfigError(
                ErrorCode.SETTING_MISSING,
                f"{section.path}.columns is not set",
                f"A key has 1 to {MAX_KEY_COLUMNS} columns",
                f"write [[{section.path}.columns]]",
            )
        )
    form = section.spelt("form", KeyForm) or default
    faults = list(key_faults(columns, form, delimiter)) if section.has("columns") else []
    said = {fault.problem for fault in faults}
    fit = [
        form
        for form in KeyForm
        if {fault.problem for fault in key_faults(columns, form, delimiter)} <= said
    ]
    section.choice("form", KeyForm, default, offered=fit)
    section.finish()
    section.faults += [_at(section, fault) for fault in faults]
    return _Key(columns, form, delimiter)


def _part(section: Section, types: Sequence[DataType]) -> tuple[str, DataType | None]:
    name = section.text("name", allowed="the name of a key column", remedy='write name = "id"')
    type_ = section.choice("type", DataType, DataType.STRING, _TYPES_ELSEWHERE, types)
    section.finish()
    if name and (fault := name_fault("key column", name)):
        section.faults.append(_at(section, fault))
    is_known = not section.has("type") or section.spelt("type", DataType)
    return name, type_ if is_known else None


def _at(section: Section, fault: ConfigError) -> ConfigError:
    """An error with the place in the document."""
    return ConfigError(fault.code, f"{section.path}: {fault.problem}", fault.cause, fault.remedy)


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


class _Column(NamedTuple):
    """The known parts of a column. None: not known."""

    name: str | None
    family: str | None
    qualifier: bytes
    type: DataType | None
    encoding: Encoding | None


def _column(section: Section) -> _Column:
    name = section.text("name", allowed="the column's name", remedy='write name = "balance"')
    family = section.text(
        "family", allowed="the family of the column's cell", remedy='write family = "f"'
    )
    qualifier = _qualifier(section, name)
    found, spelt = section.spelt("type", DataType), section.spelt("encoding", Encoding)
    types = [one for one in DataType if spelt is not Encoding.BINARY or one not in TEXT_ONLY]
    encodings = [one for one in Encoding if one is Encoding.TEXT or found not in TEXT_ONLY]
    section.choice("type", DataType, DataType.STRING, _TYPES_ELSEWHERE, types)
    encoding = section.choice("encoding", Encoding, Encoding.TEXT, offered=encodings)
    if not section.has("type"):
        section.faults.append(
            ConfigError(
                ErrorCode.SETTING_MISSING,
                f"{section.path}.type is not set",
                f"allowed: {one_of(types)}",
                'write type = "STRING"',
            )
        )
    section.finish()
    column = _Column(
        name or None,
        family or None,
        qualifier,
        found,
        spelt if section.has("encoding") else encoding,
    )
    section.faults += [_at(section, fault) for fault in column_faults(*column)]
    return column


def _qualifier(section: Section, name: str) -> bytes:
    """The qualifier: text as its UTF-8 bytes, or `{ base64 = "…" }` as in the JSON view (REC-22).
    The default is the column's name.
    """
    if not section.has("qualifier"):
        return name.encode()
    value = section.raw("qualifier")
    if isinstance(value, str) and is_plain(value, with_nul=True):
        return value.encode()
    try:
        if isinstance(value, Mapping) and set(value) == {"base64"}:
            return base64.b64decode(str(value["base64"]), validate=True)
    except (binascii.Error, ValueError):
        pass
    section.fault("qualifier", value, 'text, or { base64 = "…" }', f'write qualifier = "{name}"')
    return b""

"""Makes the configuration of one document and environment variables (OPS-1).

A document is the result of `tomllib` for `connector.toml`. An environment variable
`CONNECTOR__SECTION__KEY` has priority over the key that it names. Names are compared without case.
In a variable's name, `_` replaces characters that are not possible there: `-` in the name of a
stream or table, `.` in a Kafka setting. For example, `CONNECTOR__KAFKA__SASL_PASSWORD` is
`sasl.password`.

The settings are the fields of the classes in `connector.config`, of `Limits` and of
`TableDefinition`. Here are the settings that have a form of their own, and the rules between
settings. All errors are reported together. Each one names the setting, its value, the allowed
values and a remedy.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, Final, NamedTuple

from connector.config.settings import (
    TOPIC_PATTERN,
    TOPICS_OF_KAFKA,
    ConnectorConfig,
    KafkaConfig,
    RegistryConfig,
    SourceConfig,
    SourceTables,
    StreamConfig,
)
from connector.config.settings_reader import (
    Form,
    FromEnvironment,
    Section,
    all_in_one,
    apply_environment,
    written,
)
from connector.config.spark_settings import SparkConfig, conf_fault
from connector.config.storage import StorageConfig, warehouse_fault
from connector.dead_letters.envelope import change_topic, dead_letter_topic, ledger_topic
from connector.errors import ConfigError
from connector.errors.settings import setting_invalid
from connector.sources.model import OnMissingValue, OnTruncate, SourceFormat
from connector.tables.column_names import NAME_PATTERN, name_fault
from connector.tables.definition import (
    Column,
    OnUnreadable,
    TableDefinition,
    beginning_faults,
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
from connector.tables.nested import ValueType, type_of
from connector.tables.published import tables_topic, topic_of_tables
from connector.tables.values import BINARY_TYPES, DataType, Encoding
from connector.text import is_plain, nearest, one_of
from connector.validation import Limits
from connector.write_streams.model import catalog_topic, topic_of_catalog

_WAREHOUSE: Final = Form("(?s).+", "a path or a URI", "./warehouse")
_TOPIC: Final = Form(TOPIC_PATTERN, "1 to 229 of the characters - _ . a-z A-Z 0-9", "shop.orders")
_TOPIC_NAME: Final = Form(r"[-_.a-zA-Z0-9]{0,249}", "the name of a topic", "dbz.transaction")
_STREAM: Final = Form("(?s).+", "the name of a stream, of the section [streams.NAME]", "NAME")
_KEY_COLUMN: Final = Form("(?s).+", "the name of a key column", "id")
_COLUMN: Final = Form("(?s).+", "the column's name", "balance")
_FAMILY: Final = Form("(?s).+", "the family of the column's cell", "f")


def parse(document: Mapping[str, object], environment: Mapping[str, str]) -> ConnectorConfig:
    """The configuration. Raises `ConfigError`, which lists every error."""
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
    faults += _shared_topics(streams.values())
    faults += _own_topics_of_sources(streams.values())
    faults += _without_registry(streams.values() if registry is None else ())
    tables, streams = _tables(root, streams)
    spark, storage = _spark(root.section("spark")), _storage(root.section("storage"))
    root.finish()
    if faults:
        raise all_in_one(faults)
    return ConnectorConfig(warehouse, kafka, registry, streams, tables, spark, storage)


def parse_tables(
    sections: Mapping[str, Mapping[str, object]], streams: Mapping[str, StreamConfig]
) -> dict[str, TableDefinition]:
    """The tables of sections `[tables.NAME]`. Raises `ConfigError`, which lists every error."""
    faults: list[ConfigError] = []
    root = Section("", {"tables": sections}, faults)
    tables = {
        name: _table(name, section, streams) for name, section in root.named("tables", NAME_PATTERN)
    }
    if faults:
        raise all_in_one(faults)
    return {name: table for name, table in tables.items() if table}


def _warehouse(root: Section) -> str:
    warehouse = root.text("warehouse", None, _WAREHOUSE)
    if allowed := warehouse_fault(warehouse):
        form = "s3a://bucket/prefix" if "://" in warehouse else "./warehouse"
        root.fault("warehouse", warehouse, allowed, f'write warehouse = "{form}"')
    return warehouse


def _spark(section: Section) -> SparkConfig:
    below = section.section("conf")
    conf = _passed_on(below)
    for name, value in conf.items():
        allowed, remedy = conf_fault(name, value)
        if allowed:
            below.fault(name, value, allowed, remedy)
    spark = section.read(SparkConfig, conf=conf)
    section.finish()
    return spark


def _storage(section: Section) -> StorageConfig:
    storage = section.read(StorageConfig, options=_passed_on(section.section("options")))
    if bool(storage.access_key) != bool(storage.secret_key):
        lacking = "secret_key" if storage.access_key else "access_key"
        section.fault(lacking, "", "both keys, or none of them", f"set {lacking}, or remove both")
    section.finish()
    return storage


def _kafka(section: Section) -> KafkaConfig:
    section.has("bootstrap_servers")
    settings = _passed_on(section, dotted=True)
    if (servers := settings.get("bootstrap.servers")) is not None:
        allowed = "only the spelling bootstrap_servers"
        section.fault("bootstrap.servers", servers, allowed, "write it with _")
    return section.read(KafkaConfig, settings=settings)


def _passed_on(section: Section, *, dotted: bool = False) -> dict[str, str]:
    """The settings whose names lowmark does not know. `dotted`: the names have dots."""
    settings: dict[str, str] = {}
    for given, value in section.rest():
        name = given.replace("_", ".") if dotted and isinstance(value, FromEnvironment) else given
        if not is_plain(name) or not is_plain(written(value)):
            allowed = "text without NUL characters and lone surrogates"
            section.fault(name, value, allowed, "remove the character")
        elif isinstance(value, str | int | float):
            settings[name] = written(value)
        else:
            section.fault(name, value, "text, a number, true or false", "put it in quotes")
    return settings


def _registry(section: Section) -> RegistryConfig:
    registry = section.read(RegistryConfig)
    if registry.bearer_token and (registry.user or registry.password):
        allowed, remedy = "only without user and password", "set it, or user and password"
        section.fault("bearer_token", "***", allowed, remedy)
    section.finish()
    return registry


def _stream(name: str, section: Section) -> StreamConfig:
    topic = section.text("topic", name, _TOPIC)
    source = _source(section.section("source")) if section.has("source") else None
    given = {"name": name, "topic": topic, "limits": section.read(Limits), "source": source}
    stream = section.read(StreamConfig, **given)
    allowed = ""
    if topic in TOPICS_OF_KAFKA:
        allowed = "a change topic: Kafka itself uses this topic"
    elif change_topic(topic_of_tables(topic_of_catalog(topic))) != topic:
        allowed = (
            f"a change topic: a name with {dead_letter_topic('')} at its end, or before a group, is"
            f" that of a topic for dead letters, {catalog_topic('')} that of a catalog, and"
            f" {tables_topic('')} that of definitions"
        )
    if allowed:
        remedy = "name the topic to which the changes are published"
        section.fault("topic", topic, allowed, remedy)
    section.finish()
    return stream


def _shared_topics(streams: Iterable[StreamConfig]) -> Iterator[ConfigError]:
    """An error for each stream whose topic another one has (REC-1)."""
    owners: dict[str, str] = {}
    for stream in streams:
        if (owner := owners.setdefault(stream.topic, stream.name)) != stream.name:
            yield setting_invalid(
                f"streams.{stream.name}.topic",
                f'"{stream.topic}"',
                f"a topic of its own. streams.{owner} already has this one",
                "Set another topic, or remove one of the streams",
            )


def _source(section: Section) -> SourceConfig:
    """The foreign topics of a stream (SRC-1)."""
    if not section.has("format"):
        section.missing("format", one_of(SourceFormat), 'write format = "debezium-json"')
    source = SourceConfig(
        format=section.choice("format", SourceFormat, SourceFormat.DEBEZIUM_JSON),
        transactions=section.text("transactions", "", _TOPIC_NAME),
        tables=section.choice("tables", SourceTables, SourceTables.FROM_SOURCE),
        on_truncate=section.choice("on_truncate", OnTruncate, OnTruncate.DELETE),
        on_missing_value=section.choice("on_missing_value", OnMissingValue, OnMissingValue.LETTER),
        **section.values(SourceConfig, _SOURCE_BY_HAND),
    )
    remedy = 'write topics = ["dbz.public.*"]'
    if not section.has("topics"):
        section.missing("topics", "the topics of the source, with * for any characters", remedy)
    elif not source.topics:
        section.fault("topics", "[]", "at least one topic", remedy)
    for pattern in source.topics:
        if not re.fullmatch(r"[-_.*?a-zA-Z0-9]{1,249}", pattern):
            allowed = "1 to 249 of the characters - _ . a-z A-Z 0-9, with * for any characters"
            section.fault("topics", pattern, allowed, remedy)
    if not source.format.is_debezium:
        for key in ("transactions", "heartbeats"):
            if value := getattr(source, key):
                section.fault(key, value, "only with a format of Debezium", f"remove {key}")
    section.finish()
    return source


_SOURCE_BY_HAND: Final = dict.fromkeys(
    ("format", "transactions", "tables", "on_truncate", "on_missing_value", "sections")
)


def _own_topics_of_sources(streams: Collection[StreamConfig]) -> Iterator[ConfigError]:
    """An error for each source that has a topic of lowmark: a bridge would read what it writes."""
    topics = [
        name_of(stream.topic)
        for stream in streams
        for name_of in (str, dead_letter_topic, ledger_topic, catalog_topic, tables_topic)
    ]
    for stream in streams:
        own = next((t for t in topics if stream.source and stream.source.has_topic(t)), None)
        if own is not None:
            yield setting_invalid(
                f"streams.{stream.name}.source.topics",
                f"a list with {own}",
                "topics that other programs write",
                "Name them more exactly, or give the stream another topic",
            )


def _without_registry(streams: Collection[StreamConfig]) -> Iterator[ConfigError]:
    for stream in streams:
        if stream.source is not None and stream.source.format.is_avro:
            name = f"streams.{stream.name}.source.format"
            allowed = "an Avro format with a section [registry]"
            remedy = "Add [registry] with the url of the registry that has the schemas"
            yield setting_invalid(name, f'"{stream.source.format}"', allowed, remedy)


def _tables(
    root: Section, streams: Mapping[str, StreamConfig]
) -> tuple[dict[str, TableDefinition], dict[str, StreamConfig]]:
    """The tables whose key is known, and the streams with the sections for their sources (SRC-5).
    The other tables wait for their source.
    """
    tables: dict[str, TableDefinition] = {}
    of_sources: dict[str, dict[str, Mapping[str, object]]] = {}
    for name, section in root.named("tables", NAME_PATTERN):
        stream = streams.get(str(section.raw("stream")))
        if stream is not None and stream.source is not None and stream.source.follows_tables:
            of_sources.setdefault(stream.name, {})[name] = section.content
            if section.raw("key") is None:
                continue
        if (table := _table(name, section, streams)) is not None:
            tables[name] = table
    with_sections = dict(streams)
    for name, sections in of_sources.items():
        source = streams[name].source
        assert source is not None
        with_sections[name] = replace(streams[name], source=replace(source, sections=sections))
    return tables, with_sections


def _table(
    name: str, section: Section, streams: Mapping[str, StreamConfig]
) -> TableDefinition | None:
    """The definition, checked as a whole (TBL-8). None: it has an error."""
    faults_before = len(section.faults)
    stream = section.text("stream", None, _STREAM)
    if stream and stream not in streams:
        remedy = nearest(stream, streams) or f"add a section [streams.{stream}]"
        section.fault("stream", stream, one_of(streams), remedy)
    source = section.text("source", name)
    key = _key(section.section("key")) if section.has("key") else _ROW_KEY
    remedy = f"write [[{section.path}.columns]] with name, family and type"
    columns = [_column(below) for below in section.sections("columns", remedy)]
    by_hand = {"name": name, "stream": stream, "source": source, "key": (), "columns": ()}
    settings = section.values(TableDefinition, by_hand)
    section.finish()
    section.faults += setting_faults(name, stream or None, source, settings["buckets"])
    section.faults += columns_faults(
        name,
        [part or None for part, _ in key.columns],
        [column.name for column in columns],
        [column[:3] for column in columns if column.name and column.family],
    )
    section.faults += beginning_faults(name, settings["presence_family"], settings["start_from"])
    if len(section.faults) > faults_before:
        return None
    parts = tuple(KeyPart(*part) for part in key.columns)
    made = {
        "key": Key(parts, key.form, key.delimiter),
        "columns": tuple(Column(**column._asdict()) for column in columns),
    }
    return TableDefinition(**{**by_hand, **made, **settings})


class _Key(NamedTuple):
    """The known parts of a key: names and types of its columns (None: not known), and its form."""

    columns: list[tuple[str, Any]]
    form: KeyForm
    delimiter: str


_ROW_KEY: Final = _Key([("row_key", DataType.BYTES)], KeyForm.ROW_KEY, DEFAULT_DELIMITER)


def _key(section: Section) -> _Key:
    """The key, from `form`, `delimiter` and `columns`.

    Without a form, the key is ordered, or delimited if there is a delimiter.
    """
    remedy = f"write [[{section.path}.columns]] with name and type"
    delimiter = section.text("delimiter", DEFAULT_DELIMITER, with_nul=True)
    default = KeyForm.DELIMITED if section.has("delimiter") else KeyForm.ORDERED
    form = section.spelt("form", KeyForm) or default
    types = key_types(form, delimiter)
    columns = [_part(below, types) for below in section.sections("columns", remedy)]
    faults: list[ConfigError] = []
    if section.has("columns"):
        faults += key_faults(columns, form, delimiter)
    else:
        section.missing("columns", f"1 to {MAX_KEY_COLUMNS} key columns", remedy)
    problems = {fault.problem for fault in faults}
    fit = [
        form
        for form in KeyForm
        if {fault.problem for fault in key_faults(columns, form, delimiter)} <= problems
    ]
    section.choice("form", KeyForm, default, offered=fit)
    section.finish()
    section.faults += [fault.at(section.path) for fault in faults]
    return _Key(columns, form, delimiter)


def _part(section: Section, types: Sequence[DataType]) -> tuple[str, DataType | None]:
    name = section.text("name", None, _KEY_COLUMN)
    type_ = section.choice("type", DataType, DataType.STRING, _TYPES_ELSEWHERE, types)
    section.finish()
    if name and (fault := name_fault("key column", name)):
        section.faults.append(fault.at(section.path))
    is_known = not section.has("type") or section.spelt("type", DataType)
    return name, type_ if is_known else None


_TYPES_ELSEWHERE: Final = {
    **dict.fromkeys(("DECIMAL", "NUMBER"), DataType.NUMERIC),
    **dict.fromkeys(("INT", "INTEGER", "BIGINT", "SMALLINT", "LONG", "INT32"), DataType.INT64),
    **dict.fromkeys(("DOUBLE", "FLOAT", "REAL"), DataType.FLOAT64),
    **dict.fromkeys(("TIMESTAMPTZ", "TIMESTAMP_TZ"), DataType.TIMESTAMP),
    **dict.fromkeys(("BINARY", "VARBINARY", "BLOB", "BYTEA"), DataType.BYTES),
    **dict.fromkeys(("BOOLEAN",), DataType.BOOL),
    **dict.fromkeys(("JSONB",), DataType.JSON),
}
"""The names that other databases use for the types."""


class _Column(NamedTuple):
    """The known parts of a column. None: not known."""

    name: Any
    family: Any
    qualifier: bytes
    type: Any
    encoding: Any
    default: str | None
    required: bool
    on_unreadable: OnUnreadable | None


def _column(section: Section) -> _Column:
    name = section.text("name", None, _COLUMN)
    family = section.text("family", None, _FAMILY)
    qualifier = _qualifier(section, name)
    spelt = section.spelt("encoding", Encoding)
    types = [type_ for type_ in DataType if spelt is not Encoding.BINARY or type_ in BINARY_TYPES]
    type_ = _type(section, types)
    encodings = [
        encoding
        for encoding in Encoding
        if encoding is Encoding.TEXT or type_ is None or type_ in BINARY_TYPES
    ]
    encoding = section.choice("encoding", Encoding, Encoding.TEXT, offered=encodings)
    if not section.has("type"):
        section.missing("type", one_of(types), 'write type = "STRING"')
    default, by_hand = _default(section), dict.fromkeys((*_Column._fields, "encoding"))
    by_hand.pop("required")
    required = section.values(Column, by_hand)["required"]
    on_unreadable = None
    if section.has("on_unreadable"):
        on_unreadable = section.choice("on_unreadable", OnUnreadable, OnUnreadable.LETTER)
    section.finish()
    known_encoding = spelt if section.has("encoding") else encoding
    column = _Column(
        *(name or None, family or None, qualifier, type_, known_encoding, default, required),
        on_unreadable,
    )
    section.faults += [fault.at(section.path) for fault in column_faults(*column[:-2])]
    return column


def _type(section: Section, types: Sequence[DataType]) -> ValueType | None:
    """The type of a column. None: it is missing or wrong. A type with parts is text with `<`."""
    text = section.raw("type")
    if not isinstance(text, str) or "<" not in text:
        section.choice("type", DataType, DataType.STRING, _TYPES_ELSEWHERE, types)
        return section.spelt("type", DataType)
    try:
        return type_of(text)
    except ConfigError as error:
        section.faults.append(error.at(f"{section.path}.type"))
        return None


def _default(section: Section) -> str | None:
    """The default of a column: text in the form of its type, or a value of TOML with that text."""
    value = section.raw("default")
    if isinstance(value, date):
        return value.isoformat()
    if value is None or isinstance(value, str | int | float):
        return None if value is None else written(value)
    section.fault("default", value, "text, a number, true, false or a date", 'write it in "quotes"')
    return None


def _qualifier(section: Section, name: str) -> bytes:
    """The qualifier: text as its UTF-8 bytes, or `{ base64 = "…" }` as in the JSON view (REC-22).
    The default is the column's name.
    """
    value = section.raw("qualifier")
    if value is None:
        return name.encode()
    if isinstance(value, str) and is_plain(value, with_nul=True):
        return value.encode()
    try:
        if isinstance(value, Mapping) and set(value) == {"base64"}:
            return base64.b64decode(str(value["base64"]), validate=True)
    except (binascii.Error, ValueError):
        pass
    section.fault("qualifier", value, 'text, or { base64 = "…" }', f'write qualifier = "{name}"')
    return b""

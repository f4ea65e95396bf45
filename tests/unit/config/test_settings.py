"""The configuration as people write it (OPS-1, OPS-7, TBL-7, TBL-8)."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.config.parse import parse
from connector.config.settings import (
    ConnectorConfig,
    KafkaConfig,
    RegistryConfig,
    StreamConfig,
    UnknownTables,
    VersionRetention,
)
from connector.errors import ConfigError
from connector.records.ordering import OrderBy
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType, Encoding
from connector.validation import Limits, RowImages, UnknownFields

SMALLEST = """
warehouse = "wh"
[kafka]
bootstrap_servers = "127.0.0.1:9092"
"""

WHOLE = (
    SMALLEST
    + """
security.protocol = "SASL_SSL"
"sasl.password" = "hunter2"
socket.keepalive.enable = true
metadata.max.age.ms = 5000

[registry]
url = "https://registry:8081/"
user = "me"
password = "hunter2"
auto_register = true

[streams.orders]
topic = "shop.orders"
partitions = ["p-0", "p-1"]
delete_retention = "3d"
changelog_retention = "0-0 30 0:0:0"
file_retention = "12h"
snapshot_retention = "3d"
log_retention = "2h"
stall_after = "90s"
max_clock_skew = 0
max_record_bytes = 1000
min_commit_timestamp = 2000-01-01
unknown_tables = "reject"
unknown_fields = "reject"
row_images = "reject"
max_dead_letter_ratio = 0.1
halt_on_first = true
trigger = "500ms"
max_offsets_per_trigger = 7
bound_buffer = "7m"

[tables.orders]
stream = "orders"
source = "shop.orders"
order = "change_sequence_number"
versions = "all"
max_staleness = "10m"
apply_every = "1h"
keep_unmapped = false
deletion_vectors = false
block_rows = false
[tables.orders.key]
delimiter = "|"
columns = [{ name = "shop", type = "STRING" }, { name = "number", type = "int64" }]
[[tables.orders.columns]]
name = "total"
family = "f"
qualifier = "t"
type = "NUMERIC"
[[tables.orders.columns]]
name = "seen"
family = "f"
qualifier = { base64 = "/w==" }
type = "TIMESTAMP"
encoding = "binary"
[[tables.orders.columns]]
name = "note"
family = "f"
type = "STRING"
"""
)


def config(text: str, **environment: str) -> ConnectorConfig:
    return parse(tomllib.loads(text), environment)


def error_of(text: str, **environment: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        config(text, **environment)
    return caught.value


def test_the_smallest_configuration_is_a_warehouse_and_a_broker() -> None:
    assert config(SMALLEST) == ConnectorConfig("wh", KafkaConfig("127.0.0.1:9092"))


def test_every_setting_arrives_where_it_belongs() -> None:
    """OPS-1, TBL-7."""
    made = config(WHOLE)
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.password": "hunter2",
        "socket.keepalive.enable": "true",
        "metadata.max.age.ms": "5000",
    }
    assert made.kafka.settings == settings
    assert made.registry == RegistryConfig(
        "https://registry:8081", "me", "hunter2", auto_register=True
    )
    stream = made.streams["orders"]
    assert (stream.topic, stream.partitions, stream.limits) == (
        "shop.orders",
        ("p-0", "p-1"),
        Limits(0, 1000, 946_684_800_000_000, UnknownFields.REJECT, RowImages.REJECT),
    )
    assert (stream.delete_retention_s, stream.changelog_retention_s, stream.stall_after_s) == (
        259_200,
        2_592_000,
        90,
    )
    assert stream.retention == VersionRetention(43_200, 259_200, 7_200)
    assert (stream.unknown_tables, stream.max_dead_letter_ratio, stream.halt_on_first) == (
        UnknownTables.REJECT,
        0.1,
        True,
    )
    assert (stream.bound_buffer_s, stream.buffer_s) == (420, 420)
    assert (stream.trigger_s, stream.max_offsets_per_trigger) == (0.5, 7)
    table = made.tables["orders"]
    assert (table.stream, table.source, table.max_staleness_s, table.apply_every_s) == (
        "orders",
        "shop.orders",
        600,
        3600,
    )
    assert (table.order, table.versions) == (OrderBy.SEQUENCE_NUMBER, Versions.ALL)
    assert (table.keep_unmapped, table.deletion_vectors, table.block_rows) == (False, False, False)
    assert table.key == Key(
        (KeyPart("shop", DataType.STRING), KeyPart("number", DataType.INT64)),
        KeyForm.DELIMITED,
        "|",
    )
    assert table.columns == (
        Column("total", "f", b"t", DataType.NUMERIC),
        Column("seen", "f", b"\xff", DataType.TIMESTAMP, Encoding.BINARY),
        Column("note", "f", b"note", DataType.STRING),
    )


def test_defaults_are_those_of_the_documents() -> None:
    """MRG-10, WMK-12, REC-14, REC-15, DLQ-5, JOB-4, TBL-7, TBL-15."""
    made = config(SMALLEST + "[streams.s]\n[tables.t]\nstream = 's'\n")
    stream, table = made.streams["s"], made.tables["t"]
    assert (
        stream.topic,
        stream.delete_retention_s,
        stream.changelog_retention_s,
        stream.stall_after_s,
    ) == ("s", 172_800, None, 300)
    assert (stream.limits, stream.unknown_tables, stream.max_dead_letter_ratio) == (
        Limits(300, 10_000_000),
        UnknownTables.KEEP,
        0.5,
    )
    assert stream.retention == VersionRetention(86_400, 86_400), "TBL-23"
    assert (table.source, table.keep_unmapped, table.deletion_vectors, table.max_staleness_s) == (
        "t",
        True,
        True,
        None,
    )
    assert (stream.bound_buffer_s, stream.buffer_s) == (None, 4), "JOB-4: twice the trigger"
    assert config(SMALLEST + "[streams.s]\ntrigger = '250ms'\n").streams["s"].buffer_s == 1
    assert table.key == Key((KeyPart("row_key", DataType.BYTES),), KeyForm.ROW_KEY)
    assert (stream, table) == (
        StreamConfig(name="s", topic="s"),
        TableDefinition(name="t", stream="s", source="t", key=table.key),
    )


@pytest.mark.parametrize(
    ("given", "file_s", "snapshot_s"),
    [
        ("file_retention = '2h'", 7_200, 7_200),
        ("file_retention = '5m'", 300, 3_600),
        ("file_retention = '5m'\nsnapshot_retention = '2m'", 300, 120),
        ("snapshot_retention = '7d'", 86_400, 604_800),
    ],
)
def test_cuts_are_kept_as_long_as_files_and_an_hour_at_least_by_default(
    given: str, file_s: int, snapshot_s: int
) -> None:
    """TBL-23: what is written holds, however short."""
    stream = config(f"{SMALLEST}[streams.s]\n{given}\n").streams["s"]
    assert stream.retention == VersionRetention(file_s, snapshot_s)
    assert stream.retention.table_file_s >= snapshot_s


@pytest.mark.parametrize(
    ("given", "log_s", "file_s"),
    [
        ("", 3_600, 90_000),
        ("log_retention = '2d'", 172_800, 172_800),
        ("log_retention = '1m'", 60, 90_000),
        ("file_retention = '5m'\nsnapshot_retention = '5m'", 3_600, 3_600),
        ("file_retention = '5m'\nsnapshot_retention = '5m'\nlog_retention = '5m'", 300, 330),
    ],
)
def test_every_version_of_a_table_is_kept_for_an_hour_by_default(
    given: str, log_s: int, file_s: int
) -> None:
    """TBL-23, ENG-8: VACUUM keeps the files of all that can be read."""
    retention = config(f"{SMALLEST}[streams.s]\n{given}\n").streams["s"].retention
    assert (retention.log_s, retention.table_file_s) == (log_s, file_s)


@pytest.mark.parametrize("name", ["file_retention", "snapshot_retention", "log_retention"])
def test_old_versions_are_kept_for_a_minute_at_least(name: str) -> None:
    """TBL-23: a batch, an apply or a read that takes longer would lose its files."""
    with pytest.raises(ConfigError, match=rf"streams\.s\.{name}.*at least 60 s"):
        config(f"{SMALLEST}[streams.s]\n{name} = '59s'\n")


@pytest.mark.parametrize(
    ("key", "form"),
    [
        ("columns = [{ name = 'id', type = 'STRING' }]", KeyForm.ORDERED),
        ("columns = [{ name = 'id', type = 'BYTES' }]", KeyForm.ORDERED),
        ("columns = [{ name = 'id', type = 'INT64' }]", KeyForm.ORDERED),
        ("form = 'row_key'\ncolumns = [{ name = 'id', type = 'STRING' }]", KeyForm.ROW_KEY),
        ("delimiter = '#'\ncolumns = [{ name = 'id', type = 'STRING' }]", KeyForm.DELIMITED),
        ("form = 'delimited'\ncolumns = [{ name = 'id', type = 'STRING' }]", KeyForm.DELIMITED),
        ("columns = [{ name = 'a' }, { name = 'b' }]", KeyForm.ORDERED),
    ],
)
def test_a_key_is_ordered_unless_a_form_or_a_delimiter_is_set(key: str, form: KeyForm) -> None:
    """TBL-7: so a part can have any value."""
    assert (
        config(f"{SMALLEST}[streams.s]\n[tables.t]\nstream = 's'\n[tables.t.key]\n{key}\n")
        .tables["t"]
        .key.form
        is form
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["warehouse is not set", "[kafka] is not set"]),
        (
            "warehouse = 'wh'\n[kafka]\n",
            ["kafka.bootstrap_servers is not set", "Write bootstrap_servers ="],
        ),
        ("warehouse = 'wh'\nkafka = 1\n", ["kafka is 1", "a section"]),
        (
            "warehouse = 1\n[kafka]\nbootstrap_servers = 'h:1'\n",
            ["warehouse is 1", "a path or a URI"],
        ),
        (
            "warehouse = 'wh'\n[kafka]\nbootstrap_servers = 'localhost'\n",
            ["kafka.bootstrap_servers", "host:port"],
        ),
        (
            SMALLEST + "'bootstrap.servers' = 'h:1'\n",
            ["kafka.bootstrap.servers", "bootstrap_servers"],
        ),
        (SMALLEST + "ssl = []\n", ["kafka.ssl is []"]),
        (SMALLEST + "[strems.s]\n", ["The section strems is not known", "Did you mean streams?"]),
        (
            SMALLEST + "[streams.s]\ndelete_retenton = '1d'\n",
            ["streams.s.delete_retenton", "Did you mean delete_retention?"],
        ),
        (
            SMALLEST + "[streams.s]\nstall_after = '5 minutes'\n",
            ["streams.s.stall_after", '"5 minutes"', "10m"],
        ),
        (
            SMALLEST + "[streams.s]\nunknown_tables = 'drop'\n",
            ["streams.s.unknown_tables", "keep, reject"],
        ),
        (
            SMALLEST + "[streams.s]\nunknown_fields = 'keep'\n",
            ["streams.s.unknown_fields", "keep-and-count, reject"],
        ),
        (
            SMALLEST + "[streams.s]\nrow_images = 'no'\n",
            ["streams.s.row_images", "count, reject"],
        ),
        (
            SMALLEST + "[streams.s]\n[tables.t]\nstream = 's'\n[tables.t.key]\nxyzzy = 1\n",
            ["tables.t.key.xyzzy", "Remove it, or use one of: columns, delimiter, form"],
        ),
        (
            SMALLEST + "[streams.s]\n[tables.t]\nstream = 's'\n[[tables.t.columns]]\nxyzzy = 1\n",
            ["xyzzy", "default, encoding, family, name, on_unreadable, qualifier, required, type"],
        ),
        (SMALLEST + "[streams.s]\ntopic = '..'\n", ["streams.s.topic"]),
        (SMALLEST + "[streams.s]\ntopic = 'a b'\n", ["streams.s.topic"]),
        (SMALLEST + "[streams.s]\ntopic = 'a.dead-letters'\n", ["streams.s.topic"]),
        (SMALLEST + "[streams.s]\ntopic = 'a.write-streams'\n", ["streams.s.topic"]),
        (SMALLEST + "[streams.s]\ntopic = 'a.tables'\n", ["streams.s.topic"]),
        (SMALLEST + "[streams.'a/../b']\n", ["streams.a/../b", "Rename"]),
        (
            SMALLEST + "[streams.a]\ntopic = 't'\n[streams.b]\ntopic = 't'\n",
            ["streams.b.topic", "streams.a"],
        ),
        (SMALLEST + "[tables.t]\n", ["tables.t.stream is not set"]),
        (
            SMALLEST + "[streams.orders]\n[tables.t]\nstream = 'order'\n",
            ["tables.t.stream", "Did you mean orders?"],
        ),
        (
            SMALLEST + "[streams.orders]\n[tables.t]\nstream = 'x'\n",
            ["tables.t.stream", "allowed: orders", "Add a section [streams.x]"],
        ),
        (SMALLEST + "[registry]\n", ["registry.url is not set"]),
        (SMALLEST + "[registry]\nurl = 'ftp://x'\n", ["registry.url"]),
        (
            SMALLEST + "[registry]\nurl = 'http://x'\nuser = 'u'\nbearer_token = 'T0K'\n",
            ["registry.bearer_token", "***"],
        ),
    ],
)
def test_an_error_names_the_wrong_setting_and_the_remedy(text: str, words: list[str]) -> None:
    """OPS-1: the setting, its value, what is allowed, and what to do."""
    message = str(error_of(text))
    for word in words:
        assert word in message


TABLE = SMALLEST + "[streams.s]\n[tables.t]\nstream = 's'\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("order = 'sequence_number'\n", ["tables.t.order", "change_sequence_number"]),
        ("versions = 'both'\n", ["tables.t.versions", "all, latest"]),
        ("apply_every = '500ms'\n", ['tables.t.apply_every is "500ms"', 'apply_every = "1s"']),
        ("apply_every = 0\n", ["tables.t.apply_every is 0", "of at least 1 s"]),
        (
            "max_stalenes = '1m'\n",
            ["The setting tables.t.max_stalenes is not known", "Did you mean max_staleness?"],
        ),
        ("columns = 1\n", ["tables.t.columns", "[[tables.t.columns]]"]),
        ("key = 'id'\n", ["tables.t.key", "a section"]),
        ("[tables.t.key]\n", ["tables.t.key.columns is not set"]),
        (
            "[tables.t.key]\nform = 'ordered'\ndelimiter = '|'\ncolumns = [{ name = 'a' }]\n",
            ["tables.t.key", "delimiter", "Remove the delimiter"],
        ),
        (
            "[tables.t.key]\ncolumns = [{ name = 'a', kind = 'x' }]\n",
            ["tables.t.key.columns[0].kind"],
        ),
        ("buckets = 3\n", ["tables.t.buckets is 3", "a power of two from 1 to 4096"]),
        ("buckets = 8192\n", ["tables.t.buckets", "8192"]),
        (
            "[tables.t.key]\ncolumns = [{ type = 'STRING' }]\n",
            ["tables.t.key.columns[0].name is not set", 'Write name = "id"'],
        ),
        (
            "[tables.t.key]\ncolumns = [{ name = '_a' }, { name = '_b' }]\n",
            ["tables.t.key.columns[0]", "_a", "columns[1]", "_b"],
        ),
        (
            "[[tables.t.columns]]\nname = 'a'\ntype = 'INT64'\n",
            ["tables.t.columns[0].family is not set", "Write family = "],
        ),
        (
            "[tables.t.key]\ncolumns = [{ name = 'a', type = 'FLOAT64' }]\n",
            ["tables.t.key", "FLOAT64"],
        ),
        (
            "[[tables.t.columns]]\nname = 'a'\nfamily = 'f'\n",
            ["tables.t.columns[0].type is not set", "INT64"],
        ),
        (
            "[[tables.t.columns]]\nname = 'a'\nfamily = 'f'\ntype = 'INT'\n",
            ["tables.t.columns[0].type", "Did you mean INT64?"],
        ),
        (
            "[[tables.t.columns]]\nname = 'a'\nfamily = 'f'\ntype = 'INT64'\nkind = 'x'\n",
            ["tables.t.columns[0].kind"],
        ),
        (
            "[[tables.t.columns]]\nname = '_a'\nfamily = 'f'\ntype = 'INT64'\n",
            ["tables.t.columns[0]", "_a"],
        ),
        (
            "[[tables.t.columns]]\nname = 'a'\nfamily = 'f'\ntype = 'INT64'\nqualifier = 1\n",
            ["tables.t.columns[0].qualifier"],
        ),
        (
            (
                "[[tables.t.columns]]\nname = 'a'\nfamily = 'f'\ntype = 'INT64'\nqualifier = {"
                " base64 = '!' }\n"
            ),
            ["tables.t.columns[0].qualifier"],
        ),
        (
            "[[tables.t.columns]]\nname = 'a'\nfamily = 'f'\ntype = 'JSON'\nencoding = 'binary'\n",
            ["tables.t.columns[0]", "JSON"],
        ),
    ],
)
def test_an_invalid_table_is_refused_with_the_path_of_the_setting(
    text: str, words: list[str]
) -> None:
    """TBL-8, SCL-6."""
    message = str(error_of(TABLE + text))
    for word in words:
        assert word in message


def test_several_errors_are_reported_together() -> None:
    message = str(
        error_of(SMALLEST + "[streams.s]\ntrigger = 1\nfoo = 2\n[tables.t]\nstream = 'x'\n")
    )
    assert "3 settings are wrong" in message
    assert all(
        name in message for name in ("streams.s.trigger", "streams.s.foo", "tables.t.stream")
    )


def test_the_environment_outranks_the_document_and_reaches_kafka_settings() -> None:
    """OPS-1, OPS-7."""
    environment = {
        "CONNECTOR__KAFKA__BOOTSTRAP_SERVERS": "other:9",
        "CONNECTOR__KAFKA__SASL_PASSWORD": "from-environment",
        "CONNECTOR__KAFKA__SASL_USERNAME": "me",
        "CONNECTOR__STREAMS__ORDERS__TRIGGER": "9s",
        "CONNECTOR__TABLES__ORDERS__MAX_STALENESS": "1h",
    }
    made = config(WHOLE, **environment)
    assert made.kafka.bootstrap_servers == "other:9"
    assert made.kafka.settings["sasl.password"] == "from-environment"
    assert made.kafka.settings["sasl.username"] == "me"
    assert type(made.kafka.settings["sasl.username"]) is str
    assert (made.streams["orders"].trigger_s, made.tables["orders"].max_staleness_s) == (9, 3600)


def test_the_environment_alone_is_a_configuration() -> None:
    made = parse({}, {"CONNECTOR__WAREHOUSE": "wh", "CONNECTOR__KAFKA__BOOTSTRAP_SERVERS": "h:1"})
    assert made == ConnectorConfig("wh", KafkaConfig("h:1"))


def test_secrets_never_show() -> None:
    """OPS-1: in no repr, and in no error."""
    assert "hunter2" not in repr(config(WHOLE))
    assert "hunter2" not in str(error_of(SMALLEST + "[registry]\nurl = 'http://me:hunter2@host'\n"))
    assert "hunter2" not in str(
        error_of(SMALLEST + "[registry]\nurl = 'http://h'\npasword = 'hunter2'\n")
    )
    assert "hunter2" not in str(
        error_of(SMALLEST + "[registry]\nurl = 'http://h'\npassword = ['hunter2']\n")
    )


def test_the_subject_of_a_topic_is_confluents() -> None:
    assert RegistryConfig("http://h").subject("orders") == "orders-value"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "type", "columns", "key", "topic", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
names = st.sampled_from(
    ["warehouse", "kafka", "registry", "streams", "tables", "spark", "storage", "conf", "x"]
)


@given(st.dictionaries(names, values | st.dictionaries(names, values, max_size=3), max_size=5))
def test_any_document_is_a_configuration_or_a_config_error(document: dict[str, object]) -> None:
    try:
        parse(document, {})
    except ConfigError as error:
        assert error.problem


def test_a_qualifier_that_is_not_utf_8_is_named() -> None:
    """TBL-8: an environment variable can have a lone surrogate."""
    document = tomllib.loads(
        TABLE + "[[tables.t.columns]]\nname = 'a'\nfamily = 'f'\ntype = 'BYTES'"
    )
    document["tables"]["t"]["columns"][0]["qualifier"] = "\ud800"
    with pytest.raises(ConfigError, match=r"tables\.t\.columns\[0\]\.qualifier"):
        parse(document, {})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("DECIMAL(10,2)", "NUMERIC"), ("bigint", "INT64"), ("double", "FLOAT64"), ("jsonb", "JSON")],
)
def test_a_type_of_other_databases_is_answered_with_ours(theirs: str, ours: str) -> None:
    """OPS-1: every error says what to do."""
    column = f"[[tables.t.columns]]\nname = 'a'\nfamily = 'f'\ntype = '{theirs}'\n"
    assert f"Did you mean {ours}?" in str(error_of(TABLE + column))


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("", None),
        ("incomplete_after = '1h'", None),
        ("incomplete_transactions = 'count'", None),
        ("incomplete_transactions = 'wait'", 90),
        ("incomplete_transactions = 'wait'\nincomplete_after = '1h'", 3_600),
    ],
)
def test_how_long_tables_wait_for_a_transaction(text: str, wait_s: int | None) -> None:
    """ING-2: as long as for a stalled stream, if nothing is said."""
    document = tomllib.loads(f"{SMALLEST}[streams.s]\nstall_after = '90s'\n{text}\n")
    assert parse(document, {}).streams["s"].wait_s == wait_s


@pytest.mark.parametrize(
    ("type_", "given", "default"),
    [
        ("STRING", '"n/a"', "n/a"),
        ("INT64", "7", "7"),
        ("NUMERIC", "1.5", "1.5"),
        ("BOOL", "true", "true"),
        ("DATE", "2026-01-31", "2026-01-31"),
        ("TIMESTAMP", "2026-01-31T09:00:00Z", "2026-01-31T09:00:00+00:00"),
    ],
)
def test_a_column_has_a_default_and_may_be_required(type_: str, given: str, default: str) -> None:
    """EVO-4: the default is text, or a value of TOML that has this text."""
    column = f"name = 'a'\nfamily = 'f'\ntype = '{type_}'\nrequired = true\ndefault = {given}\n"
    text = f"{SMALLEST}[streams.s]\n[tables.t]\nstream = 's'\n[[tables.t.columns]]\n{column}"
    (made,) = config(text).tables["t"].columns
    assert (made.required, made.default) == (True, default)
    bad = "'[1]'" if type_ != "STRING" else "[1]"
    with pytest.raises(ConfigError, match=r"columns\[0\].*default.* is '?\[1\]'?\."):
        config(text.replace(given, bad))

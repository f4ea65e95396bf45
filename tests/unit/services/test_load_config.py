"""From files and environment to a configuration (OPS-1, OPS-7)."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

import pytest

from connector.config.settings import KafkaConfig, find_stream
from connector.errors import ConfigError
from connector.kafka.topics import create_topic
from connector.services.load_config import load_config

TEXT = 'warehouse = "wh"\n[kafka]\nbootstrap_servers = "127.0.0.1:9092"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "connector.toml").write_text(TEXT)
    return tmp_path / "connector.toml"


def test_a_relative_warehouse_is_relative_to_the_file(file: Path) -> None:
    assert load_config(file, {}).warehouse == str(file.parent / "wh")


@pytest.mark.parametrize("warehouse", ["s3a://bucket/wh", "file:///srv/wh"])
def test_a_uri_stays_as_it_is(file: Path, warehouse: str) -> None:
    assert load_config(file, {"CONNECTOR__WAREHOUSE": warehouse}).warehouse == warehouse


def test_an_absolute_warehouse_stays(file: Path) -> None:
    assert load_config(file, {"CONNECTOR__WAREHOUSE": "/srv/wh"}).warehouse == "/srv/wh"


def test_without_a_name_the_file_of_this_folder_counts(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-1."""
    monkeypatch.chdir(file.parent)
    assert load_config(None, {}).warehouse == str(file.parent / "wh")


def test_the_environment_alone_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"CONNECTOR__WAREHOUSE": "wh", "CONNECTOR__KAFKA__BOOTSTRAP_SERVERS": "h:1"}
    assert load_config(None, given).warehouse == str(tmp_path / "wh")


def test_a_secret_may_stand_in_a_file_that_a_variable_names(file: Path) -> None:
    """OPS-7: secrets from files or environment."""
    (file.parent / "secret").write_text("hunter2\n")
    given = {"CONNECTOR__KAFKA__SASL_PASSWORD_FILE": str(file.parent / "secret")}
    assert load_config(file, given).kafka.settings == {"sasl.password": "hunter2"}


def test_files_may_begin_with_a_byte_order_mark(file: Path) -> None:
    """OPS-1: editors of Windows write one."""
    without = load_config(file, {})
    file.write_bytes(BOM_UTF8 + file.read_bytes())
    assert load_config(file, {}) == without
    (file.parent / "secret").write_bytes(BOM_UTF8 + b"p\n")
    given = {"CONNECTOR__KAFKA__SASL_PASSWORD_FILE": str(file.parent / "secret")}
    assert load_config(file, given).kafka.settings["sasl.password"] == "p"


def test_the_error_of_a_missing_secret_file_names_its_variable(file: Path) -> None:
    with pytest.raises(ConfigError, match="CONNECTOR__KAFKA__SASL_PASSWORD_FILE"):
        load_config(file, {"CONNECTOR__KAFKA__SASL_PASSWORD_FILE": "/nowhere"})


def test_the_error_without_a_configuration_has_the_option_that_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="the path of your configuration"):
        load_config(None, {})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"warehouse = wh", "line 1"),
        (b"\xff", "UTF-8"),
        (b"a = 1\na = 2", "overwrite"),
        (b"[tables.t]\n[tables.t]\n", "Tables of two streams need two names"),
    ],
)
def test_the_error_of_a_broken_document_has_the_line(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"c\.toml") as caught:
        load_config(tmp_path / "c.toml", {})
    assert words in str(caught.value)


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, {})


def test_a_stream_is_found_by_its_name_or_its_topic(file: Path) -> None:
    file.write_text(TEXT + "[streams.orders]\ntopic = 'shop.orders'\n[streams.users]\n")
    config = load_config(file, {})
    assert find_stream(config, "orders") is find_stream(config, "shop.orders")
    for typo, remedy in (
        ("order", "did you mean orders?"),
        ("shop.ordres", "did you mean shop.orders?"),
        ("x", "Name one of them"),
    ):
        with pytest.raises(ConfigError) as caught:
            find_stream(config, typo)
        assert caught.value.remedy == remedy
    with pytest.raises(ConfigError, match="orders, users"):
        find_stream(config, None)


def test_the_only_stream_needs_no_name(file: Path) -> None:
    file.write_text(TEXT + "[streams.orders]\n")
    assert find_stream(load_config(file, {}), None).name == "orders"


DIGITS, HEX = "9" * 5000, "0x" + "f" * 5000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{TEXT}[streams.s]\nmax_record_bytes = {DIGITS}\n", "cannot be read as a TOML document"),
        (f"x = {'[' * 20_000}{']' * 20_000}\n{TEXT}", "nested too deeply"),
        (f"x{'.x' * 6_000} = 1\n{TEXT}", "nested too deeply"),
        (f"x = {'{a=' * 20_000}1{'}' * 20_000}\n{TEXT}", "nested too deeply"),
        (f"{TEXT}[streams.s]\nmax_record_bytes = {HEX}\n", "an integer of 20000 bits"),
        (f"{TEXT}[streams.s]\nstall_after = {HEX}\n", "an integer of 20000 bits"),
        (f"{TEXT}[streams.s]\nunknown_tables = {HEX}\n", "an integer of 20000 bits"),
        (f"{TEXT}[streams.s]\nmin_commit_timestamp = {HEX}\n", "an integer of 20000 bits"),
        (f"{TEXT}[streams.s]\nmax_dead_letter_ratio = {HEX}\n", "an integer of 20000 bits"),
        (f"{TEXT}[streams.s]\nstall_after = '{DIGITS}s'\n", "stall_after"),
        (TEXT.replace("wh", r"w\u0000h"), r"warehouse is .w\\x00h"),
        (TEXT.replace('"wh"', '"~nobody-of-this-name/wh"'), "cannot be used"),
        (f'{TEXT}"ssl.ca.location" = "a\\u0000b"\n', "ssl.ca.location is"),
        (f'{TEXT}[registry]\nurl = "http://h/\\u0000"\n', "registry.url is"),
        (f'{TEXT}[registry]\nurl = "http://h"\nca_location = "\\u0000"\n', "ca_location is"),
    ],
)
def test_a_hostile_file_is_an_error_that_names_the_setting(
    file: Path, text: str, problem: str
) -> None:
    """OPS-1."""
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_config(file, {})


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b", "x" * 5000])
def test_a_path_that_no_file_can_have_is_an_error(path: str) -> None:
    """OPS-1."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    assert caught.value.code in ("CONFIG_UNREADABLE", "CONFIG_MISSING")


@pytest.mark.parametrize("value", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize(
    "name",
    [
        "WAREHOUSE",
        "KAFKA__SASL_PASSWORD",
        "KAFKA__SASL_PASSWORD_FILE",
        "KAFKA__BOOTSTRAP_SERVERS",
        "REGISTRY__URL",
        "REGISTRY__PASSWORD",
        "REGISTRY__TIMEOUT",
        "STREAMS__S__TOPIC",
        "STREAMS__S__STALL_AFTER",
        "STREAMS__S__MAX_RECORD_BYTES",
        "STREAMS__S__UNKNOWN_TABLES",
        "NO__SUCH__NAME",
    ],
)
def test_a_variable_with_characters_that_are_not_allowed_is_an_error(
    file: Path, name: str, value: str
) -> None:
    """OPS-1, OPS-7: the error names the setting, and never the value of a secret."""
    with pytest.raises(ConfigError) as caught:
        load_config(file, {f"CONNECTOR__{name}": value})
    assert "a\\" not in str(caught.value) or not name.endswith("PASSWORD")
    str(caught.value).encode()


@pytest.mark.parametrize("topic", ["x.dead-letters", "x.dead-letters.ledger", ".dead-letters"])
def test_a_topic_of_dead_letters_is_not_a_change_topic(file: Path, topic: str) -> None:
    """REC-1, DLQ-1: the commands for dead letters would take it for the topic of another stream."""
    file.write_text(f'{TEXT}[streams.s]\ntopic = "{topic}"\n')
    with pytest.raises(ConfigError, match="a change topic"):
        load_config(file, {})
    file.write_text(f'{TEXT}[streams.s]\ntopic = "{topic}x"\n')
    assert load_config(file, {}).streams["s"].topic == f"{topic}x"


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_a_topic_of_kafka_is_not_a_change_topic(file: Path, topic: str) -> None:
    """REC-1, OPS-1."""
    file.write_text(f'{TEXT}[streams.s]\ntopic = "{topic}"\n')
    with pytest.raises(ConfigError, match="Kafka itself uses this topic"):
        load_config(file, {})
    with pytest.raises(ConfigError, match="uses this one"):
        create_topic(KafkaConfig("127.0.0.1:1"), topic, kafka_partitions=1)


def test_a_topic_of_dead_letters_is_not_created_as_a_change_topic() -> None:
    """DLQ-1."""
    with pytest.raises(ConfigError, match="uses this one"):
        create_topic(KafkaConfig("127.0.0.1:1"), "x.dead-letters", kafka_partitions=1)

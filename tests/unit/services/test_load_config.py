"""From files and environment to a configuration (OPS-1, OPS-7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.config.settings import find_stream
from connector.errors import ConfigError
from connector.services.load_config import load_config

TEXT = 'warehouse = "wh"\n[kafka]\nbootstrap_servers = "127.0.0.1:9092"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "connector.toml").write_text(TEXT)
    return tmp_path / "connector.toml"


def test_a_relative_warehouse_lies_beside_the_file(file: Path) -> None:
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


def test_a_missing_file_of_a_secret_is_said_by_its_variable(file: Path) -> None:
    with pytest.raises(ConfigError, match="CONNECTOR__KAFKA__SASL_PASSWORD_FILE"):
        load_config(file, {"CONNECTOR__KAFKA__SASL_PASSWORD_FILE": "/nowhere"})


def test_no_configuration_is_an_error_that_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="the path of your configuration"):
        load_config(None, {})


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"warehouse = wh", "line 1"), (b"\xff", "UTF-8"), (b"a = 1\na = 2", "overwrite")],
)
def test_a_broken_document_is_named_with_the_place(
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
    with pytest.raises(ConfigError, match="did you mean orders"):
        find_stream(config, "order")
    with pytest.raises(ConfigError, match="orders, users"):
        find_stream(config, None)


def test_the_only_stream_needs_no_name(file: Path) -> None:
    file.write_text(TEXT + "[streams.orders]\n")
    assert find_stream(load_config(file, {}), None).name == "orders"

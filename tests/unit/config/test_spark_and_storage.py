"""Where Spark runs, and how an object store is reached (SCL-1, STO-1, STO-7)."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from connector import warehouse as places
from connector.config.parse import parse
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.config.spark_settings import SparkConfig
from connector.config.storage import StorageConfig, is_local, is_s3, warehouse_fault
from connector.errors import ConfigError
from connector.lake.jobs import History
from connector.lake.plain_table import open_table
from connector.services.load_config import load_config
from connector.state.jobs import Job, JobKind
from connector.text import is_secret

KAFKA = '[kafka]\nbootstrap_servers = "127.0.0.1:9092"\n'
KEYS = {"access_key": "the-key", "secret_key": "hunter2", "session_token": "hunter3"}


def config(text: str, warehouse: str = "wh", **environment: str) -> ConnectorConfig:
    return parse(tomllib.loads(f'warehouse = "{warehouse}"\n{KAFKA}{text}'), environment)


def error_of(text: str, warehouse: str = "wh") -> str:
    with pytest.raises(ConfigError) as caught:
        config(text, warehouse)
    return str(caught.value)


def test_without_a_section_spark_is_local_and_the_store_is_that_of_the_environment() -> None:
    made = config("")
    assert made.spark.settings() == {"spark.master": "local[*]", "spark.driver.memory": "2g"}
    assert made.storage.spark_settings() == made.storage.lake_options() == {}


def test_each_key_reaches_spark() -> None:
    made = config("""
[spark]
master = "spark://host:7077"
driver_memory = "4g"
executor_memory = "1200m"
executor_cores = 2
max_parallel_applies = 4
extra_jars = ["/opt/a.jar"]
[spark.conf]
"spark.executor.instances" = 3
spark.network.timeout = "60s"
spark.speculation = false
""").spark
    assert made.extra_jars == ("/opt/a.jar",)
    assert made.max_parallel_applies == 4
    assert not made.is_local
    assert made.settings() == {
        "spark.master": "spark://host:7077",
        "spark.driver.memory": "4g",
        "spark.executor.memory": "1200m",
        "spark.executor.cores": "2",
        "spark.executor.instances": "3",
        "spark.network.timeout": "60s",
        "spark.speculation": "false",
    }


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,3]", "local[*]"])
def test_a_local_master_is_one_process(master: str) -> None:
    assert config(f'[spark]\nmaster = "{master}"').spark.is_local


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('"spark.sql.extensions" = "a.B"', "Delta's extension alone"),
        ('"spark.speculation" = true', "would write the same files"),
        ('"spark.hadoop.fs.s3a.create.performance" = true', "must never replace another one"),
        ('"spark.hadoop.fs.s3a.create.conditional.enabled" = false', "must never replace another"),
        ('"spark.delta.logStore.s3a.impl" = "a.B"', "must never replace another one"),
        ('"spark.delta.logStore.class" = "a.B"', "must never replace another one"),
        ('"spark.databricks.delta.vacuum.parallelDelete.enabled" = true', "lowmark's own rules"),
        ('"spark.jars" = "a.jar"', "Write extra_jars there"),
        ('"spark.master" = "yarn"', "Write master there"),
        ('"fs.s3a.endpoint" = "x"', "begins with spark."),
        ('"spark.x" = ["a"]', "text, a number, true or false"),
    ],
)
def test_a_setting_on_which_a_promise_rests_is_refused(setting: str, words: str) -> None:
    assert words in error_of(f"[spark.conf]\n{setting}\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('master = "cluster"', "spark://host:7077"),
        ('driver_memory = "much"', "for example 2g"),
        ("executor_cores = 0", "from 1 to 1024"),
        ('cores = "2"', "The setting spark.cores is not known"),
    ],
)
def test_a_wrong_key_is_named_with_its_remedy(text: str, words: str) -> None:
    assert words in error_of(f"[spark]\n{text}\n")


def test_one_set_of_names_reaches_both_clients_of_the_store() -> None:
    made = StorageConfig(endpoint="http://127.0.0.1:8333", **KEYS)
    assert made.spark_settings() == {
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:8333",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": "the-key",
        "spark.hadoop.fs.s3a.secret.key": "hunter2",
        "spark.hadoop.fs.s3a.session.token": "hunter3",
    }
    assert made.lake_options() == {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:8333",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        "AWS_ACCESS_KEY_ID": "the-key",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AWS_SESSION_TOKEN": "hunter3",
    }


def test_amazons_own_store_needs_a_region_at_most() -> None:
    made = config('[storage]\nregion = "eu-central-1"\n').storage
    assert made.spark_settings() == {"spark.hadoop.fs.s3a.endpoint.region": "eu-central-1"}
    assert made.lake_options() == {"AWS_REGION": "eu-central-1"}


def test_options_of_other_stores_are_passed_on() -> None:
    """STO-7."""
    made = config('[storage.options]\nazure_storage_account_name = "me"\n').storage
    assert made.lake_options() == {"azure_storage_account_name": "me"}


def test_no_secret_shows() -> None:
    """OPS-1: in no repr, and in no error; a secret comes from a variable or a file."""
    made = config("", CONNECTOR__STORAGE__SECRET_KEY="hunter2", CONNECTOR__STORAGE__ACCESS_KEY="k")
    assert made.storage.secret_key == "hunter2"
    assert "hunter" not in repr(StorageConfig(**KEYS, options={"azure_key": "hunter4"}))
    assert "hunter" not in repr(SparkConfig(conf={"spark.ssl.keyPassword": "hunter2"}))
    assert "hunter" not in repr(made)
    for text in (
        '[storage]\nsecret_key = "hunter2"\n',
        '[storage]\nendpoint = "http://me:hunter2@host"\n',
        "[storage]\nsecret_key = ['hunter2']\n",
    ):
        assert "hunter" not in error_of(text)
    assert "hunter" not in error_of("", "s3a://me:hunter2@bucket/wh")


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.encryption.key",
        "spark.hadoop.fs.azure.account.key.me.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.box.me.blob.core.windows.net",
        "spark.hadoop.fs.gs.auth.service.account.private.key",
        "azure_storage_account_key",
        "azure_storage_sas_key",
        "ssl.key.pem",
        "ssl.key.password",
        "access_key",
    ],
)
def test_a_secret_of_a_store_is_known_by_its_name(name: str) -> None:
    """SCL-1, STO-1: it is in no command line of a JVM, and in no text."""
    assert is_secret(name)
    assert "hunter" not in repr(SparkConfig(conf={name: "hunter2"}))


@pytest.mark.parametrize(
    "name",
    ["ssl.key.location", "sasl.mechanism", "spark.hadoop.fs.s3a.endpoint", "key", "merge_key"],
)
def test_a_name_without_a_secret_is_shown(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("written", "spelled"),
    [
        ("s3://bucket/wh/", "s3a://bucket/wh"),
        ("s3a://bucket", "s3a://bucket"),
        ("abfss://box@account.dfs.core.windows.net/wh", None),
        ("wh/", None),
    ],
)
def test_a_warehouse_is_spelled_as_spark_knows_it(written: str, spelled: str | None) -> None:
    assert config("", written).warehouse == (spelled or written)
    assert is_s3(written) == is_s3(spelled or written) == written.startswith("s3")
    assert ConnectorConfig(written, KafkaConfig("h:1")).warehouse == (spelled or written)
    assert is_local(written) == ("://" not in written)


@pytest.mark.parametrize("written", ["s3://", "s3a:///wh", "s3://UPPER/wh", "s3a://b/wh?x=1"])
def test_a_uri_without_a_bucket_is_refused(written: str) -> None:
    assert "s3a://bucket/prefix" in error_of("", written)


@pytest.mark.parametrize(
    "path",
    ["a//b", "/a", "a%20b", "100%", r"a\\b", "a/../b", "a/.", "..", "a*", "{a}", r"a\tb", "a^b"],
)
def test_a_path_that_two_clients_read_differently_is_refused(path: str) -> None:
    """STO-1: Spark and deltalake would use different objects."""
    for scheme in ("s3", "s3a"):
        assert "a path without " in error_of("", f"{scheme}://bucket/{path}")


@pytest.mark.parametrize("path", ["a b", "ü", "a+b", "A=1/.b/c..d", "a//", ""])
def test_a_path_that_both_clients_read_alike_is_allowed(path: str) -> None:
    assert config("", f"s3://bucket/{path}").warehouse == f"s3a://bucket/{path}".rstrip("/")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('access_key = "k"', "Set secret_key, or remove both"),
        ('secret_key = "k"', "Set access_key, or remove both"),
        ('endpoint = "127.0.0.1:8333"', "http:// or https://"),
        ("path_style = 1", "true or false"),
    ],
)
def test_an_error_names_the_wrong_setting_of_a_store(text: str, words: str) -> None:
    assert words in error_of(f"[storage]\n{text}\n")


UNUSABLE = {
    **{f"a{char}b": char for char in "[]\\^|"},
    **{f"a{chr(code)}b": f"U+{code:04X}" for code in (1, 9, 10, 13, 27, 127, 0xDCFF)},
    **dict.fromkeys(("a%20b", "a%20"), "%20"),
    "%2Fa": "%2F",
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_folder_that_deltalake_would_not_find_is_refused(name: str, tmp_path: Path) -> None:
    """TBL-22: in the setting, in a folder above it, and for programs. The error names the
    character.
    """
    with pytest.raises(ConfigError, match="a path without") as caught:
        ConnectorConfig(f"/data/{name}/wh", KafkaConfig("h:1"))
    assert caught.value.code == "WAREHOUSE_UNUSABLE"
    assert UNUSABLE[name] in caught.value.cause
    for scheme in ("s3a://bucket", "file://", "abfss://box@account.dfs.core.windows.net"):
        assert UNUSABLE[name] in warehouse_fault(f"{scheme}/{name}/wh")
    if name.isprintable():
        folder = tmp_path / name
        folder.mkdir()
        text = 'warehouse = "wh"\n[kafka]\nbootstrap_servers = "h:1"\n'
        (folder / "connector.toml").write_text(text)
        with pytest.raises(ConfigError, match="a path without"):
            load_config(folder / "connector.toml", {})


USABLE = [f"a{char}b" for char in " !\"#$%&'()*+,-.:;<=>?@_`{}~üé中\u0301\u2028\U0001f600"]


@pytest.mark.parametrize(
    "name", [*USABLE, " a", "a ", ".a", "_a", "a.", "~a", "k=v", "100%", "%zz"]
)
def test_a_folder_that_deltalake_finds_is_allowed(name: str, tmp_path: Path) -> None:
    """TBL-22: a table below it is written, and read where it was written."""
    warehouse = str(tmp_path / name)
    assert ConnectorConfig(warehouse, KafkaConfig("h:1")).warehouse == warehouse
    history = History(warehouse)
    history.add_job(Job(JobKind.APPLY, "t", 1, 2))
    assert [job.table for job in history.jobs("t")] == ["t"]
    assert (tmp_path / name / "_connector/jobs/_delta_log").is_dir()
    assert open_table(places.jobs(warehouse)).path == places.jobs(warehouse)

"""A wrong object store is an error with a cause and a remedy, within seconds (STO-4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake._internal import DeltaFileSystemHandler
from pyarrow.fs import FileSelector

from connector.config.settings import ConnectorConfig, KafkaConfig, SourceConfig, StreamConfig
from connector.config.source_tables import FollowedTable
from connector.config.storage import StorageConfig
from connector.errors import ConnectorError
from connector.kafka.local.folder import free_port
from connector.kafka.tables import publish_source_tables
from connector.lake.overrides import Overrides
from connector.lake.stores import files_at, options_of
from connector.services import explain, read, set_max_staleness, status
from connector.services.source_tables import SourceTables, followed, followed_tables
from connector.services.tables import jobs
from connector.services.validate_config import Finding, _store, validate_config
from connector.services.warehouses import warehouse_of
from connector.sources.columns import Shown, merged
from connector.sources.model import SourceFormat
from connector.tables.values import DataType
from connector.warehouse import probe
from tests.broker import NewTopic
from tests.golden.make_warehouse import FOLDER
from tests.golden.test_damage import config as of_golden
from tests.integration.foreign_topics import until
from tests.object_store import KEY, POLICIES, READER_KEY, READER_SECRET, SECRET, ObjectStore
from tests.spark.streams import definition
from tests.store_proxy import Fault, StoreProxy, Weather

pytestmark = pytest.mark.systems

WITHIN_S = 30
DENIED = "STORE_ACCESS_DENIED"
SECRETS = (KEY, SECRET, READER_KEY, READER_SECRET, "not-the-secret", "Signature=", "\x1b", "\n")


def of(store: ObjectStore, storage: StorageConfig | None = None) -> ConnectorConfig:
    return ConnectorConfig(
        store.warehouse(),
        KafkaConfig(f"127.0.0.1:{free_port()}"),
        streams={"s": StreamConfig(name="s", topic="t")},
        tables={"accounts": definition(max_staleness_s=60)},
        storage=storage or store.storage(),
    )


def with_storage(config: ConnectorConfig, **changes: object) -> ConnectorConfig:
    return replace(config, storage=replace(config.storage, **changes))  # type: ignore[arg-type]


WRONG: dict[str, tuple[Callable[[ConnectorConfig], ConnectorConfig], str, str]] = {
    "endpoint": (
        lambda config: with_storage(config, endpoint=f"http://127.0.0.1:{free_port()}"),
        "STORE_UNREACHABLE",
        "no server listens there",
    ),
    "host": (
        lambda config: with_storage(config, endpoint="http://nowhere.invalid"),
        "STORE_UNREACHABLE",
        "no host has this name",
    ),
    "key": (
        lambda config: with_storage(config, access_key="not-a-key"),
        "STORE_ACCESS_DENIED",
        "InvalidAccessKeyId",
    ),
    "secret": (
        lambda config: with_storage(config, secret_key="not-the-secret"),
        "STORE_ACCESS_DENIED",
        "SignatureDoesNotMatch",
    ),
    "bucket": (
        lambda config: replace(config, warehouse="s3a://nowhere/warehouse"),
        "BUCKET_MISSING",
        "no bucket of this name",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_setting_is_named_without_a_secret(object_store: ObjectStore, wrong: str) -> None:
    """STO-1, STO-4: by each command."""
    change, code, cause = WRONG[wrong]
    config, began = change(of(object_store)), time.monotonic()
    (finding,) = [one for one in found(config) if one.level == "fault"]
    assert finding.error is not None
    errors = [finding.error, *status(config).errors.values()]
    assert len(errors) >= 3
    for call in (
        lambda: read(config, "accounts"),
        lambda: set_max_staleness(config, "accounts", 5),
    ):
        with pytest.raises(ConnectorError) as caught:
            call()
        errors.append(caught.value)
    assert time.monotonic() - began < WITHIN_S
    for error in errors:
        assert (error.code, cause in error.cause) == (code, True), str(error)
        assert error.remedy
        shown = f"{error} {error.fields}"
        assert not [secret for secret in SECRETS if secret in shown]


def test_a_user_with_read_access_reads_and_validation_reports_the_missing_right(
    object_store: ObjectStore, capfd: pytest.CaptureFixture[str]
) -> None:
    """STO-4"""
    config = of(object_store)
    set_max_staleness(config, "accounts", 5)
    reader = replace(config, storage=object_store.storage(read_only=True))
    assert Overrides(warehouse_of(reader)).bounds() == {"accounts": 5}
    assert status(reader).errors == {}
    (finding,) = [one for one in found(reader) if one.level == "fault"]
    assert finding.error is not None
    assert finding.error.code == "STORE_ACCESS_DENIED"
    with pytest.raises(ConnectorError) as caught:
        set_max_staleness(reader, "accounts", 6)
    assert caught.value.code == "STORE_ACCESS_DENIED"
    assert "panicked" not in capfd.readouterr().err


def colleague(store: ObjectStore, name: str) -> ConnectorConfig:
    """The configuration of a person with the policy of this name."""
    storage = replace(store.storage(), access_key=name, secret_key=READER_SECRET)
    return replace(of_golden(FOLDER), warehouse="s3a://lake/prod", storage=storage)


def test_a_colleague_with_the_policy_of_the_page_reads_and_writes_nothing(
    object_store: ObjectStore,
) -> None:
    """OPR-7: status, read, explain, history and validate work with it, and not without one of its
    rights.
    """
    owner = replace(colleague(object_store, ""), storage=object_store.storage())
    warehouse = warehouse_of(owner)
    files = DeltaFileSystemHandler(warehouse, options_of(warehouse))
    for file in filter(Path.is_file, FOLDER.rglob("*")):
        with closing(files.open_output_stream(str(file.relative_to(FOLDER)))) as copy:
            copy.write(file.read_bytes())
    before = files.get_file_info_selector("", recursive=True)
    reader = colleague(object_store, "colleague")
    assert status(reader).errors == {}
    assert list(read(reader, "accounts", max_staleness_s=10**9).rows)
    assert explain(reader, "accounts", b"c", ask_kafka=False).is_known
    assert jobs(reader, "accounts")
    findings = [found for found in validate_config(reader) if "warehouse" in found.text]
    assert [found.level for found in findings] == ["warning", "ok"]
    assert "it can read, and nothing else" in findings[0].text
    for name in POLICIES.keys() - {"colleague"}:
        lacking = colleague(object_store, name)
        assert {error.code for error in status(lacking).errors.values()} == {DENIED}
        assert DENIED in {found.error.code for found in validate_config(lacking) if found.error}
    assert len(files.get_file_info_selector("", recursive=True)) == len(before)


def test_a_good_store_passes_again_and_again(object_store: ObjectStore) -> None:
    """STO-4: no file of the check is left."""
    config = of(object_store)
    for _ in range(3):
        assert [one.level for one in found(config)] == ["ok"]
    files = files_at(probe(warehouse_of(config))).get_file_info(FileSelector(""))
    assert [file.path for file in files if file.path] == []


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[StoreProxy]:
    with StoreProxy(object_store.port) as proxy:
        yield proxy


@pytest.fixture
def behind(object_store: ObjectStore, proxy: StoreProxy) -> ConnectorConfig:
    """The store behind the proxy."""
    return of(object_store, object_store.storage(port=proxy.port))


def test_a_clock_that_the_store_refuses_is_named(
    proxy: StoreProxy, behind: ConnectorConfig
) -> None:
    """STO-4"""
    proxy.change(Weather(rates={Fault.SKEWED: 1.0}))
    (fault,) = found(behind)
    assert fault.error is not None
    assert fault.error.code == "STORE_ACCESS_DENIED"
    assert {error.code for error in status(behind).errors.values()} == {fault.error.code}


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.FAILED, Fault.CUT, Fault.CUT_ANSWER])
def test_a_store_that_fails_is_asked_again_and_then_named(
    proxy: StoreProxy, behind: ConnectorConfig, fault: Fault
) -> None:
    """STO-6"""
    began = time.monotonic()
    proxy.change(Weather(rates={fault: 1.0}))
    (finding,) = [one for one in found(behind) if one.level == "fault"]
    assert finding.error is not None
    assert finding.error.code == "STORE_UNREACHABLE"
    assert "\x1b" not in str(finding.error)
    assert time.monotonic() - began < WITHIN_S
    proxy.change(Weather(rates={fault: 0.2}, of_commits={}))
    assert found(behind)[-1].level == "ok"


def found(config: ConnectorConfig) -> list[Finding]:
    """What `validate` says about the warehouse."""
    from connector.services.validate_config import _guarded

    return list(_guarded(_store(config)))


def test_the_tables_of_a_source_are_stored(
    object_store: ObjectStore, kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """SRC-5, STO-1: also those that change later, and with another client."""
    topic = new_topic().topic
    source = SourceConfig(format=SourceFormat.DEBEZIUM_JSON, topics=("dbz.public.*",))
    stream = StreamConfig(name="s", topic=topic, source=source)
    config = replace(of(object_store), kafka=kafka, tables={}, streams={"s": stream})

    def columns() -> list[str]:
        return [column.name for column in followed(config).tables["customers"].columns]

    assert followed_tables(config) == {}
    with closing(SourceTables(config, lambda event: None)) as tables:
        for names in (["n"], ["n", "more"]):
            shown = [Shown(name, DataType.STRING) for name in names]
            table = merged(None, "public.customers", [Shown("id", DataType.INT64)], shown).table
            value = FollowedTable("customers", table.section()).to_value()
            publish_source_tables(kafka, topic, {"public.customers": value})
            until(tables.store_new)
            assert columns() == names
        assert not tables.store_new()

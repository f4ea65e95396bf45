"""TBL-14: what another program wrote into a warehouse is found by `validate` and by `audit`, before
`run` refuses it (TBL-6, OPS-1).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from connector import warehouse as places
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import ConnectorError
from connector.lake.small_tables import as_arrow
from connector.reports.audit import StreamAudit
from connector.services.audit import faulty_tables
from connector.services.validate_config import validate_config
from tests.golden.make_warehouse import FOLDER, TABLE
from tests.spark.streams import STREAM


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    return shutil.copytree(FOLDER, tmp_path / "w").__fspath__()


def faults(warehouse: str) -> list[ConnectorError]:
    """What `validate` says of a warehouse. There is no Kafka, which comes last."""
    kafka = KafkaConfig("127.0.0.1:1")
    config = ConnectorConfig(warehouse, kafka, None, {"s": STREAM}, {"accounts": TABLE})
    found = []
    for finding in validate_config(config):
        found += [finding.error] if finding.error is not None else []
        if "the changelog is kept" in finding.text:
            break
    return found


def append(path: str) -> None:
    write_deltalake(
        path,
        as_arrow([{"made_by": "x"}], {"made_by": "string"}),
        mode="append",
        schema_mode="merge",
    )


def commit(path: str) -> None:
    """A commit that changes no row, but a property that lowmark needs."""
    properties = {"delta.appendOnly": "true"}
    DeltaTable(path).alter.set_table_properties(properties, raise_if_not_exists=False)


def replace(path: str) -> None:
    shutil.rmtree(path)
    append(path)


FOREIGN: dict[str, Callable[[str], None]] = {"append": append, "commit": commit, "new": replace}
REFUSED = (
    *("streams/s/changelog", "tables/accounts/data"),
    *("_connector/overrides", "_connector/closed_partitions"),
)


def test_a_sound_warehouse_has_no_fault(warehouse: str) -> None:
    assert faults(warehouse) == []
    assert faulty_tables(warehouse, ["accounts", "not made yet"]) == {}


@pytest.mark.parametrize("path", REFUSED)
def test_maintenance_by_another_program_is_no_fault(warehouse: str, path: str) -> None:
    """RUN-3: it changes no row."""
    DeltaTable(f"{warehouse}/{path}").alter.set_table_description("mine")
    DeltaTable(f"{warehouse}/{path}").vacuum(dry_run=False)
    assert faults(warehouse) == []
    assert faulty_tables(warehouse, ["accounts"]) == {}


@pytest.mark.parametrize("how", FOREIGN)
@pytest.mark.parametrize("path", REFUSED)
def test_validate_names_the_tables_that_another_program_wrote_to(
    warehouse: str, path: str, how: str
) -> None:
    FOREIGN[how](f"{warehouse}/{path}")
    found = faults(warehouse)
    assert [error.code for error in found] == ["COMMIT_FOREIGN"]
    assert f"{warehouse}/{path}" in found[0].problem


@pytest.mark.parametrize("how", FOREIGN)
def test_an_audit_fails_for_a_table_that_another_program_wrote_to(warehouse: str, how: str) -> None:
    """nothing_invented."""
    path = places.table(warehouse, "accounts")
    FOREIGN[how](path)
    found = faulty_tables(warehouse, ["accounts"])
    assert list(found) == ["accounts"]
    audit = StreamAudit("s", 1, faulty_tables=found)
    fault = audit.fault()
    assert fault is not None
    assert f"breaks nothing_invented: The newest commit of {path} (version " in fault.problem
    assert fault.problem.endswith(" does not belong to table accounts")
    assert audit.to_json()["verdict"] == "failed"
    assert not audit.is_proved


def test_validate_names_a_table_of_another_changelog(warehouse: str, tmp_path: Path) -> None:
    """TBL-16: batches of another changelog have the same numbers."""
    log = Path(places.changelog(warehouse, "s"), "_delta_log")
    for file in log.glob("*.json"):
        text = file.read_text()
        *_, changelog_id = text.partition('\\"changelog_id\\":\\"')
        of = changelog_id.partition('\\"')[0]
        file.write_text(text.replace(of, of[::-1]) if of else text)
    (error,) = faults(warehouse)
    assert error.code == "CHANGELOG_REPLACED"


def test_validate_names_a_damaged_file(warehouse: str) -> None:
    log = Path(places.table(warehouse, "accounts"), "_delta_log")
    newest = max(log.glob("*.json"))
    newest.write_bytes(b"")
    codes = {error.code for error in faults(warehouse)}
    assert codes == {"TABLE_DAMAGED"}

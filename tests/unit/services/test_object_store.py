"""What a warehouse in an object store changes in services, without a store."""

from __future__ import annotations

from pathlib import Path

from connector.clock import now_us
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.config.storage import LAKE_DEFAULTS, StorageConfig, look_every_s
from connector.lake.overrides import Overrides
from connector.lake.stores import options_of, warehouse_with
from connector.services.warehouses import warehouse_of
from connector.state.overrides import Override


def test_settings_of_a_store_are_read_once_for_a_while(tmp_path: Path) -> None:
    """STO-5"""
    patient, prompt = Overrides(str(tmp_path), kept_for_s=60), Overrides(str(tmp_path))
    assert patient.bounds() == prompt.bounds() == {}
    prompt.set(Override("max_staleness_s", "t", 5, now_us(), "a test"))
    assert (patient.bounds(), prompt.bounds()) == ({}, {"t": 5})


def test_options_belong_to_a_warehouse() -> None:
    """STO-1, STO-7: the limits of repeated requests are defaults."""
    config = ConnectorConfig(
        "s3a://lake/a", KafkaConfig("h:1"), storage=StorageConfig(options={"max_retries": "9"})
    )
    path = f"{warehouse_of(config)}/tables/t/data"
    assert options_of(path) == {**LAKE_DEFAULTS, "max_retries": "9"}
    assert warehouse_with(path) == "s3a://lake/a"
    assert warehouse_with("s3a://lake/ab/tables") is None
    assert options_of("/a/tables") is None
    assert look_every_s("s3a://lake/a") > look_every_s("/a")

"""What a warehouse in an object store changes in services, without a store."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from deltalake import _internal
from deltalake.exceptions import DeltaError

from connector.clock import now_us
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.config.storage import LAKE_DEFAULTS, StorageConfig, look_every_s
from connector.errors import TableError
from connector.lake.checks import check_store
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


class Store:
    """A store in memory, which refuses one operation with an error of this kind."""

    def __init__(self, refused: str, error: type[Exception]) -> None:
        self.refused, self.error, self.files = refused, error, dict[str, bytes]()

    def _do(self, operation: str) -> None:
        if operation == self.refused:
            raise self.error(f"403 Forbidden: {operation}")

    def get_file_info_selector(self, folder: str, missing: bool) -> list[str]:
        self._do("list")
        return sorted(self.files)

    def open_output_stream(self, name: str) -> io.BytesIO:
        self._do("write")
        self.files[name] = b""
        return io.BytesIO()

    def open_input_file(self, name: str) -> io.BytesIO:
        self._do("read")
        return io.BytesIO(self.files[name])

    def delete_file(self, name: str) -> None:
        self._do("delete")
        del self.files[name]


@pytest.mark.parametrize("error", [OSError, ValueError, DeltaError])
@pytest.mark.parametrize("refused", ["list", "write", "read", "delete", ""])
def test_a_store_is_checked_for_all_that_lowmark_does(
    monkeypatch: pytest.MonkeyPatch, refused: str, error: type[Exception]
) -> None:
    """STO-4: and nothing is left behind."""
    store = Store(refused, error)
    monkeypatch.setattr(_internal, "DeltaFileSystemHandler", lambda *_: store)
    if refused:
        with pytest.raises(TableError, match=refused):
            check_store("s3://lake/a")
    else:
        check_store("s3://lake/a")
        assert store.files == {}

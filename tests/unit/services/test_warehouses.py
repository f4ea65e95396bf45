"""The warehouse of a configuration: two calls that would harm each other, and damage (OPS-4)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import ConnectorError, WriterConflictError
from connector.errors.tables import disk_full, store_unreachable, table_unreadable
from connector.services import warehouses
from connector.services.warehouses import naming_damage, only_use
from tests.error_codes import entries

Use = tuple[str, list[str], str | None]


@pytest.mark.parametrize(
    ("first", "second", "refusal"),
    [
        (("w", ["s"], None), ("w", ["s", "other"], None), "Ingest of stream s cannot start"),
        (("w", ["s"], None), ("w/../w", ["s"], None), "Ingest of stream s cannot start"),
        (("w", ["s"], None), ("w", ["s"], "t"), "A rebuild of t cannot start"),
        (("w", ["s"], "t"), ("w", ["s"], None), "Ingest of stream s cannot start"),
        (("w", ["s"], "t"), ("w", ["s"], "t"), "A rebuild of t cannot start"),
        (("w", ["s"], "t"), ("w", ["s"], "u"), ""),
        (("w", ["s"], None), ("w", ["other"], None), ""),
        (("w", ["s"], None), ("another", ["s"], None), ""),
    ],
)
def test_a_stream_runs_alone_and_a_table_is_rebuilt_alone(
    tmp_path: Path, first: Use, second: Use, refusal: str
) -> None:
    def config(warehouse: str) -> ConnectorConfig:
        return ConnectorConfig(str(tmp_path / warehouse), KafkaConfig("127.0.0.1:1"))

    with only_use(config(first[0]), *first[1:]):
        with (
            pytest.raises(WriterConflictError) if refusal else nullcontext() as caught,
            only_use(config(second[0]), *second[1:]),
        ):
            pass
        if refusal:
            assert caught is not None
            assert caught.value.code == "ALREADY_RUNNING"
            assert caught.value.problem == refusal
    with only_use(replace(config(second[0]), tables={}), *second[1:]):
        pass


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (disk_full("The table cannot be written", "no space is left"), "DISK_FULL"),
        (store_unreachable("The table cannot be read", "no answer"), "STORE_UNREACHABLE"),
        (table_unreadable("t", "no one knows"), "TABLE_DAMAGED"),
        (ValueError("no one knows"), "TABLE_DAMAGED"),
    ],
)
def test_damage_is_named_unless_the_error_names_its_cause(
    tmp_path: Path, error: Exception, code: str
) -> None:
    """TBL-14: an empty commit of the table is the cause of what else fails. A full disk or a store
    that does not answer is a cause of its own, and no table is read after it.
    """
    log = tmp_path / "tables/t/data/_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").touch()
    config = ConnectorConfig(str(tmp_path), KafkaConfig("127.0.0.1:1"))
    with pytest.raises(ConnectorError) as caught, naming_damage(config, [], ["t"]):
        raise error
    assert caught.value.code == code


def test_the_errors_that_name_their_cause_exist() -> None:
    assert {entry.error.code for entry in entries()} >= warehouses._NAMES_ITS_CAUSE

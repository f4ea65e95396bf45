"""Two calls of one process that would harm each other: the second is refused (OPS-4)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import WriterConflictError
from connector.services.warehouses import only_use

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

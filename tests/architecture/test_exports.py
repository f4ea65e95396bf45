"""The public names: a change here is a change that users notice."""

from __future__ import annotations

import importlib

import pytest

import connector

PUBLIC = {
    "connector": {
        "ChangeOrder",
        "ChildPartition",
        "ChildPartitions",
        "ConnectorConfig",
        "ConnectorError",
        "DataChange",
        "DeadLetter",
        "DeleteCells",
        "DeleteFamily",
        "Heartbeat",
        "Reason",
        "Rejection",
        "SetCell",
    },
}


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_public_names_are_these(module: str) -> None:
    assert set(importlib.import_module(module).__all__) == PUBLIC[module]


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for name in connector.__all__:
        assert getattr(connector, name).__doc__, name

"""Which new configurations a running pipeline takes (EVO-8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from connector.config.reload import reload_faults
from connector.config.settings import (
    ConnectorConfig,
    KafkaConfig,
    RegistryConfig,
    StreamConfig,
)
from connector.tables.alterations import ColumnOverride
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.stored_definition import NO_IDS, assign_ids
from connector.tables.values import DataType

NAME = Column("name", "f", b"name", DataType.STRING)
NOTE = Column("note", "f", b"note", DataType.STRING)
ORDERS = TableDefinition(
    name="orders",
    stream="s",
    source="t",
    key=Key((KeyPart("id", DataType.STRING),)),
    columns=(NAME, NOTE),
)
IDS = assign_ids(NO_IDS, ORDERS)
EXISTING = {"orders": (ORDERS, IDS)}
RUNNING = ConnectorConfig(
    "/w",
    KafkaConfig("127.0.0.1:9092", {"sasl.password": "secret"}),
    streams={"s": StreamConfig(name="s", topic="orders")},
    tables={"orders": ORDERS},
)


def with_orders(**changes: object) -> ConnectorConfig:
    return replace(RUNNING, tables={"orders": replace(ORDERS, **changes)})  # type: ignore[arg-type]


TAKEN = {
    "the same": RUNNING,
    "a table": replace(RUNNING, tables={"orders": ORDERS, "more": replace(ORDERS, name="more")}),
    "a column": with_orders(
        columns=(NAME, replace(NOTE, default="x"), replace(NOTE, name="n", qualifier=b"n"))
    ),
    "a bound": with_orders(max_staleness_s=60),
    "a pace": with_orders(apply_every_s=5),
}


@pytest.mark.parametrize("name", TAKEN)
def test_tables_columns_bounds_and_paces_are_taken(name: str) -> None:
    """EVO-8: without a restart."""
    assert reload_faults(RUNNING, TAKEN[name], EXISTING, {}) == []


STREAM = RUNNING.streams["s"]
REFUSED: dict[str, tuple[Callable[[], ConnectorConfig], str]] = {
    "warehouse": (lambda: replace(RUNNING, warehouse="/other"), "warehouse"),
    "kafka": (
        lambda: replace(RUNNING, kafka=KafkaConfig("127.0.0.1:9092", {"sasl.password": "new"})),
        "kafka",
    ),
    "registry": (lambda: replace(RUNNING, registry=RegistryConfig("http://r:1")), "registry"),
    "no stream": (lambda: replace(RUNNING, streams={}, tables={}), "streams.s"),
    "new stream": (
        lambda: replace(RUNNING, streams={"s": STREAM, "z": StreamConfig(name="z", topic="z")}),
        "streams.z",
    ),
    "stall_after": (
        lambda: replace(RUNNING, streams={"s": replace(STREAM, stall_after_s=1)}),
        "streams.s.stall_after",
    ),
    "no table": (lambda: replace(RUNNING, tables={}), "tables.orders"),
    "block_rows": (lambda: with_orders(block_rows=True), "tables.orders.block_rows"),
    "buckets": (lambda: with_orders(buckets=2), "tables.orders.buckets"),
    "keep_unmapped": (lambda: with_orders(keep_unmapped=False), "tables.orders.keep_unmapped"),
    "type": (
        lambda: with_orders(columns=(NAME, replace(NOTE, type=DataType.BYTES))),
        "column note was",
    ),
    "lost column": (lambda: with_orders(columns=(NAME,)), "note"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_any_other_difference_refuses_the_whole_reload(name: str) -> None:
    """EVO-8, EVO-2: the error names the setting, and no value of a secret."""
    make, setting = REFUSED[name]
    taken = make()
    taken = replace(
        taken,
        tables={
            **taken.tables,
            **({} if name == "no stream" else {"z": replace(ORDERS, name="z")}),
        },
    )
    faults = reload_faults(RUNNING, taken, EXISTING, {})
    assert faults
    assert setting in faults[0].problem
    assert all(fault.remedy and "secret" not in str(fault) for fault in faults)


def test_a_column_that_an_operator_dropped_may_go() -> None:
    """EVO-2: the configuration then says the same."""
    overrides = {"orders": [ColumnOverride("orders", "note", None, 1, "ada@host")]}
    assert reload_faults(RUNNING, with_orders(columns=(NAME,)), EXISTING, overrides) == []


def test_columns_are_compared_with_the_table_that_exists() -> None:
    """EVO-8, EVO-2: a mistake of the running configuration can be undone."""
    remark = replace(NOTE, name="remark", qualifier=b"remark")
    mistaken = with_orders(columns=(NAME, replace(NOTE, type=DataType.BYTES), remark))
    assert reload_faults(mistaken, RUNNING, EXISTING, {}) == []
    assert reload_faults(mistaken, with_orders(columns=(NAME,)), EXISTING, {}) != []


def test_a_key_that_does_not_fit_the_table_can_be_undone() -> None:
    """EVO-8, RUN-3: the table is stopped, and goes on without a restart. A key that does not fit,
    either, is refused, and so is one that replaces the right one.
    """
    keys = (Key((KeyPart("id", type_),)) for type_ in (DataType.BYTES, DataType.INT64))
    mistaken, other = (with_orders(key=key) for key in keys)
    assert reload_faults(mistaken, RUNNING, EXISTING, {}) == []
    for running, new in ((mistaken, other), (RUNNING, mistaken)):
        (fault,) = reload_faults(running, new, EXISTING, {})
        assert "tables.orders.key" in fault.problem


def test_a_new_table_with_an_existing_folder_must_be_as_it_is() -> None:
    """EVO-8: another key would stop the pipeline."""
    more = replace(ORDERS, name="more", key=Key((KeyPart("other", DataType.STRING),)))
    with_more = replace(RUNNING, tables={"orders": ORDERS, "more": more})
    of_more = (replace(ORDERS, name="more"), IDS)
    (fault,) = reload_faults(RUNNING, with_more, {**EXISTING, "more": of_more}, {})
    assert fault.code == "TABLE_DEFINITION_DIFFERENT"


@pytest.mark.parametrize("existing", [{}, "of the table"])
def test_a_column_on_the_cell_of_an_override_is_refused(existing: object) -> None:
    """EVO-8, EVO-2: the columns do not go together, until one is taken back."""
    override = ColumnOverride("orders", "extra", replace(NOTE, name="extra", qualifier=b"x"), 1, "")
    remark = replace(NOTE, name="remark", qualifier=b"x")
    (fault,) = reload_faults(
        *(RUNNING, with_orders(columns=(NAME, NOTE, remark)), EXISTING if existing else {}),
        {"orders": [override]},
    )
    assert "remark and extra both show the cell" in fault.problem

"""The changes of the events of a source (SRC-2, SRC-3, SRC-6, SRC-7)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from connector.errors import ConnectorError
from connector.records import codec
from connector.records.model import DataChange, Transaction, Truncate
from connector.records.ordering import OrderPosition, commit_rank
from connector.sources.changes import Changes, headers
from connector.sources.model import (
    Commit,
    ForeignRecord,
    OnMissingValue,
    OnTruncate,
    Poison,
    Released,
    Row,
    TruncatedTable,
)
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.merge import truncate, visible
from connector.tables.row import read_change, row_of, state_of
from connector.tables.values import DataType, Encoding

TABLE = "public.customers"
RECORD = ForeignRecord("dbz.public.customers", 2, 17, 1, b"{}", b"{}")
COMMIT = Commit(time=5, transaction="571", sequence=3, after=(1,), log_position="0/16E9060")
DEFINITION = TableDefinition(
    name="customers",
    stream="shop",
    source=TABLE,
    key=Key((KeyPart("id", DataType.INT64),)),
    columns=(
        Column("name", "row", b"name", DataType.STRING),
        Column("mail", "row", b"email", DataType.STRING),
        Column("score", "other", b"score", DataType.INT64, Encoding.BINARY),
        Column("at", "row", b"at", DataType.TIMESTAMP),
    ),
)


def changes(definition: TableDefinition | None = DEFINITION, **settings: Any) -> Changes:
    return Changes(lambda table: definition if table == TABLE else None, **settings)


def released(event: Any, at: int = 1_000, tie_breaker: int = 3, count: int = 9) -> Released:
    return Released(RECORD, event, at, tie_breaker, count)


def row(cells: dict[str, bytes | None] | None = None, **more: Any) -> Row:
    given = {"table": TABLE, "commit": COMMIT, "key": {"id": 7}, "cells": cells or {}}
    return Row(**{**given, **more})


def shown(*events: Any) -> dict[str, object] | None:
    """The row that readers see after these events, one commit after the other."""
    maker, deliveries, rank = changes(), [], None
    for index, event in enumerate(events):
        change = maker.change(released(event, 1_000 + index))
        if isinstance(change, Truncate):
            rank = commit_rank(change)
        else:
            assert isinstance(change, DataChange), change
            assert read_change(DEFINITION, change) is None
            read = codec.decode(codec.frame(codec.encode(change, 1), None), codec.Schemas())
            assert isinstance(read, codec.ChangeRecord)
            assert read.record == change
            deliveries.append((change, OrderPosition(0, 0, index)))
    random.shuffle(deliveries)
    state = truncate(state_of(DEFINITION, deliveries), rank)
    return row_of(DEFINITION, b"\x87", visible(state)) if visible(state) else None


WHOLE = row({"name": b"Ann", "email": b"a@x", "score": b"5", "at": b"1970-01-01T00:00:00.000001"})


def test_a_row_is_shown_with_its_types():
    """SRC-3: cells by the name of the field. A binary column and a local time are adapted."""
    expected = {"id": 7, "name": "Ann", "mail": "a@x", "score": 5, "at": 1, "_unmapped": {}}
    assert shown(WHOLE) == expected


def test_null_and_absent_columns_of_a_whole_row_are_null():
    """SRC-3, newest_wins."""
    after = shown(WHOLE, row({"name": None, "email": b"b@x"}))
    assert after is not None
    assert (after["name"], after["mail"], after["score"]) == (None, "b@x", None)


def test_a_partial_row_keeps_what_it_does_not_name():
    """SRC-3, newest_wins: NULL is a value there."""
    after = shown(WHOLE, row({"name": None, "email": b"b@x"}, whole=False))
    assert after is not None
    assert (after["name"], after["mail"], after["score"]) == (None, "b@x", 5)


def test_a_row_of_nulls_exists_and_a_deleted_row_does_not():
    """SRC-3, EVO-12, deletes_stay_deleted."""
    assert shown(row({"name": None})) is not None
    assert shown(WHOLE, row(deleted=True)) is None
    assert shown(row(deleted=True), WHOLE) is not None


def test_a_field_without_a_column_is_in_unmapped():
    """SRC-5, nothing_lost: until the table has the column."""
    after = shown(row({"note": b"x"}), row({"note": b"y", "gone": None}, whole=False))
    assert after is not None
    assert after["_unmapped"] == {"row:note": b"y"}


def test_a_truncated_table_loses_older_rows():
    """SRC-3, EVO-13."""
    assert shown(WHOLE, TruncatedTable(TABLE, COMMIT)) is None
    assert shown(TruncatedTable(TABLE, COMMIT), WHOLE) is not None


def test_a_change_has_its_transaction_and_its_place():
    """SRC-2, SRC-7."""
    change = changes().change(released(WHOLE))
    assert isinstance(change, DataChange)
    transaction = Transaction("571", 3, number_of_records_in_transaction=9)
    assert (change.transaction, change.tie_breaker) == (transaction, 3)
    assert (change.stream_partition, change.table, change.commit_timestamp) == (
        *("source", TABLE),
        1_000,
    )
    assert headers(released(WHOLE)) == [
        ("connector.source", b"dbz.public.customers/2/17"),
        ("connector.source.position", b"0/16E9060"),
    ]


def test_a_row_of_a_snapshot_has_no_transaction():
    """SRC-2."""
    snapshot = replace(WHOLE, commit=Commit(time=5), is_snapshot=True)
    change = changes().change(released(snapshot, count=0))
    assert isinstance(change, DataChange)
    assert change.transaction is None


def test_a_truncation_can_stop_the_bridge():
    """SRC-3: `on_truncate`."""
    event = TruncatedTable(TABLE, COMMIT)
    change = changes().change(released(event))
    assert isinstance(change, Truncate)
    assert (change.table, change.commit_timestamp, change.tie_breaker) == (TABLE, 1_000, 3)
    assert change.transaction == Transaction("571", 3, number_of_records_in_transaction=9)
    with pytest.raises(ConnectorError, match=r"truncated public\.customers") as stopped:
        changes(on_truncate=OnTruncate.STOP).change(released(event))
    assert "dbz.public.customers/2/17" in str(stopped.value)


def test_a_value_that_is_in_no_event():
    """SRC-3, SRC-6: `on_missing_value`."""
    event = replace(WHOLE, missing=("bio", "doc"))
    letter = changes().change(released(event))
    assert isinstance(letter, Poison)
    assert (letter.rule, letter.commit, letter.table) == ("MISSING_VALUE", COMMIT, TABLE)
    assert "bio, doc" in letter.detail
    null = changes(on_missing_value=OnMissingValue.NULL).change(released(event))
    assert null == changes().change(released(WHOLE))
    with pytest.raises(ConnectorError, match="no value for bio, doc"):
        changes(on_missing_value=OnMissingValue.STOP).change(released(event))


@pytest.mark.parametrize(
    "key",
    [{"id": "seven"}, {"id": 2**63}, {"other": 7}, {}, {"id": 7, "more": 1}, {"id": None}],
)
def test_a_key_that_the_table_does_not_have_is_poison(key):
    """SRC-6: it costs no other row anything."""
    poison = changes().change(released(row(key=key)))
    assert isinstance(poison, Poison)
    assert (poison.commit, poison.table) == (COMMIT, TABLE)


def test_a_row_without_a_definition_and_poison_stay_poison():
    """SRC-6."""
    assert isinstance(changes(None).change(released(WHOLE)), Poison)
    poison = Poison("UNREADABLE", "x", COMMIT, TABLE)
    assert changes().change(released(poison)) is poison


def test_a_value_that_no_type_holds_is_kept():
    """SRC-6, nothing_lost: the table makes a letter of it, with the text."""
    change = changes().change(released(row({"score": b"many", "at": b"infinity"})))
    assert isinstance(change, DataChange)
    values = [entry.value for entry in change.entries if hasattr(entry, "value")]
    assert values == [b"many", b"infinity", b""]
    assert read_change(DEFINITION, change) is not None


def test_a_changed_definition_counts_from_the_next_row_on():
    """SRC-5: the bridge learns new columns while it runs."""
    definitions = [DEFINITION]
    maker = Changes(lambda table: definitions[-1])
    maker.change(released(WHOLE))
    note = Column("note", "other", b"note", DataType.STRING)
    definitions.append(replace(DEFINITION, columns=(*DEFINITION.columns, note)))
    change = maker.change(released(row({"note": b"x"})))
    assert isinstance(change, DataChange)
    assert ("other", b"x") in [
        (entry.family, getattr(entry, "value", None)) for entry in change.entries
    ]

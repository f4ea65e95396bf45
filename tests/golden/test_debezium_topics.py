"""The recorded topics of a real Debezium have what other tests look for in them (SRC-10)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from connector.sources.debezium import DebeziumDecoder
from connector.sources.model import End, ForeignRecord, Row, Skipped, TruncatedTable
from connector.sources.records import JsonFormat
from connector.sources.tables import KnownTables
from tests.debezium import EXACT_TEXTS, TRANSACTIONS
from tests.recorded_topics import State, recording, states

JSON_FORMATS = ("json", "json-schema")
FORMATS = (*JSON_FORMATS, "avro")
PLACEHOLDER = "__debezium_unavailable_value"


def envelopes(name: str) -> Iterator[tuple[ForeignRecord, dict[str, Any]]]:
    for record in recording(name).records:
        if record.value is not None:
            value = json.loads(record.value)
            yield record, value["payload"] if name == "json-schema" else value


def transactions(name: str, status: str) -> list[str]:
    """The numbers of transactions, in the order of their BEGIN or END."""
    return [
        value["id"].partition(":")[0]
        for record, value in envelopes(name)
        if record.topic == TRANSACTIONS and value["status"] == status
    ]


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_kinds_of_events(name: str) -> None:
    kinds = Counter(
        (value["source"]["table"], value["op"], value["source"].get("snapshot") == "incremental")
        for record, value in envelopes(name)
        if record.topic != TRANSACTIONS
    )
    assert {("customers", op, False) for op in "rcud"} <= kinds.keys()
    assert kinds["wiped", "t", False] == 2
    assert kinds["words", "r", True] >= 4
    assert kinds["beat", "u", False]
    assert {("logs", op, False) for op in "rcu"} <= kinds.keys()
    assert {record.value for record in recording(name).records} >= {None}


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_a_restart_of_debezium_sends_again(name: str) -> None:
    ends = Counter(transactions(name, "END"))
    assert 3 <= sum(times > 1 for times in ends.values()) <= len(ends) / 2


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_values_that_are_in_no_event(name: str) -> None:
    """A large value that an UPDATE does not touch, without and with a change of the key."""
    updates = {
        (value["op"], value["source"]["table"])
        for record, value in envelopes(name)
        if record.topic != TRANSACTIONS and PLACEHOLDER in json.dumps(value.get("after"))
    }
    assert updates == {("u", "customers"), ("c", "customers")}


@pytest.mark.parametrize("name", FORMATS)
def test_every_transaction_of_the_truth_was_recorded(name: str) -> None:
    """Each has a record with its number, and PostgreSQL's own order is that of the END records."""
    true = [state.transaction for state in states(name) if state.transaction]
    assert len(true) == len(set(true)) > 50
    if name == "avro":
        values = [r.value or b"" for r in recording(name).records if r.topic == TRANSACTIONS]
        assert all(any(f"{number}:".encode() in value for value in values) for number in true)
    else:
        ends = list(dict.fromkeys(transactions(name, "END")))
        assert [number for number in ends if number in set(true)] == true


@pytest.mark.parametrize("name", FORMATS)
def test_offsets_have_no_gap(name: str) -> None:
    offsets = dict[tuple[str, int], list[int]]()
    for record in recording(name).records:
        offsets.setdefault(record.partition, []).append(record.offset)
    assert all(found == list(range(len(found))) for found in offsets.values())
    assert {topic for topic, _ in offsets} >= {TRANSACTIONS, "dbz.public.coupons"}
    assert {number for topic, number in offsets if topic == "dbz.public.customers"} == {0, 1, 2}


def test_formats_and_settings() -> None:
    assert recording("json").settings.items() >= EXACT_TEXTS.items()
    avro = recording("avro")
    framed = [record.value for record in avro.records if record.value is not None]
    used = {int.from_bytes(value[1:5], "big") for value in framed}
    assert {value[0] for value in framed} == {0}
    assert used <= avro.registry.keys()
    assert all(json.loads(schema) for schema in avro.registry.values())


@pytest.mark.parametrize("name", FORMATS)
def test_the_truth_has_all_states(name: str) -> None:
    recorded = list(states(name))
    by_step: dict[str, State] = {state.what: state for state in recorded}
    assert ("1",) in recorded[0].tables["public.customers"]
    moved = by_step["a key changes, its accounts follow"]
    assert ("1",) not in moved.tables["public.customers"]
    assert moved.tables["public.accounts"][("1",)]["customer_id"] == "201"
    assert by_step["NaN"].tables["public.customers"][("103",)]["ratio"] == "NaN"
    assert by_step["truncate"].tables["public.wiped"].keys() == {("51",)}
    assert by_step["truncate again"].tables["public.wiped"] == {}
    end = recorded[-1]
    assert end.tables["public.words"][("",)] == {"word": "", "n": "6", "note": "dflt"}
    assert "price" not in end.columns["public.order_lines"]
    assert len(end.tables["public.transfers"]) == len(
        [row for row in end.tables["public.order_lines"].values() if row["sku"] == "fee"]
    )


def test_mysql() -> None:
    """SRC-3: MySQL's records are read, and become the rows that it had."""
    reader = DebeziumDecoder(JsonFormat(), KnownTables(), transactions=TRANSACTIONS)
    rows: dict[str, dict[tuple[str, ...], Row]] = {"shop.products": {}, "shop.stock": {}}
    events = [reader.decode(record) for record in recording("mysql").records]
    ends = [event.commit for event in events if isinstance(event, End)]
    assert [end.transaction for end in ends] == [
        s.transaction for s in states("mysql") if s.transaction
    ]
    assert all(end.after for end in ends)
    assert sorted(end.after for end in ends) == [end.after for end in ends]
    for event in events:
        assert isinstance(event, Row | TruncatedTable | End | Skipped), event
        if isinstance(event, TruncatedTable):
            rows[event.table].clear()
        if isinstance(event, Row):
            key = tuple(str(value) for value in event.key.values())
            rows[event.table].pop(key, None)
            if not event.deleted:
                rows[event.table][key] = event
    end = list(states("mysql"))[-1]
    assert {table: found.keys() for table, found in rows.items()} == {
        table: found.keys() for table, found in end.tables.items()
    }
    assert rows["shop.products"]["30",].cells["name"] == "😀".encode()
    assert rows["shop.stock"]["new", "1"].cells == {"amount": b"1"}

"""Large values of a real PostgreSQL that an UPDATE did not touch, through a real Debezium (SRC-3).

`python -m tests.record_large_values` writes the recording.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from connector.sources import debezium, rows
from connector.sources.debezium import DebeziumDecoder
from connector.sources.model import ForeignRecord, Row
from connector.sources.records import AvroFormat, JsonFormat
from connector.sources.schemas import SOURCE_TYPE
from connector.sources.tables import KnownTables
from connector.sources.unsent import PLACEHOLDERS
from tests.foreign_records import Typed, Writer, number
from tests.record_large_values import PATH, VALUES

RECORDED: dict[str, dict[str, Any]] = json.loads(PATH.read_text())
SENT = {type_: entry for type_, entry in RECORDED.items() if entry}
FORMATS = {"json": "json", "json-schema": "json with schema", "avro": "avro"}
CASES = [(type_, form) for type_ in SENT for form in FORMATS]
NOT_COVERED = {
    # PostgreSQL keeps a number in its row, unless a person says otherwise, as the recording does.
    *((type_, form) for type_ in ("numeric", "dnumeric") for form in ("json-schema", "avro")),
    # Without a schema, a text of bits looks like another text.
    *((type_, "json") for type_ in ("bit(24000)", "varbit", "varbit(50000)", "dbits")),
    # Debezium never sends such a value.
    *(("bit(3)[]", form) for form in FORMATS),
}
WITH_PLACEHOLDER = {
    *("text[]", "varchar(20)[]", "char(5)[]", "json[]", "jsonb[]", "uuid[]", "int[]", "bigint[]")
}


class Bench:
    """The table of a type in a format, in which a row with a value was read before."""

    def __init__(self, type_: str, form: str, source_type: str = "") -> None:
        entry = SENT[type_]
        connect, avro = dict(entry["connect"]), entry["avro"]
        connect.pop("field")
        if source_type:
            connect["parameters"] = {SOURCE_TYPE: source_type}
            avro = {**avro[1], "connect.parameters": {SOURCE_TYPE: source_type}}
        self.sent = entry["sent"][form]
        field = Typed("v", connect, avro, self.sent)
        self.writer = Writer(FORMATS[form], [number("id", 7)], [number("id", 7), field])
        read = AvroFormat(self.writer.registry.schema_of) if form == "avro" else JsonFormat()
        self.tables = KnownTables()
        self.decoder = DebeziumDecoder(read, self.tables)
        if form == "json" and connect["type"] == "array":
            self.decoder.decode(self.event("c", [1]))

    def event(self, op: str, value: Any, **more: Any) -> ForeignRecord:
        if self.writer.format == "avro" and isinstance(value, str) and self._is_bytes():
            value = value.encode()
        if (
            self.writer.format == "avro"
            and isinstance(value, list)
            and "bytes" in str(self._avro())
        ):
            value = [item.encode() for item in value]
        return self.writer.event(op, {"v": value}, **more)

    def _avro(self) -> Any:
        return self.writer.fields[1].avro

    def _is_bytes(self) -> bool:
        return "bytes" in json.dumps(self._avro())

    def row(self, record: ForeignRecord) -> Row:
        event = self.decoder.decode(record)
        assert isinstance(event, Row), event
        return event


def is_lacking(row: Row) -> bool:
    """Whether a row says that the value was not sent: it keeps it, or it lacks it."""
    is_kept = not row.whole and "v" not in row.cells
    return is_kept or row.missing == ("v",)


@pytest.mark.parametrize(("type_", "form"), CASES)
def test_a_value_that_was_not_sent_is_no_value_and_not_null(type_: str, form: str) -> None:
    """SRC-3, nothing_lost, nothing_invented: an UPDATE, and an INSERT of a row with another key."""
    bench = Bench(type_, form)
    for record in (
        bench.event("u", bench.sent),
        bench.event("c", bench.sent)._replace(is_moved=True),
    ):
        assert is_lacking(bench.row(record)) is ((type_, form) not in NOT_COVERED)


@pytest.mark.parametrize(("type_", "form"), CASES)
def test_null_is_null_in_these_records(type_: str, form: str) -> None:
    """SRC-3: an UPDATE with the row before (REPLICA IDENTITY FULL), an INSERT, and a row that was
    read.
    """
    bench = Bench(type_, form)
    before = {"id": 7, "v": None}
    for record in (
        bench.event("u", None, before=before),
        bench.event("c", None),
        bench.event("r", None),
    ):
        row = bench.row(record)
        assert (row.whole, row.missing, row.cells) == (True, (), {"v": None})
    assert not bench.tables.take_doubts()


@pytest.mark.parametrize("form", ["json-schema", "avro"])
@pytest.mark.parametrize("type_", sorted(t for t in SENT if t.endswith("[]") and "[][]" not in t))
def test_the_type_of_the_source_says_which_arrays_have_a_placeholder(type_: str, form: str) -> None:
    """SRC-3: with `column.propagate.source.type`, null is NULL for these arrays."""
    names = {"varchar(20)": "varchar", "char(5)": "bpchar", "int": "int4", "bigint": "int8"}
    element = type_.removesuffix("[]")
    bench = Bench(type_, form, f"_{names.get(element, element).upper()}")
    has_placeholder = type_ in WITH_PLACEHOLDER
    assert (bench.sent is not None) is has_placeholder or type_ in ("date[]", "bytea[]")
    row = bench.row(bench.event("u", None))
    assert row.missing == (() if has_placeholder else ("v",))
    assert len(bench.tables.take_doubts()) == (not has_placeholder)
    if has_placeholder:
        assert is_lacking(bench.row(bench.event("u", bench.sent)))


def test_each_type_was_tried_and_those_that_are_left_out_are_named() -> None:
    """SRC-3, SRC-11: the page names them."""
    assert RECORDED.keys() == VALUES.keys()
    assert RECORDED.keys() - SENT.keys() == {
        *("path", "polygon", "int4multirange", "pair", "jsonpath", "dtext[]", "dint[]", "pair[]"),
        *("interval[]", "xml[]", "point[]", "box[]", "money[]", "name[]", "varbit[]"),
    }


@pytest.mark.parametrize(("type_", "form"), [("uuid[]", "avro"), ("uuid[]", "json")])
def test_canary_a_placeholder_that_is_taken_for_a_value_is_noticed(
    type_: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {text for text in PLACEHOLDERS if not text.startswith(b'["')}
    monkeypatch.setattr(debezium, "PLACEHOLDERS", known)
    bench = Bench(type_, form)
    assert not is_lacking(bench.row(bench.event("u", bench.sent)))


@pytest.mark.parametrize("type_", ["smallint[]", "inet[]", "varbit", "dtexts"])
def test_canary_a_type_whose_null_is_taken_for_null_is_noticed(
    type_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "hides_values", lambda field: False)
    bench = Bench(type_, "avro")
    assert not is_lacking(bench.row(bench.event("u", bench.sent)))

"""What `connector validate` says about the values of a source (SRC-8)."""

from __future__ import annotations

import pytest

from connector.kafka.bridge.checks import doubts_of, shows_null_of_default, size_of_position
from connector.records.model import MAX_RESUME_TOKEN_BYTES
from connector.sources.debezium import DebeziumDecoder
from connector.sources.model import Event
from connector.sources.records import AvroFormat, JsonFormat
from connector.sources.tables import KnownTables
from tests.foreign_records import Typed, Writer, number, text

ID = number("id", 7)
SIZES = {"rooms": (300, 3, True), "partitions": (1, 1_000, True), "too many": (1_700, 3, False)}


def with_default(value: str | None) -> Typed:
    return Typed(
        "state",
        {"type": "string", "default": "new"},
        {"type": "string", "connect.default": "new"},
        value,
    )


def decoded(format_: str, *rows: Typed, **of_source: object) -> tuple[KnownTables, list[Event]]:
    tables, events = KnownTables(), list[Event]()
    writer = Writer(format_, [ID], [ID])
    read = AvroFormat(writer.registry.schema_of) if format_ == "avro" else JsonFormat()
    decoder = DebeziumDecoder(read, tables)
    for row in rows:
        of_row = Writer(format_, [ID], [ID, row], registry=writer.registry)
        events.append(decoder.decode(of_row.event("c", **of_source)))
    return tables, events


@pytest.mark.parametrize("format_", ["json with schema", "avro"])
def test_a_null_that_may_come_as_a_default(format_: str) -> None:
    """SRC-8, nothing_invented: until a record shows that NULL comes as NULL."""
    for values, is_doubted in ((("new", "old"), True), (("new", None), False)):
        tables, events = decoded(format_, *map(with_default, values))
        shows_null = any(shows_null_of_default(tables, event) for event in events)
        doubts = list(doubts_of(tables, shows_null=shows_null))
        assert len(doubts) == is_doubted
        assert all("public.customers.state" in doubt for doubt in doubts)
        assert all("replace.null.with.default" in doubt for doubt in doubts)
    tables, _ = decoded(format_, text("state", "new"))
    assert not list(doubts_of(tables, shows_null=False)), "it has no default"


@pytest.mark.parametrize("format_", ["json with schema", "avro"])
def test_columns_of_mysql_that_may_be_unsigned(format_: str) -> None:
    """SRC-8, nothing_invented: before a large number comes."""
    tables, _ = decoded(format_, number("n", 1), connector="mysql")
    (doubt,) = doubts_of(tables, shows_null=False)
    assert "public.customers.n" in doubt
    assert "bigint.unsigned.handling.mode = precise" in doubt
    small = number("n", 1, bits=32)
    tables, _ = decoded(format_, small, connector="mysql")
    assert "customers.n" not in str(list(doubts_of(tables, shows_null=False)))
    tables, _ = decoded(format_, number("n", 1))
    assert not list(doubts_of(tables, shows_null=False)), "PostgreSQL has no unsigned numbers"


def test_numbers_of_mysql_without_a_schema() -> None:
    """SRC-8: their types are not known."""
    tables, _ = decoded("json", number("n", -1), number("n", -2), connector="mysql")
    (doubt,) = doubts_of(tables, shows_null=False)
    assert "the records of MySQL have no schema" in doubt
    tables, _ = decoded("json", number("n", -1))
    assert not list(doubts_of(tables, shows_null=False))


@pytest.mark.parametrize(("topics", "kafka_partitions", "has_room"), SIZES.values(), ids=SIZES)
def test_the_room_for_a_position(topics: int, kafka_partitions: int, has_room: bool) -> None:
    """SRC-8."""
    counts = {f"dbz.public.table_{n}": kafka_partitions for n in range(topics)}
    assert (size_of_position(counts) <= MAX_RESUME_TOKEN_BYTES) is has_room

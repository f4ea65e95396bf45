from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from connector.errors import ConfigError, InvalidChangeError, TableError
from connector.records.model import DeleteFamily, SetCell
from connector.records.ordering import OrderBy
from connector.records.rejection import Reason, Rejection
from connector.tables.column_names import unmapped_name
from connector.tables.definition import (
    Column,
    TableDefinition,
    Versions,
    check_columns,
    check_compatible,
    column_names,
    compatible,
)
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.row import read_change, row_of
from connector.tables.stored_definition import (
    NO_IDS,
    ColumnIds,
    assign_ids,
    from_properties,
    to_properties,
)
from connector.tables.values import DataType, Encoding, Unreadable
from tests.changes import change, unmapped_cell

INT64, STRING, BYTES = DataType.INT64, DataType.STRING, DataType.BYTES


def column(
    name: str = "a",
    qualifier: bytes | None = None,
    type_: DataType = STRING,
    encoding: Encoding = Encoding.TEXT,
) -> Column:
    return Column(name, "f", name.encode() if qualifier is None else qualifier, type_, encoding)


def delimited(*types: DataType, delimiter: str = "#") -> Key:
    return Key(
        tuple(KeyPart(f"k{place}", type_) for place, type_ in enumerate(types)),
        KeyForm.DELIMITED,
        delimiter,
    )


def ordered(*types: DataType) -> Key:
    return replace(delimited(*types), form=KeyForm.ORDERED)


def table(*columns: Column, **others: Any) -> TableDefinition:
    return TableDefinition(
        **{
            "name": "t",
            "stream": "s",
            "source": "t",
            "key": Key((KeyPart("id", BYTES),), KeyForm.ROW_KEY),
            "columns": columns,
            **others,
        }
    )


def with_(definition: TableDefinition, **fields: object) -> TableDefinition:
    """A definition as a later release could have made it."""
    later = replace(definition)
    for name, value in fields.items():
        object.__setattr__(later, name, value)
    return later


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("key", "row_key", "values"),
    [
        (Key((KeyPart("id", BYTES),), KeyForm.ROW_KEY), b"\xff#1", (b"\xff#1",)),
        (Key((KeyPart("id", STRING),), KeyForm.ROW_KEY), "ä#1".encode(), ("ä#1",)),
        (delimited(INT64), b"7", (7,)),
        (delimited(STRING, STRING, STRING), b"a##", ("a", "", "")),
        (delimited(BYTES, BYTES), b"\xff#\x00", (b"\xff", b"\x00")),
        (
            delimited(INT64, DataType.BOOL, DataType.NUMERIC),
            b"-1#true#0.5",
            (-1, True, Decimal("0.5")),
        ),
        (
            delimited(DataType.DATE, DataType.TIMESTAMP),
            b"2024-02-29#1970-01-01T00:00:00.000001Z",
            (date(2024, 2, 29), 1),
        ),
        (delimited(STRING, INT64, delimiter="::"), b"a:b::1", ("a:b", 1)),
        (delimited(*[INT64] * 16), b"#".join([b"1"] * 16), (1,) * 16),
        (ordered(STRING, INT64, BYTES), b"a#\x00\x01\x7f\x00\x01\x00\xff", ("a#", -1, b"\x00")),
        (ordered(STRING), b"\x00\x00", ("",)),
        (ordered(*[INT64] * 16), b"\x00\x01".join([b"\x81"] * 16), (1,) * 16),
    ],
)
def test_keys_read_and_write(key: Key, row_key: bytes, values: tuple[object, ...]) -> None:
    """TBL-7: the row key unchanged, or typed columns joined by a delimiter or in
    order-preserving form.
    """
    assert key.read_key(row_key) == values
    assert key.write_key(values) == row_key


@pytest.mark.parametrize(
    ("key", "row_key"),
    [
        (Key((KeyPart("id", STRING),), KeyForm.ROW_KEY), b"\xff"),
        (delimited(INT64), b"01"),
        (delimited(INT64), b"-0"),
        (delimited(INT64), b"1#2"),
        (delimited(INT64), b""),
        (delimited(INT64), b"1\n"),
        (delimited(INT64, INT64), b"1"),
        (delimited(STRING, STRING), b"a#b#c"),
        (delimited(DataType.NUMERIC), b"1.50"),
        (delimited(DataType.NUMERIC), b"-0"),
        (delimited(DataType.TIMESTAMP), b"1970-01-01T00:00:00Z"),
        (delimited(DataType.TIMESTAMP), b"1970-01-01T01:00:00.000000+01:00"),
        (delimited(DataType.BOOL), b"TRUE"),
        (ordered(INT64), b""),
        (ordered(INT64), b"\xc0\x01"),
        (ordered(INT64, INT64), b"\x81"),
        (ordered(STRING, STRING), b"a\x00\x01"),
        (ordered(STRING), b"\xff"),
        (ordered(DataType.BOOL), b"\x82"),
    ],
)
def test_a_key_that_would_not_be_written_the_same_is_unreadable(key: Key, row_key: bytes) -> None:
    """TBL-7: 01 is not the key 1."""
    read = key.read_key(row_key)
    assert isinstance(read, Unreadable)
    assert read.value == row_key


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (delimited(STRING, STRING), ("a#b", "c")),
        (delimited(STRING, STRING, delimiter="aa"), ("a", "a")),
        (delimited(INT64), ("1",)),
        (delimited(INT64, INT64), (1,)),
        (ordered(STRING, STRING), ("x" * 4094, "x")),
        (Key((KeyPart("id", STRING),), KeyForm.ROW_KEY), ("",)),
        (Key((KeyPart("id", BYTES),), KeyForm.ROW_KEY), (b"x" * 4097,)),
    ],
)
def test_a_key_that_cannot_be_is_not_written(key: Key, values: tuple[object, ...]) -> None:
    """TBL-7, REC-14: the delimiter in a part, another type, too few, empty, too long."""
    with pytest.raises(InvalidChangeError):
        key.write_key(values)


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────

REFUSED = {
    "17 key columns": (
        lambda: delimited(*[INT64] * 17),
        "The key has 17 columns. A key has 1 to 16 columns.",
    ),
    "no key column": (lambda: Key(()), "The key has 0 columns"),
    "2,001 columns": (
        lambda: table(*(column(f"c{number}") for number in range(2000))),
        "tables.t has 2001 columns. A table has at most 2000 columns",
    ),
    "a reserved name": (
        lambda: column("_CHANGE_TYPE"),
        "names that begin with _ are reserved",
    ),
    "another reserved name": (lambda: column("_change_sequence_number"), "reserved"),
    "a reserved key name": (lambda: KeyPart("_state", BYTES), "reserved"),
    "one cell twice": (
        lambda: table(column("a", b"\xffq"), column("b", b"\xffq")),
        "a and b both show the cell f:%FFq",
    ),
    "one name twice": (lambda: table(column("a", b"1"), column("a", b"2")), "the names a and a"),
    "names apart by case": (
        lambda: table(column("Mode"), column("mode")),
        "the names Mode and mode. Each name can be used once. Spark does not distinguish upper",
    ),
    "a column named as the key": (lambda: table(column("ID")), "the names id and ID"),
    "key columns apart by case": (
        lambda: Key((KeyPart("a", STRING), KeyPart("A", STRING)), KeyForm.DELIMITED),
        "the names a and A",
    ),
    "no name": (lambda: column(""), "has the name ''"),
    "a name of several words": (lambda: column("a b"), "has the name 'a b'"),
    "a name that is SQL": (lambda: column("a`; DROP"), "has the name"),
    "a family that cannot be": (
        lambda: Column("a", "f:", b"", STRING),
        "The family of column a is 'f:'",
    ),
    "a long qualifier": (
        lambda: column("a", b"q" * 16_385),
        "The qualifier of column a is 16385 bytes long",
    ),
    "NUMERIC in binary": (
        lambda: column("a", b"", DataType.NUMERIC, Encoding.BINARY),
        "NUMERIC has no binary form",
    ),
    "JSON in binary": (
        lambda: column("a", b"", DataType.JSON, Encoding.BINARY),
        "JSON has no binary form",
    ),
    "FLOAT64 in a key": (lambda: delimited(DataType.FLOAT64), "Key column k0 has the type FLOAT64"),
    "JSON in a key": (lambda: delimited(DataType.JSON), "Key column k0 has the type JSON"),
    "a typed row key": (
        lambda: Key((KeyPart("id", INT64),), KeyForm.ROW_KEY),
        "The row key is declared as id INT64",
    ),
    "two columns for the row key": (
        lambda: Key((KeyPart("a", BYTES), KeyPart("b", BYTES)), KeyForm.ROW_KEY),
        "as a BYTES, b BYTES",
    ),
    "no delimiter": (
        lambda: delimited(STRING, STRING, delimiter=""),
        "The delimiter of the key is ''",
    ),
    "a delimiter that is no ASCII": (
        lambda: delimited(STRING, STRING, delimiter="§"),
        "1 to 8 ASCII characters",
    ),
    "a delimiter in numbers": (
        lambda: delimited(STRING, INT64, delimiter="-"),
        "The values of k1, which has the type INT64, may contain it",
    ),
    "a delimiter in dates": (
        lambda: delimited(DataType.DATE, STRING, delimiter="--"),
        "k0, which has the type DATE",
    ),
    "a name outside the warehouse": (lambda: table(name="../t"), "A table has the name '../t'"),
    "a stream outside the warehouse": (
        lambda: table(stream="a/b"),
        "The stream of tables.t has the name 'a/b'",
    ),
    "a source that cannot be": (lambda: table(source="a b"), "tables.t.source is 'a b'"),
    "a default that the column cannot hold": (
        lambda: table(replace(column("a", type_=INT64), default="1.5")),
        "The default of column a is '1.5'. It must be INT64 in decimal digits",
    ),
    "a pace below a second": (
        lambda: table(apply_every_s=0),
        "TableDefinition.apply_every_s is 0. It must be a number of at least 1",
    ),
    "a negative bound": (
        lambda: table(max_staleness_s=-1),
        "TableDefinition.max_staleness_s is -1",
    ),
    "a column of the presence mark": (
        lambda: table(column("a", b"\x00row")),
        "tables.t.columns: a shows the presence mark of the rows",
    ),
    "a family of the mark that cannot be": (
        lambda: table(presence_family="a b"),
        "tables.t.presence_family is 'a b'",
    ),
    "FLOAT64 in an ordered key": (
        lambda: ordered(DataType.FLOAT64),
        "Key column k0 has the type FLOAT64",
    ),
    "an ordered key with a delimiter": (
        lambda: replace(ordered(INT64), delimiter="|"),
        "The delimiter of the key is '|'. The form ordered has no delimiter",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_reason_and_remedy(what: str) -> None:
    """TBL-8."""
    make, says = REFUSED[what]
    with pytest.raises(ConfigError) as caught:
        make()
    assert says in str(caught.value)
    assert caught.value.remedy
    assert not str(caught.value).endswith(".")


def test_the_widest_table_that_can_be() -> None:
    """TBL-8: 16 key columns, 2,000 columns."""
    wide = table(*(column(f"c{number}") for number in range(1984)), key=delimited(*[INT64] * 16))
    assert len(column_names(wide)) == 2003


# ── names ─────────────────────────────────────────────────────────────────────────────────────────


def test_columns_are_stored_in_their_order() -> None:
    """TBL-22: key, typed columns, `_unmapped`, bookkeeping."""
    assert column_names(table(column("b"), column("a"))) == (
        "id",
        "b",
        "a",
        "_unmapped",
        "_state",
        "_bucket",
    )


@pytest.mark.parametrize(
    ("qualifier", "name"),
    [
        (b"", "f:"),
        (b"q", "f:q"),
        (b"a:b", "f:a:b"),
        ("ä€".encode(), "f:ä€"),
        (b"%41", "f:%2541"),
        (b"\xff%", "f:%FF%25"),
        (b"\x7f\x80", "f:\x7f%80"),
        (b"\xe2\x82A", "f:%E2%82A"),
    ],
)
def test_names_of_unmapped_cells(qualifier: bytes, name: str) -> None:
    """TBL-22: bytes that are not UTF-8 are escaped, and so is the escape."""
    assert unmapped_name("f", qualifier) == name
    assert unmapped_cell(name) == ("f", qualifier)


@pytest.mark.parametrize(
    "name", ["", "f", "f:%", "f:%4", "f:%41", "f:%ff", "f:%E2%82%AC", "f:\ud800"]
)
def test_invalid_names_of_cells(name: str) -> None:
    """TBL-22: a cell has one name."""
    with pytest.raises(ValueError):
        unmapped_cell(name)


# ── changes ───────────────────────────────────────────────────────────────────────────────────────


def test_a_change_that_fits() -> None:
    """TBL-9: what no column maps may hold anything."""
    fits = change(SetCell("f", b"a", b"1"), SetCell("f", b"other", b"\xff"), DeleteFamily("f"))
    assert read_change(table(column("a", b"a", INT64)), fits) is None


def test_a_change_that_does_not_fit_says_which_column_and_which_bytes() -> None:
    """TBL-9: also where a later entry masks the cell."""
    masked = change(SetCell("f", b"a", b"x"), SetCell("f", b"a", b"1"))
    result = read_change(table(column("a", b"a", INT64)), masked)
    assert result is not None
    assert (
        result.detail
        == "expected INT64 in decimal digits, from -2^63 to 2^63 - 1 in column a (f:a), got b'x'"
    )


def test_a_key_that_does_not_fit_is_named_first() -> None:
    """TBL-9."""
    result = read_change(
        table(column("a", b"a", INT64), key=delimited(INT64)),
        change(SetCell("f", b"a", b"x"), row_key=b"01"),
    )
    assert result == Rejection(
        Reason.UNREADABLE_VALUE,
        "expected INT64 in its canonical form, b'1', as key column k0, got b'01'",
    )


def test_in_a_table_ordered_by_number_every_change_has_one() -> None:
    """MRG-2, TBL-9: named before anything else that does not fit."""
    numbered = table(column("a", b"a", INT64), order=OrderBy.SEQUENCE_NUMBER)
    result = read_change(numbered, change(SetCell("f", b"a", b"x")))
    assert result == Rejection(
        Reason.MISSING_SEQUENCE_NUMBER,
        "The table is ordered by change_sequence_number, but the change has no such number",
    )
    assert (
        read_change(numbered, change(SetCell("f", b"a", b"1"), change_sequence_number="0")) is None
    )


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_is_made_of_what_is_visible() -> None:
    """TBL-7, MRG-8: typed columns, null where there is no cell, and the rest by name."""
    cells = {("f", b"a"): b"7", ("g", b"\xff"): b"?"}
    row = row_of(table(column("a", type_=INT64), column("b")), b"key", cells)
    assert row == {"id": b"key", "a": 7, "b": None, "_unmapped": {"g:%FF": b"?"}}
    assert row_of(table(column("a")), b"key", {}) is None


def test_a_value_that_does_not_fit_a_new_column_stays_unmapped() -> None:
    """TBL-8."""
    row = row_of(table(column("a", type_=INT64)), b"key", {("f", b"a"): b"x"})
    assert row == {"id": b"key", "a": None, "_unmapped": {"f:a": b"x"}}


def test_unmapped_cells_make_a_row_only_if_they_are_kept() -> None:
    """TBL-7."""
    cells = {("g", b"other"): b"1"}
    assert row_of(table(column("a")), b"key", cells) == {
        "id": b"key",
        "a": None,
        "_unmapped": {"g:other": b"1"},
    }
    assert row_of(table(column("a"), keep_unmapped=False), b"key", cells) is None
    assert row_of(table(column("a"), keep_unmapped=False), b"key", {**cells, ("f", b"a"): b""}) == {
        "id": b"key",
        "a": "",
        "_unmapped": None,
    }


# ── what a table remembers ────────────────────────────────────────────────────────────────────────

BEFORE = table(column("a", type_=INT64), column("b"), max_staleness_s=600)


def test_ids_are_kept_and_never_used_again() -> None:
    """TBL-8: also not by a column that comes back."""
    first = assign_ids(NO_IDS, BEFORE)
    assert first == ColumnIds({"a": 0, "b": 1}, 2)
    without_a = assign_ids(first, table(column("b"), column("c")))
    assert without_a == ColumnIds({"b": 1, "c": 2}, 3)
    assert assign_ids(without_a, BEFORE) == ColumnIds({"a": 3, "b": 1}, 4)
    assert assign_ids(first, BEFORE) == first


def test_a_column_that_is_added_later_has_its_first_batch() -> None:
    """TBL-8: for good, and again if it goes and comes back."""
    first = assign_ids(NO_IDS, BEFORE)
    with_c = assign_ids(first, table(column("b"), column("c")), 7)
    assert with_c.since == {"c": 7}
    assert assign_ids(with_c, BEFORE, 9).since == {"a": 9}
    assert assign_ids(with_c, table(column("c")), 9).since == {"c": 7}
    definition = table(column("b"), column("c"), presence_family="f")
    assert from_properties(to_properties(definition, with_c)) == (definition, with_c)


def test_other_columns_ask_for_a_rebuild() -> None:
    """TBL-8: the definitions are compatible, but their rows differ. A bound changes no row."""
    check_columns(BEFORE, with_(BEFORE, max_staleness_s=None))
    for declared in (with_(BEFORE, columns=BEFORE.columns[:1]), with_(BEFORE, keep_unmapped=False)):
        assert compatible(BEFORE, declared) == ()
        with pytest.raises(TableError, match=f"columns of table {BEFORE.name}.*Rebuild the table"):
            check_columns(BEFORE, declared)


def test_default_and_required_need_no_rebuild() -> None:
    """EVO-4: `default` and `required` of a column may differ without a rebuild."""
    columns = [replace(column, default="1", required=True) for column in BEFORE.columns]
    check_columns(BEFORE, replace(BEFORE, columns=tuple(columns)))


@pytest.mark.parametrize("key", [delimited(STRING, INT64, delimiter="|"), ordered(STRING, INT64)])
def test_a_definition_survives_in_properties(key: Key) -> None:
    """TBL-8: as text in ASCII, beside other properties, the same for the same definition."""
    definition = table(
        replace(column("a", b"\xff", INT64, Encoding.BINARY), required=True, default="7"),
        column("b"),
        key=key,
        keep_unmapped=False,
        versions=Versions.ALL,
        presence_family="p",
    )
    properties = to_properties(definition, assign_ids(NO_IDS, definition))
    assert all(value.isascii() for value in properties.values())
    assert from_properties({**properties, "delta.enableDeletionVectors": "true"}) == (
        definition,
        assign_ids(NO_IDS, definition),
    )
    assert to_properties(*from_properties(properties)) == properties


@pytest.mark.parametrize(
    "spoil",
    [{}, {"lowmark.definition": "{"}, {"lowmark.definition": "[]"}, {"lowmark.columnIds": "3"}],
)
def test_properties_without_a_definition_are_a_foreign_table(spoil: dict[str, str]) -> None:
    """TBL-8."""
    properties = {**to_properties(BEFORE, assign_ids(NO_IDS, BEFORE)), **spoil} if spoil else {}
    with pytest.raises(TableError) as caught:
        from_properties(properties)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "declared",
    [
        BEFORE,
        table(column("b"), column("a", type_=INT64)),
        table(column("a", type_=INT64), column("b"), column("c")),
        table(column("c", b"a"), column("b")),
        table(),
        replace(BEFORE, max_staleness_s=None, keep_unmapped=False, deletion_vectors=False),
        table(replace(column("a", type_=INT64), default="1", required=True), column("b")),
    ],
)
def test_allowed_changes_of_a_definition(declared: TableDefinition) -> None:
    """TBL-8: columns come, go and change places; settings that do not decide what is in the
    rows.
    """
    assert compatible(BEFORE, declared) == ()
    check_compatible(BEFORE, declared)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        (
            replace(BEFORE, key=delimited(INT64)),
            "key was (id BYTES) row_key, is (k0 INT64) delimited by '#'",
        ),
        (replace(BEFORE, key=ordered(BYTES)), "key was (id BYTES) row_key, is (k0 BYTES) ordered"),
        (replace(BEFORE, source="u"), "source was t, is u"),
        (replace(BEFORE, stream="u"), "stream was s, is u"),
        (
            with_(BEFORE, order=OrderBy.SEQUENCE_NUMBER),
            "order was commit, is change_sequence_number",
        ),
        (with_(BEFORE, versions=Versions.ALL), "versions was latest, is all"),
        (
            table(column("a", b"z", INT64), column("b")),
            "column a was a f:a INT64 text, is a f:z INT64 text",
        ),
        (table(column("a"), column("b")), "column a was a f:a INT64 text, is a f:a STRING text"),
        (
            table(column("a", type_=INT64, encoding=Encoding.BINARY), column("b")),
            "is a f:a INT64 binary",
        ),
        (
            table(column("A", b"a", INT64), column("b")),
            "column a was a f:a INT64 text, is A f:a INT64 text",
        ),
    ],
)
def test_refused_changes_of_a_definition(declared: TableDefinition, says: str) -> None:
    """TBL-8: key, order, versions, an existing column's cell or type; nor what the rows came
    from.
    """
    (differs,) = compatible(BEFORE, declared)
    assert says in differs
    with pytest.raises(TableError) as caught:
        check_compatible(BEFORE, declared)
    assert says in str(caught.value)
    assert caught.value.remedy


def test_every_difference_is_named() -> None:
    """TBL-8."""
    assert len(compatible(BEFORE, table(column("a"), column("b", b"z"), source="u"))) == 3

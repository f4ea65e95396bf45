"""`spark.typed` reads cells and keys as `values.read_value` and `Key.read_key` do: the same value,
or null for `Unreadable`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from connector.lake.row_states import _plain
from connector.spark.apply.lww_merge import _UNMAPPED_NAME
from connector.spark.reader import plain_rows
from connector.spark.sql import key_columns, key_pieces, micros, typed, use_nested
from connector.tables.column_names import unmapped_name
from connector.tables.keys import KEY_TYPES, Key, KeyForm, KeyPart
from connector.tables.nested import type_of
from connector.tables.ordered_key import NUMBER_RANGE, join_parts, write_number
from connector.tables.row import is_same_row
from connector.tables.values import (
    MAX_JSON_DEPTH,
    MAX_JSON_DIGITS,
    MAX_JSON_NAME_LENGTH,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    DataType,
    Encoding,
    Unreadable,
    read_value,
    write_value,
)
from tests.examples import tries
from tests.property.test_keys_roundtrip import keys
from tests.property.test_nested_laws import damaged, lookalikes, values_of
from tests.property.test_ordered_key_laws import NEAR
from tests.property.test_values_roundtrip import FORMS, LOOKALIKES, TYPED, VALUES
from tests.record_cases import drawn

pytestmark = pytest.mark.usefixtures("compiled")

_NUMBERS = """
0 -0 00 -00 01 -01 +1 -1 1. .5 -.5 1.5 1.50 0.0 -0.0 1e5 1E5 1e+5 1e-5 1e 1e+ e5 1e5.0 1e400
-1e400 1e-400 4.9e-324 2e-324 3e-324
1.7976931348623157e308 1.7976931348623159e308 1e308 1e309 2.2250738585072011e-308
2.2250738585072014e-308 0e999999999999
1e999999999999 1e-999999999999 9007199254740993 0.1 123456789012345678901234567890 NaN nan -NaN
+NaN NAN Infinity -Infinity
+Infinity inf -inf infinity INFINITY Inf 1d 1f 1D 1F 1L 0x10 0x1p3 1_000 1,000 -- - + . -. 1-1 --1
٣ １ 1e٣ 0.١ ½
9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809
18446744073709551615 99999999999999999999
1.0000000000 1.000000000 0.000000001 0.0000000001 0.0000000010 -0.000000001 1.0000000001
99999999999999999999999999999
99999999999999999999999999999.999999999 100000000000000000000000000000
-99999999999999999999999999999.999999999
099999999999999999999999999999.9999999990 -000.5000000000000 0.5e1 12345678901234567890123456789
123456789012345678901234567890.1
true false TRUE True t yes 1 TRUe tru falsee
"""
NUMBERS = _NUMBERS.split()

_DATES = """
2024-02-29 2023-02-29 1900-02-29 2000-02-29 2023-04-31 0000-01-01 0001-01-01 9999-12-31
10000-01-01 -001-01-01 2024-1-1 2024-01-1
24-01-01 2024-13-01 2024-00-01 2024-01-00 2024-01-32 2024-12-31 1582-10-04 1582-10-05 1582-10-10
1582-10-15 1970-01-01 1969-12-31
2024/01/01 20240101 2024-01-01T 2024-01 2024 epoch now today ٢٠٢٤-01-01 2024-01-01Z +2024-01-01
"""
DATES = _DATES.split()

_CLOCKS = """
00:00:00 23:59:59 24:00:00 23:59:60 12:60:00 1:00:00 01:1:00 01:00 01:00:00. 01:00:00.0 01:00:00.1
01:00:00.12 01:00:00.123
01:00:00.1234 01:00:00.12345 01:00:00.123456 01:00:00.1234567 01:00:00.12345678 01:00:00.123456789
01:00:00.1234567890
01:00:00.12345678901 01:00:00.123456789012 01:00:00.999999 01:00:00.9999999 01:00:00.999999999999
01:00:00.000000000001 01:00:00,5
23:59:59.999999 23:59:59.9999999 00:00:00.000000
"""
CLOCKS = _CLOCKS.split()

_ZONES = """
Z z UTC GMT +00:00 -00:00 +0000 +00 +18:00 -18:00 +18:01 -18:01 +17:59 -17:59 +19:00 +01:60 +1:00
+01:0 +05:30 -09:30 +01:00:00
Europe/Berlin [UTC] +24:00
"""
ZONES = [*_ZONES.split(), "", " Z", " UTC", " +01:00"]


def timestamps() -> Iterable[str]:
    for clock in CLOCKS:
        yield from (f"2024-02-29T{clock}{zone}" for zone in ("Z", "+01:00", "-18:00", ""))
    for zone in ZONES:
        for day in (
            "0001-01-01",
            "0001-01-02",
            "9999-12-31",
            "9999-12-30",
            "2024-06-30",
            "1582-10-10",
        ):
            yield from (
                f"{day}T{clock}{zone}"
                for clock in (
                    "00:00:00",
                    "17:59:59.999999",
                    "18:00:00",
                    "23:59:59.999999",
                    "06:00:00",
                )
            )
    yield from (
        "2024-01-01 00:00:00Z",
        "2024-01-01t00:00:00Z",
        "T00:00:00Z",
        "00:00:00Z",
        "2024-01-01T00:00:00.Z",
        "0000-12-31T23:00:00-18:00",
    )
    yield from (f"2024-01-01T00:00:00.{'1' * n}Z" for n in (13, 18, 19, 20, 40, 1000))


LONG = [
    *(sign + digit * 100_000 + "1" for digit in "09" for sign in ("", "-")),
    *(
        "1." + "0" * 100_000,
        "1." + "0" * 100_000 + "1",
        "0." + "9" * 9 + "0" * 100_000,
        "0" * 100_000 + "." + "0" * 100_000,
    ),
    *(
        "1e" + "9" * 100_000,
        "1e-" + "9" * 100_000,
        "0e" + "9" * 100_000,
        "2024-01-01T00:00:00." + "1" * 100_000 + "Z",
    ),
]
"""What a recursive search or a quadratic one would not survive."""

JSONS = [
    *("1 2", "1,2", "[1]]", "{}}", "[1],[2]", '"a":1', '1,"x":2', "]", "["),
    *("[]", "{}", "[[],[]]", "[1,]", "{,}", '{"a":1,}', "[,1]", "[1 2]", "1,", ",1"),
    *('{"a":1,"a":2}', '{"a"}', '{"a":}', "{a:1}", "{'a':1}", "'a'", "{1:2}"),
    *('{"":{}}', "null", "nul", "nullx", "Null", "true false", "[true,false,null]"),
    *("[NaN]", "[Infinity]", "[-Infinity]", "[01]", "[1.]", "[.5]", "[+1]"),
    *("[-]", "[-0]", "[1e400]", "[1e-400]", "[1e999999999999]", "[0x1]", "[1L]"),
    *("//\n1", "1//", "/**/1", "#\n1", "\ufeff1", "1\ufeff", " 1 "),
    *("\t\n\r1\r\n\t", "\f1", "\v1", "\u00a01", "\u20281", "\x001", "1\x00", "\x1e1"),
    *('"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\u12"', '"\\u12G4"', '"\\x41"'),
    *('"\\', '"\\"', '"\\/"', '"a', '"\\a"', '"\\u0000"', '"\U0001f600"'),
    *(f'"{chr(code)}"' for code in (0, 1, 8, 9, 10, 13, 31, 32, 127, 128, 0x2028, 0xFEFF, 0xFFFF)),
    *("[" * depth + "]" * depth for depth in (MAX_JSON_DEPTH, MAX_JSON_DEPTH + 1, 1000, 5000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (MAX_JSON_DEPTH, MAX_JSON_DEPTH + 1)),
    *("[" * 100_000, '{"a":' * 50_000, "[" * 501, "[]" * 600, '"' + "[" * 600 + '"'),
    '["' + '","'.join(["]["] * 600) + '"]',
    *(sign + "1" * (MAX_JSON_DIGITS + more) for more in (0, 1) for sign in ("", "-")),
    *("1." + "5" * (MAX_JSON_DIGITS - 1 + more) for more in (0, 1)),
    *(
        f"[1.5e{sign}{'0' * (MAX_JSON_DIGITS - 3 + more)}1]"
        for more in (0, 1)
        for sign in ("", "-", "+")
    ),
    *(
        f'{{"{letter * ((MAX_JSON_NAME_LENGTH + more) // units)}":1}}'
        for more in (0, 2)
        for letter, units in (("k", 1), ("ä", 1), ("\\n", 1), ("😀", 2))
    ),
    *('"' + "s" * 1_000_000 + '"', "[" + "1," * 100_000 + "1]", " " * 100_000 + "1"),
]  # fmt: skip

NOT_UTF8 = [
    b"\xff",
    b"1\xff",
    b"\xc3",
    b'"\xff"',
    b'"\xc3"',
    b"\xed\xa0\x80",
    b'"\xed\xa0\x80"',
    b"\xc0\x80",
    b"\xf4\x90\x80\x80",
    b"true\x80",
    b"2024-01-01\x80",
]

AROUND = [
    "{}\n",
    "{}\r\n",
    "\n{}",
    " {}",
    "{} ",
    "\t{}",
    "{}\x00",
    "{}\u2028",
    "{}\u0085",
    "\u00a0{}",
    "+{}",
    "-{}",
    "0{}",
    "{}0",
    "{}x",
]


def numbers_in_bytes(rng: Random) -> Iterable[bytes]:
    days = (-719163, -719162, -1, 0, 1, 2932896, 2932897, -(2**31), 2**31 - 1)
    yield from (struct.pack(">i", day) for day in days)
    edges = (
        TIMESTAMP_MIN - 1,
        TIMESTAMP_MIN,
        -1,
        0,
        1,
        TIMESTAMP_MAX,
        TIMESTAMP_MAX + 1,
        -(2**63),
        2**63 - 1,
    )
    yield from (struct.pack(">q", moment) for moment in edges)
    doubles = (
        0.0,
        -0.0,
        1.5,
        float("nan"),
        float("inf"),
        float("-inf"),
        5e-324,
        1.7976931348623157e308,
    )
    yield from (struct.pack(">d", number) for number in doubles)
    yield from (
        bytes.fromhex("7ff8000000000001"),
        bytes.fromhex("fff0000000000001"),
        bytes.fromhex("7ff0000000000001"),
    )
    yield from (bytes([byte]) for byte in range(256))
    yield from (
        rng.randbytes(length)
        for length in (0, 2, 3, 4, 4, 4, 5, 7, 8, 8, 8, 8, 9, 16)
        for _ in range(20)
    )


def cells(seed: int) -> list[bytes]:
    rng = Random(seed)
    texts = [*NUMBERS, *DATES, *timestamps(), *LONG, *JSONS, "", " ", "\n"]
    texts += [
        around.format(text)
        for around in AROUND
        for text in (*NUMBERS, *DATES[:4], "2024-01-01T00:00:00Z")
    ]
    found = (
        [text.encode("utf-8", "surrogatepass") for text in texts]
        + NOT_UTF8
        + list(numbers_in_bytes(rng))
    )
    written = [write_value(*it) for it in drawn(TYPED, 700, seed)]
    found += written + drawn(LOOKALIKES, 500, seed)
    for value in written:
        place = rng.randrange(len(value) + 1)
        found.append(
            value[:place]
            + rng.choice([b"", b"0", b"9", b"-", b".", b" ", b"\n", b'"', b",", rng.randbytes(1)])
            + value[place + rng.randrange(2) :]
        )
    return list(dict.fromkeys(found))


def placed(spark: SparkSession, values: Sequence[bytes]) -> DataFrame:
    return spark.createDataFrame(list(enumerate(values)), "place int, cell binary")


def shown(type_: DataType, expression: str) -> str:
    """A column that Python gets whole: its own times stop short of the year 9999 in some zones."""
    shown_as = {DataType.TIMESTAMP: "unix_micros({})", DataType.DATETIME: micros("{0}")}
    return shown_as.get(type_, "{}").format(expression)


def same(value: object, other: object) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        return (math.isnan(value) and math.isnan(other)) or struct.pack(">d", value) == struct.pack(
            ">d", other
        )
    return type(value) is type(other) and value == other


def plain(value: object) -> object:
    return bytes(value) if isinstance(value, bytearray) else value


def test_cells_are_read_the_same(spark: SparkSession, seed: int) -> None:
    """TBL-7, TBL-9: every type in both encodings, over everything that looks like a value of any of
    them.
    """
    values = cells(seed)
    columns = [
        f"{shown(type_, typed(type_, encoding, 'cell'))} AS c{n}"
        for n, (type_, encoding) in enumerate(FORMS)
    ]
    differing, readable = [], [0] * len(FORMS)
    for row in placed(spark, values).selectExpr("place", *columns).collect():
        cell = values[row["place"]]
        for n, (type_, encoding) in enumerate(FORMS):
            expected = read_value(type_, encoding, cell)
            got = plain(row[f"c{n}"])
            readable[n] += got is not None
            if not (got is None if isinstance(expected, Unreadable) else same(got, expected)):
                differing.append(
                    (
                        str(type_),
                        str(encoding),
                        cell[:60],
                        len(cell),
                        str(got)[:60],
                        str(expected)[:60],
                    )
                )
    assert not differing, (len(differing), differing[:20])
    assert min(readable) >= 2, "each type has something to read"
    assert len(values) > 2000


NESTED_TYPES = [
    type_of(text)
    for text in (
        *("ARRAY<INT64>", "ARRAY<STRING>", "ARRAY<BYTES>", "ARRAY<NUMERIC>", "ARRAY<FLOAT64>"),
        *("ARRAY<BIGNUMERIC>", "ARRAY<JSON>", "ARRAY<BOOL>", "ARRAY<DATETIME>", "ARRAY<TIMESTAMP>"),
        *("ARRAY<TIME>", "ARRAY<DATE>", "RANGE<DATE>", "RANGE<DATETIME>", "RANGE<TIMESTAMP>"),
        *("ARRAY<ARRAY<INT64>>", "RECORD<a INT64, b2 STRING>", "ARRAY<RECORD<a DATE>>"),
        "RECORD<start ARRAY<RANGE<DATE>>, a RECORD<end TIMESTAMP, Name ARRAY<BYTES>>, b2 TIME>",
    )
]
"""Each way in which types are put together."""


def nested_cells(seed: int) -> list[bytes]:
    rng = Random(seed)
    texts = [lookalikes(rng) for _ in range(1_000)]
    for type_ in NESTED_TYPES:
        for value in drawn(values_of(type_), 25, seed):
            text = write_value(type_, Encoding.TEXT, value).decode()
            texts += [text, f" {text} ", *(damaged(rng, text) for _ in range(6))]
    around = [text.encode("utf-8", "surrogatepass") for text in (*texts, *JSONS)]
    return list(dict.fromkeys([*around, *NOT_UTF8, b'["\xff"]', b'["\xed\xa0\x80"]']))


def test_values_with_parts_are_read_the_same(spark: SparkSession, seed: int) -> None:
    """EVO-6, TBL-9: JSON that has the shape of a type, and JSON that nearly has it."""
    values = nested_cells(seed)
    use_nested(spark, NESTED_TYPES)
    columns = [
        f"{typed(type_, Encoding.TEXT, 'cell')} AS c{n}" for n, type_ in enumerate(NESTED_TYPES)
    ]
    differing, readable = list[object](), [0] * len(NESTED_TYPES)
    _, rows = plain_rows(placed(spark, values).selectExpr("place", *columns))
    for index, *row in rows:
        for n, (type_, cell) in enumerate(zip(NESTED_TYPES, row, strict=True)):
            expected = read_value(type_, Encoding.TEXT, values[index])
            expected = None if isinstance(expected, Unreadable) else expected
            got = _plain(type_, cell)
            readable[n] += got is not None
            if not is_same_row({"value": got}, {"value": expected}):
                differing.append((str(type_), values[index][:200], str(got), str(expected)))
    assert not differing, (len(differing), differing[:20])
    assert min(readable) >= 10, "each type has something to read"


def test_keys_are_read_the_same(spark: SparkSession, seed: int) -> None:
    """TBL-7: the parts of a key, and that they are all there and in their one form; a change is
    read only if each part is.
    """
    rng = Random(seed)
    fitting: list[Key] = [
        *fixed_keys(),
        *drawn(
            keys().filter(lambda key: key.form is not KeyForm.ORDERED), len(tries(6, quick=2)), seed
        ),
    ]
    pieces = [
        *(
            text.encode()
            for text in (
                *NUMBERS,
                *DATES,
                "2024-01-01T00:00:00.000000Z",
                "",
                "a",
                "ä",
                "a b",
                "#",
                "\x00",
            )
        ),
        *NOT_UTF8,
    ]
    pieces += [write_value(*it) for it in drawn(TYPED, 300, seed) if len(it) > 0]
    row_keys = [b"", b"#", b"##", b"a#b#c", *pieces[:150]]
    for key in fitting:
        canonical = [
            [
                write_value(type_, encoding, value)
                for type_, encoding, value in drawn(TYPED, 40, seed + 1)
                if type_ is part.type and encoding is Encoding.TEXT
            ]
            for part in key.parts
        ]
        for _ in range(40):
            some = [
                rng.choice(own or pieces) if rng.random() < 0.8 else rng.choice(pieces)
                for own in canonical
            ]
            some = some[
                : rng.choice([len(some), len(some), len(some), len(some) - 1])
            ] + rng.choice([[], [], [], [b""]])
            row_keys.append(key.delimiter.encode().join(some))
    row_keys = list(dict.fromkeys(row_keys))
    differing, read = compared(spark, fitting, row_keys)
    assert not differing, (len(differing), differing[:10])
    assert read > 30


def test_ordered_keys_are_read_the_same(spark: SparkSession, seed: int) -> None:
    """TBL-7: numbers around every change of length, in bytes of every length; parts joined, left
    out, and damaged.
    """
    rng = Random(seed)
    around = [
        sign * (1 << bits) + more for bits in range(135) for sign in (-1, 1) for more in (-1, 0, 1)
    ]
    around += [
        limit + more for limits in NUMBER_RANGE.values() for limit in limits for more in (-1, 0, 1)
    ]
    row_keys = [join_parts([piece]) for number in around for piece in spelt(number)]
    row_keys += [
        b"".join(some)
        for length in range(5)
        for some in product(
            (b"\x00\x01", b"\x00\x00", b"\x00\xff", b"\x00", b"\x01", b"A"), repeat=length
        )
    ]
    for key in ordered_keys():
        for values in drawn(
            st.tuples(*(NEAR[part.type] | VALUES[part.type] for part in key.parts)), 40, seed
        ):
            row_key = key.write_key(values)
            place = rng.randrange(len(row_key) + 1)
            inserted = bytes(rng.choices((0x00, 0x01, 0x41, 0x7F, 0x80, 0xFF), k=rng.randrange(4)))
            row_keys += [row_key, row_key[:place] + inserted + row_key[place + rng.randrange(3) :]]
    differing, read = compared(spark, ordered_keys(), list(dict.fromkeys(row_keys)))
    assert not differing, (len(differing), differing[:10])
    assert read > 300


def compared(
    spark: SparkSession, keys_: Sequence[Key], row_keys: Sequence[bytes]
) -> tuple[list[object], int]:
    """Every row key that a key reads otherwise in the JVM, and how often a key of several columns
    could be read.
    """
    pieces = [f"{key_pieces(key, 'cell')} AS p{n}" for n, key in enumerate(keys_)]
    columns = [
        f"{shown(part.type, column)} AS k{n}_{m}"
        for n, key in enumerate(keys_)
        for m, (part, column) in enumerate(zip(key.parts, key_columns(key, f"p{n}"), strict=True))
    ]
    differing: list[object] = []
    read = 0
    for row in (
        placed(spark, row_keys).selectExpr("place", *pieces).selectExpr("place", *columns).collect()
    ):
        row_key = row_keys[row["place"]]
        for n, key in enumerate(keys_):
            expected = key.read_key(row_key)
            got = tuple(plain(row[f"k{n}_{m}"]) for m in range(len(key.parts)))
            if isinstance(expected, Unreadable):
                agree = None in got
            else:
                agree = all(map(same, got, expected))
                read += len(key.parts) > 1
            if not agree:
                differing.append((key, row_key[:80], got, expected))
    return differing, read


def spelt(number: int) -> Iterable[bytes]:
    """Its bytes, and what would be its bytes if they were one more or one less."""
    for length in range(max(len(write_number(number)) - 1, 1), len(write_number(number)) + 2):
        sign = 1 << 7 * length
        raw = number + (sign if number < 0 else (sign << length) - sign)
        yield (raw % (1 << 8 * length)).to_bytes(length)


def ordered_keys() -> list[Key]:
    named = tuple(KeyPart(f"k{n}", type_) for n, type_ in enumerate(KEY_TYPES))
    return [
        *(Key((part,), KeyForm.ORDERED) for part in named),
        Key(named, KeyForm.ORDERED),
        Key(named[::-1], KeyForm.ORDERED),
        Key(named[:2], KeyForm.ORDERED),
        Key(tuple(KeyPart(f"k{n}", KEY_TYPES[n % 2]) for n in range(16)), KeyForm.ORDERED),
        Key(tuple(KeyPart(f"k{n}", DataType.INT64) for n in range(16)), KeyForm.ORDERED),
    ]


def fixed_keys() -> list[Key]:
    parts = (
        DataType.STRING,
        DataType.BYTES,
        DataType.INT64,
        DataType.BOOL,
        DataType.NUMERIC,
        DataType.DATE,
        DataType.TIMESTAMP,
    )
    named = tuple(KeyPart(f"k{n}", type_) for n, type_ in enumerate(parts))
    return [
        Key((KeyPart("k", DataType.BYTES),), KeyForm.ROW_KEY),
        Key((KeyPart("k", DataType.STRING),), KeyForm.ROW_KEY),
        *(Key((part,), KeyForm.DELIMITED) for part in named),
        *(
            Key(named[:count], KeyForm.DELIMITED, delimiter)
            for count in (2, 3, 7)
            for delimiter in ("#", "##", "$^", "a.b", "\\", "|")
        ),
        Key(tuple(KeyPart(f"k{n}", DataType.STRING) for n in range(16)), KeyForm.DELIMITED, "::"),
    ]


def test_cells_without_a_column_have_the_same_names(spark: SparkSession, seed: int) -> None:
    """TBL-22."""
    rng = Random(seed)
    qualifiers = [
        b"",
        b"q",
        b"%",
        b"%25",
        b"a%b",
        b"\xff",
        b"%\xff",
        b"\xc3\xa4",
        b"\xc3\xa4\xff",
        b"\xff\xc3\xa4%41",
        b"\x00",
        b"\x00\xff",
        *NOT_UTF8,
    ]
    qualifiers += [bytes([byte]) for byte in range(256)] + [
        bytes([byte]) + "ä%".encode() for byte in range(256)
    ]
    qualifiers += drawn(st.text(max_size=8).map(lambda text: text.encode()), 100, seed) + [
        rng.randbytes(rng.randrange(20)) for _ in range(200)
    ]
    rows = placed(spark, qualifiers).selectExpr(
        "place", "named_struct('family', 'f.1', 'qualifier', cell) AS x"
    )
    got = {
        row["place"]: row["name"]
        for row in rows.selectExpr("place", f"{_UNMAPPED_NAME} AS name").collect()
    }
    assert [got[place] for place in range(len(qualifiers))] == [
        unmapped_name("f.1", qualifier) for qualifier in qualifiers
    ]

"""Records of Kafka with bytes that are none, other framings and other writer schemas."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import fastavro

from connector.records.codec import CONFLUENT, SCHEMA, SINGLE_OBJECT, Schemas, encode, frame, framed
from connector.records.model import (
    ColumnType,
    ModType,
    OldCell,
    Record,
    RowImage,
    SetCell,
    Transaction,
    kafka_key,
)
from tests.fastavro_encoder import to_datum
from tests.property.strategies import slots
from tests.property.test_codec_roundtrip import without_logical_types
from tests.record_cases import (
    CHANGE,
    ENDED,
    HEARTBEAT,
    RELEASE,
    ROW,
    STAGED,
    Case,
    raw,
    records_of_every_kind,
)

LATE_MS = 253402300799999
"""An arrival that no claim is ahead of."""

HEAD = len(frame(b"", None))
EVIL = [
    *(
        b"\x80" * n + b"\x00" for n in (1, 3, 4, 5, 8, 9, 10)
    ),  # a zero that takes more bytes than it needs
    *(b"\x82" + b"\x80" * n + b"\x00" for n in (1, 3, 4, 9)),
    *(b"\xff" * n + b"\x01" for n in (4, 9, 10)),
    *(b"\xff" * n + b"\x7f" for n in (4, 9)),  # more bits than the number has
    b"\xfe\xff\xff\xff\x0f",  # 2^31 - 1
    b"\x80\x80\x80\x10",  # 16 MiB
    b"\x80\x80\x80\x80\x80\x80\x01",
    b"\x01",  # -1
    b"\x02",
    b"\x03",
    b"\xc3\x28",
    b"\xed\xa0\x80",  # a surrogate, as UTF-8 does not have it
    b"\xf4\x90\x80\x80",
    b"\xc0\xaf",
    b"\xef\xbf\xbd",
]
"""Numbers and text to be put in the place of others."""


def case(name: str, record: Record, value: bytes | None) -> Case:
    return Case(name, kafka_key(record), value, LATE_MS)


def damaged(rng: Random, record: Record, count: int) -> Iterator[Case]:
    value = framed(record, 4)
    for _ in range(count):
        length, place = len(value), rng.randrange(HEAD, len(value))
        match rng.randrange(6):
            case 0:
                bad = (
                    value[:place]
                    + bytes([value[place] ^ (1 << rng.randrange(8))])
                    + value[place + 1 :]
                )
            case 1:
                bad = value[:place] + rng.randbytes(1) + value[place + 1 :]
            case 2:
                bad = value[: rng.randrange(length)]
            case 3:
                bad = value + rng.choice(
                    [
                        b"\x00",
                        b"\x02",
                        rng.randbytes(8),
                        rng.randbytes(rng.randrange(1, 30)),
                        value,
                        value[HEAD:],
                    ]
                )
            case 4:
                bad = value[:place] + rng.choice(EVIL) + value[place + rng.randrange(3) :]
            case _:
                bad = (
                    value[:place]
                    + rng.randbytes(rng.randrange(1, 9))
                    + value[place + rng.randrange(9) :]
                )
        yield case("damaged", record, bad)


def every_flip(value: bytes, head: int = HEAD) -> Iterator[bytes]:
    """The value with each bit of its body flipped in turn."""
    for place in range(head, len(value)):
        for bit in range(8):
            yield value[:place] + bytes([value[place] ^ (1 << bit)]) + value[place + 1 :]


TEXTS = [
    b"\xff",
    b"\x80",
    b"a\xc3",
    b"\xc3\xa9",
    b"\xe2\x82",
    b"\xe2\x28\xa1",
    b"\xc0\x80",
    b"\xe0\x80\x80",
    b"\xed\xa0\x80",
    b"\xed\x9f\xbf",
    b"\xf0\x90\x80\x80",
    b"\xf0\x80\x80\x80",
    b"\xf4\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xef\xbf\xbf",
    b"\xef\xbb\xbf",
    b"\x00",
]


def as_bytes(schema: Any) -> Any:
    """The schema with bytes in the place of text, to write text that is none."""
    if isinstance(schema, dict):
        return {
            part: as_bytes(inner)
            for part, inner in schema.items()
            if part not in ("default", "doc")
        }
    return (
        [as_bytes(part) for part in schema]
        if isinstance(schema, list)
        else "bytes"
        if schema == "string"
        else schema
    )


BYTES_SCHEMA = fastavro.parse_schema(as_bytes(without_logical_types(json.loads(SCHEMA))))


SYMBOLS = ("kind", "change_type", "mod_type")


def text_slots(datum: Any) -> list[tuple[Any, Any]]:
    """Every place of a datum that holds text, as (container, name or index)."""
    return [slot for slot in slots(datum, str) if slot[1] not in SYMBOLS]


def number(value: int) -> bytes:
    """An Avro number."""
    left = value << 1 ^ value >> 63
    out = bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])


def raw_entry(place: int) -> bytes:
    datum = to_datum(CHANGE, 4)["data_change"]["entries"][place]
    schema = next(field for field in BRANCH["fields"] if field["name"] == "entries")["type"][
        "items"
    ]
    return raw(datum, fastavro.parse_schema(schema))


BRANCH = without_logical_types(json.loads(SCHEMA))["fields"][2]["type"][1]


def newer() -> Any:
    """A schema of the future: new fields everywhere, and kinds of entries and changes that this
    release has not heard of.
    """
    schema = without_logical_types(json.loads(SCHEMA))
    change = schema["fields"][2]["type"][1]
    change["fields"].insert(
        2, {"name": "priority", "type": ["null", "int", "string"], "default": None}
    )
    change["fields"].append(
        {"name": "labels", "type": {"type": "map", "values": "string"}, "default": {}}
    )
    entry = next(field for field in change["fields"] if field["name"] == "entries")["type"]["items"]
    entry["fields"].insert(
        1, {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}
    )
    entry["fields"][0]["type"]["symbols"].append("PATCH_CELL")
    change["fields"][3]["type"]["symbols"].append("REPLICATION")
    schema["fields"].append({"name": "trace", "type": "bytes", "default": ""})
    return schema


def with_extra(extra: Any) -> str:
    """Our schema with a field of another type behind the others."""
    schema = json.loads(SCHEMA)
    schema["fields"].append({"name": "extra", "type": extra})
    return json.dumps(schema)


REFUSED: list[Any] = [
    [
        "null",
        {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]},
    ],  # as deep as it likes
    ["null", {"type": "array", "items": "null"}],  # as long as it likes
    ["int", ["null", "string"]],
    ["int", "int"],
    {"type": "record", "name": "a-b", "fields": []},
    {"type": "record", "name": "long", "fields": []},
    {
        "type": "record",
        "name": "Twice",
        "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}],
    },
]
"""Types that make a schema unusable even where no record uses them."""


UNREADABLE = {
    20: "not a schema",
    21: '"string"',
    22: "{}",
    23: json.dumps({"type": "record", "name": "ChangeRecord", "fields": []}),
    24: json.dumps({"type": "record", "name": "Other", "fields": json.loads(SCHEMA)["fields"]}),
    25: json.dumps(["null", json.loads(SCHEMA)]),
    26: "[" * 100_000,
    27: "null",
    **{50 + place: with_extra(extra) for place, extra in enumerate(REFUSED)},
}


def odd_schemas() -> dict[int, str]:
    """Schemas that are ours for all that counts, and say so in odd ways."""
    ours = json.loads(SCHEMA)
    no_namespace = {name: part for name, part in ours.items() if name != "namespace"}
    bad_default = copy.deepcopy(ours)
    bad_default["fields"].append({"name": "extra", "type": "int", "default": 2**40})
    java_strings = json.loads(
        json.dumps(ours).replace(
            '"type": "string"', '"type": {"type": "string", "avro.java.string": "String"}'
        )
    )
    twice = copy.deepcopy(ours)
    twice["fields"].append(
        {"name": "extra", "type": {"type": "enum", "name": "other.Entry", "symbols": ["A"]}}
    )
    named = copy.deepcopy(ours)
    named["fields"].append({"name": "extra", "type": {"type": "fixed", "name": "Tail", "size": 8}})
    error = copy.deepcopy(ours)
    error["fields"].append(
        {
            "name": "extra",
            "type": {"type": "error", "name": "Oops", "fields": [{"name": "n", "type": "int"}]},
        }
    )
    renamed = json.loads(json.dumps(ours).replace('"name": "DataChange"', '"name": "RowChange"'))
    renamed_enum = json.loads(json.dumps(ours).replace('"name": "ChangeType"', '"name": "Kind"'))
    found = [
        no_namespace,
        ours | {"namespace": "com.example"},
        bad_default,
        java_strings,
        twice,
        named,
        error,
        renamed,
        renamed_enum,
    ]
    return {30 + place: json.dumps(schema) for place, schema in enumerate(found)}


EXTRAS = {32: {"extra": 1}, 34: {"extra": "A"}, 35: {"extra": b"12345678"}, 36: {"extra": {"n": 1}}}


def damaged_cases(seed: int) -> list[Case]:
    """Flips, cuts, rubbish and numbers that lie."""
    rng = Random(seed)
    records = [CHANGE, HEARTBEAT, ENDED, ROW, STAGED, RELEASE, *records_of_every_kind(seed)]
    cases = [bad for record in records for bad in damaged(rng, record, 20)]
    cases += [
        case("flip", record, flipped)
        for record in (CHANGE, STAGED, RELEASE)
        for flipped in every_flip(framed(record, 4))
    ]
    cases += [
        case("rubbish", CHANGE, frame(rng.randbytes(rng.randrange(200)), None)) for _ in range(300)
    ]
    cases += [case("zeros", CHANGE, frame(bytes(n), None)) for n in range(40)]
    return cases


def text_cases() -> list[Case]:
    """Each field of text in turn, with bytes that decoders treat differently."""
    full = replace(
        CHANGE,
        transaction=Transaction("tx", transaction_tag="tag"),
        row_image=RowImage(
            ModType.UPDATE, "NEW", (ColumnType("a", "INT64"),), (OldCell("f", b"q", b"v"),)
        ),
    )
    cases = []
    for record in (full, HEARTBEAT, ENDED, ROW, RELEASE):
        for slot in range(len(text_slots(to_datum(record, 1)))):
            for text in TEXTS:
                datum = to_datum(record, 1)
                for place, (container, name) in enumerate(text_slots(datum)):
                    container[name] = text if place == slot else container[name].encode()
                value = frame(raw(datum, BYTES_SCHEMA), None)
                cases.append(case(f"text {slot}", record, value))
    return cases


def block_cases() -> list[Case]:
    """Arrays of several blocks, with sizes, true and false ones, and impossible counts."""
    entries = [raw_entry(n) for n in range(3)]
    whole = encode(CHANGE, 4)
    before, after = whole.split(number(3) + b"".join(entries) + b"\x00")

    def sized(items: list[bytes], off_by: int = 0) -> bytes:
        return number(-len(items)) + number(sum(map(len, items)) + off_by) + b"".join(items)

    arrays = {
        "one block": number(3) + b"".join(entries),
        "three blocks": b"".join(number(1) + entry for entry in entries),
        "sized": sized(entries),
        "mixed": sized(entries[:2]) + number(1) + entries[2],
        **{f"size off by {n}": sized(entries, n) for n in (-1000, -1, 1, 2, 2**31, 2**62)},
        **{
            f"{n} entries": number(n) + b"".join(entries)
            for n in (2, 4, 999_999, 1_000_001, 2**31 - 1, 2**31, 2**32 + 3, 2**63 - 1)
        },
        **{
            f"{n} sized": number(n) + number(9) + b"".join(entries)
            for n in (-1_000_001, -(2**31), -(2**32) - 3, -(2**63))
        },
        "a million in two": number(3) + b"".join(entries) + number(999_998),
    }
    cases = [
        case(name, CHANGE, frame(before + array + b"\x00" + after, None))
        for name, array in arrays.items()
    ]
    # Negating the least of all numbers gives itself: as the first count, that is no items, and no
    # block after it.
    least = number(-(2**63)) + number(9)
    with_least = (
        least,
        number(3) + b"".join(entries) + least,
        number(1) + entries[0] + sized(entries[1:]) + least,
    )
    cases += [case("least", CHANGE, frame(before + array + after, None)) for array in with_least]
    ended = encode(replace(ENDED, children=()), 4)
    assert ended.endswith(b"\x00")
    cases.append(case("least", ENDED, frame(ended[:-1] + least, None)))
    ranges = [b"\x0ajob/a\x00\x08", b"\x08w2/p\x02\x04"]
    release = b"\x02p\x08\x00\x00\x00\x02\x0e"
    cases += [
        case("ranges", RELEASE, frame(release + array + b"\x00", None))
        for array in (
            *(
                number(2) + b"".join(ranges),
                sized(ranges),
                number(1) + ranges[0] + sized(ranges[1:]),
            ),
            *(number(1) + ranges[0] + sized(ranges[1:], 2), sized(ranges) + number(2**31), least),
        )
    ]
    return cases


def length_cases() -> list[Case]:
    """Lengths around 16 MiB, and such as are not there."""
    cases = []
    for length in (16 * 2**20, 16 * 2**20 + 1):
        big = replace(CHANGE, entries=(SetCell("f", b"q", bytes(length), 0),))
        cases.append(case(f"{length} bytes", big, frame(encode(big, 1), None)))
    rest = encode(HEARTBEAT, 1)[3:]
    lengths = (-1, -(2**31), -(2**63), 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**40, 2**63 - 1)
    cases += [
        case(f"{length} announced", HEARTBEAT, frame(number(length) + rest, None))
        for length in lengths
    ]
    return cases


def schema_cases(seed: int) -> tuple[Schemas, list[Case]]:
    """Other writer schemas and framings, and what a registry may have under an id."""
    rng = Random(seed)
    new = fastavro.parse_schema(newer())
    big = 2**32 - 1
    texts: dict[int, str | None] = {
        7: SCHEMA,
        8: None,
        10: json.dumps(newer()),
        big: SCHEMA,
        2**31: None,
    }
    texts |= UNREADABLE | odd_schemas()
    cases = []
    for record in (CHANGE, HEARTBEAT, ENDED, ROW, RELEASE):
        body = encode(record, 4)
        cases += [
            case(f"id {id_}", record, frame(body, id_)) for id_ in (*texts, 0, 6, 9, 2**31 - 1)
        ]
        for id_, extra in EXTRAS.items():
            schema = fastavro.parse_schema(json.loads(texts[id_] or ""))
            cases.append(
                case(f"odd {id_}", record, frame(raw(to_datum(record, 4) | extra, schema), id_))
            )
        cases += [case("java strings", record, frame(body.replace(b"p1", b"p\xff"), 33))]
        whole = [frame(body, None), frame(body, 7)]
        cases += [
            case("cut head", record, value[:length])
            for value in whole
            for length in range(HEAD + 1)
        ]
        heads = [
            b"\xc3",
            SINGLE_OBJECT + bytes(8),
            SINGLE_OBJECT + rng.randbytes(8),
            b"\xc3\x02",
            b"\x01",
            b"{",
            b"\xff",
            CONFLUENT * 5,
            b"",
        ]
        cases += [case("head", record, head + body) for head in heads] + [
            case("null", record, None)
        ]
    datum = to_datum(CHANGE, 4) | {"trace": b""}
    entries, change = datum["data_change"]["entries"], datum["data_change"]
    extended = [
        datum,
        datum
        | {
            "trace": b"abc",
            "data_change": change | {"priority": 7, "labels": {"a": "b", "c": "d"}},
        },
        datum
        | {
            "data_change": (
                change
                | {
                    "priority": "high",
                    "entries": [entry | {"tags": ["x", "y"]} for entry in entries],
                }
            )
        },
        datum
        | {"data_change": change | {"entries": [entries[0], entries[0] | {"kind": "PATCH_CELL"}]}},
        datum | {"data_change": change | {"change_type": "REPLICATION"}},
    ]
    for body in (raw(each, new) for each in extended):
        cases.append(case("newer", CHANGE, frame(body, 10)))
        value = frame(body, 10)
        cases += [case("newer, flipped", CHANGE, flipped) for flipped in every_flip(value, 5)]
        for place in range(5, len(value)):
            evil = rng.choice(EVIL)
            cases.append(
                case(
                    "newer, evil", CHANGE, value[:place] + evil + value[place + rng.randrange(3) :]
                )
            )
    return Schemas(texts), cases

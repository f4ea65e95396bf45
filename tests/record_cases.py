"""Records of Kafka, good ones and such as break a rule, for tests of validation."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BytesIO
from random import Random
from typing import Any, TypeVar

import fastavro
import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from connector.records.codec import frame, framed
from connector.records.model import (
    BRANCHES,
    CONTROL_KEY,
    MAX_ENTRIES,
    MAX_LONG,
    MAX_RANGES,
    MAX_TIMESTAMP,
    ChildPartition,
    ChildPartitions,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Heartbeat,
    ModType,
    OffsetRange,
    Record,
    Release,
    RowImage,
    SetCell,
    Transaction,
    WriteStreamOffset,
    kafka_key,
    time_of,
)
from connector.records.rejection import Position
from connector.validation import (
    KafkaRecord,
)
from tests.changes import in_newer_schema
from tests.examples import tries
from tests.fastavro_encoder import to_datum
from tests.property.strategies import RECORDS, edge_data
from tests.property.test_codec_roundtrip import PLAIN_SCHEMA

TOPIC_PARTITIONS = 4


SKEW_S = 300


ARRIVAL_MS = 1_714_475_984_123


T = TypeVar("T")


Datum = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A record of Kafka, and how it came about."""

    name: str
    key: bytes | None
    value: bytes | None
    arrival_ms: int = ARRIVAL_MS

    @property
    def record(self) -> KafkaRecord:
        return KafkaRecord(Position("t", "id", 0, 0), self.arrival_ms * 1000, self.key, self.value)


def drawn(strategy: st.SearchStrategy[T], count: int, seed: int) -> list[T]:
    """So many examples of a strategy, to be judged together: a query for each would take
    seconds.
    """
    found: list[T] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: T) -> None:
        found.append(example)

    collect()
    return found


def raw(datum: Datum, schema: Any = PLAIN_SCHEMA) -> bytes:
    """The Avro body of a datum that no constructor of ours would take."""
    body = BytesIO()
    fastavro.schemaless_writer(body, schema, datum)
    return body.getvalue()


def key_of(datum: Datum) -> bytes:
    return datum["data_change"]["row_key"] if datum["data_change"] is not None else CONTROL_KEY


def claimed_us(datum: Datum) -> int:
    times = ("commit_timestamp", "timestamp", "start_timestamp")
    (branch,) = [datum[name] for name in BRANCHES if datum[name]]
    return next(branch[name] for name in times if name in branch)  # type: ignore[no-any-return]


def framed_datum(datum: Datum) -> bytes:
    return frame(raw(datum), None)


def arrival_ms_of(rng: Random, claimed: int) -> int:
    """In milliseconds, as Kafka has it: long after, or around what the skew allows."""
    latest = min(max(claimed, 0), MAX_TIMESTAMP) // 1000
    return rng.choice(
        [latest + 86_400_000, latest, max(0, latest - SKEW_S * 1000 + rng.randrange(-1, 2))]
    )


CHANGE = DataChange(
    stream_partition="p1",
    table="t",
    row_key=b"row",
    commit_timestamp=1_714_475_984_000_000,
    entries=(SetCell("f", b"q", b"v", 0), DeleteCells("f", b"q", 1, 2), DeleteFamily("g")),
    transaction=Transaction("tx"),
    change_sequence_number="FFF/ABC",
    row_image=RowImage(ModType.INSERT),
)


ROW = replace(CHANGE, write_stream=WriteStreamOffset("job/rows", 7))


STAGED = replace(ROW, commit_timestamp=0, transaction=None)


RELEASE = Release(
    "p1",
    1_714_475_984_000_000,
    (OffsetRange("job/rows", 0, 8), OffsetRange("w2/p", 3, 4)),
)


HEARTBEAT = Heartbeat("p1", 1_714_475_984_000_000)


ENDED = ChildPartitions(
    "p1",
    1_714_475_984_000_000,
    0,
    (ChildPartition("c1", ("p1",), b"a", b"b"), ChildPartition("c2", ("p1", "p2"))),
)


NAMES = [
    "",
    "-",
    "x y",
    "é",
    "f\n",
    "\nf",
    "f\ng",
    "f\n\n",
    "\n",
    "f\r",
    "f\u2028",
    "f\x00",
    "F.9_-",
    "\ufffd",
    "f\ufffdg",
]


NAMES_BY_LENGTH = [letter * length for length in (64, 65, 128, 129) for letter in ("a", "ä")]


TOKENS = ["", "p", "\n", "p" * 1024, "p" * 1025, "ä" * 512, "ä" * 512 + "p", "🚀" * 256, "🚀" * 257]


LONGS = [-(2**63), -1, 0, 1, 2, MAX_TIMESTAMP, MAX_TIMESTAMP + 1, MAX_LONG]


KEYS = [
    b"",
    b"\x00",
    b"k" * 4096,
    b"k" * 4097,
    CONTROL_KEY,
    CONTROL_KEY + b"\x00",
    CONTROL_KEY[:-1],
]


SEQUENCE_NUMBERS = [
    "",
    "/",
    "0",
    "f/F/0/9",
    "0/0/0/0/0",
    "g",
    "0/",
    "/0",
    "0//0",
    "0\n",
    " 0",
    "٣",
    "0" * 16,
    "0" * 17,
    "/".join(["F" * 16] * 4),
]


WRITE_STREAMS = [
    *(
        "",
        "/",
        "job",
        "/b",
        "a/",
        "a/b",
        "a//b",
        "a/b/c",
        "a/b\n",
        "\na/b",
        "a/é",
        "-_.aZ0/x",
        "a b/c",
    ),
    *(
        "a" * 64 + "/" + "b" * 64,
        "a" * 65 + "/b",
        "a/" + "b" * 65,
        "a/b\u2028",
        "a/b\x00",
        "job/rows",
    ),
]


def ranges_of(count: int) -> list[Datum]:
    return [{"stream": f"job/{n}", "first": n, "upto": n + 1} for n in range(count)]


def child_of(start_key: bytes | None, end_key: bytes | None) -> Datum:
    return {
        "token": "c2",
        "parent_partition_tokens": ["p1"],
        "start_key": start_key,
        "end_key": end_key,
    }


LIMITS: list[tuple[Record, tuple[str | int, ...], Sequence[Any]]] = [
    *(
        (record, ("stream_partition",), TOKENS)
        for record in (CHANGE, HEARTBEAT, ENDED, STAGED, RELEASE)
    ),
    *(
        (record, ("kafka_partitions",), [-(2**31), -1, 0, 1, 4, 5, 2**31 - 1])
        for record in (CHANGE, HEARTBEAT)
    ),
    (CHANGE, ("data_change",), [None]),
    (CHANGE, ("heartbeat",), [{"timestamp": 1, "resume_token": b""}]),
    (CHANGE, ("child_partitions",), [{"start_timestamp": 1, "record_sequence": 0, "children": []}]),
    (CHANGE, ("release",), [{"commit_timestamp": 0, "ranges": []}]),
    (RELEASE, ("release",), [None]),
    (RELEASE, ("heartbeat",), [{"timestamp": 1, "resume_token": b""}]),
    (CHANGE, ("data_change", "write_stream"), [{"stream": "a/b", "offset": 0}]),
    (STAGED, ("data_change", "write_stream"), [None]),
    *((row, ("data_change", "write_stream", "stream"), WRITE_STREAMS) for row in (ROW, STAGED)),
    *((row, ("data_change", "write_stream", "offset"), LONGS) for row in (ROW, STAGED)),
    (ROW, ("data_change", "commit_timestamp"), LONGS),
    (STAGED, ("data_change", "commit_timestamp"), LONGS),
    (STAGED, ("data_change", "estimated_low_watermark"), LONGS),
    (STAGED, ("data_change", "resume_token"), [b"r", b"r" * 65537]),
    (STAGED, ("data_change", "transaction"), [to_datum(CHANGE, 1)["data_change"]["transaction"]]),
    (STAGED, ("data_change", "tie_breaker"), LONGS),
    (STAGED, ("data_change", "change_sequence_number"), SEQUENCE_NUMBERS),
    (STAGED, ("data_change", "row_image"), [None]),
    (STAGED, ("data_change", "entries"), [[]]),
    (STAGED, ("data_change", "entries", 0, "cell_timestamp"), LONGS),
    (RELEASE, ("release", "commit_timestamp"), LONGS),
    (RELEASE, ("release", "ranges"), [[], ranges_of(MAX_RANGES), ranges_of(MAX_RANGES + 1)]),
    *((RELEASE, ("release", "ranges", n, "stream"), WRITE_STREAMS) for n in range(2)),
    *((RELEASE, ("release", "ranges", n, "first"), [*LONGS, 3, 4, 7, 8, 9]) for n in range(2)),
    *((RELEASE, ("release", "ranges", n, "upto"), [*LONGS, 3, 4, 7, 8, 9]) for n in range(2)),
    (
        HEARTBEAT,
        ("child_partitions",),
        [{"start_timestamp": 1, "record_sequence": 0, "children": []}],
    ),
    (CHANGE, ("data_change", "table"), NAMES + NAMES_BY_LENGTH),
    (CHANGE, ("data_change", "row_key"), KEYS),
    (CHANGE, ("data_change", "commit_timestamp"), LONGS),
    (CHANGE, ("data_change", "change_type"), ["GARBAGE_COLLECTION"]),
    (CHANGE, ("data_change", "source_cluster_id"), ["", "\n", "ä"]),
    (CHANGE, ("data_change", "tie_breaker"), LONGS),
    (CHANGE, ("data_change", "resume_token"), [b"r" * 65536, b"r" * 65537]),
    (CHANGE, ("data_change", "estimated_low_watermark"), LONGS),
    (CHANGE, ("data_change", "transaction", "record_sequence"), LONGS),
    (CHANGE, ("data_change", "change_sequence_number"), SEQUENCE_NUMBERS),
    (CHANGE, ("data_change", "entries"), [[]]),
    *(
        (
            CHANGE,
            ("data_change", "entries", n, "kind"),
            ["UNKNOWN", "DELETE_CELLS", "DELETE_FAMILY"],
        )
        for n in range(3)
    ),
    *((CHANGE, ("data_change", "entries", n, "family"), NAMES + NAMES_BY_LENGTH) for n in range(3)),
    *(
        (CHANGE, ("data_change", "entries", n, "qualifier"), [b"", b"q" * 16384, b"q" * 16385])
        for n in range(3)
    ),
    *((CHANGE, ("data_change", "entries", n, "cell_timestamp"), LONGS) for n in range(3)),
    *((CHANGE, ("data_change", "entries", n, "range_start"), LONGS) for n in range(3)),
    *((CHANGE, ("data_change", "entries", n, "range_end"), LONGS) for n in range(3)),
    (HEARTBEAT, ("heartbeat", "timestamp"), LONGS),
    (HEARTBEAT, ("heartbeat", "resume_token"), [b"r" * 65536, b"r" * 65537]),
    (ENDED, ("child_partitions", "start_timestamp"), LONGS),
    (ENDED, ("child_partitions", "record_sequence"), LONGS),
    (ENDED, ("child_partitions", "children"), [[]]),
    *((ENDED, ("child_partitions", "children", n, "token"), TOKENS) for n in range(2)),
    *(
        (ENDED, ("child_partitions", "children", 1, "parent_partition_tokens", n), TOKENS)
        for n in range(2)
    ),
    (ENDED, ("child_partitions", "children", 1, "parent_partition_tokens"), [[]]),
    *(
        (
            ENDED,
            ("child_partitions", "children", n, "start_key"),
            [None, b"", b"a", b"b", b"\xff", b"ab"],
        )
        for n in range(2)
    ),
    *(
        (
            ENDED,
            ("child_partitions", "children", n, "end_key"),
            [None, b"", b"a", b"\x7f", b"\x80", b"a\x00"],
        )
        for n in range(2)
    ),
    (
        ENDED,
        ("child_partitions", "children", 1),
        [child_of(*keys) for keys in itertools.product([None, b"", b"a", b"b"], repeat=2)],
    ),
]
"""For each field with a limit, values on both sides of it."""


def set_field(datum: Datum, path: Sequence[str | int], value: Any) -> Datum:
    changed = copy.deepcopy(datum)
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed


def broken_data() -> Iterator[tuple[str, Datum]]:
    for record, path, values in LIMITS:
        for value in values:
            datum = set_field(to_datum(record, TOPIC_PARTITIONS), path, value)
            yield f"{path}={str(value)[:40]!r}", datum


def records_at(at: int) -> list[Record]:
    """One record of each kind with this time."""
    return [
        replace(CHANGE, commit_timestamp=at),
        replace(ROW, commit_timestamp=at),
        STAGED,
        replace(RELEASE, commit_timestamp=at),
        Heartbeat("p", at),
        ChildPartitions("p", at, 0, (ChildPartition("p"),)),
    ]


@lru_cache(maxsize=1)
def records_of_every_kind(seed: int) -> Sequence[Record]:
    """Some good records, which take seconds to draw."""
    return drawn(RECORDS, 150, seed)


def cases_of_every_kind(seed: int) -> list[Case]:
    """Good records, and such as lie at the edge of a limit or beyond."""
    rng = Random(seed)
    cases = []
    for record in drawn(RECORDS, len(tries(500, quick=200)), seed):
        count = rng.choice([1, 4, 4, 5])
        value = rng.choice([framed(record, count), framed_datum(to_datum(record, count))])
        cases.append(Case("legal", kafka_key(record), value, arrival_ms_of(rng, time_of(record))))
    edges = drawn(edge_data(st.integers(1, 3)), len(tries(800, quick=300)), seed + 1)
    cases += [
        Case("edge", key_of(datum), framed_datum(datum), arrival_ms_of(rng, claimed_us(datum)))
        for datum in edges
    ]
    return cases


def aged_cases() -> list[Case]:
    """Records at a horizon that is the time of `CHANGE`, before it and after it."""
    at = CHANGE.commit_timestamp
    records = [
        *(
            replace(record, commit_timestamp=at + away)
            for record in (CHANGE, ROW, RELEASE)
            for away in (-1, 0, 1)
        ),
        replace(HEARTBEAT, timestamp=at - 1),
        STAGED,
    ]
    return [Case("age", kafka_key(record), framed(record, 4), at // 1000) for record in records]


def settings_cases(seed: int) -> list[Case]:
    """Records with unknown fields (schema 9) and row images that contradict entries (schema 7)."""
    cases = [
        Case(
            "may be rejected",
            kafka_key(record),
            (in_newer_schema(record, 4, 9) if place % 4 == 0 else framed(record, 4, 7)),
            time_of(record) // 1000,
        )
        for place, record in enumerate(records_of_every_kind(seed))
    ]
    for mod_type, entries in itertools.product(
        ModType, ((CHANGE.entries[0],), (DeleteFamily("f"),), CHANGE.entries)
    ):
        change = replace(CHANGE, row_image=RowImage(mod_type), entries=entries)
        value = framed(change, 4, 7)
        cases.append(Case("image", kafka_key(change), value, CHANGE.commit_timestamp // 1000))
    return cases


def limit_cases() -> list[Case]:
    """For each field with a limit, records on both sides of it."""
    return [
        Case(name, key_of(datum), framed_datum(datum), MAX_TIMESTAMP // 1000)
        for name, datum in broken_data()
    ]


def cases_of_two_rules(seed: int, count: int = 2000) -> list[Case]:
    """Records that break two or three rules."""
    rng = Random(seed)
    by_record = {
        id(record): [limit for limit in LIMITS if limit[0] is record and len(limit[1]) > 1]
        for record in (CHANGE, ENDED, STAGED, RELEASE)
    }
    cases: list[Case] = []
    while len(cases) < count:
        record = rng.choice([CHANGE, CHANGE, STAGED, ENDED, RELEASE])
        datum = to_datum(record, rng.choice([4, 4, 5]))
        try:
            for _, path, values in rng.sample(by_record[id(record)], rng.randrange(2, 4)):
                datum = set_field(datum, path, rng.choice(values))
        except (LookupError, TypeError):  # the first change took the place of the second
            continue
        key = rng.choice([key_of(datum), key_of(datum), None, b"other"])
        cases.append(Case("several", key, framed_datum(datum), rng.choice([0, ARRIVAL_MS])))
    return cases


def cases_of_many_entries() -> list[Case]:
    """Changes with 100,000 entries, more, and a bad one."""
    datum = to_datum(CHANGE, 1)
    entry = datum["data_change"]["entries"][0]
    families = [["f"] * MAX_ENTRIES, ["f"] * (MAX_ENTRIES + 1), [*["f"] * 60_000, "f\nf"]]
    cases = []
    for names in families:
        many = set_field(
            datum, ("data_change", "entries"), [entry | {"family": name} for name in names]
        )
        cases.append(Case(f"{len(names)} entries", b"row", framed_datum(many)))
    return cases


def key_cases() -> list[Case]:
    """Keys, clocks, sizes (around 300 bytes) and tables, to the byte and to the millisecond."""
    cases = []
    for record in (CHANGE, HEARTBEAT, ENDED, ROW, STAGED, RELEASE):
        value = framed(record, 1)
        right = kafka_key(record)
        latest_ms = max(0, time_of(record) // 1000 - SKEW_S * 1000)
        room = 300 - len(right)
        cases += [
            Case("key", key, value)
            for key in (right, None, b"", right + b"\x00", b"row", CONTROL_KEY)
        ]
        cases += [Case("skew", right, value, latest_ms + off_by) for off_by in (-1, 0, 1)]
        cases += [Case("size", right, value.ljust(room + off_by, b"\x00")) for off_by in (-1, 0, 1)]
        cases += [
            Case("arrival", right, value, arrival_ms) for arrival_ms in (-1, 0, MAX_LONG // 1000)
        ]
    cases += [
        Case("size", b"k" * 301, None),
        Case("size", b"k" * 300, None),
        Case("size", None, b"\x01" * 301),
        Case("size", b"", b""),
    ]
    for table in ("t", "T", "u", "v.1"):
        datum = set_field(to_datum(CHANGE, 1), ("data_change", "table"), table)
        cases.append(Case("table", b"row", framed_datum(datum)))
    return cases


def old_cases(least: int) -> list[Case]:
    """Records of each kind around the least time."""
    times = (1, 2, 1_714_475_984, ARRIVAL_MS, least - 2, least - 1, least, least + 1)
    return [
        Case(f"{type(record).__name__} {at}", kafka_key(record), framed(record, 1))
        for at in times
        for record in records_at(at)
    ]

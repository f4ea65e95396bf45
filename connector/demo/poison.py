"""Records that must be rejected: each kind of error that a record can have, made from a correct
change.

Each one is about an existing row, with a newer commit than any other. If it were applied, the row
would be gone. Its key and headers are unusual, because a dead letter must contain them byte for
byte (DLQ-1).
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro.schema import parse_schema

from connector.records.codec import SCHEMA, encode, frame
from connector.records.datum import to_datum
from connector.records.model import CONTROL_KEY, DataChange, DeleteFamily, Heartbeat, Rule, SetCell
from connector.records.rejection import Headers, Reason

_DAY_US: Final = 86_400_000_000
_SCHEMA: Final = parse_schema(json.loads(SCHEMA))


@dataclass(frozen=True, slots=True)
class Poison:
    """A bad record with the expected reason. With `table`, it is a dead letter of that table, and
    the record itself is valid (TBL-9).
    """

    kind: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    reason: Reason
    rule: str = ""
    table: str | None = None


@dataclass(frozen=True, slots=True)
class _Target:
    """The data from which a bad record is made: a change that would do damage, and facts about
    topic and clock.
    """

    change: DataChange
    kafka_partitions: int
    now: int
    rng: random.Random

    @property
    def body(self) -> bytes:
        return encode(self.change, self.kafka_partitions)

    @property
    def value(self) -> bytes:
        return frame(self.body, None)

    def altered(self, alter: Callable[[dict[str, Any]], object]) -> bytes:
        """The framed value of the change's datum after `alter`. The classes of lowmark would not
        accept it.
        """
        datum = copy.deepcopy(to_datum(self.change, self.kafka_partitions))
        alter(datum)
        body = BytesIO()
        fastavro.schemaless_writer(body, _SCHEMA, datum)
        return frame(body.getvalue(), None)

    def with_change(self, **fields: object) -> bytes:
        return self.altered(lambda datum: datum["data_change"].update(fields))

    def with_entry(self, **fields: object) -> bytes:
        return self.altered(lambda datum: datum["data_change"]["entries"][-1].update(fields))


_Maker = Callable[[_Target], bytes | None]


def poison(
    targets: Sequence[DataChange],
    *,
    kafka_partitions: int,
    now: int,
    seed: int,
    unreadable: dict[str, SetCell],
) -> list[Poison]:
    """One record of each kind. They use the `targets` (at least one) in turn.

    `now` is the time in µs. `unreadable` has for a table a cell that its column cannot hold. For
    each table in `targets`, a record with this cell is added, which becomes a dead letter of that
    table.
    """
    rng = random.Random(seed)
    made = []
    for number, (kind, (reason, rule, maker)) in enumerate(_KINDS.items()):
        target = _target(targets[number % len(targets)], kafka_partitions, now, rng)
        made.append(
            Poison(
                kind,
                _KEYS.get(kind, target.change.row_key),
                maker(target),
                _headers(rng),
                reason,
                rule,
            )
        )
    for table, cell in unreadable.items():
        of_table = [change for change in targets if change.table == table]
        if of_table:
            target = _target(rng.choice(of_table), kafka_partitions, now, rng)
            change = replace(target.change, entries=(*target.change.entries, cell))
            value = frame(encode(change, kafka_partitions), None)
            kind = f"a value that does not fit its column ({table})"
            made.append(
                Poison(
                    kind, change.row_key, value, _headers(rng), Reason.UNREADABLE_VALUE, table=table
                )
            )
    rng.shuffle(made)
    return made


def _target(change: DataChange, kafka_partitions: int, now: int, rng: random.Random) -> _Target:
    family = change.entries[-1].family
    damage = (DeleteFamily(family), SetCell(family, b"poisoned", b"this must not be in any table"))
    return _Target(
        replace(change, commit_timestamp=now, tie_breaker=2**62, entries=damage),
        kafka_partitions,
        now,
        rng,
    )


def _headers(rng: random.Random) -> Headers:
    """Headers with repeated names, without a value, with bytes that are not text, and with the name
    of a header of dead letters.
    """
    some: Headers = (
        *(("trace", rng.randbytes(8)), ("trace", b""), ("empty", None), ("naïve 🚀", b"\xff\x00")),
        *(("__connect.errors.stage", b"of another tool"), ("connector.dlq.reason", b"UNKNOWN")),
    )
    return some[: rng.randrange(len(some) + 1)]


def _bit_rot(target: _Target) -> bytes:
    """One flipped bit makes the first length a number of two or more bytes, far beyond the end of
    the record.
    """
    body = bytearray(target.body)
    body[0] |= 0x80
    return frame(bytes(body), None)


def _huge_length(target: _Target) -> bytes:
    """A length of 2^40 bytes. A reader that reserves memory for it first runs out of memory."""
    return frame(b"\x80\x80\x80\x80\x80\x80\x01" + target.body[1:], None)


def _in_future(target: _Target) -> bytes:
    return frame(
        encode(
            replace(target.change, commit_timestamp=target.now + _DAY_US), target.kafka_partitions
        ),
        None,
    )


def _heartbeat_in_future(target: _Target) -> bytes:
    """A frequent error: nanoseconds would be the year 50,000. One year ahead is enough to end a
    stream.
    """
    return frame(
        encode(
            Heartbeat(target.change.stream_partition, target.now + 365 * _DAY_US),
            target.kafka_partitions,
        ),
        None,
    )


def _two_branches(datum: dict[str, Any]) -> None:
    datum["heartbeat"] = {"timestamp": 1, "resume_token": b""}


_UNFRAMED: Final = (Reason.UNKNOWN_FRAMING, "")
_UNDECODABLE: Final = (Reason.UNDECODABLE, "")

_KINDS: Final[dict[str, tuple[Reason, str, _Maker]]] = {
    "rubbish": (*_UNFRAMED, lambda t: b"\x7f" + t.rng.randbytes(200)),
    "no value": (*_UNFRAMED, lambda _: None),
    "an empty value": (*_UNFRAMED, lambda _: b""),
    "Avro without a frame": (*_UNFRAMED, lambda t: t.body),
    "JSON": (*_UNFRAMED, lambda _: b'{"delete": "everything"}'),
    "an unknown fingerprint": (
        Reason.UNKNOWN_SCHEMA,
        "",
        lambda t: b"\xc3\x01" + t.rng.randbytes(8) + t.body,
    ),
    "the id of a registry that is not there": (
        Reason.UNKNOWN_SCHEMA,
        "",
        lambda t: frame(t.body, 4711),
    ),
    "a truncated record": (
        *_UNDECODABLE,
        lambda t: t.value[: t.rng.randrange(12, len(t.value) - 1)],
    ),
    "trailing bytes": (*_UNDECODABLE, lambda t: t.value + b"\x00"),
    "bit rot in a length": (*_UNDECODABLE, _bit_rot),
    "a length of a terabyte": (*_UNDECODABLE, _huge_length),
    "two branches": (Reason.INVALID, Rule.BRANCHES, lambda t: t.altered(_two_branches)),
    "no branch": (
        Reason.INVALID,
        Rule.BRANCHES,
        lambda t: t.altered(lambda datum: datum.update(data_change=None)),
    ),
    "no stream partition": (
        Reason.INVALID,
        Rule.STREAM_PARTITION,
        lambda t: t.altered(lambda datum: datum.update(stream_partition="")),
    ),
    "more Kafka partitions than there are": (
        *(Reason.INVALID, Rule.KAFKA_PARTITIONS),
        lambda t: t.altered(lambda datum: datum.update(kafka_partitions=t.kafka_partitions + 1)),
    ),
    "a bad table name": (
        Reason.INVALID,
        Rule.TABLE,
        lambda t: t.with_change(table="files; DROP TABLE accounts"),
    ),
    "an empty row key": (Reason.INVALID, Rule.ROW_KEY, lambda t: t.with_change(row_key=b"")),
    "a commit in nanoseconds": (
        Reason.INVALID,
        Rule.COMMIT_TIMESTAMP,
        lambda t: t.with_change(commit_timestamp=t.now * 1000),
    ),
    "no source cluster": (
        Reason.INVALID,
        Rule.SOURCE_CLUSTER_ID,
        lambda t: t.with_change(source_cluster_id=""),
    ),
    "no entries": (Reason.INVALID, Rule.ENTRY_COUNT, lambda t: t.with_change(entries=[])),
    "an unknown kind of entry": (Reason.UNKNOWN_ENTRY, "", lambda t: t.with_entry(kind="UNKNOWN")),
    "a bad family name": (
        Reason.INVALID,
        Rule.FAMILY,
        lambda t: t.with_entry(family="not a family"),
    ),
    "a qualifier of 17 KiB": (
        Reason.INVALID,
        Rule.QUALIFIER,
        lambda t: t.with_entry(qualifier=b"q" * 17 * 1024),
    ),
    "a negative cell timestamp": (
        Reason.INVALID,
        Rule.CELL_TIMESTAMP,
        lambda t: t.with_entry(cell_timestamp=-1),
    ),
    "a range that ends before it starts": (
        *(Reason.INVALID, Rule.CELL_RANGE),
        lambda t: t.with_entry(kind="DELETE_CELLS", range_start=2, range_end=1),
    ),
    "a bad sequence number": (
        Reason.INVALID_SEQUENCE_NUMBER,
        "",
        lambda t: t.with_change(change_sequence_number="FFF//ABC"),
    ),
    "the key of another row": (Reason.KEY_MISMATCH, "", lambda t: t.value),
    "a row under the control key": (Reason.KEY_MISMATCH, "", lambda t: t.value),
    "no key": (Reason.KEY_MISMATCH, "", lambda t: t.value),
    "a commit in the future": (Reason.COMMIT_TIMESTAMP_IN_FUTURE, "", _in_future),
    "a heartbeat in the future": (Reason.WATERMARK_IN_FUTURE, "", _heartbeat_in_future),
}

_KEYS: Final[dict[str, bytes | None]] = {
    "an empty row key": b"",
    "the key of another row": b"\xfe another row \x00",
    "a row under the control key": CONTROL_KEY,
    "no key": None,
    "a heartbeat in the future": CONTROL_KEY,
}

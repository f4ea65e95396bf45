"""The guarantees, each as a function of that name. They compare the data of a system with the
actions on it.

This module does not ask the system. It reads topics with a plain client, and tables and logs as
files. The expected content follows from the source's own log and the sequential model of
`tests/property/model.py`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from connector.config.settings import ConnectorConfig
from connector.kafka import topics
from connector.lake.jobs import History as Jobs
from connector.lake.plain_table import open_table
from connector.lake.stores import options_of
from connector.records import codec
from connector.records.model import DataChange, SetCell
from connector.records.ordering import OrderBy, OrderPosition
from connector.state.commits import stored_in
from connector.state.jobs import CutRecord
from connector.state.table_state import TableState
from connector.tables.definition import TableDefinition, Versions
from connector.tables.row import read_change, row_of
from tests.faults.process import Folder
from tests.faults.traffic import ACCOUNTS, TOTAL
from tests.property import model
from tests.property.histories import Delivery
from tests.spark.live import records

Rows = dict[object, dict[str, object]]
Place = tuple[int, int]
"""Kafka partition and offset."""


@dataclass(frozen=True)
class Logged:
    """A row of the changelog. A change has its row and commit timestamp. A rejected record has its
    reason, id and bytes.
    """

    kind: str
    place: Place
    ingest_batch: int
    change: tuple[str, bytes, int, int] | None = None
    """Source table, row key, commit timestamp and tie breaker."""
    reason: str = ""
    letter_id: str = ""
    value: bytes | None = None


@dataclass(frozen=True)
class Version:
    """A version of a table: its table state, and its rows by key."""

    number: int
    says: TableState
    rows: Rows


@dataclass(frozen=True)
class Letter:
    """A record in the dead-letter topic."""

    id: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Evidence:
    """The data at the end. `changes` is the source's log. `commits` is the metadata of the
    changelog's commits, oldest first. `versions` has the versions of each table, oldest first.
    """

    definitions: Mapping[str, TableDefinition]
    changes: Sequence[DataChange]
    topic_id: str
    topic: Mapping[Place, bytes | None]
    logged: Sequence[Logged]
    commits: Sequence[Mapping[str, Any]]
    letters: Sequence[Letter]
    versions: Mapping[str, Sequence[Version]]
    cuts: Sequence[CutRecord]

    @property
    def settled(self) -> list[Mapping[str, Any]]:
        """The commits with the progress of their newest batch. Between a batch with rejected rows
        and its dead letters, there is no such commit.
        """
        return [
            said
            for said in self.commits
            if said["progress"]["ingest_batch"] == said["ingest_batch"]
        ]

    def truth(self, name: str, below: int = 2**63) -> Rows:
        """The rows of a table after the source had committed everything before `below`."""
        wanted = self.definitions[name]
        known = [
            one for one in self.changes if one.commit_timestamp < below and _holds(wanted, one)
        ]
        states = model.replay(
            [Delivery(one, OrderPosition(1, 0, n, 0)) for n, one in enumerate(known)],
            OrderBy.COMMIT,
            Versions.LATEST,
        )
        rows = [row_of(wanted, key, cells) for key, cells in states.items()]
        return {row["id"]: row for row in rows if row is not None}

    def last(self, name: str) -> Version:
        return self.versions[name][-1]


def _holds(wanted: TableDefinition, one: DataChange) -> bool:
    return one.table == wanted.source and read_change(wanted, one) is None


def identity(one: DataChange) -> tuple[str, bytes, int, int]:
    return one.table, one.row_key, one.commit_timestamp, one.tie_breaker


# The guarantees.


def nothing_lost(e: Evidence) -> None:
    """Every record is in the changelog once, including every change of the source. Every rejected
    record has its dead letter.
    """
    assert sorted(row.place for row in e.logged) == sorted(e.topic)
    delivered = {row.change for row in e.logged}
    assert [one for one in e.changes if identity(one) not in delivered] == []
    letters = {letter.id for letter in e.letters}
    assert [
        row for row in e.logged if row.kind == "rejected" and row.letter_id not in letters
    ] == []


def nothing_invented(e: Evidence) -> None:
    """The changelog has only changes that the source made. Every value in any version of a table
    comes from a change.
    """
    made = {identity(one) for one in e.changes}
    assert {row.change for row in e.logged if row.kind == "change"} <= made
    for name, versions in e.versions.items():
        wanted = e.definitions[name]
        written: dict[object, set[object]] = defaultdict(set)
        for one in e.changes:
            if _holds(wanted, one):
                for entry in one.entries:
                    if isinstance(entry, SetCell):
                        row = (
                            row_of(
                                wanted, one.row_key, {(entry.family, entry.qualifier): entry.value}
                            )
                            or {}
                        )
                        written[row.get("id")] |= _cells(row)
        for version in versions:
            for key, row in version.rows.items():
                assert _cells(row) <= written[key], (name, version.number, key)


def _cells(row: Mapping[str, Any]) -> set[object]:
    unmapped = {("_unmapped", *cell) for cell in (row.get("_unmapped") or {}).items()}
    return {
        (name, value) for name, value in row.items() if name != "_unmapped" and value is not None
    } | unmapped


def newest_wins(e: Evidence) -> None:
    """At the end each table equals the source."""
    for name in e.definitions:
        assert e.last(name).rows == e.truth(name), name


def deletes_stay_deleted(e: Evidence) -> None:
    """At the end there is no row that the source has deleted. Exactly the changes older than the
    horizon before them are refused.
    """
    for name in e.definitions:
        assert set(e.last(name).rows) <= set(e.truth(name)), name
    horizons = {said["ingest_batch"]: said["progress"]["horizon"] for said in e.settled}
    commit_timestamp = {
        (one.table, one.row_key, one.commit_timestamp, one.tie_breaker): one.commit_timestamp
        for one in e.changes
    }
    for row in e.logged:
        horizon = horizons[row.ingest_batch - 1] or 0
        if row.kind == "change":
            assert commit_timestamp[row.change or ("", b"", 0, 0)] >= horizon, row
        elif row.reason == "TOO_LATE":
            decoded = codec.decode(row.value, codec.Schemas())
            assert isinstance(decoded, codec.ChangeRecord)
            assert isinstance(decoded.record, DataChange)
            assert decoded.record.commit_timestamp < horizon, row


def cut_is_consistent(e: Evidence) -> None:
    """Every version that claims to be a consistent cut is the complete source at that time. Every
    recorded cut names such versions.
    """
    for name, versions in e.versions.items():
        for version in versions:
            low = version.says.apply_watermark
            if low is not None and version.says.is_consistent_cut:
                assert version.rows == e.truth(name, low), (name, version.number, low)
                if name == "accounts":
                    assert sum(int(str(row["amount"])) for row in version.rows.values()) in (
                        0,
                        TOTAL,
                    )
                    assert len(version.rows) in (0, len(ACCOUNTS))
    by_number = {
        (name, version.number): version
        for name, versions in e.versions.items()
        for version in versions
    }
    for cut in e.cuts:
        for name, number in cut.versions.items():
            assert by_number[name, number].says.is_at(cut.low_watermark, cut.to_batch), (cut, name)


def watermark_is_honest(e: Evidence) -> None:
    """The low watermark never goes back. Everything below it had been ingested when it was
    stored.
    """
    arrived: dict[tuple[str, bytes, int, int] | None, int] = {}
    for row in e.logged:
        arrived[row.change] = min(arrived.get(row.change, row.ingest_batch), row.ingest_batch)
    said = [(one["ingest_batch"], one["progress"]["low_watermark"] or 0) for one in e.settled]
    assert all(before[1] <= after[1] for before, after in pairwise(said))
    # The latest arrival of the changes up to a commit timestamp, in the source's order.
    oldest_first = sorted(e.changes, key=lambda one: one.commit_timestamp)
    latest, place = 0, 0
    for batch, low in said:
        while place < len(oldest_first) and oldest_first[place].commit_timestamp < low:
            latest = max(latest, arrived[identity(oldest_first[place])])
            place += 1
        assert latest <= batch, (batch, low)


def resumable(e: Evidence) -> None:
    """Batches follow each other without gap or overlap, and each is counted once. Applies are
    numbered without gap. Everything is done.
    """
    batches = [said for said in e.commits if said["commit"] in ("batch", "closed_partitions")]
    assert [said["ingest_batch"] for said in batches] == list(range(1, len(batches) + 1))
    for before, after in pairwise(batches):
        assert before["end_offsets"] == after["start_offsets"], after["ingest_batch"]
    counted = [
        number for number, _ in groupby(said["progress"]["ingest_batch"] for said in e.commits)
    ]
    assert counted == list(range(len(batches) + 1))
    for name, versions in e.versions.items():
        # Maintenance commits with the number of the apply before it.
        numbers = [number for number, _ in groupby(one.says.apply_number for one in versions)]
        assert numbers == list(range(len(numbers))), name
        assert all(
            before.says.to_batch <= after.says.to_batch for before, after in pairwise(versions)
        ), name
        assert versions[-1].says.is_consistent_cut, name
        assert versions[-1].says.complete_to_batch == len(batches), name


def poison_is_contained(e: Evidence) -> None:
    """Exactly the unreadable records are dead letters, with their bytes. Two dead letters of one
    record are equal, including all headers.
    """
    by_id: dict[str, set[Letter]] = defaultdict(set)
    for letter in e.letters:
        by_id[letter.id].add(letter)
    assert {id_: len(different) for id_, different in by_id.items() if len(different) > 1} == {}
    values = {f"{e.topic_id}-{k}-{offset}": value for (k, offset), value in e.topic.items()}
    too_late = {row.letter_id for row in e.logged if row.reason == "TOO_LATE"}
    expected = set(too_late)
    for id_, value in values.items():
        decoded = codec.decode(value, codec.Schemas())
        if not isinstance(decoded, codec.ChangeRecord):
            expected.add(id_)
        elif isinstance(decoded.record, DataChange) and id_ not in too_late:
            expected |= {
                f"{id_}-{wanted.name}"
                for wanted in e.definitions.values()
                if decoded.record.table == wanted.source and read_change(wanted, decoded.record)
            }
    assert set(by_id) == expected
    for letter in e.letters:
        id_ = next(id_ for id_ in (letter.id, letter.id.rpartition("-")[0]) if id_ in values)
        assert letter.value == values[id_], letter.id


PROMISES: dict[Callable[[Evidence], None], Callable[[Evidence], Evidence]] = {
    nothing_lost: lambda e: replace(e, logged=e.logged[:-1]),
    nothing_invented: lambda e: replace(
        e, changes=[one for one in e.changes if identity(one) != _last_written(e)]
    ),
    newest_wins: lambda e: replace(
        e, versions={name: versions[:1] for name, versions in e.versions.items()}
    ),
    deletes_stay_deleted: lambda e: replace(
        e, versions={name: _with_a_ghost(versions) for name, versions in e.versions.items()}
    ),
    cut_is_consistent: lambda e: replace(
        e, versions={name: _with_a_ghost(versions) for name, versions in e.versions.items()}
    ),
    watermark_is_honest: lambda e: replace(
        e, logged=[replace(row, ingest_batch=row.ingest_batch + 1) for row in e.logged]
    ),
    resumable: lambda e: replace(
        e, commits=[said for said in e.commits if said.get("ingest_batch") != 1]
    ),
    poison_is_contained: lambda e: replace(
        e, letters=[replace(letter, value=b"other") for letter in e.letters]
    ),
}
"""The guarantees, and for each one wrong evidence that it must reject. A validator that cannot fail
proves nothing.
"""


def _last_written(e: Evidence) -> tuple[str, bytes, int, int]:
    return identity(
        max(
            (one for one in e.changes if one.row_key == ACCOUNTS[0]),
            key=lambda one: one.commit_timestamp,
        )
    )


def _with_a_ghost(versions: Sequence[Version]) -> list[Version]:
    last = versions[-1]
    return [
        *versions[:-1],
        replace(last, rows=last.rows | {"ghost": {"id": "ghost", "amount": 1, "_unmapped": None}}),
    ]


# The data at the end.


def collected(folder: Folder, config: ConnectorConfig, changes: Sequence[DataChange]) -> Evidence:
    """Read all data. The system must not be running."""
    kafka = config.kafka
    return Evidence(
        definitions=config.tables,
        changes=changes,
        topic_id=topics.describe(kafka, "t").topic_id,
        topic={
            (number, offset): message.value() for number, offset, message in records(kafka, "t")
        },
        logged=_logged(folder.changelog("s")),
        commits=[said for _, said in _commits(folder.changelog("s"))],
        letters=[_letter(message) for _, _, message in records(kafka, "t.dead-letters")],
        versions={name: _versions(folder, wanted) for name, wanted in config.tables.items()},
        cuts=Jobs(config.warehouse).cuts("s"),
    )


def _versions(folder: Folder, wanted: TableDefinition) -> list[Version]:
    commits = _commits(folder.table(wanted.name))
    return [
        Version(number, TableState.from_json(said), _rows(folder, wanted, number))
        for number, said in commits
    ]


def _commits(path: str) -> list[tuple[int, Mapping[str, Any]]]:
    """The metadata of every commit, with its version. A commit of another program has no metadata,
    and every validator rejects that.
    """
    found = []
    for file in sorted(Path(path).glob("_delta_log/*.json")):
        actions = map(json.loads, file.read_text("utf-8").splitlines())
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        found.append((int(file.stem), stored_in(infos[0]) or {}))
    return found


def _logged(path: str) -> list[Logged]:
    columns = (
        "kind",
        "kafka_partition",
        "offset",
        "ingest_batch",
        "table",
        "row_key",
        "commit_timestamp",
        "tie_breaker",
    )
    table = DeltaTable(path, storage_options=options_of(path)).to_pyarrow_table(
        columns=[*columns, "reason", "letter_id", "value"], filters=[("kind", "!=", "frontier")]
    )
    times = table.column("commit_timestamp").cast("int64").to_pylist()
    return [_logged_row(row, at) for row, at in zip(table.to_pylist(), times, strict=True)]


def _logged_row(row: Mapping[str, Any], commit_timestamp: int) -> Logged:
    is_change = row["kind"] == "change"
    return Logged(
        kind=row["kind"],
        place=(row["kafka_partition"], row["offset"]),
        ingest_batch=row["ingest_batch"],
        change=(
            (row["table"], row["row_key"], commit_timestamp, row["tie_breaker"])
            if is_change
            else None
        ),
        reason=row["reason"] or "",
        letter_id=row["letter_id"] or "",
        value=row["value"],
    )


def _letter(message: Any) -> Letter:
    headers = tuple(message.headers() or ())
    id_ = dict(headers)["connector.dlq.id"]
    assert isinstance(id_, bytes)
    return Letter(id_.decode(), message.key(), message.value(), headers)


def _rows(folder: Folder, wanted: TableDefinition, version: int) -> Rows:
    table = open_table(folder.table(wanted.name), version)
    found = [dict(zip(table.types, row, strict=True)) for row in table.rows()]
    for row in found:
        row["_unmapped"] = dict(row["_unmapped"] or ()) if wanted.keep_unmapped else None
    by_key = {row["id"]: row for row in found}
    assert len(by_key) == len(found), f"a key stands twice in version {version} of {wanted.name}"
    return by_key


def judge(evidence: Evidence) -> None:
    """Check every guarantee, and that each one rejects its wrong evidence."""
    for promise in PROMISES:
        promise(evidence)
    for promise, lie in PROMISES.items():
        assert not _believes(promise, lie(evidence)), f"{promise.__name__} believes everything"


def _believes(promise: Callable[[Evidence], None], evidence: Evidence) -> bool:
    try:
        promise(evidence)
    except AssertionError:
        return False
    return True

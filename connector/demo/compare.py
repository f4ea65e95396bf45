"""Compares the result with the truth. Each difference is one sentence.

It checks the guarantees `nothing_lost`, `nothing_invented`, `newest_wins`, `deletes_stay_deleted`,
`poison_is_contained`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.cli.terminal import shown_bytes
from connector.dead_letters.envelope import letter_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from connector.dead_letters.envelope import DeadLetter
    from connector.demo.poison import Poison
    from connector.records.rejection import Position

MISSING = "(no such row)"
UNMAPPED = "_unmapped"


@dataclass(frozen=True, slots=True)
class SentPoison:
    """A bad record, and its position in the topic."""

    poison: Poison
    position: Position

    @property
    def id(self) -> str:
        return letter_id(self.position, self.poison.table)


def row_differences(
    table: str,
    key: str,
    expected: Mapping[bytes, Mapping[str, object]],
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
) -> Iterator[str]:
    """The differences between rows, by row and column. `columns` are the names of the values in
    each of `rows`. One of them is `key`.

    A column that the truth does not have must be empty, because no change wrote it. The same is
    true for unmapped cells.
    """
    wanted = {name for row in expected.values() for name in row} | set(columns) - {key}
    seen: Counter[bytes] = Counter()
    for values in rows:
        row = dict(zip(columns, values, strict=True))
        row_key = _as_bytes(row.pop(key))
        seen[row_key] += 1
        if seen[row_key] > 1:
            yield f"{table} {shown_bytes(row_key)}: the table has the row {seen[row_key]} times"
        elif row_key not in expected:
            yield (
                f"{table} {shown_bytes(row_key)}: the row should not exist; it has {_shown(row)}"
            )
        else:
            truth = expected[row_key]
            for name in sorted(wanted):
                found = row.get(name, "(no such column)")
                if (found or None if name == UNMAPPED else found) != truth.get(name):
                    yield (
                        f"{table} {shown_bytes(row_key)}: {name} is {_shown(found)}, not"
                        f" {_shown(truth.get(name))}"
                    )
    for row_key, truth in expected.items():
        if row_key not in seen:
            yield (
                f"{table} {shown_bytes(row_key)}: the row is missing; it should have"
                f" {_shown(truth)}"
            )


def letter_differences(sent: Iterable[SentPoison], letters: Iterable[DeadLetter]) -> Iterator[str]:
    """The differences between bad records and dead letters (DLQ-1, DLQ-2).

    Each bad record must have one dead letter with its id, reason and original bytes. There must be
    no other dead letter.
    """
    found: dict[str, DeadLetter] = {}
    for letter in letters:
        if letter.id in found:
            yield f"dead letter {letter.id}: it exists twice"
        found[letter.id] = letter
    for one in sent:
        letter_found = found.pop(one.id, None)
        if letter_found is None:
            yield f"dead letter {one.id} ({one.poison.kind}): it is missing"
        else:
            yield from _letter_differences(one, letter_found)
    for letter in found.values():
        yield (
            f"dead letter {letter.id}: the record was not bad, but was rejected: {letter.reason}"
            f" {letter.rule} {letter.detail}"
        )


def _letter_differences(one: SentPoison, letter: DeadLetter) -> Iterator[str]:
    poison = one.poison
    pairs: dict[str, tuple[object, object]] = {
        "reason": (letter.reason.value, poison.reason.value),
        "rule": (letter.rule, poison.rule),
        "table": (letter.table, poison.table),
        "key": (letter.key, poison.key),
        "value": (letter.value, poison.value),
        "headers": (letter.headers, poison.headers),
    }
    for name, (is_, should_be) in pairs.items():
        if is_ != should_be:
            yield (
                f"dead letter {one.id} ({poison.kind}): {name} is {_shown(is_)}, not"
                f" {_shown(should_be)}"
            )


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return shown_bytes(value)
    return shown_bytes(repr(value).encode(errors="backslashreplace"), limit=200)

"""A rebuild closes the dead letters whose changes the new table has, and no reader is told that a
table is complete while it lacks a change (RUN-6).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.ledger import (
    NO_EXTERNAL,
    Action,
    Ledger,
    LedgerEntry,
    LetterState,
    Totals,
    totals_from_json,
    totals_to_json,
)
from connector.reports.stream_status import open_letters
from connector.state.table_state import TableState
from tests.examples import examples
from tests.unit.dead_letters.test_envelope import POSITION, letter

PERSON = (Action.PARKED, Action.DISCARDED, Action.REOPENED, Action.REPLAYED)


def letter_of(number: int) -> DeadLetter:
    return letter(position=replace(POSITION, offset=number), table="t")


@dataclass(frozen=True)
class Version:
    """A version of a table: the changes that its columns cannot hold, those that it has, and its
    state.
    """

    unfit: frozenset[int]
    has: frozenset[int] = frozenset()
    state: TableState = field(default_factory=TableState)

    def rejects(self, changes: int) -> set[int]:
        """Those of the changes up to a number that an apply rejects."""
        return set(range(self.state.to_batch, changes)) & self.unfit


@dataclass
class World:
    """A table, its changes and its ledger. `versions` has the newest version last."""

    unfit: frozenset[int]
    changes: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    published: set[int] = field(default_factory=set)
    rebuilds: count[int] = field(default_factory=count)
    versions: list[Version] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = [Version(self.unfit)]

    def state_of(self, number: int) -> LetterState:
        return self.ledger.status(letter_of(number)).state

    def selection_of(self, number: int) -> str:
        history = self.ledger.history(letter_of(number).id)
        return history[-1].selection if history else ""

    def totals(self) -> Totals:
        return totals_from_json(totals_to_json(self.ledger.totals()))

    def known(self, above: int) -> dict[str, str] | None:
        """As `kafka.dead_letters.ledger_topic.published_letters`."""
        if self.totals().published.get((POSITION.topic_id, "t"), 0) <= above:
            return None
        return self.ledger.published_of(POSITION.topic_id, "t", ids_of(self.published))

    def apply(self, version: Version) -> None:
        """All changes, those that do not fit as dead letters."""
        state, rejected = version.state, version.rejects(self.changes)
        known = self.known(state.letters) if rejected else None
        letters = state.letters_after(len(rejected), ids_of(rejected), known)
        new = set(range(state.to_batch, self.changes)) - rejected
        self.published |= rejected
        self.versions.append(
            replace(
                version,
                has=version.has | new,
                state=replace(state, to_batch=self.changes, letters=letters),
            )
        )

    def act(self, number: int, action: Action, selection: str = "") -> None:
        dead = letter_of(number)
        if number in self.published and self.ledger.status(dead).allows(action):
            self.ledger.count_published(ids_of(self.published))
            entry = LedgerEntry(action, 1, "", "", selection)
            self.ledger.set_history(dead.id, self.ledger.with_entry(dead.id, entry))

    def replay(self, number: int) -> None:
        """A replay has another offset: the table rejects it as it rejects the change, or not."""
        if number in self.published and self.state_of(number) is LetterState.OPEN:
            self.act(number, Action.REPLAYED)
            again = {self.changes}
            self.versions = [
                replace(
                    version, unfit=version.unfit | (again if number in version.unfit else set())
                )
                for version in self.versions
            ]
            self.unfit |= again if number in self.unfit else set()
            self.arrive()

    def arrive(self) -> None:
        self.changes += 1
        self.apply(self.versions[-1])

    def rebuild(self, unfit: frozenset[int], closes: int) -> None:
        """Under columns that hold other changes. The process dies after so many ledger entries."""
        before = self.versions[-1].state
        made = Version(unfit, state=TableState(rebuild=f"r{next(self.rebuilds)}"))
        rejected = made.rejects(self.changes)
        known = self.known(-1) if rejected or before.letters else None
        state = replace(made.state, to_batch=self.changes, letters=len(rejected))
        state = state.replacing(before, 0, ids_of(rejected), known)
        self.published |= rejected
        made = replace(made, has=frozenset(range(self.changes)) - rejected, state=state)
        self.versions.append(made)
        if not state.letters:
            return
        covered = [
            number
            for number in sorted(self.published & made.has)
            if self.state_of(number) is not LetterState.COVERED
            or self.selection_of(number) not in state.covered_by
        ]
        for number in covered[:closes]:
            self.act(number, Action.COVERED, state.rebuild)

    def restore(self, number: int) -> None:
        """An older version comes back. Nothing is applied to it yet."""
        self.versions.append(self.versions[number % len(self.versions)])

    def make_again(self, unfit: frozenset[int]) -> None:
        """The table is dropped, and made again with other columns."""
        self.versions, self.unfit = [], unfit
        self.apply(Version(unfit))

    def open_letters(self) -> int:
        topic_id, tables = POSITION.topic_id, {"t": self.versions[-1].state}
        return open_letters(0, tables, NO_EXTERNAL, topic_id, self.totals(), 1)[1]["t"].count

    def missing(self) -> set[int]:
        """The changes that the table has rejected, and that no person has discarded or sent
        again.
        """
        closed = (LetterState.DISCARDED, LetterState.REPLAYED)
        newest = self.versions[-1]
        lacks = set(range(newest.state.to_batch)) - newest.has
        return {number for number in lacks if self.state_of(number) not in closed}

    def listed(self) -> set[int]:
        """The letters that are open, or that only rebuilds of other versions have covered."""
        closed = (LetterState.DISCARDED, LetterState.REPLAYED)
        lineage = self.versions[-1].state.covered_by
        return {
            number
            for number in self.published
            if self.state_of(number) not in closed
            and not (
                self.state_of(number) is LetterState.COVERED
                and self.selection_of(number) in lineage
            )
        }


def ids_of(numbers: Iterable[int]) -> set[str]:
    return {letter_of(number).id for number in numbers}


SMALL = st.integers(0, 4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive")),
        st.tuples(st.just("act"), SMALL, st.sampled_from(PERSON[:3])),
        st.tuples(st.just("replay"), SMALL),
        st.tuples(st.just("rebuild"), st.frozensets(SMALL), st.sampled_from([0, 1, 99])),
        st.tuples(st.just("restore"), SMALL),
        st.tuples(st.just("make_again"), st.frozensets(SMALL)),
    ),
    max_size=25,
)
RESTORED_AND_REBUILT: list[tuple[object, ...]] = [
    ("rebuild", frozenset({1}), 1),
    ("restore", 2),
    ("arrive",),
    ("restore", 3),
    ("arrive",),
]
"""The table rejects 0 and 1. A rebuild takes 0. The version before it rejects 2, which the rebuilt
one takes.
"""
DISCARDED_ELSEWHERE: list[tuple[object, ...]] = [
    ("act", 1, Action.DISCARDED),
    ("restore", 1),
]
"""The table rejects 0 and 1. The version that comes back does not know 1."""
OTHER_COLUMNS: list[tuple[object, ...]] = [
    ("act", 0, Action.DISCARDED),
    ("make_again", frozenset({1})),
]
COLUMNS_WENT_BACK: list[tuple[object, ...]] = [
    ("rebuild", frozenset(), 99),
    ("rebuild", frozenset({0, 1}), 99),
]


@examples(2_000, quick=400)
@given(st.frozensets(SMALL, min_size=2), STEPS)
@example(frozenset({0, 1, 2}), RESTORED_AND_REBUILT)
@example(frozenset({0, 1}), DISCARDED_ELSEWHERE)
@example(frozenset({0, 1}), OTHER_COLUMNS)
@example(frozenset({0, 1}), COLUMNS_WENT_BACK)
def test_no_table_is_called_complete_that_lacks_a_change(
    unfit: frozenset[int], steps: list[tuple[object, ...]]
) -> None:
    """RUN-6: whatever is rebuilt, restored, made again or killed. The count is never less than what
    the table lacks, and never more than the letters that a list shows. After a rebuild that ended,
    it is exact, and each letter whose change the table has is closed.
    """
    world = World(unfit)
    for _ in range(2):
        world.arrive()
    for name, *arguments in [*steps, ("rebuild", frozenset({0}), 99)]:
        getattr(world, str(name))(*arguments)
        assert len(world.missing()) <= world.open_letters() <= len(world.listed())
        if name == "rebuild" and arguments[1] == 99:
            assert world.open_letters() == len(world.missing())
            open_ = {n for n in world.published if world.state_of(n) is LetterState.OPEN}
            assert not open_ & world.versions[-1].has or not world.versions[-1].state.letters


@pytest.mark.parametrize(
    ("unfit", "steps"),
    [
        (frozenset({0, 1, 2}), [*RESTORED_AND_REBUILT, ("rebuild", frozenset({1}), 99)]),
        (frozenset({0, 1}), DISCARDED_ELSEWHERE),
        (frozenset({0, 1}), OTHER_COLUMNS),
    ],
)
def test_the_law_notices_a_count_that_is_added_up(
    unfit: frozenset[int], steps: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the sets, letters that the version does not know are closed in place of those that it
    lacks.
    """
    monkeypatch.setattr(Ledger, "count_published", lambda *_: None)
    monkeypatch.setattr(World, "known", lambda *_: None)
    world = World(unfit)
    for name, *arguments in [("arrive",), ("arrive",), *steps]:
        getattr(world, str(name))(*arguments)
    assert world.open_letters() < len(world.missing())

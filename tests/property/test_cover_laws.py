"""A rebuild closes the dead letters whose changes the new table has, and no reader is told that a
table is complete while it lacks a change (RUN-6).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.ledger import (
    NO_EXTERNAL,
    Action,
    Ledger,
    LedgerEntry,
    LetterState,
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

    def applied(self, changes: int) -> Version:
        """With all changes up to a number, those that do not fit as dead letters."""
        new = set(range(changes)) - self.has - set(range(self.state.to_batch))
        fit = new - self.unfit
        letters = self.state.letters + len(new - fit)
        return replace(
            self, has=self.has | fit, state=replace(self.state, to_batch=changes, letters=letters)
        )


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

    def commit(self, version: Version) -> None:
        self.versions.append(version)
        self.published |= set(range(self.changes)) & version.unfit - version.has

    def state_of(self, number: int) -> LetterState:
        return self.ledger.status(letter_of(number)).state

    def selection_of(self, number: int) -> str:
        history = self.ledger.history(letter_of(number).id)
        return history[-1].selection if history else ""

    def act(self, number: int, action: Action, selection: str = "") -> None:
        dead = letter_of(number)
        if number in self.published and self.ledger.status(dead).allows(action):
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
        self.commit(self.versions[-1].applied(self.changes))

    def rebuild(self, mended: frozenset[int], closes: int) -> None:
        """Under columns that hold `mended`, too. The process dies after so many ledger entries."""
        before = self.versions[-1]
        made = Version(before.unfit - mended, state=TableState(rebuild=f"r{next(self.rebuilds)}"))
        made = made.applied(self.changes)
        made = replace(made, state=made.state.replacing(before.state, 0))
        self.commit(made)
        covered = [
            number
            for number in sorted(self.published & made.has)
            if self.selection_of(number) not in made.state.covered_by
        ]
        for number in covered[:closes]:
            self.act(number, Action.COVERED, made.state.rebuild)

    def restore(self, number: int) -> None:
        """An older version comes back, and later changes are applied to it."""
        self.commit(self.versions[number % len(self.versions)].applied(self.changes))

    def make_again(self) -> None:
        """The table is dropped, and made again with its first columns."""
        self.versions = []
        self.commit(Version(self.unfit).applied(self.changes))

    def open_letters(self) -> int:
        topic_id, totals = POSITION.topic_id, totals_to_json(self.ledger.totals())
        known, tables = totals_from_json(totals), {"t": self.versions[-1].state}
        return open_letters(0, tables, NO_EXTERNAL, topic_id, known, 1)[1]["t"].count

    def missing(self) -> set[int]:
        """The changes that the table lacks, and that no person has discarded or sent again."""
        closed = (LetterState.DISCARDED, LetterState.REPLAYED)
        lacks = set(range(self.changes)) - self.versions[-1].has
        return {number for number in lacks if self.state_of(number) not in closed}


SMALL = st.integers(0, 4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive")),
        st.tuples(st.just("act"), SMALL, st.sampled_from(PERSON[:3])),
        st.tuples(st.just("replay"), SMALL),
        st.tuples(st.just("rebuild"), st.frozensets(SMALL), st.sampled_from([0, 1, 99])),
        st.tuples(st.just("restore"), SMALL),
        st.tuples(st.just("make_again")),
    ),
    max_size=25,
)


@examples(2_000, quick=400)
@given(st.frozensets(SMALL, min_size=2), STEPS)
def test_no_table_is_called_complete_that_lacks_a_change(
    unfit: frozenset[int], steps: list[tuple[object, ...]]
) -> None:
    """RUN-6: whatever is rebuilt, restored, made again or killed. No rebuild makes the count worse.
    After one that ended, it is exact, and each letter whose change the table has is closed.
    """
    world = World(unfit)
    for _ in range(2):
        world.arrive()
    for name, *arguments in [*steps, ("rebuild", frozenset(), 99)]:
        before = world.open_letters()
        getattr(world, str(name))(*arguments)
        assert world.open_letters() >= len(world.missing())
        if name == "rebuild":
            assert world.open_letters() <= before
        if name == "rebuild" and arguments[1] == 99:
            assert world.open_letters() == len(world.missing())
            open_ = {n for n in world.published if world.state_of(n) is LetterState.OPEN}
            assert not open_ & world.versions[-1].has

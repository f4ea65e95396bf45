"""Whose turn it is, over any paces, any times that applies take and any news, on a clock that is
moved by hand (JOB-2, TBL-10).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from connector.state.pace import ApplySchedule

TICK = 0.5
PACES = st.dictionaries(
    st.sampled_from("abcd"), st.sampled_from([1.0, 2.0, 3.0, 5.0, 5.0, 60.0]), min_size=2
)
STEPS = st.binary(min_size=40, max_size=120)
"""For each tick a number: whether a batch comes, and how many ticks the applies take that begin
now.
"""


@dataclass
class Simulation:
    """Applies with given durations, and the log of their starts: time, cut and tables."""

    paces: dict[str, float]
    schedule: ApplySchedule = field(default_factory=ApplySchedule)
    now: float = 0.0
    cut: int = 0
    at_work: dict[str, float] = field(default_factory=dict)
    begun: list[tuple[float, int, tuple[str, ...]]] = field(default_factory=list)

    def take(self, step: int) -> None:
        self.now += TICK
        self.cut += step % 2
        for name in [name for name, until in self.at_work.items() if until <= self.now]:
            del self.at_work[name]
            self.schedule.ended(name, applied=True)
        names = self.schedule.take(self.paces, self.now, self.cut)
        assert not set(names) & self.at_work.keys(), "one table is never applied twice at once"
        self.at_work |= {
            name: self.now + TICK * (step // 2 % 8) * place for place, name in enumerate(names)
        }
        if names:
            self.begun.append((self.now, self.cut, names))


@given(PACES, STEPS)
def test_no_table_applies_for_the_sake_of_a_shorter_pace(
    paces: dict[str, float], steps: bytes
) -> None:
    """JOB-2: of those that begin together one with the longest pace was due; the table with the
    longest pace of all keeps to it.
    """
    simulation = Simulation(paces)
    for step in steps:
        simulation.take(step)
    last: dict[str, float] = {}
    for at, _, names in simulation.begun:
        longest = max(paces[name] for name in names)
        assert any(
            paces[name] == longest and at >= last.get(name, -longest) + longest for name in names
        )
        last |= dict.fromkeys(names, at)


@given(PACES, STEPS)
def test_a_table_is_applied_at_its_pace_from_start_to_start(
    paces: dict[str, float], steps: bytes
) -> None:
    """JOB-2: where there is always something new, the next start is a pace after the last one, or
    where the apply ends that took longer.
    """
    for name, pace in paces.items():
        simulation = Simulation(paces)
        due = 0.0
        for step in steps:
            simulation.take(step | 1)
            if (
                simulation.begun
                and simulation.begun[-1][0] == simulation.now
                and name in simulation.begun[-1][2]
            ):
                due = max(simulation.now + pace, simulation.at_work[name])
            assert simulation.now < due + TICK, (name, due)


@given(PACES, STEPS)
def test_the_longest_pace_brings_all_tables_to_one_cut(
    paces: dict[str, float], steps: bytes
) -> None:
    """TBL-10: with the table of the longest pace go all that are not at work, unless they stand
    there already.
    """
    slowest = max(paces, key=lambda name: paces[name])
    simulation, stands = Simulation(paces), dict[str, int]()
    for step in steps:
        busy = {name for name, until in simulation.at_work.items() if until > simulation.now + TICK}
        count = len(simulation.begun)
        simulation.take(step)
        if len(simulation.begun) > count:
            stands |= dict.fromkeys(simulation.begun[-1][2], simulation.cut)
            if slowest in simulation.begun[-1][2]:
                assert {
                    name for name, cut in stands.items() if cut == simulation.cut
                } >= paces.keys() - busy

"""How old a state is, beside a simulation that knows when each record arrived (TBL-16,
`staleness_is_bounded`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from connector.stored import from_stored, to_stored
from connector.watermarks.freshness import (
    MAX_PENDING,
    NONE_ASKED,
    EndOffsets,
    FreshnessLog,
    is_fresh,
)

KAFKA_PARTITIONS = 3
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, KAFKA_PARTITIONS - 1)),
        st.tuples(
            st.just("batch"),
            st.lists(st.floats(0, 1), min_size=KAFKA_PARTITIONS, max_size=KAFKA_PARTITIONS),
        ),
        st.tuples(st.just("renew"), st.none()),
    ),
    max_size=60,
)


@dataclass
class Simulation:
    """Records by Kafka partition, each with its arrival; the batches so far, and what is known of
    their age.
    """

    clock: int = 0
    arrivals: list[list[int]] = field(default_factory=lambda: [[] for _ in range(KAFKA_PARTITIONS)])
    batches: list[dict[int, int]] = field(
        default_factory=lambda: [dict.fromkeys(range(KAFKA_PARTITIONS), 0)]
    )
    asked: list[EndOffsets] = field(default_factory=list)
    moments: FreshnessLog = NONE_ASKED

    def take(self, step: tuple[str, object]) -> None:
        self.clock += 1
        match step:
            case ("arrive", int(k)):
                self.arrivals[k].append(self.clock)
            case ("batch", list(shares)):
                ends = {k: len(all_) for k, all_ in enumerate(self.arrivals)}
                self.batches.append(
                    {
                        k: old + round((ends[k] - old) * shares[k])
                        for k, old in self.batches[-1].items()
                    }
                )
                self.ask()
            case ("renew", None) if len(self.batches) > 1:
                self.ask()

    def ask(self) -> None:
        self.asked.append(
            EndOffsets(self.clock, {k: len(all_) for k, all_ in enumerate(self.arrivals)})
        )
        self.moments = self.moments.after(len(self.batches) - 1, self.batches[-1], self.asked[-1])

    def arrived_by(self, moment: int) -> dict[int, int]:
        return {k: sum(at <= moment for at in all_) for k, all_ in enumerate(self.arrivals)}


@given(STEPS)
def test_staleness_is_bounded_by_what_a_state_contains(steps: list[tuple[str, object]]) -> None:
    """TBL-16: a state holds all that had arrived at its moment; of the newest batch's there is no
    newer moment that was asked for.
    """
    simulation = Simulation()
    for step in steps:
        simulation.take(step)
        for batch in range(1, len(simulation.batches)):
            known = simulation.moments.time_of(batch)
            ends = simulation.batches[batch]
            if known is not None:
                assert all(ends[k] >= count for k, count in simulation.arrived_by(known).items())
            if batch == len(simulation.batches) - 1 and len(simulation.asked) <= MAX_PENDING:
                assert known == max(
                    (asked.at for asked in simulation.asked if asked.is_contained(ends)),
                    default=None,
                )


@given(STEPS)
def test_the_lag_is_counted_and_bounded(steps: list[tuple[str, object]]) -> None:
    """TBL-16, OPS-5: the offsets between the newest batch and the ends that Kafka gave last. The
    remembered state stays small.
    """
    simulation = Simulation()
    for step in steps:
        simulation.take(step)
    ends = simulation.batches[-1]
    last = simulation.asked[-1].ends if simulation.asked else {}
    assert simulation.moments.behind == sum(end - ends[k] for k, end in last.items())
    assert len(simulation.moments.pending) <= MAX_PENDING
    assert from_stored(FreshnessLog, to_stored(simulation.moments)) == simulation.moments


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_exactly_at_the_bound_is_fresh(as_of: int, bound_s: int) -> None:
    """TBL-16"""
    now = as_of + bound_s * 1_000_000
    assert is_fresh(as_of, bound_s, now)
    assert not is_fresh(as_of, bound_s, now + 1)
    assert not is_fresh(None, bound_s, now)

"""Ranges against sets of offsets, and an audit against a reader who remembers every offset (TBL-6,
nothing_lost).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st

from connector.reports.audit import (
    PartitionAudit,
    Range,
    Ranges,
    Run,
    StreamAudit,
    TopicCheck,
    common,
    count,
    union_ranges,
    without,
)

RANGES = st.lists(
    st.builds(
        lambda start, size: Range(start, start + size), st.integers(0, 40), st.integers(0, 9)
    ),
    max_size=8,
)


def offsets(ranges: Iterable[Range]) -> set[int]:
    return {offset for start, stop in ranges for offset in range(start, stop)}


def ranges(found: Iterable[int]) -> Ranges:
    return union_ranges(Range(offset, offset + 1) for offset in found)


def is_tidy(found: Ranges) -> bool:
    return all(start < stop for start, stop in found) and all(
        one.stop < next_.start for one, next_ in pairwise(found)
    )


@given(RANGES, RANGES)
def test_ranges_are_sets_of_offsets(one: list[Range], other: list[Range]) -> None:
    for found, expected in (
        (union_ranges(one, other), offsets(one) | offsets(other)),
        (without(one, other), offsets(one) - offsets(other)),
        (common(one, other), offsets(one) & offsets(other)),
    ):
        assert is_tidy(found)
        assert offsets(found) == expected
        assert count(found) == len(expected)


def runs(rows: Iterable[int]) -> list[Run]:
    """As the changelog gives them: disjoint, each with the same number of rows all through."""
    found = []
    times = Counter(rows)
    for number in set(times.values()):
        places = sorted(offset for offset in times if times[offset] == number)
        for _, run in groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
            together = [offset for _, offset in run]
            found.append(Run(together[0], together[-1] + 1, number))
    return sorted(found)


def test_an_audit_finds_exactly_what_is_wrong(seed: int) -> None:
    """nothing_lost: batches with rows lost, doubled and invented, some of the topic visible, some
    taken; looked at in any steps.
    """
    chance = random.Random(seed)
    for _ in range(300):
        begin = chance.randrange(5)
        end = begin + chance.randrange(40)
        visible = {offset for offset in range(begin, end) if chance.random() < 0.8}
        gone = set(range(begin, begin + chance.randrange(20))) if chance.random() < 0.3 else set()
        rows = sorted(visible - {offset for offset in visible if chance.random() < 0.1})
        # Twice in a step, and again in the last one.
        twice = [offset for offset in rows if chance.random() < 0.1]
        again = [offset for offset in rows if chance.random() < 0.1]
        unexpected = [offset for offset in (begin - 1, end, end + 3) if chance.random() < 0.1]
        steps = [[*rows, *twice], [*again, *unexpected]]
        if (cut := chance.randrange(len(steps[0]) + 1)) < len(steps[0]):
            ordered = sorted(steps[0])
            steps = [ordered[:cut], ordered[cut:], steps[1]]

        found = PartitionAudit(begin, end)
        for number, step in enumerate([*steps, []]):
            found = found.logged(runs(step))
            gaps = found.gaps(to_the_end=number == len(steps))
            asked = offsets(gaps)
            found = found.checked(
                gaps, TopicCheck(ranges((visible & asked) - gone), ranges(asked & gone))
            )

        missing = set(range(begin, end)) - set(rows)
        assert offsets(found.lost) == (missing & visible) - gone
        assert offsets(found.unverified) == missing & gone
        assert offsets(found.duplicated) == {*twice, *again}
        assert offsets(found.unexpected) == set(unexpected)
        assert found.empty == len(missing - visible - gone)
        assert found.rows == len(rows) + len(twice) + len(again) + len(unexpected)
        is_whole = not missing & visible - gone and not twice and not again and not unexpected
        audit = StreamAudit("s", 1, {0: found})
        assert (audit.fault() is None) == is_whole
        assert audit.is_proved == (is_whole and not missing & gone)

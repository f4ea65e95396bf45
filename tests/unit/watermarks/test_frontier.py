"""Watermarks and lineage by example (WMK)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.records.model import MAX_TIMESTAMP, ChildPartition, ChildPartitions
from connector.watermarks import advance as rules
from connector.watermarks.advance import advance
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    Frontier,
    LineageRecord,
    Stall,
    is_claim,
)
from connector.watermarks.stream_partition import KeyRange, StreamPartition

KAFKA_PARTITIONS = 2


def beats(name: str, *claims: int) -> BatchClaims:
    """The stream partition claims this much in the first Kafka partitions."""
    return BatchClaims(KAFKA_PARTITIONS, {name: dict(enumerate(claims))})


def lineage(
    *records: ChildPartitions,
    read_in: tuple[int, ...] = (0, 1),
    kafka_partitions: int = KAFKA_PARTITIONS,
) -> BatchClaims:
    lineage = tuple(
        LineageRecord(k, kafka_partitions, record) for record in records for k in read_in
    )
    return BatchClaims(kafka_partitions, lineage=lineage)


def announcement(*names: str, start: int = 1, root: str = "root") -> ChildPartitions:
    return ChildPartitions(root, start, start, tuple(ChildPartition(name) for name in names))


def ends(
    reporter: str, start: int, *children: str, parents: tuple[str, ...] = ()
) -> ChildPartitions:
    return ChildPartitions(
        reporter,
        start,
        start,
        tuple(ChildPartition(name, parents or (reporter,)) for name in children),
    )


def after(*heard: BatchClaims, frontier: Frontier = UNKNOWN, now: int = 0) -> Frontier:
    for one in heard:
        frontier = advance(frontier, one, now=now)
    return frontier


def ended(frontier: Frontier, name: str) -> Frontier:
    return advance(frontier, BatchClaims(KAFKA_PARTITIONS), now=0, ends=[name])


def ends_of(frontier: Frontier) -> dict[str, int]:
    return {name: one.at for name, one in frontier.ended.items()}


def test_low_watermark_is_the_least_over_stream_and_kafka_partitions() -> None:
    """WMK-3."""
    frontier = after(lineage(announcement("a", "b")), beats("a", 50, 70), beats("b", 60, 40))
    assert frontier.low_watermark == 40


def test_low_watermark_is_unknown_until_announced_in_every_kafka_partition() -> None:
    """WMK-6: an announcement in one Kafka partition does not say who was alive in another when
    reading began there.
    """
    spoken = after(beats("a", 50, 50))
    assert spoken.low_watermark is None
    assert spoken.undeclared == ["a"]
    half = after(lineage(announcement("a"), read_in=(0,)), frontier=spoken)
    assert half.low_watermark is None
    assert after(lineage(announcement("a"), read_in=(1,)), frontier=half).low_watermark == 50


def test_named_stream_partitions_need_no_announcement() -> None:
    """WMK-6: those that the configuration names count once each has spoken in every Kafka
    partition.
    """
    roots = frozenset({"a", "b"})
    frontier = advance(UNKNOWN, beats("a", 50, 50), now=0, roots=roots)
    assert frontier.low_watermark is None
    frontier = advance(frontier, beats("b", 40, 60), now=0, roots=roots)
    assert frontier.low_watermark == 40
    assert frontier.undeclared == []


def test_a_kafka_partition_that_a_record_names_holds_the_low_watermark() -> None:
    """WMK-4: producers may write to a new Kafka partition before a reader has listed it."""
    frontier = after(lineage(announcement("a")), beats("a", 50, 50))
    frontier = after(BatchClaims(3, {"a": {0: 60, 1: 60}}), frontier=frontier)
    assert frontier.low_watermark == 50
    assert after(BatchClaims(3, {"a": {2: 60}}), frontier=frontier).low_watermark == 60


def test_watermarks_only_move_forwards() -> None:
    """WMK-2."""
    frontier = after(lineage(announcement("a")), beats("a", 50, 50), beats("a", 30, 90))
    assert frontier.low_watermark == 50
    assert frontier.partitions["a"].claims == {0: 50, 1: 90}


@pytest.mark.parametrize(
    ("watermark", "counts"),
    [
        (0, False),
        (1, True),
        (1_010, True),
        (1_011, False),
        (2**63 - 1, False),
        (MAX_TIMESTAMP, False),
    ],
)
def test_sentinels_and_the_future_are_no_claims(watermark: int, counts: bool) -> None:
    """WMK-5, REC-15."""
    assert is_claim(watermark, arrival=1_000, max_clock_skew=10) is counts


def test_the_example_of_a_split_and_a_merge() -> None:
    """WMK-10, WMK-7: a merge is reported by each of its parents; the child starts once, when all
    have ended.
    """
    frontier = after(
        lineage(announcement("1", "2", "3")),
        beats("1", 500, 500),
        beats("2", 920, 920),
        beats("3", 925, 925),
    )
    merge = ("2", "3")
    frontier = after(lineage(ends("2", 930, "4", parents=merge)), frontier=frontier)
    assert "4" in frontier.waiting
    assert sorted(frontier.live) == ["1", "2", "3"]
    frontier = after(beats("1", 990, 990), frontier=frontier)
    assert frontier.low_watermark == 925, "3 holds it, not 2, which has ended"
    once = after(lineage(ends("3", 930, "4", parents=merge)), frontier=frontier)
    assert sorted(once.live) == ["1", "4"]
    assert once.low_watermark == 930
    assert ends_of(once) == {"2": 930, "3": 930}
    again = after(
        lineage(ends("3", 930, "4", parents=merge), ends("2", 930, "4", parents=merge)),
        frontier=once,
    )
    assert again == once


def test_a_parent_has_ended_when_its_end_was_read_everywhere() -> None:
    """WMK-7: in every Kafka partition below the number that its end names, and no further."""
    frontier = after(lineage(announcement("p")), beats("p", 50, 50))
    frontier = after(lineage(ends("p", 100, "x", "y"), read_in=(0,)), frontier=frontier)
    assert frontier.low_watermark == 50
    assert sorted(frontier.live) == ["p"]
    wider = after(BatchClaims(3), frontier=frontier)
    done = after(lineage(ends("p", 100, "x", "y"), read_in=(1,)), frontier=wider)
    assert sorted(done.live) == ["x", "y"]
    assert done.low_watermark == 100, (
        "a child is no older than its start in any Kafka partition, new ones too"
    )


def test_an_end_that_was_read_everywhere_counts_though_later_announcements_span_more() -> None:
    """WMK-7: who has ended wrote to no Kafka partition that was added since, whatever is announced
    there.
    """
    end, later = ends("p", 100, "x"), announcement("x", start=200)
    frontier = after(
        lineage(announcement("p")),
        lineage(end, read_in=(0,)),
        lineage(later, read_in=(0,), kafka_partitions=3),
    )
    assert sorted(frontier.live) == ["p"]
    assert sorted(after(lineage(end, read_in=(1,)), frontier=frontier).live) == ["x"]


def test_an_end_that_is_read_before_its_announcement_holds_the_low_watermark() -> None:
    """WMK-7: a parent of whom only a child has spoken is waited for."""
    frontier = after(
        lineage(ends("p", 100, "x"), read_in=(0,)),
        lineage(announcement("x", "q"), read_in=(0,)),
        beats("x", 200, 200),
    )
    assert sorted(frontier.live) == ["p", "q"]
    assert frontier.low_watermark is None


def test_a_stream_partition_that_later_announcements_omit_has_ended() -> None:
    """WMK-6: the first that omits it may have a part that is still to come; the next one shows that
    it has none.
    """
    frontier = after(lineage(announcement("a", "b")), beats("a", 50, 50), beats("b", 20, 20))
    assert frontier.low_watermark == 20
    assert after(lineage(announcement("a", start=1)), frontier=frontier) == frontier, (
        "a part that is read again says nothing"
    )
    frontier = after(lineage(announcement("a", start=60)), frontier=frontier)
    assert frontier.low_watermark == 20
    frontier = after(lineage(announcement("a", start=70), read_in=(0,)), frontier=frontier)
    assert frontier.low_watermark == 20
    frontier = after(lineage(announcement("a", start=70), read_in=(1,)), frontier=frontier)
    assert frontier.low_watermark == 50
    assert ends_of(frontier) == {"b": 60}


def test_records_of_one_start_timestamp_are_one_announcement() -> None:
    """WMK-6, WMK-10: in any order, each several times, and in any batches."""
    first = ChildPartitions("root", 900, 389, (ChildPartition("1"), ChildPartition("2")))
    second = ChildPartitions("root", 900, 390, (ChildPartition("3"),))
    claims = (beats("1", 920, 920), beats("2", 910, 910), beats("3", 930, 930))
    for order in ([first, second], [second, first], [second, first, second, first]):
        at_once = after(together(*map(lineage, order)), *claims)
        for frontier in (at_once, after(*map(lineage, order), *claims)):
            assert (sorted(frontier.live), frontier.low_watermark) == (["1", "2", "3"], 910)
    later = [replace(one, start_timestamp=940) for one in (second, first)]
    for number in (1, 2):
        frontier = after(lineage(*later[:number]), frontier=frontier)
        assert sorted(frontier.live) == ["1", "2", "3"], "others may be in the next part"


def test_records_of_one_end_are_one_end() -> None:
    """WMK-6, WMK-7: a parent may name its children in several records."""
    parts = [ends("p", 100, name) for name in ("x", "y")]
    for order in (parts, parts[::-1]):
        frontier = after(lineage(announcement("p")), beats("p", 50, 50), *map(lineage, order))
        assert (sorted(frontier.live), frontier.low_watermark) == (["x", "y"], 100)


def test_an_announcement_without_children_ends_all_at_once() -> None:
    """WMK-6."""
    frontier = after(
        lineage(announcement("a", "b")),
        beats("a", 50, 50),
        lineage(announcement(start=60)),
    )
    assert (list(frontier.live), ends_of(frontier)) == ([], {"a": 60, "b": 60})


@pytest.mark.parametrize("named", [frozenset[str](), frozenset({"q"})])
def test_a_stream_partition_that_ended_before_kafka_partitions_were_added_delays_nothing(
    named: frozenset[str],
) -> None:
    """WMK-7, WMK-6: a commit, a load or a closed session, an omitted stream partition, and a root
    that the configuration names, for a reader that begins after the growth.
    """
    frontier = after(lineage(announcement("p", root="p"), read_in=(0, 1, 2), kafka_partitions=3))
    over = [
        announcement("commit", start=499, root="commit"),
        announcement(start=501, root="commit"),
        announcement("a", "b", start=400, root="q"),
        announcement("a", start=410, root="q"),
        announcement("a", start=420, root="q"),
        announcement(start=430, root="q"),
    ]
    for part in (over[:1], over[1:2], over[2:4], over[4:]):
        frontier = advance(frontier, lineage(*part), now=0, roots=named)
    beat = BatchClaims(3, {"p": dict.fromkeys(range(3), 5000)})
    frontier = advance(frontier, beat, now=0, roots=named)
    assert (frontier.low_watermark, list(frontier.live)) == (5000, ["p"])


def test_an_end_that_was_sent_to_more_kafka_partitions_is_waited_for_there() -> None:
    """WMK-7: the end of a process was lost in one Kafka partition. The next one sends it, and what
    was lost before it, to the added ones, too.
    """
    end = ends("p", 100, "x")
    frontier = after(lineage(announcement("p")), beats("p", 50, 50), lineage(end, read_in=(0,)))
    frontier = after(lineage(end, read_in=(1,), kafka_partitions=3), frontier=frontier)
    assert list(frontier.live) == ["p"]
    assert list(after(lineage(end, read_in=(2,), kafka_partitions=3), frontier=frontier).live) == [
        "x"
    ]


def test_the_earliest_of_different_starts_counts() -> None:
    """WMK-7: no change of the child is older than the end of one of its parents."""
    merge = ("p", "q")
    reports = [ends(name, at, "x", parents=merge) for name, at in (("p", 100), ("q", 130))]
    for order in (reports, reports[::-1]):
        frontier = after(lineage(announcement(*merge)), *map(lineage, order))
        assert (list(frontier.live), frontier.low_watermark) == (["x"], 100)


def test_an_announcement_counts_for_its_own_root_only() -> None:
    """WMK-6."""
    frontier = after(
        lineage(announcement("a")),
        lineage(announcement("b", root="other")),
        lineage(announcement("c", root="other", start=9)),
        lineage(announcement("c", root="other", start=10)),
    )
    assert sorted(frontier.live) == ["a", "c"]


def test_an_undeclared_stream_partition_counts_and_cannot_lower() -> None:
    """WMK-8."""
    frontier = after(lineage(announcement("a")), beats("a", 50, 50), beats("typo", 0, 10))
    assert frontier.undeclared == ["typo"]
    assert frontier.low_watermark == 50
    frontier = after(beats("a", 90, 90), frontier=frontier)
    assert frontier.low_watermark == 50, "it holds what it cannot lower"


def test_the_operator_ends_a_stream_partition() -> None:
    """WMK-8: no mistyped name stops a stream for ever; what it still says counts for nothing."""
    frontier = after(
        lineage(announcement("a")),
        beats("a", 50, 50),
        beats("typo", 0, 10),
        beats("a", 90, 90),
    )
    frontier = ended(frontier, "typo")
    assert frontier.low_watermark == 90
    assert after(beats("typo", 1, 1), frontier=frontier).undeclared == []


def test_children_of_an_ended_parent_do_not_wait() -> None:
    """WMK-8."""
    frontier = after(
        lineage(announcement("p", "q")),
        lineage(ends("p", 100, "x", parents=("p", "q"))),
        beats("q", 10, 10),
    )
    assert "x" in frontier.waiting
    assert sorted(ended(frontier, "q").live) == ["x"]


def test_ended_names_are_forgotten_below_the_horizon() -> None:
    """WMK-9."""
    split = lineage(ends("p", 100, "x"))
    frontier = after(lineage(announcement("p")), split, beats("x", 900, 900))
    assert ends_of(advance(frontier, BatchClaims(2), now=0, horizon=100)) == {"p": 100}
    frontier = advance(frontier, BatchClaims(2), now=0, horizon=101)
    assert frontier.ended == {}
    assert advance(frontier, split, now=0, horizon=101) == frontier, (
        "what is read again after that begins nothing"
    )


def together(*heard: BatchClaims) -> BatchClaims:
    """What several batches say, in one."""
    claims = {name: claims for one in heard for name, claims in one.claims.items()}
    return BatchClaims(
        max(one.kafka_partitions for one in heard),
        claims,
        tuple(lineage for one in heard for lineage in one.lineage),
    )


def test_a_forgotten_stream_partition_that_sends_and_ends_again_has_ended_with_any_batches() -> (
    None
):
    """WMK-7, WMK-9: whether it speaks and ends in one batch or in two does not matter."""
    split, forgotten = lineage(ends("p", 110, "c"), ends("c", 120, "d")), 500
    frontier = after(lineage(announcement("p")), beats("p", 100, 100), split, beats("d", 900, 900))
    frontier = advance(frontier, BatchClaims(2), now=0, horizon=forgotten)
    assert (list(frontier.live), frontier.ended) == (["d"], {})
    beat = beats("p", 106, 106)
    for batches in ([beat, split], [together(beat, split)]):
        again = frontier
        for batch in batches:
            again = advance(again, batch, now=0, horizon=forgotten)
        assert again == frontier


def test_an_end_below_the_horizon_makes_no_unknown_parent_known() -> None:
    """WMK-7, WMK-9: of a merge that is said again, the parent that was forgotten is not waited
    for.
    """
    frontier = after(lineage(announcement("a", "slow")), beats("a", 900, 900))
    chain = together(
        beats("slow", 40, 40),
        lineage(ends("slow", 50, "child"), ends("child", 60, "grandchild")),
    )
    assert sorted(advance(frontier, chain, now=0, horizon=500).live) == ["a", "grandchild"]
    assert (
        advance(frontier, lineage(ends("forgotten", 50, "child")), now=0, horizon=500) == frontier
    )
    merge = lineage(ends("slow", 50, "child", parents=("slow", "forgotten")))
    assert sorted(advance(frontier, merge, now=0, horizon=500).partitions) == ["a", "child"]
    by_the_other = lineage(ends("forgotten", 50, "child", parents=("slow", "forgotten")))
    waits = advance(frontier, by_the_other, now=0, horizon=500)
    assert (sorted(waits.live), sorted(waits.waiting)) == (
        ["a", "slow"],
        ["child"],
    ), "a report ends the parent that makes it"


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_new_stream_partition_behind_the_horizon_delays_the_low_watermark(
    is_announced: bool,
) -> None:
    """watermark_is_honest, WMK-8: a claim or an announcement below the horizon may be that of a
    producer that begins late.
    """
    frontier = after(lineage(announcement("a")), beats("a", 1000, 1000))
    first = together(
        beats("new", 101, 0),
        beats("a", 1100, 1100),
        *([lineage(announcement("new", root="new", start=99))] if is_announced else []),
    )
    frontier = advance(frontier, first, now=0, horizon=500)
    assert frontier.undeclared == ([] if is_announced else ["new"])
    frontier = advance(frontier, beats("a", 2000, 2000), now=0, horizon=500)
    assert frontier.low_watermark == 1000
    assert advance(frontier, beats("new", 1500, 1400), now=0, horizon=500).low_watermark == 1400


def test_a_root_has_ended_once_its_newest_announcement_was_read_in_every_kafka_partition() -> None:
    """WMK-6: in another Kafka partition, an older announcement may still name a stream partition
    that the newest one ends.
    """
    frontier = after(
        together(
            lineage(announcement("a")),
            lineage(announcement(root="r", start=300), read_in=(0,)),
        ),
        beats("a", 1000, 900),
    )
    older = lineage(
        announcement("p", root="r", start=150), announcement(root="r", start=300), read_in=(1,)
    )
    assert frontier.past_roots == {}
    frontier = after(together(beats("p", 0, 180), beats("a", 2000, 2000), older), frontier=frontier)
    assert (list(frontier.live), frontier.low_watermark, frontier.past_roots) == (
        ["a"],
        2000,
        {"r": 300},
    )


def test_the_grandchildren_of_a_parent_whose_end_is_read_last_have_its_root() -> None:
    """WMK-7, WMK-6: they are not undeclared, and an announcement that leaves them out ends them."""
    frontier = after(
        lineage(announcement("p")),
        beats("p", 50, 50),
        lineage(ends("c", 120, "d", "e")),
    )
    assert sorted(frontier.live) == ["d", "e", "p"]
    frontier = after(lineage(ends("p", 110, "c")), frontier=frontier)
    assert sorted(frontier.live) == ["d", "e"]
    assert frontier.undeclared == []
    assert frontier.low_watermark == 120
    assert Frontier.from_json(frontier.to_json()) == frontier
    later = (lineage(announcement("e", start=at)) for at in (200, 210))
    assert list(after(*later, frontier=frontier).live) == ["e"]


def test_the_children_of_a_closed_stream_partition_have_its_root() -> None:
    """WMK-8: the facts about an ended root are kept."""
    frontier = ended(
        after(lineage(announcement("p", "q")), beats("p", 50, 50), beats("q", 90, 90)), "p"
    )
    frontier = after(lineage(ends("p", 60, "c")), frontier=frontier)
    assert (sorted(frontier.live), frontier.undeclared) == (["c", "q"], [])


def restarted(number: int, k: tuple[int, ...]) -> BatchClaims:
    """A producer begins anew: its stream partitions are roots of their own, and those of the one
    before announce that nobody lives.
    """
    at = 100 * number
    names, before = [f"p{number}-{n}" for n in range(2)], [f"p{number - 1}-{n}" for n in range(2)]
    records = [announcement(name, root=name, start=at + 1) for name in names]
    records += [announcement(root=name, start=at) for name in before] if number else []
    return BatchClaims(
        len(k),
        {name: dict.fromkeys(k, at + 50) for name in names},
        lineage(*records, read_in=k, kafka_partitions=len(k)).lineage,
    )


def test_a_frontier_does_not_grow_with_ended_roots() -> None:
    """WMK-6: announcements of live stream partitions are kept, however often producers restart; the
    horizon removes the rest.
    """
    frontier, k = UNKNOWN, (0, 1, 2, 3)
    for number in range(60):
        horizon = None if frontier.low_watermark is None else frontier.low_watermark - 1000
        frontier = advance(frontier, restarted(number, k), now=0, horizon=horizon)
        assert frontier.low_watermark == 100 * number + 50
        assert {root for root, _ in frontier.announcements} == {f"p{number}-0", f"p{number}-1"}
    assert len(frontier.past_roots) == len(frontier.ended) == 2 * 11
    assert Frontier.from_json(frontier.to_json()) == frontier

    again = BatchClaims(
        4, lineage=tuple(one for one in restarted(55, k).lineage if one.record.children)
    )
    assert advance(frontier, again, now=0, horizon=horizon) == frontier, (
        "what is read again begins nothing"
    )


def test_a_frontier_does_not_grow_while_the_low_watermark_is_not_known() -> None:
    """WMK-6: roots that are over count as announced, and who never speaks of those that the
    configuration names does not matter.
    """
    frontier, k, roots = UNKNOWN, (0, 1), frozenset({"never heard of"})
    for number in range(20):
        frontier = advance(frontier, restarted(number, k), now=0, roots=roots)
    assert {root for root, _ in frontier.announcements} == {"p19-0", "p19-1"}
    assert frontier.low_watermark is None
    assert advance(frontier, BatchClaims(2), now=0).low_watermark == 1950


def test_an_ended_root_can_be_announced_again() -> None:
    """WMK-6: and one that the configuration names is never taken for over."""
    frontier = after(
        lineage(announcement("a"), announcement("b", root="other")),
        beats("a", 50, 50),
        beats("b", 60, 60),
    )
    over = after(lineage(announcement(root="other", start=70)), frontier=frontier)
    assert (over.past_roots, list(over.live)) == ({"other": 70}, ["a"])
    assert after(lineage(announcement("b2", root="other", start=69)), frontier=over) == over
    assert list(after(lineage(announcement("b2", root="other", start=71)), frontier=over).live) == [
        "a",
        "b2",
    ]
    again = lineage(announcement("b2", root="other", start=70))
    for horizon, begins in ((70, False), (71, True)):  # WMK-9
        kept = advance(over, BatchClaims(2), now=0, horizon=horizon)
        assert ("b2" in advance(kept, again, now=0, horizon=horizon).live) is begins
    named = advance(
        frontier,
        lineage(announcement(root="other", start=70)),
        now=0,
        roots=frozenset(["other"]),
    )
    assert (named.past_roots, {root for root, _ in named.announcements}) == ({}, {"root", "other"})


def test_two_roots_may_each_cover_the_key_space() -> None:
    """WMK-9: a root's key ranges are its own; who shares a stream partition shares the key
    space.
    """

    def covers(root: str, start: int = 1, end_of_first: bytes = b"m") -> ChildPartitions:
        halves = (
            ChildPartition(f"{root}-1", (), None, end_of_first),
            ChildPartition(f"{root}-2", (), b"m", None),
        )
        return ChildPartitions(root, start, start, halves)

    frontier = after(lineage(covers("r"), covers("s")))
    assert frontier.uncovered() is None
    with_hole = after(lineage(covers("r"), covers("s", end_of_first=b"g")))
    assert with_hole.uncovered() == ("s", KeyRange(b"g", b"m"))


RANGES = {
    "none": ([(None, b"m"), (b"m", None)], None),
    "hole": ([(None, b"g"), (b"m", None)], KeyRange(b"g", b"m")),
    "hole at the end": ([(None, b"m")], KeyRange(b"m", None)),
    "hole at the beginning": ([(b"a", None)], KeyRange(b"", b"a")),
    "overlap": ([(None, b"m"), (b"g", None)], KeyRange(b"g", b"m")),
    "overlap that ends first": ([(None, b"m"), (b"g", b"t"), (b"t", None)], KeyRange(b"g", b"m")),
    "within another": ([(None, b"t"), (b"g", b"m"), (b"t", None)], KeyRange(b"g", b"m")),
    "twice": ([(b"", None), (b"g", b"m")], KeyRange(b"g", b"m")),
    "after the end": ([(b"", None), (b"g", None)], KeyRange(b"g", None)),
}


@pytest.mark.parametrize(("ranges", "wrong"), RANGES.values(), ids=RANGES)
def test_key_ranges_cover_the_key_space(
    ranges: list[tuple[bytes | None, bytes | None]], wrong: KeyRange | None
) -> None:
    """WMK-9: while there is a hole or an overlap, the low watermark does not advance, and the range
    is named.
    """
    children = tuple(ChildPartition(f"p{n}", (), *keys) for n, keys in enumerate(ranges))
    frontier = after(
        lineage(ChildPartitions("root", 1, 1, children)),
        *(beats(child.token, 50, 50) for child in children),
    )
    assert frontier.uncovered() == (wrong and ("root", wrong))
    assert frontier.low_watermark == (None if wrong else 50)


def test_a_stall_has_the_kafka_partition_and_its_start() -> None:
    """WMK-12: by a clock that is handed in."""
    frontier = after(lineage(announcement("a", "b")), beats("a", 50, 50), now=100)
    frontier = after(beats("a", 60, 60), beats("b", 70), frontier=frontier, now=200)
    assert frontier.stalls(now=399, stall_after=300) == []
    assert frontier.stalls(now=400, stall_after=300) == [Stall("b", 1, 0, 100)]
    assert frontier.stalls(now=500, stall_after=300) == [
        Stall("b", 1, 0, 100),
        Stall("a", 0, 60, 200),
    ]


def test_the_two_newest_announcements_of_a_root_stay_in_each_kafka_partition() -> None:
    """WMK-6: also a later part of the older one counts. Older ones have no effect."""
    everywhere, first = [lineage(announcement("a", start=n)) for n in (1, 2)], (0,)
    frontier = after(*everywhere, lineage(announcement("a", start=3), read_in=first))

    def read_in(frontier: Frontier) -> dict[int, set[int]]:
        return {at: set(one.read_in) for (_, at), one in frontier.announcements.items()}

    assert read_in(frontier) == {1: {1}, 2: {0, 1}, 3: {0}}
    part = announcement("b", start=2)
    assert "b" in after(lineage(part, read_in=first), frontier=frontier).partitions
    older = announcement("b", start=1)
    assert "b" not in after(lineage(older, read_in=first), frontier=frontier).partitions


@pytest.mark.parametrize(
    ("old", "kept"),
    [
        ({"r1", "r2"}, {"r2"}),
        ({"r1"}, set()),
        ({"r2"}, set()),
        ({"r1", "r2", "alone"}, {"r2"}),
    ],
)
def test_of_old_roots_that_join_the_same_the_youngest_stays(old: set[str], kept: set[str]) -> None:
    """WMK-9: both roots have both stream partitions below them. One that is not old joins them
    first.
    """
    keys = (KeyRange(b"", b"m"), KeyRange(b"m", None))
    of_both = frozenset(["r1", "r2"])
    below = {str(n): StreamPartition(roots=of_both, key_range=one) for n, one in enumerate(keys)}
    below["2"] = StreamPartition(roots=frozenset(["alone"]), key_range=KeyRange(b"", None))
    assert rules._connecting(below, old, {"r1": 5, "r2": 9, "alone": 7}) == kept


def test_the_low_watermark_is_stalled_from_when_it_last_moved() -> None:
    """TBL-11, WMK-12: whatever is read meanwhile that does not move it."""
    frontier = after(lineage(announcement("a")), beats("a", 50, 50), now=100)
    frontier = after(beats("a", 60), frontier=frontier, now=200)
    assert frontier.low_watermark == 50
    assert [frontier.is_stalled(now, stall_after=300) for now in (399, 400)] == [False, True]


def test_stalls_of_one_moment_are_in_the_order_of_their_names() -> None:
    """WMK-12."""
    names = ("c", "a", "d", "b")
    frontier = after(
        lineage(announcement(*names)), *(beats(name, 50, 50) for name in names), now=100
    )
    assert [stall.stream_partition for stall in frontier.stalls(now=400, stall_after=300)] == [
        "a",
        "b",
        "c",
        "d",
    ]

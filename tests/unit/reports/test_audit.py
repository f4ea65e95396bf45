"""What follows from rows, gaps and letters (TBL-6): each way in which nothing_lost can be broken,
and what is only unproved.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from connector.dead_letters.envelope import DeadLetter
from connector.records.rejection import Position, Reason
from connector.reports.audit import (
    LettersAudit,
    PartitionAudit,
    Range,
    Run,
    StreamAudit,
    TopicCheck,
    compare_letters,
    digest,
)

READ = PartitionAudit(begin=10, end=20)
WHOLE = READ.logged([Run(10, 20, 1)])


def letter(offset: int, value: bytes | None = b"v", **fields: object) -> DeadLetter:
    position = Position("t", "id", 0, offset)
    common = DeadLetter(
        position=position,
        key=b"k",
        value=value,
        headers=(("h", None),),
        reason=Reason.UNDECODABLE,
        detail="",
        first_failed_at=0,
        record_timestamp=0,
        ingest_batch=1,
        order_position="1/0/0/0",
    )
    return replace(common, **fields)  # type: ignore[arg-type]


def rejected(*letters: DeadLetter) -> list[tuple[str, bytes]]:
    return [(found.id, digest(found.key, found.value, found.headers)) for found in letters]


def stream(partition: PartitionAudit, **fields: object) -> StreamAudit:
    return StreamAudit("s", 3, {0: partition}, **fields)  # type: ignore[arg-type]


def test_every_offset_once_is_proved() -> None:
    """nothing_lost"""
    assert WHOLE.gaps(to_the_end=True) == ()
    assert stream(WHOLE).is_proved
    assert stream(WHOLE).to_json()["verdict"] == "passed"


def test_a_gap_is_proved_only_by_looking() -> None:
    """TBL-6: transaction markers and aborted records."""
    found = READ.logged([Run(10, 12, 1), Run(13, 18, 1)])
    assert found.gaps(to_the_end=False) == (Range(12, 13),)
    assert found.gaps(to_the_end=True) == (Range(12, 13), Range(18, 20))
    empty = found.checked(found.gaps(to_the_end=True), TopicCheck())
    assert stream(empty).is_proved
    assert (empty.rows, empty.empty) == (7, 3)


def test_a_visible_record_in_a_gap_is_lost() -> None:
    """nothing_lost"""
    found = READ.logged([Run(10, 12, 1), Run(15, 20, 1)])
    found = found.checked(found.gaps(to_the_end=True), TopicCheck(visible=(Range(13, 15),)))
    fault = stream(found).fault()
    assert fault is not None
    assert "2 offsets are missing in the changelog" in fault.problem
    assert "0/13 to 14" in fault.problem
    assert fault.cause
    assert fault.remedy


def test_offsets_that_retention_removed_are_unverified_and_break_no_promise() -> None:
    found = READ.logged([Run(12, 20, 1)]).checked(
        (Range(10, 12),), TopicCheck(removed=(Range(10, 11),))
    )
    assert (found.unverified, found.empty) == ((Range(10, 11),), 1)
    audit = stream(found)
    assert audit.fault() is None
    assert not audit.is_proved
    assert (audit.unverified, audit.to_json()["verdict"]) == (1, "unverified")


@pytest.mark.parametrize(
    ("partition", "said"),
    [
        (READ.logged([Run(10, 12, 1), Run(12, 13, 2), Run(13, 20, 1)]), "more than once"),
        (WHOLE.logged([Run(14, 15, 1)]), "more than once"),
        (
            READ.logged([Run(11, 20, 1)])
            .checked((Range(10, 11),), TopicCheck())
            .logged([Run(10, 11, 1)]),
            "without a visible record",
        ),
        (READ.logged([Run(9, 20, 1)]), "has not read them"),
        (READ.logged([Run(10, 21, 1)]), "has not read them"),
    ],
)
def test_rows_too_many_break_the_promise(partition: PartitionAudit, said: str) -> None:
    fault = stream(partition).fault()
    assert fault is not None
    assert "nothing_lost" in fault.problem
    assert said in fault.problem
    assert "1 offset is" in fault.problem


def test_a_row_in_a_later_batch_fills_the_gap_that_it_left() -> None:
    found = READ.logged([Run(10, 12, 1), Run(13, 20, 1)]).checked(
        (Range(12, 13),), TopicCheck(visible=(Range(12, 13),))
    )
    assert found.lost
    assert stream(found.logged([Run(12, 13, 1)])).is_proved
    taken = READ.logged([Run(10, 12, 1), Run(13, 20, 1)]).checked(
        (Range(12, 13),), TopicCheck(removed=(Range(12, 13),))
    )
    assert taken.unverified
    assert stream(taken.logged([Run(12, 13, 1)])).is_proved


def test_letters_are_compared_byte_for_byte() -> None:
    """DLQ-1, DLQ-4: one letter is enough, a second with the same id does no harm, and neither does
    that of a table.
    """
    wanted = [letter(1), letter(2), letter(3, value=None)]
    there = [
        letter(9),
        letter(1, value=b"x"),
        letter(1),
        letter(2),
        letter(2),
        letter(3, value=b""),
        letter(3, value=None),
    ]
    assert compare_letters(rejected(*wanted), there) == LettersAudit(3)
    assert compare_letters(rejected(letter(1)), [letter(1, table="t")]).missing == ("id-0-1",)

    found = compare_letters(rejected(*wanted), [letter(1), letter(3, value=b"")])
    assert (found.missing, found.altered) == (("id-0-2",), ("id-0-3",))
    fault = stream(WHOLE, letters=found).fault()
    assert fault is not None
    assert "id-0-2" in fault.problem
    assert "id-0-3" in fault.problem
    assert not stream(WHOLE, letters=LettersAudit(unverified=("id-0-2",))).is_proved


def test_a_digest_differs_if_a_byte_or_its_position_differs() -> None:
    records: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
        (None, None, ()),
        (b"", None, ()),
        (None, b"", ()),
        (b"a", b"b", ()),
        (b"ab", b"", ()),
        (b"a", b"b", (("c", None),)),
        (b"a", b"b", (("c", b""),)),
        (b"a", b"b", (("c", b"d"),)),
        (b"a", b"b", (("cd", b""),)),
        (b"-", b"1:", ()),
    ]
    assert len({digest(*record) for record in records}) == len(records)


def test_a_report_is_stable() -> None:
    """TBL-6: who reads `audit --json` relies on every name; ranges are their bounds, the second one
    not included.
    """
    broken = READ.logged([Run(10, 11, 1), Run(12, 13, 2), Run(14, 18, 1), Run(21, 22, 1)])
    broken = broken.checked(
        broken.gaps(to_the_end=True), TopicCheck(visible=(Range(11, 12),), removed=(Range(18, 19),))
    )
    letters = LettersAudit(4, missing=("a",), altered=("b",), unverified=("c", "d"))
    report = StreamAudit(
        "s", 3, {1: PartitionAudit(0, 2).logged([Run(0, 2, 1)]), 0: broken}, letters
    ).to_json()
    assert json.loads(json.dumps(report)) == {
        "stream": "s",
        "incomplete_transactions": [],
        "losses": [],
        "write_streams": [],
        "faulty_tables": {},
        "source_topics": [],
        "verdict": "failed",
        "to_batch": 3,
        "kafka_partitions": [
            {
                "kafka_partition": 0,
                "begin": 10,
                "end": 20,
                "rows": 8,
                "empty": 2,
                "lost": [[11, 12]],
                "unverified": [[18, 19]],
                "duplicated": [[12, 13]],
                "unexpected": [[21, 22]],
            },
            {
                "kafka_partition": 1,
                "begin": 0,
                "end": 2,
                "rows": 2,
                "empty": 0,
                "lost": [],
                "unverified": [],
                "duplicated": [],
                "unexpected": [],
            },
        ],
        "letters": {"compared": 4, "missing": ["a"], "altered": ["b"], "unverified": ["c", "d"]},
    }


def test_unproved_offsets_and_letters_add_up() -> None:
    """TBL-6: over all Kafka partitions; each alone is enough."""
    taken = READ.logged([Run(13, 20, 1)]).checked(
        (Range(10, 13),), TopicCheck(removed=(Range(10, 12),))
    )
    other = PartitionAudit(0, 5).checked(
        (Range(0, 5),), TopicCheck(removed=(Range(0, 1), Range(2, 5)))
    )
    audit = StreamAudit("s", 3, {0: taken, 1: other}, LettersAudit(9, unverified=("a", "b", "c")))
    assert (
        audit.counted("unverified"),
        audit.unverified,
        audit.counted("rows"),
        audit.counted("empty"),
    ) == (6, 9, 7, 2)
    assert (audit.fault(), audit.is_proved, audit.to_json()["verdict"]) == (
        None,
        False,
        "unverified",
    )
    assert stream(taken).unverified == 2
    assert stream(WHOLE, letters=LettersAudit(9, unverified=("a", "b", "c"))).unverified == 3


def test_a_fault_names_three_examples_of_each_kind() -> None:
    """nothing_lost: the places are found in the topic, the letters by id."""
    lost = READ.checked(
        (Range(10, 20),),
        TopicCheck(visible=(Range(10, 11), Range(12, 15), Range(16, 17), Range(18, 19))),
    )
    fault = StreamAudit(
        "s", 3, {2: lost, 0: lost}, LettersAudit(9, missing=("a", "b", "c", "d"), altered=("e",))
    ).fault()
    assert fault is not None
    assert (
        fault.problem
        == "Stream s breaks nothing_lost: 12 offsets are missing in the changelog, although a"
        " reader of the topic sees their records (Kafka partition/offset 0/10, 0/12 to 14, 0/16,"
        " …); 4 dead letters are missing in the dead-letter topic (a, b, c, …); 1 dead letter is"
        " different from the rejected record (e)"
    )

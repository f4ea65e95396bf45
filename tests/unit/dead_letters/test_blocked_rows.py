"""Which rows wait, and until when (DLQ-3)."""

from __future__ import annotations

import pytest

from connector.dead_letters.blocked_rows import BLOCKING_REASONS, BlockingLetter, still_blocking
from connector.stored import from_stored, to_stored

TOPIC, TABLE = "T", "one"
FIRST = BlockingLetter(b"k", 3, (0, 7), 3, (0, 7), table_letter=False, since=100)
AGAIN = BlockingLetter(b"k", 3, (0, 7), 5, (1, 2), table_letter=True, since=150)
OTHER = BlockingLetter(b"l", 4, (0, 9), 4, (0, 9), table_letter=False, since=120)


def waiting(
    *before: BlockingLetter,
    result: tuple[BlockingLetter, ...] = (),
    replayed: dict[tuple[int, int], int] | None = None,
    discarded: frozenset[str] = frozenset(),
    horizon: int | None = None,
) -> tuple[BlockingLetter, ...]:
    return still_blocking(
        before,
        result,
        replayed=replayed or {},
        discarded=discarded,
        topic_id=TOPIC,
        table=TABLE,
        horizon=horizon,
    )


def test_a_row_waits_for_the_newest_letter_of_its_change() -> None:
    """A replay that is rejected again takes the place of the letter before, whichever is heard of
    first; since when stays.
    """
    newest = AGAIN._replace(since=100)
    assert (
        waiting(FIRST, result=(OTHER, AGAIN))
        == waiting(AGAIN, result=(FIRST, OTHER))
        == (newest, OTHER)
    )


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ({}, (FIRST,)),
        ({"replayed": {(0, 7): 4}}, ()),
        ({"replayed": {(0, 8): 4}}, (FIRST,)),
        ({"replayed": {(0, 7): 3}}, (FIRST,)),
        ({"discarded": frozenset({"T-0-7"})}, ()),
        ({"discarded": frozenset({"T-0-7-one"})}, (FIRST,)),
        ({"horizon": 100}, (FIRST,)),
        ({"horizon": 101}, ()),
    ],
)
def test_a_row_waits_until_the_letter_is_replayed_discarded_or_too_old(
    how: dict[str, object], left: tuple[BlockingLetter, ...]
) -> None:
    assert waiting(FIRST, **how) == left  # type: ignore[arg-type]


def test_a_replay_that_was_rejected_again_releases_nothing() -> None:
    """The replay of batch 4 was taken by the changelog, that of batch 5 became a letter of the
    table.
    """
    assert waiting(FIRST, result=(AGAIN,), replayed={(0, 7): 4}) == (AGAIN._replace(since=100),)
    assert waiting(AGAIN, replayed={(0, 7): 6}) == ()
    assert waiting(AGAIN, discarded=frozenset({"T-1-2-one"})) == ()


def test_a_row_stays_held_under_the_key_that_it_had() -> None:
    """Whatever key a replay of its letter bore, which was rejected again."""
    assert waiting(FIRST, result=(AGAIN._replace(row_key=b"other"),)) == (
        AGAIN._replace(since=100),
    )


@pytest.mark.parametrize(
    ("place", "committed", "waits"),
    [
        ((b"k", 3, (0, 8)), 10, (True, True)),
        ((b"k", 4, (0, 1)), 10, (True, True)),
        ((b"k", 4, (0, 1)), 9, (True, False)),
        ((b"k", 3, (0, 7)), 10, (False, False)),
        ((b"k", 3, (0, 6)), 11, (False, False)),
        ((b"l", 4, (0, 1)), 11, (False, False)),
    ],
)
def test_later_changes_wait_unless_they_were_committed_before(
    place: tuple[bytes, int, tuple[int, int]], committed: int, waits: tuple[bool, bool]
) -> None:
    """The commit time of a rejected record is unknown. A replay has the order position of its
    letter, and does not wait for itself.
    """
    assert (
        FIRST.is_before(*place, committed),
        FIRST._replace(committed=10).is_before(*place, committed),
    ) == waits


def test_rejected_records_hold_their_row_where_the_key_is_sound_and_a_replay_can_help() -> None:
    """DLQ-3: not where the key itself is wrong, the table unknown, the change too late, or the
    record no change at all.
    """
    assert set(BLOCKING_REASONS) == {
        *(
            "UNKNOWN_FRAMING",
            "UNKNOWN_SCHEMA",
            "UNDECODABLE",
            "INVALID",
            "UNKNOWN_ENTRY",
            "TOO_LARGE",
        ),
        *("COMMIT_TIMESTAMP_IN_FUTURE", "COMMIT_TIMESTAMP_TOO_OLD", "INVALID_SEQUENCE_NUMBER"),
    }


def test_a_stored_letter_is_read_back() -> None:
    letters = [FIRST, AGAIN, AGAIN._replace(committed=10)]
    assert [from_stored(BlockingLetter, to_stored(dead)) for dead in letters] == letters
    assert from_stored(BlockingLetter, to_stored(FIRST)[:-1]) == FIRST

"""When maintenance is due, and what it takes (TBL-15, TBL-23)."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.config.settings import VersionRetention
from connector.state.maintenance_schedule import (
    CHECKSUMS_KEPT,
    CLEAN_APART_US,
    DAY_US,
    FOLD_BATCHES,
    FOLD_BATCHES_BYTES,
    FOLD_BYTES,
    FOLD_FILES,
    FOLD_ROWS,
    GAIN,
    GAIN_OF_LOG,
    GAIN_PER_PARTITION,
    HOUR_US,
    LARGEST_BYTES,
    LATE_AT_MOST_US,
    MARKED,
    MARKED_LEAST_BYTES,
    MIB,
    MINUTE_US,
    MOST_ATTEMPTS,
    READ_ENDS_US,
    REST,
    SMALL_BYTES,
    TOO_MANY,
    VACUUM_EVERY,
    CommitCount,
    Compactions,
    DataFile,
    KeptVersions,
    is_clean_up_due,
    is_vacuum_due,
    removable_log_files,
    to_compact,
    to_fold,
    to_slots,
)
from connector.state.table_state import TableState
from connector.warehouse import MIXED_SLOT
from tests.examples import examples

KIB = 1024
FILES = st.lists(
    st.builds(
        DataFile,
        st.sampled_from("abc"),
        st.one_of(st.integers(1, MIB), st.integers(1, 2 * LARGEST_BYTES)),
        st.just(100),
        st.sampled_from((0, 0, 0, 10, 20, 100)),
    ),
    max_size=120,
)


@given(FILES)
def test_files_that_are_put_together_belong_together_and_are_fewer_then(
    files: list[DataFile],
) -> None:
    """TBL-15: each at most once, of one partition, not too large; a single one only for the rows
    that are gone from it.
    """
    groups = to_compact(files)
    taken = [number for group in groups for number in group]
    assert len(taken) == len(set(taken))
    for group in groups:
        assert len({files[number].partition for number in group}) == 1
        assert len(group) > 1 or files[group[0]].marked_share >= MARKED
        assert len(group) == 1 or sum(files[number].size for number in group) <= LARGEST_BYTES
        assert all(
            files[number].size < SMALL_BYTES or files[number].marked_share >= MARKED
            for number in group
        )


def test_small_files_are_put_together_once_there_are_enough() -> None:
    """TBL-15: by their number, on average in each partition; a partition that is alone does not
    wait for many.
    """
    assert to_compact([DataFile("a", KIB, 1)] * GAIN) == []
    assert [len(group) for group in to_compact([DataFile("a", KIB, 1)] * (GAIN + 1))] == [GAIN + 1]
    places = [f"p{number}" for number in range(16)]
    for in_each, is_worth in ((GAIN_PER_PARTITION, False), (GAIN_PER_PARTITION + 1, True)):
        assert bool(to_compact([DataFile(place, KIB, 1) for place in places] * in_each)) is is_worth


def test_a_large_file_waits_until_small_ones_have_half_its_bytes() -> None:
    """TBL-15: no byte is rewritten often."""
    small = [DataFile("a", MIB // 10, 1)] * 40
    assert [len(group) for group in to_compact([DataFile("a", 9 * MIB, 1), *small])] == [40]
    assert [
        len(group) for group in to_compact([DataFile("a", 2 * 40 * (MIB // 10), 1), *small])
    ] == [41]
    assert [
        len(group)
        for group in to_compact(
            [DataFile("a", SMALL_BYTES, 1), DataFile("a", SMALL_BYTES - 1, 1), *small]
        )
    ] == [40]


@examples(5)
@given(st.integers(0, 2**32))
def test_small_files_are_rewritten_a_few_times_only(seed: int) -> None:
    """TBL-15: a thousand files, one after the other: few are left at any time, and each byte was
    moved some ten times.
    """
    rng, files = Random(seed), list[DataFile]()
    sizes = [rng.randint(1, 8 * KIB) for _ in range(1000)]
    last_advance = most = 0
    for size in sizes:
        files.append(DataFile("a", size, 1))
        groups = to_compact(files)
        most = max(most, len(files))
        for group in groups:
            together = sum(files[number].size for number in group)
            last_advance += together
            files = [file for number, file in enumerate(files) if number not in set(group)] + [
                DataFile("a", together, 1)
            ]
    assert most <= GAIN + 20
    assert last_advance <= 12 * sum(sizes)


@pytest.mark.parametrize("rows", [100, 1_000, 10_000])
@pytest.mark.parametrize("replaced", [0.0, 0.5, 0.9])
def test_folds_write_at_most_four_bytes_for_each_one(seed: int, rows: int, replaced: float) -> None:
    """ENG-8: with applies of any size, whose rows later ones replace. The files stay few: those
    with 50,000 rows are left to compaction.
    """
    rng, files, incoming, written, most = Random(seed), [DataFile("0", 10**6, 10**5)], 0, 0, 0
    for _ in range(3_000):
        new = rng.randint(rows // 2, rows * 3 // 2)
        live = sum(file.rows - file.marked for file in files)
        files = marked(rng, files, replaced * new / live)
        chosen = to_fold(files)
        assert not chosen or len(chosen) >= FOLD_FILES
        assert max((files[n].rows - files[n].marked for n in chosen), default=0) < FOLD_ROWS
        copied = sum(files[n].rows - files[n].marked for n in chosen)
        files = [file for n, file in enumerate(files) if n not in set(chosen)]
        files.append(DataFile("0", 40 * (new + copied), new + copied))
        incoming, written = incoming + new, written + new + copied
        small = [file for file in files if file.rows - file.marked < FOLD_ROWS]
        most = max(most, len(small))
    assert incoming < written <= 4 * incoming
    assert most < 100


def marked(rng: Random, files: list[DataFile], share: float) -> list[DataFile]:
    """The files after about this share of the live rows of each was replaced."""
    after = []
    for file in files:
        exact = (file.rows - file.marked) * min(share, 1)
        count = int(exact) + (rng.random() < exact - int(exact))
        after.append(replace(file, marked=file.marked + count))
    return [file for file in after if file.rows > file.marked]


def test_files_that_are_too_few_or_too_unequal_are_not_folded() -> None:
    """ENG-8"""
    small = [DataFile("0", 4_000, 100)] * (FOLD_FILES - 1)
    assert to_fold(small) == []
    assert len(to_fold([*small, DataFile("0", 4_000, 100)])) == FOLD_FILES
    # The largest one has at most an eighth of the rows of the others.
    assert len(to_fold([*small, DataFile("0", 4_000, 137)])) == FOLD_FILES
    assert to_fold([*small, DataFile("0", 4_000, 138)]) == []
    assert len(to_fold([*small, DataFile("0", 9_000, 900, 800)])) == FOLD_FILES
    large = DataFile("0", 4_000, FOLD_ROWS)
    assert to_fold([large] * FOLD_FILES) == []
    assert to_fold([DataFile("0", FOLD_BYTES // FOLD_FILES + 1, 100)] * FOLD_FILES) == []


def test_files_with_many_deleted_rows_are_rewritten_by_their_bytes() -> None:
    """TBL-15: a fifth of the table's bytes, whatever the number of files, and however large they
    are.
    """
    half_gone = DataFile("a", 2 * LARGEST_BYTES, 100, 50)
    assert to_compact([half_gone]) == [[0]]
    assert to_compact([half_gone, *[DataFile("a", LARGEST_BYTES, 100)] * 2]) == [[0]]
    assert to_compact([half_gone, *[DataFile("a", LARGEST_BYTES, 100)] * 3]) == []
    assert to_compact([DataFile("a", MIB, 100, 19)]) == []


def removing(at: int, files: int, size: int = 0) -> CommitCount:
    return CommitCount(at, 1, files, size)


def due(
    removed: list[CommitCount],
    now: int,
    *,
    last: int = 0,
    newest_at: int | None = None,
    retention_s: int = 3_600,
    longest_s: int | None = None,
) -> bool:
    return is_clean_up_due(
        removed,
        now,
        last=last,
        newest_at=now if newest_at is None else newest_at,
        retention_s=retention_s,
        longest_s=longest_s,
    )


def test_old_files_are_removed_when_that_frees_something() -> None:
    """TBL-23: by number or bytes of what is past its retention, and not before."""
    now = 10 * MINUTE_US + HOUR_US
    last = now - 6 * MINUTE_US
    for enough in (removing(now - HOUR_US - 1, 100), removing(now - HOUR_US - 1, 1, 16 * MIB)):
        assert due([enough], now, last=last)
        assert not due([enough], now - 1, last=last), "not yet old enough"
    assert not due([removing(0, 99, 16 * MIB - 1)], now, last=last)
    assert not due([], now, last=last)
    twentieth = [removing(0, 100), removing(now, 1900)]
    assert due(twentieth, now, last=last)
    assert not due([removing(0, 100), removing(now, 2100)], now, last=last), (
        "a twentieth of what is kept"
    )


def test_old_files_are_removed_minutes_apart() -> None:
    """TBL-23: five, or a quarter of a short retention."""
    much, now = [removing(0, 10_000)], HOUR_US + DAY_US
    assert not due(much, now, last=now - CLEAN_APART_US + 1)
    assert due(much, now, last=now - CLEAN_APART_US)
    assert due(much, now, last=now - 15_000_000, retention_s=60)
    assert not due(much, now, last=now - 14_999_999, retention_s=60)


def test_a_version_stays_a_little_longer_than_its_cut() -> None:
    """TBL-23: so that a read that has begun can end."""
    kept = KeptVersions()
    assert kept.with_left([7, 3], 0) == [3, 7]
    assert kept.with_left([7], READ_ENDS_US - 1) == [3, 7]
    assert kept.with_left([9, 7], READ_ENDS_US) == [7, 9]
    assert kept.with_left([], 2 * READ_ENDS_US - 1) == [7, 9]
    assert kept.with_left([], 2 * READ_ENDS_US) == []


def test_a_clean_up_is_due_again_after_the_retention() -> None:
    """TBL-23: after a retention, or a day, they are looked for; where nothing happened since, they
    are not.
    """
    now = 100 * DAY_US
    assert due([], now, last=now - HOUR_US)
    assert not due([], now, last=now - HOUR_US + 1)
    assert due([], now, last=now - 86_400_000_000, retention_s=30 * 86_400)
    assert not due([], now, last=now - 86_399_999_999, retention_s=30 * 86_400)
    assert not due([], now, last=now - HOUR_US, newest_at=now - 2 * HOUR_US - 1), (
        "all that was removed was old by then"
    )
    assert due([], now, last=now - HOUR_US, newest_at=now - 2 * HOUR_US)
    last, newest_at = now - HOUR_US, now - 5 * HOUR_US
    assert due([], now, last=last, newest_at=newest_at, longest_s=4 * 3_600), (
        "files of cuts are kept for longer"
    )
    assert not due([], now, last=last, newest_at=newest_at - 1, longest_s=4 * 3_600)


@pytest.mark.parametrize(
    ("file_s", "snapshot_s", "kept_s"),
    [
        (86_400, 86_400, 90_000),
        (6_000, 3_000, 6_000),
        (3_600, 4_000, 4_400),
        (60, 864_000, 867_600),
    ],
)
def test_tables_keep_files_longer_than_the_cuts_that_name_them(
    file_s: int, snapshot_s: int, kept_s: int
) -> None:
    """TBL-23: rows of cuts go before their files."""
    assert VersionRetention(file_s, snapshot_s).table_file_s == kept_s


def log_of(newest: int, *checkpoints: str) -> list[str]:
    names = [f"{version:020}.{kind}" for version in range(newest + 1) for kind in ("json", "crc")]
    return ["_last_checkpoint", "_sidecars", f"{7:020}.compacted.json", *names, *checkpoints]


def checkpoint(version: int, part: str = "") -> str:
    return f"{version:020}.checkpoint{part}.parquet"


def test_the_log_keeps_what_a_version_is_worked_out_from() -> None:
    """TBL-23: the newest checkpoint that is not above the first version that is needed, its commit,
    and all behind it.
    """
    names = log_of(120, checkpoint(50), checkpoint(100))
    gone = removable_log_files(names, 99, 120)
    assert {name for name in gone if name.endswith(".json")} == {
        f"{version:020}.json" for version in range(50)
    }
    assert {name for name in gone if name.endswith(".parquet")} == set()
    gone = removable_log_files(names, 100, 120)
    assert {name for name in gone if name.endswith(".json")} == {
        f"{version:020}.json" for version in range(100)
    }
    assert {name for name in gone if name.endswith(".parquet")} == {checkpoint(50)}
    assert [name[:20] for name in gone] == sorted(name[:20] for name in gone), (
        "the oldest first: what is left has no gap"
    )


@pytest.mark.parametrize("first_needed", [None, 49])
def test_without_a_checkpoint_below_all_commits_stay(first_needed: int | None) -> None:
    """TBL-23"""
    gone = removable_log_files(log_of(120, checkpoint(50)), first_needed, 120)
    assert gone == [f"{version:020}.crc" for version in range(120 - CHECKSUMS_KEPT + 1)]


def test_of_checksums_only_the_newest_stay() -> None:
    """TBL-23: wherever checkpoints lie."""
    gone = removable_log_files(log_of(30), None, 30)
    assert gone == [f"{version:020}.crc" for version in range(30 - CHECKSUMS_KEPT + 1)]


def test_an_incomplete_checkpoint_does_not_count() -> None:
    """TBL-23: nor is its part one that is whole."""
    parts = [checkpoint(50, f".{part:010}.{2:010}") for part in (1, 2)]
    half = removable_log_files(log_of(60, parts[0]), 60, 60)
    assert not [name for name in half if name.endswith((".json", ".parquet"))]
    whole = removable_log_files(log_of(60, checkpoint(10), *parts), 60, 60)
    assert {name for name in whole if name.endswith(".parquet")} == {checkpoint(10)}
    assert len([name for name in whole if name.endswith(".json")]) == 50


@given(
    st.integers(0, 200),
    st.sets(st.integers(0, 200), max_size=8),
    st.integers(0, 200),
    st.sets(st.integers(0, 200), max_size=4),
)
def test_every_version_that_is_needed_can_be_worked_out(
    newest: int, checkpoints: set[int], needed: int, kept: set[int]
) -> None:
    """TBL-23: whatever is cleaned, and however often. The commit after a kept version also stays:
    it says when the version was replaced.
    """
    names = set(
        log_of(newest, *(checkpoint(version) for version in checkpoints if version <= newest))
    )
    needed = min(needed, newest)
    kept = {version for version in kept if version <= newest}
    for first_needed in (needed // 2, needed, needed):
        names -= set(removable_log_files(names, first_needed, newest, kept))
    commits = {
        int(name[:20])
        for name in names
        if name.endswith(".json") and name[:20].isdigit() and "compacted" not in name
    }
    bases = [version for version in checkpoints if checkpoint(version) in names]
    for version in (*range(needed, newest + 1), *kept):
        base = max((base for base in bases if base <= version), default=0)
        assert set(range(base, version + 1)) <= commits
        assert version == newest or version + 1 in commits


def test_the_commits_between_two_kept_versions_go() -> None:
    """ENG-8, TBL-23: if each has a checkpoint. With its own commit and the next one."""
    names = log_of(120, *map(checkpoint, (0, 20, 50, 60, 100)))
    gone = set(removable_log_files(names, 110, 120, [20, 62]))
    commits = {version for version in range(121) if f"{version:020}.json" not in gone}
    assert commits == {20, 21, 60, 61, 62, 63, *range(100, 121)}
    left = {version for version in (0, 20, 50, 60, 100) if checkpoint(version) not in gone}
    assert left == {20, 60, 100}


def in_time() -> bool:
    return False


def late() -> bool:
    return True


def test_a_check_for_compaction_comes_with_enough_new_files() -> None:
    """TBL-15: as many as a compaction must remove. Of a changelog a read opens the newest files
    only, so there it takes more.
    """
    for is_log, least in ((False, GAIN), (True, GAIN_OF_LOG)):
        due = Compactions(is_log=is_log)
        assert not due.begins(0, in_time)
        due.passed([CommitCount(0, 1)])
        assert due.begins(0, in_time), "the files of an earlier process"
        due.ended(0, 0, 10**9)
        due.passed([CommitCount(0, 1)] * (least - 1))
        assert not due.begins(0, in_time)
        due.passed([CommitCount(0, 1)])
        assert due.begins(0, in_time)
        assert not due.begins(0, in_time)


def test_a_check_for_compaction_comes_with_more_files() -> None:
    """TBL-15: not if folds, or another compaction, remove as many as are added."""
    due = Compactions()
    due.ended(0, 0, 10**9)
    due.passed([CommitCount(0, 1)])
    assert due.begins(0, in_time)
    for _ in range(10):
        due.passed([CommitCount(0, 1)] * (GAIN - 1))
        due.passed([CommitCount(0, 1, removed=GAIN)])
        assert not due.begins(0, in_time)
    due.passed([CommitCount(0, GAIN)])
    assert due.begins(0, in_time)


def test_a_check_for_compaction_comes_with_enough_new_bytes() -> None:
    """TBL-15: a row-level apply marks about as many bytes as it adds. A commit that removes as much
    as it adds marks nothing.
    """
    due = Compactions()
    for live, least in ((1_000 * MIB, 200 * MIB), (0, MARKED_LEAST_BYTES)):
        due.ended(0, 0, live)
        due.passed([CommitCount(0, 0, removed=1, removed_bytes=900 * MIB, added_bytes=900 * MIB)])
        due.passed([CommitCount(0, 0, added_bytes=least)])
        assert not due.begins(0, in_time)
        due.passed([CommitCount(0, 0, added_bytes=1)])
        assert due.begins(0, in_time)
    log = Compactions(is_log=True)
    log.passed([CommitCount(0, 0, added_bytes=10**9)])
    assert not log.begins(0, in_time), "rows of a changelog are not marked"


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3)), min_size=1, max_size=300))
def test_compactions_take_less_than_a_tenth_of_the_time(rounds: list[tuple[int, int]]) -> None:
    """TBL-15: however long they take, until there are too many files."""
    due, now, rests_until, files = Compactions(), 0, 0, 0
    for took_s, pause_s in rounds:
        due.passed([CommitCount(now, GAIN)])
        files += GAIN
        if due.begins(now, in_time):
            assert now >= rests_until or files >= TOO_MANY
            took, files = took_s * 1_000_000, 0
            now += took
            rests_until = now + REST * took
            due.ended(now, took, 0)
        now += pause_s * 1_000_000


def test_a_compaction_waits_while_applies_are_late_but_not_for_ever() -> None:
    """TBL-15: the files may be why they are late."""
    due = Compactions()
    due.passed([CommitCount(0, GAIN)])
    assert not due.begins(5, late)
    assert not due.begins(5 + LATE_AT_MOST_US - 1, late)
    assert due.begins(5 + LATE_AT_MOST_US, late)
    due.ended(5, 0, 0)
    due.passed([CommitCount(0, GAIN)])
    assert not due.begins(5 + LATE_AT_MOST_US, late), "each one waits anew"
    assert due.begins(6 + LATE_AT_MOST_US, in_time)
    assert due.begins(7 + LATE_AT_MOST_US, in_time, is_wanted=True)


def test_tombstones_are_vacuumed_before_a_commit_names_too_many_attempts() -> None:
    """TBL-12"""
    for order, moved in VACUUM_EVERY.items():
        assert not is_vacuum_due(MOST_ATTEMPTS - 1, moved - 1, order)
        assert is_vacuum_due(MOST_ATTEMPTS, 0, order)
        assert is_vacuum_due(0, moved, order)
    state = TableState(attempt_ids=dict.fromkeys(range(10**5, 10**5 + 100), "0" * 32))
    assert len(json.dumps(state.to_json("t"), separators=(",", ":"))) < 5_500


def test_a_file_is_written_again_from_the_share_of_marked_rows_on() -> None:
    """TBL-15: exactly this share is enough, but one row less is not."""
    large = 1_000 * MIB
    marked = round(100 * MARKED)
    files = [DataFile("", large, 100, count) for count in (marked, marked - 1, 90)]
    assert sorted(to_compact(files)) == [[0], [2]]


def test_files_of_small_batches_move_to_slots_when_there_are_many() -> None:
    """TBL-15, ENG-10: the oldest ones, up to a size. Others, and those with marked rows, stay."""
    mixed = [DataFile(str(MIXED_SLOT), MIB, 10)] * FOLD_BATCHES
    others = [DataFile("3", MIB, 10), DataFile(str(MIXED_SLOT), MIB, 10, marked=1)]
    assert to_slots([*others, *mixed[1:]], FOLD_BATCHES) == []
    most = FOLD_BATCHES_BYTES // MIB
    assert to_slots([*others, *mixed, *mixed], FOLD_BATCHES) == [*range(2, 2 + most)]
    small = [DataFile(str(MIXED_SLOT), 1, 10)] * FOLD_BATCHES
    assert to_slots([*small, *others], FOLD_BATCHES) == [*range(FOLD_BATCHES)]


def test_a_file_is_read_from_the_action_that_adds_it() -> None:
    """TBL-13, TBL-15: its rows are those on disk. Statistics and a vector may be missing."""
    add: dict[str, Any] = {"path": "p", "partitionValues": {"_bucket": "3"}, "size": 7}
    assert DataFile.from_action(json.dumps({"add": add})) == DataFile("3", 7, 0)
    add |= {"stats": '{"numRecords":9}', "deletionVector": {"cardinality": 2}}
    assert DataFile.from_action(json.dumps({"add": add})) == DataFile("3", 7, 9, 2)
    assert DataFile.from_action(json.dumps({"add": {**add, "partitionValues": {}}})).partition == ""

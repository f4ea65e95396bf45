"""The generated bank, its balances added up by hand, and the disorder in which changes are
delivered.
"""

from __future__ import annotations

import struct
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from connector.demo import bank, truth
from connector.demo.delivery import Disorder, Mark, disordered
from connector.records.model import DataChange, DeleteFamily, SetCell

SEEDS = st.integers(0, 2**32)
FIRST, LAST = 1_700_000_000_000_000, 1_700_000_100_000_000


def transactions(
    seed: int, accounts: int = 20, transfers: int = 300
) -> list[tuple[DataChange, ...]]:
    return list(
        bank.transactions(
            bank.operations(accounts=accounts, transfers=transfers, seed=seed),
            first=FIRST,
            last=LAST,
        )
    )


def test_balances_can_be_checked_by_hand() -> None:
    done = [
        bank.Open(b"account/1", "Ada", 100),
        bank.Open(b"account/2", "Bob", 50),
        bank.Transfer(b"account/1", b"account/2", 30),
        bank.Close(b"account/1", b"account/2"),
        bank.Open(b"account/1", "Eve", 7),
        bank.Transfer(b"account/1", b"account/2", 10),
    ]
    assert truth.accounts(done) == {
        b"account/1": {"balance": -3, "owner": "Eve"},
        b"account/2": {"balance": 160, "owner": "Bob"},
    }
    assert truth.deposits(done) == 157


@given(SEEDS)
def test_money_is_only_moved(seed: int) -> None:
    done = bank.operations(accounts=10, transfers=200, seed=seed)
    assert sum(int(str(row["balance"])) for row in truth.accounts(done).values()) == truth.deposits(
        done
    )


@given(SEEDS)
def test_changes_in_order_are_the_truth(seed: int) -> None:
    rows: dict[bytes, dict[bytes, bytes]] = {}
    for change in (change for transaction in transactions(seed) for change in transaction):
        row = rows.setdefault(change.row_key, {})
        for entry in change.entries:
            if isinstance(entry, SetCell):
                row[entry.qualifier] = entry.value
            else:
                assert isinstance(entry, DeleteFamily)
                row.clear()
    found = {
        key: {"balance": struct.unpack(">q", row[b"balance"])[0], "owner": row[b"owner"].decode()}
        for key, row in rows.items()
        if row
    }
    assert found == truth.accounts(bank.operations(accounts=20, transfers=300, seed=seed))


def test_accounts_open_close_return_and_are_overdrawn() -> None:
    """The story has in it what it is told for, with the seed of the demo and with others."""
    for seed in (1, 2, 3):
        done = bank.operations(accounts=100, transfers=2000, seed=seed)
        closed = {operation.account for operation in done if isinstance(operation, bank.Close)}
        opened = Counter(
            operation.account for operation in done if isinstance(operation, bank.Open)
        )
        rows = truth.accounts(done)
        assert closed - rows.keys()
        assert any(opened[account] > 1 for account in closed)
        assert any(int(str(row["balance"])) < 0 for row in rows.values())


def test_transfer_is_one_transaction_of_two_changes() -> None:
    """REC-24"""
    moves = [transaction for transaction in transactions(1) if len(transaction) == 2]
    assert moves
    for first, second in moves:
        assert first.commit_timestamp == second.commit_timestamp
        assert first.row_key != second.row_key


def test_commit_timestamps_rise_within_their_bounds() -> None:
    times = [transaction[0].commit_timestamp for transaction in transactions(1)]
    assert times == sorted(set(times))
    assert FIRST <= times[0] < times[-1] <= LAST


@given(SEEDS, st.integers(1, 400), st.floats(0, 1), st.floats(0, 1))
def test_disorder_loses_nothing_and_keeps_its_marks(
    seed: int, window: int, repeated: float, held_back: float
) -> None:
    """REC-18: after a mark nothing at or below it"""
    made = transactions(seed, accounts=5, transfers=60)
    going = list(disordered(made, Disorder(window, repeated, held_back), seed))
    sent = Counter(
        (change.row_key, change.commit_timestamp)
        for change in going
        if isinstance(change, DataChange)
    )
    assert sent.keys() == {
        (change.row_key, change.commit_timestamp) for transaction in made for change in transaction
    }
    assert set(sent.values()) <= {1, 2}
    mark = 0
    for one in going:
        if isinstance(one, Mark):
            assert one.timestamp >= mark
            mark = one.timestamp
        else:
            assert one.commit_timestamp > mark
    assert mark == made[-1][0].commit_timestamp


def test_disorder_is_disorder_and_the_seed_repeats_it() -> None:
    made = transactions(1)
    going = list(disordered(made, Disorder(), 7))
    times = [change.commit_timestamp for change in going if isinstance(change, DataChange)]
    assert times != sorted(times)
    assert len(times) > sum(map(len, made))
    assert going == list(disordered(made, Disorder(), 7)) != list(disordered(made, Disorder(), 8))


def test_nothing_to_deliver_has_no_mark() -> None:
    assert list(disordered([], Disorder(), 1)) == []

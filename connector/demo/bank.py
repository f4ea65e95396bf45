"""A generated bank: accounts that open and close, and transfers between them. A transfer is a
transaction of two changes.

It is used if the git history alone is too short. Opening is an upsert of the row. A transfer writes
only the balances of two rows, so the owners stay (MRG-8). Closing moves the balance to another
account and deletes the row in the same transaction. Closed accounts open again with other owners.
Balances may be negative. The seed decides everything.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from connector.demo.transaction import RowWrite, commit
from connector.records.model import (
    ChildPartition,
    DataChange,
    DeleteFamily,
    Entry,
    ModType,
    OldCell,
    RowImage,
    SetCell,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ACCOUNTS_TABLE: Final = "accounts"
FAMILY: Final = "a"
STREAM_PARTITIONS: Final = ("accounts-0", "accounts-1")
LAYOUTS: Final = (tuple(ChildPartition(name) for name in STREAM_PARTITIONS),)
TRANSACTION_ID: Final = "bank-"
"""The number of the operation follows."""

_OWNERS: Final = (
    "Ada",
    "Βασίλης",
    "Chloë",
    "段 玉",
    "O'Neill; DROP TABLE",
    "Ирина",
    'J. R. "Bob" Dobbs',
    "نور",
    "",
    "Zoë 🚀",
)


@dataclass(frozen=True, slots=True)
class Open:
    """An account opens with a deposit, in cents."""

    account: bytes
    owner: str
    deposit: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """`amount` cents move from one open account to another."""

    source: bytes
    target: bytes
    amount: int


@dataclass(frozen=True, slots=True)
class Close:
    """An account closes. Its balance, also a negative one, moves to another open account."""

    account: bytes
    heir: bytes


Operation = Open | Transfer | Close


def operations(*, accounts: int, transfers: int, seed: int) -> list[Operation]:
    """The operations: `accounts` openings, then `transfers` transfers.

    Between the transfers, some accounts close and open again. At least two stay open.
    """
    rng = random.Random(seed)
    open_accounts = [f"account/{number:05}".encode() for number in range(accounts)]
    closed: list[bytes] = []
    done: list[Operation] = [
        Open(account, rng.choice(_OWNERS), rng.randrange(100_000)) for account in open_accounts
    ]
    for _ in range(transfers):
        first, second = rng.sample(open_accounts, 2)
        done.append(Transfer(first, second, rng.randrange(1, 150_000)))
        if len(open_accounts) > 2 and rng.random() < 0.02:
            open_accounts.remove(first)
            closed.append(first)
            done.append(Close(first, second))
        if closed and rng.random() < 0.01:
            returning = closed.pop(rng.randrange(len(closed)))
            open_accounts.append(returning)
            done.append(Open(returning, rng.choice(_OWNERS), rng.randrange(100_000)))
    return done


def transactions(
    done: Sequence[Operation], *, first: int, last: int
) -> Iterator[tuple[DataChange, ...]]:
    """Each operation as a transaction.

    The commit timestamps (µs) rise evenly from `first` to `last`. There must be at least one
    microsecond for each operation.
    """
    step = (last - first) // max(1, len(done))
    assert step >= 1, (first, last, len(done))
    balances: dict[bytes, int] = {}
    for number, operation in enumerate(done):
        yield commit(
            ACCOUNTS_TABLE,
            f"{TRANSACTION_ID}{number}",
            first + number * step,
            tuple(_writes(operation, balances)),
        )


def _writes(operation: Operation, balances: dict[bytes, int]) -> Iterable[RowWrite]:
    """The rows that the bank's database would write. Updates `balances`."""
    match operation:
        case Open(account, owner, deposit):
            balances[account] = deposit
            name = SetCell(FAMILY, b"owner", owner.encode())
            return (
                _write(
                    account, (DeleteFamily(FAMILY), _balance(deposit), name), ModType.INSERT, None
                ),
            )
        case Transfer(source, target, amount):
            return (_book(source, -amount, balances), _book(target, amount, balances))
        case Close(account, heir):
            left = balances.pop(account)
            return (
                _write(account, (DeleteFamily(FAMILY),), ModType.DELETE, left),
                _book(heir, left, balances),
            )


def _book(account: bytes, amount: int, balances: dict[bytes, int]) -> RowWrite:
    before = balances[account]
    balances[account] = before + amount
    return _write(account, (_balance(before + amount),), ModType.UPDATE, before)


def _balance(cents: int) -> Entry:
    return SetCell(FAMILY, b"balance", struct.pack(">q", cents))


def _write(
    account: bytes, entries: tuple[Entry, ...], mod_type: ModType, balance_before: int | None
) -> RowWrite:
    old = (
        ()
        if balance_before is None
        else (OldCell(FAMILY, b"balance", struct.pack(">q", balance_before)),)
    )
    image = RowImage(mod_type, "OLD_AND_NEW_VALUES", old_cells=old)
    return RowWrite(
        STREAM_PARTITIONS[int(account.rpartition(b"/")[2]) % len(STREAM_PARTITIONS)],
        account,
        entries,
        image,
    )

"""A bank that never was: accounts that open and close, and transfers between them, each a transaction of two changes.

Made when a history alone is too short to be worth watching. Opening is an upsert of the row; a transfer writes only the balances of
two rows, so the owners stay (MRG-8); closing moves what is left to an heir and deletes the row in the same transaction. Closed accounts
open again under other owners. Accounts may be overdrawn. All is a function of the seed.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from connector.demo.transaction import RowWrite, commit
from connector.records.model import ChildPartition, DataChange, DeleteFamily, Entry, ModType, OldCell, RowImage, SetCell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ACCOUNTS_TABLE: Final = "accounts"
FAMILY: Final = "a"
STREAM_PARTITIONS: Final = ("accounts-0", "accounts-1")
LAYOUTS: Final = (tuple(ChildPartition(name) for name in STREAM_PARTITIONS),)
TRANSACTION_ID: Final = "bank-"
"""And the place of the operation."""

_OWNERS: Final = ("Ada", "Βασίλης", "Chloë", "段 玉", "O'Neill; DROP TABLE", "Ирина", 'J. R. "Bob" Dobbs', "نور", "", "Zoë 🚀")


@dataclass(frozen=True, slots=True)
class Open:
    """An account opens with a deposit, in cents."""

    account: bytes
    owner: str
    deposit: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """`amount` cents go from one open account to another."""

    source: bytes
    target: bytes
    amount: int


@dataclass(frozen=True, slots=True)
class Close:
    """An account closes, and what is left, or owed, goes to another open one."""

    account: bytes
    heir: bytes


Operation = Open | Transfer | Close


def operations(*, accounts: int, transfers: int, seed: int) -> list[Operation]:
    """`accounts` openings, then `transfers` transfers, among which some accounts close and open again; at least two stay open."""
    rng = random.Random(seed)
    open_accounts = [f"account/{number:05}".encode() for number in range(accounts)]
    closed: list[bytes] = []
    done: list[Operation] = [Open(account, rng.choice(_OWNERS), rng.randrange(100_000)) for account in open_accounts]
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


def transactions(done: Sequence[Operation], *, first: int, last: int) -> Iterator[tuple[DataChange, ...]]:
    """Each operation as a transaction; the commit timestamps (µs) rise evenly from `first` to `last`, which lie far enough apart."""
    step = (last - first) // max(1, len(done))
    assert step >= 1, (first, last, len(done))
    balances: dict[bytes, int] = {}
    for number, operation in enumerate(done):
        yield commit(ACCOUNTS_TABLE, f"{TRANSACTION_ID}{number}", first + number * step, tuple(_writes(operation, balances)))


def _writes(operation: Operation, balances: dict[bytes, int]) -> Iterable[RowWrite]:
    """What the bank's own database would write; keeps the balances."""
    match operation:
        case Open(account, owner, deposit):
            balances[account] = deposit
            name = SetCell(FAMILY, b"owner", owner.encode())
            return (_write(account, (DeleteFamily(FAMILY), _balance(deposit), name), ModType.INSERT, None),)
        case Transfer(source, target, amount):
            return (_book(source, -amount, balances), _book(target, amount, balances))
        case Close(account, heir):
            left = balances.pop(account)
            return (_write(account, (DeleteFamily(FAMILY),), ModType.DELETE, left), _book(heir, left, balances))


def _book(account: bytes, amount: int, balances: dict[bytes, int]) -> RowWrite:
    before = balances[account]
    balances[account] = before + amount
    return _write(account, (_balance(before + amount),), ModType.UPDATE, before)


def _balance(cents: int) -> Entry:
    return SetCell(FAMILY, b"balance", struct.pack(">q", cents))


def _write(account: bytes, entries: tuple[Entry, ...], mod_type: ModType, balance_before: int | None) -> RowWrite:
    old = () if balance_before is None else (OldCell(FAMILY, b"balance", struct.pack(">q", balance_before)),)
    image = RowImage(mod_type, "OLD_AND_NEW_VALUES", old_cells=old)
    return RowWrite(STREAM_PARTITIONS[int(account.rpartition(b"/")[2]) % len(STREAM_PARTITIONS)], account, entries, image)

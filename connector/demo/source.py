"""The input of the demo: the history of a repository, and the bank if that history is short."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import connector
from connector.demo import bank, capture
from connector.demo.lineage import FILES_LAYOUTS, Layout
from connector.demo.repository import History, NoHistoryError, find_history
from connector.records.model import DataChange, SetCell

ENOUGH_CHANGES: Final = 2000
"""If a history has fewer changes, the bank is added."""

ACCOUNTS: Final = 500
TRANSFERS: Final = 2_500
_BANK_OPENS_US: Final = 60_000_000
"""The bank's first transaction is this long ago, in microseconds. That is after the history,
because the low watermark passes the history first.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """One source table: its transactions in the order of their commits, and a cell that cannot be
    read.

    There are at most `size` transactions, and none before `begins` (µs). The stream partitions have
    the `layouts` one after the other. The transactions of one layout come before those of the next.
    """

    table: str
    size: int
    begins: int
    layouts: tuple[Layout, ...]
    transactions: Iterable[tuple[DataChange, ...]]
    unreadable: SetCell

    @property
    def root(self) -> str:
        """The name under which its stream partitions are announced (WMK-6)."""
        return self.table


@dataclass(frozen=True, slots=True)
class Input:
    """The sources, and the data from which the truth is computed. `notes` are sentences about the
    choice and its reason.
    """

    sources: tuple[Source, ...]
    history: History | None
    capture: capture.GitCapture | None
    operations: tuple[bank.Operation, ...]
    notes: tuple[str, ...]


def choose_input(repository: Path | None, *, now: int, seed: int) -> Input:
    """Choose the sources. Without `repository`, the repository that contains this program is used,
    if there is one. `now` is in µs.

    Raises `NoHistoryError` if the named repository has no history.
    """
    history, notes = _history(repository)
    opens = now - _BANK_OPENS_US
    captured = (
        None
        if history is None
        else capture.GitCapture(history.folder, history.head, history.commits, opens - 1)
    )
    sources = []
    changes = 0
    if history is not None and captured is not None:
        transactions = captured.transactions()
        beginning: list[tuple[DataChange, ...]] = []
        for transaction in transactions:
            beginning.append(transaction)
            changes += len(transaction)
            if changes >= ENOUGH_CHANGES:
                break
        cell = SetCell(capture.FAMILY, b"size", b"many")
        sources.append(
            Source(
                capture.FILES_TABLE,
                history.commits,
                1,
                FILES_LAYOUTS,
                chain(beginning, transactions),
                cell,
            )
        )
        notes.append(
            f"{history.commits:,} commits of {history.folder}, following first parents, up to"
            f" {history.head[:12]}"
        )
        if history.is_shallow:
            notes.append(
                "the clone is shallow: its oldest commit counts as the first one, with all its"
                " files"
            )
    operations: tuple[bank.Operation, ...] = ()
    if changes < ENOUGH_CHANGES:
        operations = tuple(bank.operations(accounts=ACCOUNTS, transfers=TRANSFERS, seed=seed))
        cell = SetCell(bank.FAMILY, b"balance", b"7 bytes")
        story = bank.transactions(operations, first=opens, last=now)
        sources.append(
            Source(bank.ACCOUNTS_TABLE, len(operations), opens, bank.LAYOUTS, story, cell)
        )
        why = (
            f"the history has only {changes:,} changes, so the demo adds "
            if history is not None
            else ""
        )
        notes.append(f"{why}a bank of {ACCOUNTS:,} accounts and {TRANSFERS:,} transfers")
    return Input(tuple(sources), history, captured, operations, tuple(notes))


def _history(repository: Path | None) -> tuple[History | None, list[str]]:
    if repository is not None:
        return find_history(repository), []
    checkout = Path(connector.__file__).resolve().parents[1]
    # An installed package may be inside a repository of the user. The demo must not use that one.
    if not (checkout / ".git").exists():
        return None, [
            (
                "this program is not in a git checkout; name a repository with --repository to"
                " capture its history"
            )
        ]
    try:
        return find_history(checkout), []
    except NoHistoryError as error:
        return None, [f"no history is captured: {error}"]

"""Transactions whose records are not all there, although the low watermark has passed them (ING-2).

Theory. Each record of a transaction may declare how many records the transaction has. Once the low
watermark has passed its commit timestamp, all of them should be in the changelog. A check counts
them, once, for the range of commit time that the low watermark has passed since the check before.
It counts those again that were incomplete.

If the stream waits for them, the cut of its tables stays at or below the oldest one, and at or
below the time that was checked. This ends `incomplete_after` after one was found. Then it is
overdue, and tables are applied as if the low watermark were stalled (TBL-11). An overdue one stays
in the list, so that no table counts as a consistent cut because of the bound of the list.

All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from connector.records.views import Hidden, Time, TimeOrNull

CHECK_EVERY_US: Final = 60_000_000
STORE_EVERY_US: Final = 600_000_000
"""How often a check is stored that found nothing new, and for which no table waits. Each time is a
commit. A new process checks again what was not stored.
"""
MOST_LISTED: Final = 100
MAX_GAPS: Final = 1_000
"""The most transactions that one check may find."""
MAX_ID_LENGTH: Final = 200
"""In characters. A longer id is listed as its first `ID_PREFIX` characters, "...", and its SHA-256.
Every commit of the changelog has the list.
"""
ID_PREFIX: Final = 100


class TransactionGap(NamedTuple):
    """An incomplete transaction that a check found, and how many of its records are missing."""

    commit_timestamp: int
    server_transaction_id: str
    missing: int


class IncompleteTransaction(NamedTuple):
    """An incomplete transaction. An operator may have released it, so that nothing waits for it."""

    commit_timestamp: Time
    server_transaction_id: str
    missing: int
    found_at: Time
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseTransaction:
    """An operator's request that nothing waits for an incomplete transaction any more.

    `server_transaction_id` and `commit_timestamp` identify the transaction: a source may use an id
    again. In a warehouse, numbers increase in the order in which they were made.
    """

    number: int
    stream: str
    server_transaction_id: str
    reason: str
    made_at: int
    made_by: str
    commit_timestamp: int


@dataclass(frozen=True, slots=True)
class TransactionCheck:
    """The result of all checks of a stream.

    - `checked_to`: every transaction with a smaller commit timestamp was checked, or began to leave
      the changelog. 0: there was no check yet.
    - `checked_at` is the time of the last check.
    - `found` counts the incomplete transactions of all checks, also those that are complete now. Of
      one check, it counts at most `MAX_GAPS`.
    - `incomplete` are those that are not complete, in the order of commit timestamp and id. There
      are at most `MOST_LISTED`.
    - `released_to` is the greatest number of a release that was taken.
    - `declared` counts the changes whose transaction declares more than one record. While it is 0,
      nothing is checked.
    - `waits`: the stream waited for incomplete transactions when its newest batch was read. It is
      false while `declared` is 0.
    """

    checked_to: TimeOrNull = 0
    checked_at: Hidden[int] = 0
    found: int = 0
    incomplete: tuple[IncompleteTransaction, ...] = ()
    released_to: Hidden[int] = 0
    declared: Hidden[int] = 0
    waits: Hidden[bool] = False

    def counted(
        self, declared: int, low_watermark: int | None, *, waits: bool = False
    ) -> TransactionCheck:
        """Return the result after a batch with so many declaring changes.

        `low_watermark` is that before the batch. If no change has declared anything before, there
        is nothing to check below it.
        """
        total, checked_to = self.declared + declared, self.checked_to
        if declared and not self.declared and low_watermark is not None:
            checked_to = max(checked_to, low_watermark)
        return replace(self, declared=total, checked_to=checked_to, waits=waits and total > 0)

    def trimmed(self, below: int) -> TransactionCheck:
        """Return the result after changes below `below` left the changelog (TBL-15)."""
        return replace(self, checked_to=max(self.checked_to, below))

    def is_due(self, low_watermark: int | None, now: int) -> bool:
        """Return whether there is something to check, and the last check is long enough ago."""
        is_early = 0 <= now - self.checked_at < CHECK_EVERY_US
        if low_watermark is None or not self.declared or is_early:
            return False
        return low_watermark > self.checked_to or bool(self.incomplete)

    def is_news(self, stored: TransactionCheck, now: int, *, below: int, waits: bool) -> bool:
        """Return whether this result is stored in place of `stored`.

        It is if the list or the requests that were taken changed. If only more time was checked, it
        is if tables wait for that, or if nothing was stored for `STORE_EVERY_US`.

        Args:
            stored: The result that the newest commit has.
            now: The present time.
            below: No check looks below this commit timestamp, for example the horizon. Time that
                nothing checked is no news.
            waits: Tables wait for incomplete transactions.
        """
        if (self.incomplete, self.released_to) != (stored.incomplete, stored.released_to):
            return True
        is_further = self.checked_to > max(stored.checked_to, below)
        return is_further and (waits or now - stored.checked_at >= STORE_EVERY_US)

    def after(
        self,
        checked_to: int,
        gaps: Sequence[TransactionGap],
        now: int,
        *,
        wait_us: int = 0,
        horizon: int | None = None,
    ) -> TransactionCheck:
        """Return the result after a check of all times below `checked_to`, and of those that were
        incomplete before.

        Args:
            checked_to: At least the one before.
            gaps: All that are incomplete now, in any order. One below the time that was checked
                before, and not listed before, was left out of the list then, and still is.
            now: The time of the check.
            wait_us: How long tables wait for one. 0: they do not wait.
            horizon: Older ones are forgotten, because their deletes may be.
        """
        assert checked_to >= self.checked_to, (checked_to, self.checked_to)
        before = {transaction[:2]: transaction for transaction in self.incomplete}
        listed = [
            before[gap[:2]]._replace(missing=gap.missing)
            if gap[:2] in before
            else IncompleteTransaction(*gap, now)
            for gap in sorted(gaps)
            if (horizon is None or gap.commit_timestamp >= horizon)
            and (gap[:2] in before or gap.commit_timestamp >= self.checked_to)
        ]
        new = sum(transaction[:2] not in before for transaction in listed)
        while len(listed) > MOST_LISTED:
            # Those that hold no cut are only counted. Otherwise the newest ones are left out, and
            # are found again by a later check.
            free = next(
                (transaction for transaction in listed if transaction.is_released or not wait_us),
                None,
            )
            if free is not None:
                listed.remove(free)
                continue
            checked_to = max(self.checked_to, min(checked_to, listed[-1].commit_timestamp))
            new -= listed.pop()[:2] not in before
        return replace(
            self,
            checked_to=checked_to,
            checked_at=now,
            found=self.found + new,
            incomplete=tuple(listed),
        )

    def released(self, requests: Iterable[ReleaseTransaction]) -> TransactionCheck:
        """Return the result after an operator released transactions. A release counts for the
        transaction with its commit timestamp and id, if that is listed now.
        """
        requests = list(requests)
        asked = {(request.commit_timestamp, request.server_transaction_id) for request in requests}
        return replace(
            self,
            released_to=max((self.released_to, *(request.number for request in requests))),
            incomplete=tuple(
                transaction._replace(is_released=True) if transaction[:2] in asked else transaction
                for transaction in self.incomplete
            ),
        )

    def complete_to(self, low_watermark: int) -> int:
        """Return the time below which each is complete or released, at most the low watermark."""
        return self._checked_to(
            low_watermark, [transaction for transaction in self.incomplete if not transaction[-1]]
        )

    def waits_to(self, low_watermark: int, now: int, wait_us: int) -> int:
        """Return the time below which none is waited for, and which was checked. It is at most the
        low watermark. While one is overdue, tables do not wait for the check either.
        """
        waited = [
            transaction
            for transaction in self.incomplete
            if _is_waited_for(transaction, now, wait_us)
        ]
        if self.overdue(now, wait_us):
            return min([low_watermark, *(transaction.commit_timestamp for transaction in waited)])
        return self._checked_to(low_watermark, waited)

    def _checked_to(self, low_watermark: int, open_: Iterable[IncompleteTransaction]) -> int:
        times = [low_watermark, *(transaction.commit_timestamp for transaction in open_)]
        return min([*times, self.checked_to] if self.declared else times)

    def overdue(self, now: int, wait_us: int) -> tuple[IncompleteTransaction, ...]:
        """Return those that were waited for too long."""
        return tuple(
            transaction
            for transaction in self.incomplete
            if not transaction.is_released and not _is_waited_for(transaction, now, wait_us)
        )


NOT_CHECKED: Final = TransactionCheck()


def _is_waited_for(transaction: IncompleteTransaction, now: int, wait_us: int) -> bool:
    return not transaction.is_released and now - transaction.found_at < wait_us

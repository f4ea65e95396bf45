"""The state of a table in the metadata of its newest commit (TBL-10)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from connector.dead_letters.blocked_rows import BlockingLetter
from connector.errors.changelog import changelog_replaced
from connector.records.ordering import Rank
from connector.stored import from_stored, to_stored


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table, as its newest commit stores it.

    apply_number            the number of applies so far
    attempt_id              the id of the attempt that made the last apply
    to_batch                the last ingest batch that the applies cover
    changelog_id            the id of that changelog; empty before the first apply
    merged                  the number of changes that were ever merged
    misfits                 by column: the number of values of merged changes that it could not
                            hold, and that stayed in `_unmapped` (EVO-11)
    letters                 the number of changes that became dead letters of this table (TBL-9),
                            also in versions that a restore or a rebuild replaced, as far as this
                            version knows
    dead_letters_since      when the first of them did; None: there are no such changes
    highest_applied         the greatest commit timestamp that was ever merged
    apply_watermark         the table has every change with a smaller commit timestamp; None:
                            unknown
    complete_to_batch       no change up to this batch is deferred; of later batches, the changes
                            below `apply_watermark` are merged
    target_watermark        the low watermark of the last apply. It matters only if there are
                            `blocked_rows`
    blocked_rows            the rejected changes that rows wait for (DLQ-3). Later changes of these
                            rows may be unmerged
    inconsistent_since      since when the table is no consistent cut; None: it is one, or it is
                            empty (TBL-11)
    horizon                 the horizon of `to_batch`: deletes below it may be forgotten (MRG-10).
                            In a table ordered by sequence number it is an ingest batch, that of
                            `complete_to_batch` (MRG-12)
    as_of                   the table has all that had arrived in Kafka at this time; None: unknown
                            (TBL-16)
    has_residual            whether the state of some row has a `residual`
    has_tombstones          whether there is a tombstone table
    attempt_ids             by apply after `vacuumed_to` that wrote tombstones: the attempt whose
                            tombstones count (TBL-12)
    truncated               the rank of the greatest truncation that the table has: no cell has a
                            smaller one. None: it was never truncated (EVO-13)
    rebuild                 the id of the rebuild that made this table; empty: it was never rebuilt
                            (TBL-21)
    definition_version      the version of its definition (EVO-1)
    lacks_lost_records      Kafka deleted records of the stream unread, and no person has confirmed
                            the table since (RUN-7)
    covered_by              by the id of a rebuild that made this table or an earlier one: how many
                            of the `letters` until then it did not reject. So many of those that it
                            has covered do not count (RUN-6)

    All times and timestamps are microseconds.
    """

    apply_number: int = 0
    attempt_id: str = ""
    to_batch: int = 0
    changelog_id: str = ""
    merged: int = 0
    misfits: Mapping[str, int] = field(default_factory=dict)
    letters: int = 0
    dead_letters_since: int | None = None
    highest_applied: int = 0
    apply_watermark: int | None = None
    complete_to_batch: int = 0
    target_watermark: int | None = None
    blocked_rows: tuple[BlockingLetter, ...] = ()
    inconsistent_since: int | None = None
    horizon: int | None = None
    as_of: int | None = None
    has_residual: bool = False
    has_tombstones: bool = False
    attempt_ids: Mapping[int, str] = field(default_factory=dict)
    vacuumed_to: int = 0
    rebuild: str = ""
    truncated: Rank | None = None
    definition_version: int = 1
    lacks_lost_records: bool = False
    covered_by: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_consistent_cut(self) -> bool:
        """Whether the table is the state of the source at `apply_watermark`.

        No later change was merged, no row is blocked (TBL-11), and no loss is unconfirmed (RUN-7).
        """
        return (
            self.apply_watermark is not None
            and self.highest_applied < self.apply_watermark
            and not self.blocked_rows
            and not self.lacks_lost_records
        )

    @property
    def needed_to_batch(self) -> int:
        """Batches up to this one are not needed any more.

        A blocked row needs the batch of its dead letter, because a replay is matched with the
        change that became a table letter.
        """
        return min(
            [self.complete_to_batch, *(letter.newest_batch - 1 for letter in self.blocked_rows)]
        )

    def covers(self, ingest_batch: int, commit_timestamp: int) -> bool:
        """Return whether the applies covered a change. It may wait if its row is blocked."""
        return ingest_batch <= self.complete_to_batch or (
            ingest_batch <= self.to_batch
            and self.apply_watermark is not None
            and commit_timestamp < self.apply_watermark
        )

    def lacks_nothing_of(self, batch: int, *, as_cut: bool) -> bool:
        """Return whether no change up to this ingest batch waits for a heartbeat or an apply.
        `as_cut`: the table must be a consistent cut, too.
        """
        return self.complete_to_batch >= batch and (self.is_consistent_cut or not as_cut)

    def is_at(self, low_watermark: int | None, batch: int) -> bool:
        """Return whether the table is at the cut (`low_watermark`, `batch`) (TBL-10)."""
        return self.is_consistent_cut and (self.apply_watermark, self.to_batch) == (
            low_watermark,
            batch,
        )

    def check_changelog(self, table: str, batch: int, changelog_id: str | None = None) -> None:
        """Raise `TableError` if the table was not made from this changelog, or if the changelog has
        lost batches.

        `batch` is the last batch of the changelog.
        """
        replaced = self.changelog_id not in (
            "",
            self.changelog_id if changelog_id is None else changelog_id,
        )
        if replaced or batch < self.to_batch:
            state = (
                "replaced by another one"
                if replaced
                else f"restored to batch {batch}"
                if batch
                else "removed"
            )
            raise changelog_replaced(table, self.to_batch, state)

    def letters_after(
        self, new: int, ids: Collection[str], published: Collection[str] | None
    ) -> int:
        """Return `letters` after an apply that published `new` letters, which have these `ids`.

        `published` are the ids of all letters of the table, if the ledger counts more than this
        state: then they are counted as a set, because some may have been published before. None:
        each is one more.
        """
        return self.letters + new if published is None else len({*published, *ids})

    def replacing(
        self,
        before: TableState,
        new_letters: int,
        rejected: Collection[str] = (),
        published: Mapping[str, str] | None = None,
    ) -> TableState:
        """Return the state of a rebuilt table, with what stays from the table that it replaces.

        Published dead letters stay counted; the rebuild published `new_letters` more. With
        `published`, as `Ledger.published_of` returns it, they are counted as a set with the ids of
        all letters that the rebuild has `rejected`. If one of these was covered before, the rebuild
        covers all others again. The rows are not older, if no more changes wait than before.
        """
        letters, earlier = max(self.letters, before.letters + new_letters), before.covered_by
        if published is not None:
            letters = len({*published, *rejected})
            if any(published.get(letter_id) in earlier for letter_id in rejected):
                earlier = {}
        covered = {self.rebuild: letters - self.letters} if letters > self.letters else {}
        as_of = (
            self.as_of,
            before.as_of if self.complete_to_batch >= before.complete_to_batch else None,
        )
        return replace(
            self,
            letters=letters,
            covered_by={**earlier, **covered},
            dead_letters_since=min(
                filter(None, (self.dead_letters_since, before.dead_letters_since)), default=None
            ),
            as_of=max(filter(None, as_of), default=None),
        )

    def to_json(self, table: str) -> dict[str, Any]:
        stored = {
            **to_stored(self),
            "table": table,
            "consistent_cut": self.is_consistent_cut,
        }
        for name in ("lacks_lost_records", "covered_by"):
            if not stored[name]:
                del stored[name]  # commits of most tables stay as they were
        return stored

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> TableState:
        return from_stored(TableState, stored)

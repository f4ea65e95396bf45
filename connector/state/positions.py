"""How far tables are that had no change to commit since their last apply (ENG-7).

Such a table makes no commit. Its position is in a file of its stream, which is overwritten. If the
file is missing or damaged, a table looks older than it is, never younger: its next apply finds that
nothing came. Readers take a table's commit first, its position second, and the progress of the
stream last, so a position is never ahead of the progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

from connector.state.table_state import TableState
from connector.stored import from_checked, to_checked

COMMIT_AFTER_US: Final = 600_000_000
"""A position becomes a commit once the newest commit is this old, so that the changelog can lose
rows that no table needs.
"""


@dataclass(frozen=True, slots=True)
class Position:
    """The part of a `TableState` that moves when an apply has no changes. `attempt_id` is that of
    the apply before, whose rows the table still has.
    """

    attempt_id: str
    to_batch: int
    complete_to_batch: int
    target_watermark: int | None
    apply_watermark: int | None
    horizon: int | None
    as_of: int | None
    inconsistent_since: int | None
    lacks_lost_records: bool

    @staticmethod
    def at(state: TableState) -> Position:
        return Position(*(getattr(state, field.name) for field in fields(Position)))

    def of_newest(self, committed: TableState) -> TableState:
        """Return the newer one of this position and the state of the newest commit."""
        is_newer = self.attempt_id == committed.attempt_id and self.to_batch > committed.to_batch
        return replace(committed, **asdict(self)) if is_newer else committed


def position_after(
    before: TableState, after: TableState, committed_at: int, now: int
) -> Position | None:
    """Return the position that takes the place of the commit of `after`. None: it is to be
    committed, because it is of the first apply, has another content than `before`, or no later
    batch, or the newest commit (`committed_at`) is old, or of a clock that was ahead.
    """
    position = replace(Position.at(after), attempt_id=before.attempt_id)
    whole = replace(
        position.of_newest(before), apply_number=after.apply_number, attempt_id=after.attempt_id
    )
    is_enough = before.apply_number and after.to_batch > before.to_batch and whole == after
    return position if is_enough and abs(now - committed_at) < COMMIT_AFTER_US else None


def up_to(positions: Mapping[str, Position], batch: int) -> dict[str, Position]:
    """The positions that are not behind a batch."""
    return {name: position for name, position in positions.items() if position.to_batch <= batch}


def to_text(positions: Mapping[str, Position]) -> str:
    """Convert to the text of the file, by table."""
    return to_checked(dict(positions))


def from_text(text: str | None) -> Mapping[str, Position]:
    """Read the text of the file. Empty: there is no file, or it is damaged."""
    return (None if text is None else from_checked(dict[str, Position], text)) or {}

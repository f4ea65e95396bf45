"""Computes the doubles and gaps of the offsets of write streams in a changelog (WRS-23).

lowmark removes no double at ingest: a write session sends each row once. So doubles and gaps show a
program that writes to the topic without a session, rejected rows, or a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from connector.state.audit import Range, Ranges, Run, common, count, union_ranges, without
from connector.state.status_json import summarize_names
from connector.text import counted


@dataclass(frozen=True, slots=True)
class WriteStreamAudit:
    """The offsets of one write stream.

    - `rows` is the number of its rows.
    - `offsets` are those with a row, and `doubled` those with several.
    - `is_whole`: the changelog was never trimmed. Otherwise, offsets before the first one may have
      been deleted, and are no gap.
    """

    rows: int = 0
    offsets: Ranges = ()
    doubled: Ranges = ()
    is_whole: bool = True

    def logged(self, runs: Iterable[Run]) -> WriteStreamAudit:
        """Add the rows of further batches."""
        found = list(runs)
        present = union_ranges(Range(run.start, run.stop) for run in found)
        twice = (Range(run.start, run.stop) for run in found if run.times > 1)
        return replace(
            self,
            rows=self.rows + sum((run.stop - run.start) * run.times for run in found),
            offsets=union_ranges(self.offsets, present),
            doubled=union_ranges(self.doubled, twice, common(present, self.offsets)),
        )

    @property
    def gaps(self) -> Ranges:
        """The offsets below the last one that have no row."""
        if not self.offsets:
            return ()
        first = 0 if self.is_whole else self.offsets[0].start
        return without((Range(first, self.offsets[-1].stop),), self.offsets)

    def to_json(self, name: str) -> dict[str, Any]:
        """Convert to JSON values. A range has its two bounds. The second one is exclusive."""
        return {
            "write_stream": name,
            "rows": self.rows,
            "doubled": self.doubled,
            "gaps": self.gaps,
        }


def faulty(found: Mapping[str, WriteStreamAudit]) -> dict[str, WriteStreamAudit]:
    """Return the write streams with doubles or gaps, sorted by name."""
    return {name: one for name, one in sorted(found.items()) if one.doubled or one.gaps}


def warnings_of(found: Mapping[str, WriteStreamAudit]) -> list[str]:
    """Return a sentence about the doubles, and one about the gaps."""
    warnings = []
    for noun, place in (("double offset", "doubled"), ("missing offset", "gaps")):
        of = {name: count(getattr(one, place)) for name, one in sorted(found.items())}
        names = [name for name, number in of.items() if number]
        if names:
            warnings.append(
                f"{counted(sum(of.values()), noun)} in {counted(len(names), 'write stream')}:"
                f" {summarize_names(names)}"
            )
    return warnings

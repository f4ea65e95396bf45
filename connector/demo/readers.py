"""Reads while the pipeline runs: snapshots, a repaired dead letter, an inconsistent table, a fresh
read.

The demo publishes up to a source time, and waits until all tables are applied up to this watermark
(TBL-17). The snapshot must be the source's state at that commit. For files, that is the list of
`git ls-tree`.

The full demo does more. A change is sent with a wrong key, and its dead letter is repaired. Then
one stream partition sends no record for longer than `stall_after`. A fresh read shows the changes
of the other ones (TBL-16). When the watermark counts as stalled, the table shows them too, and says
that it is not a consistent cut (TBL-11). The stream partition sends records again before the
pipeline is killed. The next run makes the table a consistent cut again.
"""

from __future__ import annotations

import base64
import json
import shlex
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from connector.cli.terminal import say, shortened
from connector.demo import pipeline, truth
from connector.demo.bank import ACCOUNTS_TABLE, TRANSACTION_ID
from connector.demo.capture import FILES_TABLE
from connector.demo.compare import UNMAPPED, row_differences
from connector.demo.settings import KEYS, STREAM
from connector.errors import ConnectorError, ErrorCode
from connector.lake.jobs import History
from connector.lake.plain_table import open_table
from connector.lake.state_reader import progress_of, table_state_of
from connector.records.model import MAX_ROW_KEY_BYTES
from connector.records.views import view_of_time
from connector.state.table_state import TableState
from connector.text import counted

if TYPE_CHECKING:
    from connector.demo.folder import DemoFolder
    from connector.demo.pipeline import Pipeline
    from connector.demo.publish import Publisher
    from connector.demo.report import Outcome
    from connector.demo.source import Input, Source
    from connector.state.jobs import CutRecord

PATIENCE_S: Final = 300.0
OFFSETS_OF_A_REPLAY: Final = 2
"""The record, and the marker of its transaction."""
EXPLAINS: Final = ("reason", "detail", "remedy", "row today", "a replay")
"""The first words of the lines of `dead-letters show` that the demo prints."""
_STATE: Final = {FILES_TABLE: ("mode", "blob", "size"), ACCOUNTS_TABLE: ("balance", "owner")}
"""The columns that the truth has for a state in the middle of the history."""


def parts(source: Source, snapshots: int) -> tuple[int, int, int]:
    """The transactions of a source at which the snapshots end, the part with the dead letter ends,
    and the stall ends.
    """
    first, second, third = (source.size * (snapshots + n) // (snapshots + 5) for n in (1, 2, 4))
    return first, second, third


def window(source: Source, snapshots: int) -> int:
    """The maximum number of transactions between two heartbeats. It is so small that the demo may
    skip a watermark.
    """
    return max(1, source.size // (2 * (snapshots + 5)))


class Readers:
    """Readers of the table of `source`. They tell the `publisher` what to publish, and `run`
    applies it.

    Differences and results go to `outcome`. Raises `ConnectorError` if an expected state is not
    reached.
    """

    def __init__(
        self,
        folder: DemoFolder,
        chosen: Input,
        source: Source,
        publisher: Publisher,
        run: Pipeline,
        outcome: Outcome,
        snapshots: int,
        stall_after_s: int,
    ) -> None:
        self._stall_after_s = stall_after_s
        self._folder, self._chosen, self._outcome = folder, chosen, outcome
        self._snapshots = snapshots
        self._source, self._publisher, self._run = source, publisher, run
        self._table = source.table
        self._history = History(folder.warehouse)
        self._cut: CutRecord | None = None
        self._book = TableState()
        self._is_cut = True
        self._is_whole = True
        self._seen: set[str] = set()

    def read_snapshots(self, *, whole_part: bool) -> None:
        """Publish the first part of the source, or less if that is enough, and read snapshots at
        regular distances.

        The watermark may be one step ahead of the cut, so that ingest and apply work at the same
        time.
        """
        before = 0
        for mark in self._publisher.windows(self._table):
            is_last = mark.is_all and len(self._commits) > parts(self._source, self._snapshots)[0]
            if (
                is_last
                or len(self._commits) * (self._snapshots + 5)
                >= (len(self._seen) + 1) * self._source.size
            ):
                self._await_cut(before)
                before = mark.timestamp + 1
            if not whole_part and len(self._seen) >= self._snapshots:
                break
            if is_last:
                self._await_cut(before)
                break
        seen = len(self._seen)
        of_what = (
            "trees of as many commits from `git ls-tree`"
            if self._table == FILES_TABLE
            else "the sums of all operations"
        )
        self._outcome.notes.append(
            f"{seen} snapshots at different low watermarks were compared with the {of_what}"
        )

    def mend_letter(self) -> None:
        """Publish a part in which one change has a wrong key. Find its dead letter, repair and
        replay it, and see the change in the table.
        """
        publisher, table, mark = self._publisher, self._table, None
        mistake = publisher.misdirect(table)
        # A snapshot without a change that is a dead letter is not the source's state, so it is not
        # compared (DLQ-7).
        self._is_whole = False
        for mark in publisher.windows(table):
            if mark.is_all:
                break
        if mark is None or mistake.sent is None:
            say("the history is too short to send one of its changes with a wrong key")
            self._is_whole = True
            return
        self._until_applied()
        expected, letter_id = self._state_below(mark.timestamp + 1), mistake.sent.id
        say(f"a dead letter: connector dead-letters show {letter_id}")
        explained, _ = pipeline.outcome(self._folder, self._look, "dead-letters", "show", letter_id)
        for line in explained:
            if line.startswith(EXPLAINS):
                say(f"  {shortened(line, 140)}")
        lacking = list(self._differences(table, expected))
        if lacking:
            say(
                "  without it the table differs from its commit in"
                f" {counted(len(lacking), 'place')}: {shortened(lacking[0], 100)}"
            )
        else:
            say(
                "  without it the table still equals its commit: a newer change of the row has"
                " arrived"
            )
        replay = (
            "dead-letters",
            "replay",
            letter_id,
            "--repair",
            "unset key",
            "--execute",
            "--why",
            "a wrong key",
        )
        say(f"  repaired and replayed: connector {shlex.join(replay)}")
        pipeline.outcome(self._folder, self._look, *replay)
        publisher.done.replayed += OFFSETS_OF_A_REPLAY
        self._until_applied()
        differences = list(self._differences(f"{table} with the repaired letter", expected))
        self._outcome.differences += differences
        if not differences:
            say("  with it the table equals its commit")
            self._outcome.notes.append(
                "a change with a wrong key became a dead letter; it was repaired and replayed,"
                " and is in the table"
            )
        self._is_whole = True

    def _until_applied(self) -> None:
        """Wait until the table contains everything that was published."""
        batch = self._until_ingested()
        self._until(lambda: self._book.complete_to_batch >= batch, "an apply")

    def _until_ingested(self) -> int:
        """Wait until everything that was published is ingested. Returns the last batch."""
        records = self._publisher.done.records
        self._until(
            lambda: pipeline.batch_with(self._folder, STREAM, records) is not None, "ingest"
        )
        return pipeline.batch_with(self._folder, STREAM, records) or 0

    def see_stall(self) -> None:
        """Publish the third part of the source without one stream partition, which stalls. At the
        end it sends its changes.
        """
        publisher, table = self._publisher, self._table
        silence, sent, mark = publisher.fall_silent(table), publisher.done.deliveries[table], None
        before = self._state_below(publisher.deliveries[table].mark + 1)
        for mark in publisher.windows(table, silence):
            if mark.is_all:
                break
        arrived = publisher.done.deliveries[table] - sent
        if mark is None or not arrived:
            say("the history is too short to let a stream partition fall silent")
            publisher.speak_again(table, silence)
            return
        say(
            f"stream partition {silence.stream_partition} falls silent; the others send"
            f" {counted(arrived, 'change')} and their heartbeats"
        )
        batch = self._until_ingested()
        kept = {change.row_key for change in silence.kept}
        after = self._state_below(mark.timestamp + 1)
        expected = {
            key: row
            for state, is_kept in ((after, False), (before, True))
            for key, row in state.items()
            if (key in kept) == is_kept
        }
        self._read_fresh(expected)
        self._until(lambda: not self._is_cut and self._book.complete_to_batch >= batch, "the stall")
        found = open_table(self._folder.table(table))
        self._compare(f"{table} past the watermark", expected, tuple(found.types), found.rows())
        say(
            f"stream partition {silence.stream_partition} sends again:"
            f" {counted(len(silence.kept), 'change')}"
        )
        publisher.speak_again(table, silence)

    def see_end(self) -> None:
        """When everything is published and applied, read the remaining snapshots."""
        self._look(self._run)
        if not self._is_cut:
            self._outcome.differences.append(
                f"table {self._table} is not a consistent cut, but no stream partition is silent"
            )

    def _read_fresh(self, expected: Mapping[bytes, truth.Row]) -> None:
        say(
            "a fresh read merges the changes that are not applied: connector read"
            f" {self._table} --max-staleness 0"
        )
        began = time.monotonic()
        lines, said = pipeline.fresh_read(self._folder, self._table, self._look)
        rows = [json.loads(line) for line in lines]
        names = (KEYS[self._table], *_STATE[self._table], UNMAPPED)
        values = [
            [_key(row[name]) if name == KEYS[self._table] else row[name] for name in names]
            for row in rows
        ]
        self._compare(f"{self._table} read fresh", expected, names, values)
        self._outcome.rates.append(
            ("a fresh read, with a JVM of its own", len(rows), "rows", time.monotonic() - began)
        )
        say(f"  {said}")
        if self._cut is not None:
            say(
                "  a snapshot read still returns the cut at"
                f" {view_of_time(self._cut.low_watermark)}"
            )

    def _look(self, _run: Pipeline) -> None:
        """Read the new cuts, and whether the table is a consistent cut."""
        for cut in reversed(
            self._history.cuts(STREAM, since=self._cut.recorded_at + 1 if self._cut else 0)
        ):
            self._cut = cut
            if self._is_whole:
                self._read_snapshot(cut)
        self._book = book = table_state_of(self._folder.warehouse, self._table)
        if book.apply_number and book.is_consistent_cut != self._is_cut:
            self._is_cut = book.is_consistent_cut
            say(
                f"table {self._table} is a consistent cut again"
                if self._is_cut
                else self._flag(book.inconsistent_since or 0)
            )

    def _flag(self, since: int) -> str:
        held = progress_of(
            self._folder.warehouse, STREAM, with_frontier=True
        ).frontier.lagging_partition
        assert held is not None, (
            "a table that passed the low watermark of a silent stream partition"
        )
        at = view_of_time(held.watermark) if held.watermark else "nothing"
        return (
            f"table {self._table} has not been a consistent cut since {view_of_time(since)}:"
            f" {held.stream_partition} delays the low watermark at {at}, in Kafka partition"
            f" {held.kafka_partition} (stall_after is {self._stall_after_s} s)"
        )

    def _read_snapshot(self, cut: CutRecord) -> None:
        found = open_table(self._folder.table(self._table), version=cut.versions[self._table])
        rows = list(found.rows())
        count = bisect_left(self._commits, (cut.low_watermark, ""))
        last = self._commits[count - 1][1] if count else "nothing"
        what = f"{self._table} at {view_of_time(cut.low_watermark)}"
        is_equal = self._compare(
            what, self._state_below(cut.low_watermark), tuple(found.types), rows
        )
        self._seen.add(last)
        say(
            f"complete below {view_of_time(cut.low_watermark)}, ingest batch {cut.to_batch}:"
            f" snapshot {len(self._seen)}, {counted(len(rows), 'row')},"
            f" {'equals' if is_equal else 'DIFFERS from'} {last[:12]}, {count:,} of"
            f" {self._source.size:,}"
        )

    def _compare(
        self,
        what: str,
        expected: Mapping[bytes, truth.Row],
        names: Sequence[str],
        rows: Iterable[Sequence[Any]],
    ) -> bool:
        differences = list(self._row_differences(what, expected, names, rows))
        self._outcome.differences += differences
        return not differences

    def _differences(self, what: str, expected: Mapping[bytes, truth.Row]) -> Iterator[str]:
        """The differences of the table in its newest version."""
        found = open_table(self._folder.table(self._table))
        return self._row_differences(what, expected, tuple(found.types), found.rows())

    def _row_differences(
        self,
        what: str,
        expected: Mapping[bytes, truth.Row],
        names: Sequence[str],
        rows: Iterable[Sequence[Any]],
    ) -> Iterator[str]:
        key, wanted = KEYS[self._table], {KEYS[self._table], *_STATE[self._table], UNMAPPED}
        places = [place for place, name in enumerate(names) if name in wanted]
        return row_differences(
            what,
            key,
            expected,
            [names[place] for place in places],
            ([row[place] for place in places] for row in rows),
        )

    @property
    def _commits(self) -> list[tuple[int, str]]:
        return self._publisher.done.commits[self._table]

    def _state_below(self, low_watermark: int) -> Mapping[bytes, truth.Row]:
        """The truth after the last transaction below the watermark."""
        count = bisect_left(self._commits, (low_watermark, ""))
        if not count:
            return {}
        _, last = self._commits[count - 1]
        if self._table == ACCOUNTS_TABLE:
            return truth.accounts(
                self._chosen.operations[: int(last.removeprefix(TRANSACTION_ID)) + 1]
            )
        assert self._chosen.history is not None, "files have a history"
        tree = truth.tree(self._chosen.history.folder, last)
        return {path: row for path, row in tree.items() if len(path) <= MAX_ROW_KEY_BYTES}

    def _await_cut(self, low_watermark: int) -> None:
        """Wait for a cut at a watermark. On a slow machine the watermark before may count as
        stalled. Then wait for the table only.
        """

        def is_there() -> bool:
            is_past = not self._is_cut and (self._book.apply_watermark or 0) >= low_watermark
            return is_past or (self._cut is not None and self._cut.low_watermark >= low_watermark)

        self._until(is_there, "a cut")

    def _until(self, is_there: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S

        def is_over() -> bool:
            if time.monotonic() > deadline:
                raise ConnectorError(
                    ErrorCode.DEMO_TIMED_OUT,
                    f"After {PATIENCE_S:g} s the demo still waits for {what}",
                    f"The last message of the pipeline: {self._run.last_line()}",
                    f"See {self._run.log}, and the output of `connector --config"
                    f" {self._folder.config} status`",
                )
            return is_there()

        self._run.wait(is_over, self._look)


def _key(view: Any) -> Any:
    return base64.b64decode(view["base64"]) if isinstance(view, dict) else view

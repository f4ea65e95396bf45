"""Rebuild: builds a table again from the changelog and replaces the old table in one commit
(TBL-21, TBL-8).

A rebuild is an apply of all changes to an empty table. Only its commit names the new files and the
new tombstone table, and it replaces rows, columns and properties. Until then, the old table is
unchanged. Older versions stay as they are, each with its own tombstone table.

The commit has the number of the old table's next apply. If another process applies to the old table
meanwhile, the rebuild is refused. A process that opened the old table before stops (TBL-14).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from connector import warehouse as paths
from connector.dead_letters.envelope import DeadLetter
from connector.errors.tables import table_changed_during_rebuild, table_missing
from connector.records.rejection import Position
from connector.spark.apply.apply import Applied, apply
from connector.spark.apply.flatten import RECORD_COORDINATES, unreadable
from connector.spark.apply.select import NO_RULES, LetterRules
from connector.spark.apply.statistics import check_changelog, unapplied
from connector.spark.apply.truncation import not_truncated
from connector.spark.cluster import repeating
from connector.spark.failures import applying
from connector.spark.sql import literal_rows
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.delta_log import DeltaLog, metadata_session, quoted, rows_in
from connector.spark.storage.layout import Layout, layout_of, new_properties
from connector.spark.storage.table import (
    KEPT_PROPERTIES,
    Table,
    new_attempt,
)
from connector.state.commits import Commit
from connector.state.damage import reading
from connector.state.stream_progress import Cut
from connector.state.table_state import TableState
from connector.tables.column_names import BUCKET, UNMAPPED, unmapped_name
from connector.tables.definition import TableDefinition, check_compatible, with_fixed
from connector.tables.stored_definition import (
    REBUILD_PROPERTY,
    TABLE_ID_PROPERTY,
    ColumnIds,
    assign_ids,
    from_properties,
    made_strict,
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result: the table state before and after, how many changes were merged, and how many
    became dead letters.

    `misfits` counts cells that their column cannot hold, and that stay in `_unmapped`: they are
    older than the column (TBL-8), or the column is NULL for them (EVO-11). `layout` is that of the
    new table.
    """

    before: TableState
    table_state: TableState
    layout: Layout
    changes: int
    letters: int
    misfits: int


def rebuild(
    spark: SparkSession,
    path: str,
    definition: TableDefinition,
    changelog: Changelog,
    cut: Cut,
    *,
    publish: Callable[[Iterable[DeadLetter]], int],
    on_step: Callable[[str], None] = lambda step: None,
    rules: LetterRules = NO_RULES,
) -> Rebuilt:
    """Build the table at `path` again under `definition`, at `cut`, or later if the old table
    contains more. Columns may differ, and another program may have written to the table.

    `publish` gets the dead letters that were not published before. `on_step` and `rules` are those
    of `apply`.

    Raises `TableError` without a table of lowmark, a compatible definition or a complete changelog,
    `WriterConflictError` if another process applies meanwhile, and `DeliveryError`. The table is
    then unchanged.
    """
    successor = open_successor(spark, path, definition, cut.batch)
    before = successor.before
    check_changelog(successor, before, changelog.newest())

    successor.published = partial(rules.published, definition.name, -1)

    def publish_new(letters: Iterable[DeadLetter]) -> int:
        return publish(successor.unpublished(letters))

    def step(reached: str) -> None:
        on_step(reached)
        successor.check_alone()

    has_more = cut.low_watermark is None or before.highest_applied >= cut.low_watermark
    with applying(definition.name):
        applied = apply(
            *(successor, changelog, definition.source),
            replace(cut, ignores_watermark=cut.ignores_watermark or has_more),
            publish=publish_new,
            on_step=step,
            # The new table counts its letters as a set, with those of the old one.
            rules=replace(rules, published=NO_RULES.published),
        )
        if applied is None:
            # Nothing was ingested yet: there is no row to build, but there may be new columns.
            begun = successor.table_state()
            applied = Applied(
                replace(begun, apply_number=begun.apply_number + 1, attempt_id=begun.rebuild), 0, 0
            )
            successor.commit(None, (), applied.table_state)

    def result() -> Rebuilt:
        after, misfits = successor.table_state(), misfits_of(successor)
        return Rebuilt(before, after, successor.layout, applied.changes, applied.letters, misfits)

    # The table is replaced: lost executors must not repeat the whole rebuild.
    return repeating(result, f"table {definition.name}")


def open_successor(
    spark: SparkSession,
    path: str,
    definition: TableDefinition,
    batch: int,
    base: Layout | None = None,
) -> Successor:
    """The table that will replace the one at `path`. New columns begin after `batch`. With a
    `base`, from which the rows come, those are new that the base does not have.
    """
    log = DeltaLog(spark, paths.data(path))
    old = log.newest_of_lowmark()
    if old is None or old.stored is None or old.stored.get("table") != definition.name:
        raise table_missing(path, definition.name)
    properties = log.properties()
    existing, ids = from_properties(properties)
    check_compatible(existing, definition)
    definition = with_fixed(existing, definition)
    ids = made_strict(ids, existing, definition, batch)
    ids = assign_ids(ids, definition, batch)
    if base is not None:
        since = {column.cell: base.since[n] for n, column in enumerate(base.columns)}
        added_after = {c.name: min(batch, since.get(c.cell, batch)) for c in definition.columns}
        ids = replace(ids, since={name: after for name, after in added_after.items() if after})
    return Successor(spark, path, definition, ids, old, properties)


class Successor(Table):
    """The table that will replace the one at `path`. It is empty until its only commit.

    `old` is the newest commit of lowmark in the old table.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        definition: TableDefinition,
        ids: ColumnIds,
        old: Commit,
        properties: Mapping[str, str],
    ) -> None:
        self._ids, self._old = ids, old
        with reading(paths.data(path)):
            self.before = TableState.from_json(old.stored or {})
        self._new_letters, self._rejected = 0, set[str]()
        self._others: Mapping[str, str] | None = None
        self.published: Callable[[], Mapping[str, str] | None] = lambda: None
        """Returns the dead letters that were published before, as `LetterRules.published`."""
        self._committed: TableState | None = None
        super().__init__(spark, path, definition, properties)
        if self.position is not None:
            self.before = self.position.of_newest(self.before)

    def newest(self) -> tuple[int, TableState]:
        """The version of the old table, with an empty table state that has the same number of
        applies.

        After the commit: the version and the table state of the new table.
        """
        if self._committed is not None:
            return super().newest()
        applies, changelog_id = self.before.apply_number, self.before.changelog_id
        return self._old.version, TableState(
            apply_number=applies,
            vacuumed_to=applies,
            changelog_id=changelog_id,
            rebuild=self._rebuild,
            definition_version=self._version,
        )

    def rows(self, version: int | None = None) -> DataFrame:
        """No rows before the commit. After it, the rows of the table."""
        if self._committed is not None:
            return super().rows(version)
        columns = ", ".join(f"`{name}` {type_}" for name, type_ in self.layout.column_types)
        return literal_rows(self._spark, [], columns)

    def unpublished(self, letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
        """The dead letters that were not published before. Where these are not known: those that an
        apply of the old table may not have published. Those that no apply can have published count
        as new.
        """
        self._others = self.published()
        for letter in letters:
            self._rejected.add(letter.id)
            if self._others is not None:
                if letter.id not in self._others:
                    yield letter
            elif letter.ingest_batch > self.before.complete_to_batch:
                self._new_letters += letter.ingest_batch > self.before.to_batch
                yield letter

    def check_alone(self) -> None:
        """Raise `WriterConflictError` if another process has committed to the old table."""
        if self._committed is None and self._log_of_old().version != self._old.version:
            raise table_changed_during_rebuild(self._definition.name)

    def commit(
        self,
        rows: DataFrame | None,
        buckets: Iterable[int],  # noqa: ARG002, all are replaced
        table_state: TableState,
    ) -> None:
        """Replace all rows, columns and properties of the old table in one commit, and check that
        it was this one.

        Raises `WriterConflictError` if another process has committed to the old table.
        """
        self.check_alone()
        if self._others is None and self.before.letters:
            self._others = self.published()
        table_state = table_state.replacing(
            self.before, self._new_letters, self._rejected, self._others
        )
        made = self._columns_of(self.rows() if rows is None else rows)
        session = metadata_session(self._spark, self._metadata_of(table_state))
        writer = (
            rows_in(session, made)
            .writeTo(quoted(self.path))
            .using("delta")
            .partitionedBy(F.col(BUCKET))
        )
        for name, text in {
            **new_properties(self._definition, self._ids),
            **self._kept,
            REBUILD_PROPERTY: self._rebuild,
            TABLE_ID_PROPERTY: self.table_id,
        }.items():
            writer = writer.tableProperty(name, text)
        writer = writer.option("txnAppId", self._app_id).option(
            "txnVersion", str(table_state.apply_number)
        )
        with self._explained():
            writer.replace()
        if self._log_of_old().stored != table_state.to_json(self._definition.name):
            raise table_changed_during_rebuild(self._definition.name)
        self._committed = table_state

    def _open(self, properties: Mapping[str, str] | None) -> Layout:
        self._kept = {
            name: (properties or {})[name] for name in KEPT_PROPERTIES if name in (properties or {})
        }
        self._is(new_attempt())
        self.table_id = (properties or {}).get(TABLE_ID_PROPERTY) or new_attempt()
        self._version = self._ids.version
        self.has_vectors = False  # all rows are new
        return layout_of(self._definition, self._ids)

    def _log_of_old(self) -> Commit:
        newest = DeltaLog(self._spark, self.path).newest_of_lowmark()
        assert newest is not None
        return newest


def covered_letters(
    changelog: Changelog, rebuilt: Rebuilt, letters: Iterable[Position]
) -> list[Position]:
    """Those of the table `letters` whose change the new table has (RUN-6): the changelog still has
    the change, the rebuild merged it, and did not reject it.
    """
    layout, state, newest = rebuilt.layout, rebuilt.table_state, changelog.newest()
    definition, columns = layout.definition, ["topic", "topic_id", *RECORD_COORDINATES]
    batch, identity = (newest.ingest_batch, newest.changelog_id) if newest else (0, None)
    state.check_changelog(definition.name, batch, identity)
    wanted = literal_rows(
        changelog.spark,
        map(astuple, letters),
        "topic string, topic_id string, kafka_partition int, offset bigint",
    )
    is_merged = f"ingest_batch <= {state.complete_to_batch} OR NOT {unapplied(state)}"

    def once() -> list[Position]:
        changes = (
            changelog.changes(definition.source, after=0, to=state.to_batch)
            .where(is_merged)
            .join(wanted, columns, "left_semi")
        )
        rejected = unreadable(not_truncated(changes, layout, state.truncated), layout)
        covered = changes.join(rejected, [*RECORD_COORDINATES], "left_anti").select(*columns)
        return [Position(*row) for row in covered.collect()]

    with applying(definition.name):
        return repeating(once, f"table {definition.name}")


def misfits_of(table: Table) -> int:
    names = [unmapped_name(*column.cell) for _, column, _ in table.layout.tolerant]
    if not names:
        return 0
    cells = F.filter(F.map_keys(UNMAPPED), lambda name: name.isin(*names))
    row = table.rows().where(f"{UNMAPPED} IS NOT NULL").agg(F.sum(F.size(cells))).first()
    assert row is not None
    return int(row[0] or 0)

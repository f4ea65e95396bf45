"""A table on disk: created, opened, checked and committed, with the table state in the metadata of
every commit (TBL-10, TBL-12). The tombstone table is beside it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from connector import warehouse as paths
from connector.config.settings import VersionRetention
from connector.errors.definitions import columns_changed
from connector.errors.tables import (
    columns_altered,
    concurrent_write,
    files_changed,
    table_missing,
    table_rebuilt,
    table_removed,
)
from connector.spark.failures import explained
from connector.spark.sql import key_columns, key_pieces, use_nested
from connector.spark.storage.deletion_vectors import ENABLED, check_version, replace_rows
from connector.spark.storage.delta_log import (
    DeltaLog,
    set_properties,
)
from connector.spark.storage.files import (
    Files,
    parsed,
    size_in_bytes,
)
from connector.spark.storage.hadoop import bytes_on_disk, read_text, remove_folder
from connector.spark.storage.layout import (
    BUCKETS_PROPERTY,
    Layout,
    layout_of,
    new_properties,
)
from connector.spark.storage.maintenance import (
    FILE_RETENTION,
    LOG_RETENTION,
    OWN_LOG_CLEANING,
    Rewritten,
    Work,
    clean,
    commit_marker,
    forget_versions,
    retention_properties,
    rewrite,
    without_rows,
)
from connector.spark.storage.tombstones import Tombstones, tombstones_state
from connector.spark.storage.transaction import Transaction, create_table, row_type
from connector.state.commits import user_metadata
from connector.state.damage import check_owner, reading
from connector.state.maintenance_schedule import (
    DAY_US,
    CommitCount,
    KeptVersions,
    is_vacuum_due,
)
from connector.state.positions import from_text, position_after
from connector.state.table_state import TableState
from connector.tables.column_names import BUCKET, STATE
from connector.tables.definition import (
    TableDefinition,
    check_compatible,
    with_fixed,
)
from connector.tables.stored_definition import (
    NO_IDS,
    REBUILD_PROPERTY,
    TABLE_ID_PROPERTY,
    assign_ids,
    from_properties,
    made_strict,
    to_properties,
)
from connector.warehouse import bucket_of

_DECLARED: Final = ("max_staleness_s", "block_rows", "on_unreadable")
"""The parts of a definition that may change without a rebuild, and that are stored for readers."""
REPLACED_KEPT_US: Final = 7 * DAY_US
"""How long the tombstone table of a replaced table is kept."""
KEPT_PROPERTIES: Final = (FILE_RETENTION, LOG_RETENTION, OWN_LOG_CLEANING)
"""The properties that say how long old versions are kept."""
AtVersion = tuple[int, TableState]
"""A version of a table, and its table state."""
Between = Callable[[Callable[[], Work]], Work]
"""Calls a function between two applies of a table."""


class Table:
    """One table at `path`, written by one process. Another writer is detected (TBL-14)."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        definition: TableDefinition,
        properties: Mapping[str, str] | None = None,
        retention: VersionRetention | None = None,
    ) -> None:
        """Open the table, or create it. `properties` are those of the table on disk, if they were
        read already.

        `retention` is that of the configuration. None: that of the table stays.
        """
        self.spark = self._spark = spark
        self.folder = self._folder = path
        self.path = paths.data(path)
        self._definition, self._version = definition, 1
        self.log = DeltaLog(spark, self.path)
        self._retention = retention or VersionRetention()
        self._kept: Mapping[str, str] = retention_properties(self._retention.table_file_s)
        self._vacuum_every_us = min(DAY_US, self._retention.table_file_s * 1_000_000)
        self._vacuumed_at, self._named = 0, KeptVersions()
        self._declares_kept = retention is not None
        self.has_vectors, self.table_id = definition.deletion_vectors, ""
        path_of_positions = paths.positions(paths.warehouse_of_table(path), definition.stream)
        positions = from_text(read_text(spark, path_of_positions))
        self._first_horizon: int | None = None
        self.position = positions.get(definition.name)
        """How far the table is without a commit (ENG-7)."""
        self._is("")
        self.layout = self._open(properties)
        use_nested(spark, [column.type for column in self.layout.columns])

    @classmethod
    def existing(cls, spark: SparkSession, path: str) -> Table:
        """The table at `path` with its stored definition, for reading. Raises `TableError`."""
        log = DeltaLog(spark, paths.data(path))
        if log.newest() is None:
            raise table_missing(path, paths.table_of(path))
        properties = log.properties()
        return cls(spark, path, from_properties(properties)[0], properties)

    def newest(self) -> tuple[int, TableState]:
        """The version of the newest commit, and the table state: that of the commit, or the newer
        position.

        Raises `TableError` if another program changed rows. Raises `WriterConflictError` if the
        table was rebuilt, or its columns were changed, since it was opened.
        """
        version, committed = self.committed()
        return version, committed if self.position is None else self.position.of_newest(committed)

    def committed(self) -> AtVersion:
        """The version of the newest commit, and its table state. Raises as `newest`."""
        version, table_state = self._own_newest()
        if table_state.rebuild != self._rebuild:
            raise table_rebuilt(self._definition.name)
        if table_state.definition_version != self._version:
            raise columns_altered(self._definition.name)
        return version, table_state

    def take_position(self, before: TableState, after: TableState, now: int) -> bool:
        """Take `after` as the position in place of a commit, if that is enough at `now` (ENG-7)."""
        commit = self.log.newest()
        assert commit is not None
        position = position_after(before, after, commit.committed_at, now)
        self.position = position or self.position
        return position is not None

    def _own_newest(self) -> AtVersion:
        if (commit := self.log.newest()) is None:
            raise table_removed(self.path, self._definition.name)
        stored = commit.stored
        check_owner(self.path, "table", self._definition.name, stored, self.log.newest_foreign)
        assert stored is not None
        with reading(self.path):
            return commit.version, TableState.from_json(stored)

    def table_state(self) -> TableState:
        """The table state. Raises as `newest`."""
        return self.newest()[1]

    def rows(self, version: int | None = None) -> DataFrame:
        """All rows of a version, or of the newest one, with internal columns."""
        reader = self._spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(
            self.path
        )

    def files(self, version: int) -> Files | None:
        """The files of `version`, if it is the newest one and they are known without a Spark
        job.
        """
        return self.log.files(version)

    def add_tombstones(self, rows: DataFrame, before: TableState, *, attempt: str) -> bool:
        """Add tombstones for the apply after `before`. Returns whether there were any.

        They do not count before a commit of the table names the attempt.
        """
        apply = before.apply_number + 1
        age = self.layout.age
        newest = (
            f"greatest(array_max({STATE}.orders.{age}),"
            f" array_max({STATE}.residual.order.change.{age}))"
        )
        entries = rows.selectExpr(
            *self.layout.keys,
            STATE,
            BUCKET,
            f"{apply}L AS _apply_number",
            f"'{attempt}' AS _attempt_id",
            f"coalesce({newest}, 0L) AS _newest",
        )
        # One file, because an apply reads all files for the rows that it changes.
        entries = entries.coalesce(1)
        expired_below = self.tombstones.expired_below(before)
        with self._explained():
            # An apply without tombstones would leave an empty file. Without a table, nothing would
            # remove it.
            if expired_below is None and entries.isEmpty():
                return False
            transaction = self.tombstones.begin(expired_below, self.layout, self._kept)
            transaction.write(entries)
            if transaction.has_written:
                transaction.commit(apply, tombstones_state(expired_below or 0))
            return transaction.has_written

    def commit(
        self, rows: DataFrame | None, buckets: Iterable[int], table_state: TableState
    ) -> None:
        """Replace the rows of `buckets` by `rows` and store `table_state`, in one commit, and check
        that it was this one. Without buckets, only the table state is committed. Raises
        `WriterConflictError` if another writer was faster.
        """
        touched = ", ".join(str(bucket) for bucket in sorted(buckets))
        with self._explained():
            if rows is None or not touched:
                transaction = Transaction(self._spark, self.path, self._app_id)
                transaction.commit(
                    table_state.apply_number, table_state.to_json(self._definition.name)
                )
            else:
                writer = (
                    self._columns_of(rows)
                    .write.format("delta")
                    .mode("overwrite")
                    .partitionBy(BUCKET)
                )
                writer.option("replaceWhere", f"{BUCKET} IN ({touched})").option(
                    "userMetadata", self._metadata_of(table_state)
                )
                writer.option("txnAppId", self._app_id).option(
                    "txnVersion", str(table_state.apply_number)
                ).save(self.path)
        self._check_committed(table_state)

    def commit_rows(
        self,
        rows: DataFrame,
        locations: DataFrame,
        version: int,
        files: Files | None,
        table_state: TableState,
    ) -> None:
        """Replace the rows at `locations` by `rows` and store `table_state`, as `commit`. The
        locations belong to `version`, which must be the newest one. `files` are its files, if
        known.
        """
        with self._explained():
            replace_rows(
                Transaction(self._spark, self.path, self._app_id),
                version=version,
                files=files,
                locations=locations,
                rows=self._columns_of(rows),
                number=table_state.apply_number,
                stored=table_state.to_json(self._definition.name),
            )
        self._check_committed(table_state)

    def begin_altered(
        self, layout: Layout, version: int, features: Iterable[str] = ()
    ) -> Transaction:
        """A commit after `version`, which must be the newest one, that gives the table the columns
        of `layout` (EVO-3), and the `features` of Delta that they need. The caller writes rows, and
        calls `commit_altered`.
        """
        transaction = Transaction(self._spark, self.path, self._app_id)
        check_version(transaction, version)
        ids = layout.ids
        assert ids is not None, "ids are assigned to the new columns"
        columns = row_type(self._spark, layout.column_types)
        supported = {f"delta.feature.{feature}": "supported" for feature in features}
        transaction.redefine(columns, to_properties(layout.definition, ids) | supported)
        return transaction

    def commit_altered(
        self, transaction: Transaction, layout: Layout, table_state: TableState, removed: Any
    ) -> None:
        """Commit what `begin_altered` began, with Delta's actions `removed`, and check that it was
        this commit. The table then has the columns of `layout`.
        """
        stored = table_state.to_json(self._definition.name)
        transaction.commit(table_state.apply_number, stored, actions=removed)
        self._definition, self.layout = layout.definition, layout
        self._version = table_state.definition_version
        self._check_committed(table_state)

    def commit_actions(self, actions: Sequence[str], version: int, table_state: TableState) -> None:
        """Commit actions of Delta's log, as JSON, and store `table_state`, as `commit`. They were
        made for `version`, which must be the newest one.
        """
        number, stored = table_state.apply_number, table_state.to_json(self._definition.name)
        with self._explained():
            if not self.log.commit_files(
                version, actions, stored, app_id=self._app_id, number=number
            ):
                transaction = Transaction(self._spark, self.path, self._app_id)
                check_version(transaction, version)
                transaction.commit(number, stored, actions=parsed(self._spark, actions))
        self._check_committed(table_state)

    def commit_tombstones(
        self, actions: Sequence[str], version: int | None, before: TableState
    ) -> None:
        """Commit files with tombstones for the apply after `before`. They were made for `version`
        of the tombstone table. If another program has committed since, files that the actions
        remove stay.

        Tombstones do not count before a commit of the table names the attempt.
        """
        expired_below = self.tombstones.expired_below(before)
        with self._explained():
            if expired_below is not None and self.tombstones.commit_files(actions, version, before):
                return
            actions = self.tombstones.still_possible(actions, version)
            self.tombstones.begin(expired_below, self.layout, self._kept).commit(
                before.apply_number + 1,
                tombstones_state(expired_below or 0),
                actions=parsed(self._spark, actions),
            )

    def size_in_bytes(self) -> int:
        """The size of the table's files."""
        return size_in_bytes(self._spark, self.path)

    def _explained(self) -> AbstractContextManager[None]:
        return explained(f"table {self._definition.name}")

    @property
    def _app_id(self) -> str:
        """The name under which Delta stores the number of the last apply."""
        return f"lowmark/{self._definition.name}"

    def _metadata_of(self, table_state: TableState) -> str:
        return user_metadata(table_state.to_json(self._definition.name))

    def _columns_of(self, rows: DataFrame) -> DataFrame:
        """The columns of the table on disk, from computed rows."""
        return rows.selectExpr(*(f"`{name}`" for name, _ in self.layout.column_types))

    def _check_committed(self, table_state: TableState) -> None:
        version, newest = self.newest()
        if newest != table_state:
            name = self._definition.name
            if (rollback := self.log.rollback(version)) is not None:
                check_owner(self.path, "table", name, None, lambda: rollback)
            raise concurrent_write(f"table {name}")
        self.position = None  # the commit has it

    def is_vacuum_due(self) -> bool:
        """Whether `compact` has tombstones to remove (TBL-12)."""
        _, state = self.committed()
        expired_below, horizon = self.tombstones.expired_below(state), state.horizon or 0
        if self._first_horizon is None:
            self._first_horizon = horizon
        moved = horizon - (expired_below or self._first_horizon)  # 0: never vacuumed
        return expired_below is not None and is_vacuum_due(
            len(state.attempt_ids), moved, self._definition.order
        )

    def vacuum_tombstones(self, between: Between) -> Work | None:
        """Remove tombstones that no commit names or that are older than the horizon (TBL-12). After
        that, the commits need not name the attempts of the others. None: nothing came since the
        last time.

        Applies may run meanwhile: `between` calls the commits between two of them. A tombstone that
        no commit names is only removed if a commit has taken its number. Another apply may be about
        to commit under the next one. Tombstones that a writer adds later under a taken number are
        true for the changes of the changelog, and change nothing once these are applied. The
        horizon is that of a batch which the newest commit covers (MRG-11).
        """
        _, state = self.committed()
        expired_below = self.tombstones.expired_below(state)
        if expired_below is None:
            return None
        horizon = max(expired_below, state.horizon or 0)
        if (state.vacuumed_to, horizon) == (state.apply_number, expired_below):
            return None
        with self._explained():
            rewritten = self.tombstones.without(state, horizon)
            return between(partial(self._vacuumed, rewritten, state, horizon))

    def _vacuumed(self, rewritten: Rewritten | None, state: TableState, horizon: int) -> Work:
        """Commit the tombstones that are left, and then that all up to `state` count."""
        version, newest = self.newest()
        later = {
            apply: attempt
            for apply, attempt in newest.attempt_ids.items()
            if apply > state.apply_number
        }
        if (newest.vacuumed_to, newest.attempt_ids) != (
            state.vacuumed_to,
            {**state.attempt_ids, **later},
        ) or newest.apply_number < state.apply_number:
            raise files_changed(self.tombstones.path)
        if rewritten is None:
            done = self.tombstones.expire(horizon)
        else:
            done = self.tombstones.replace(rewritten, horizon)
        after = replace(newest, vacuumed_to=state.apply_number, attempt_ids=later)
        transaction = Transaction(self._spark, self.path, None)
        transaction.depend_on(self._app_id)
        check_version(transaction, version)
        transaction.commit(0, after.to_json(self._definition.name))
        self._check_committed(after)
        return done

    def list_files(self) -> None:
        """Let Delta find the files of the table and its tombstones without a Spark job."""
        self.log.list_files()
        self.tombstones.log.list_files()

    def checkpoint(self) -> None:
        """Write the checkpoints of the table and its tombstones that are due."""
        self.log.checkpoint()
        self.tombstones.log.checkpoint()

    def new_commits(self) -> list[CommitCount]:
        """The file counts of commits to the table and its tombstones since the last call."""
        return [*self.log.new_commits(), *self.tombstones.log.new_commits()]

    def written_by(self, apply: int) -> dict[str, Any]:
        """The rows and bytes that an apply wrote, as fields of a `Job`. Empty: the newest commit is
        that of another apply.
        """
        commit, state = self.log.newest(), self.table_state()
        if commit is None or state.apply_number != apply:
            return {}
        rows, written, deletes = commit.added_rows, commit.files.added_bytes, 0
        if state.attempt_ids.get(apply) and (of_deletes := self.tombstones.log.newest()):
            deletes, written = of_deletes.added_rows, written + of_deletes.files.added_bytes
        return {"rows_written": rows, "bytes_written": written, "deletes": deletes}

    def superseded_at(self, version: int) -> int | None:
        """When the next version was committed. None: it was not yet. 0: no longer known."""
        commit = self.log.at(version + 1)
        return (
            commit.committed_at
            if commit is not None
            else None
            if version >= self.newest()[0]
            else 0
        )

    def compact(self, between: Between) -> Work | None:
        """Merge small files of the table and its tombstones, and vacuum tombstones, if it is due.
        No row changes (TBL-15). `between` calls each commit between two applies. None: there was
        nothing to do.
        """
        done = None
        with self._explained():
            # First, because a compaction fails as long as others change its files.
            if self.is_vacuum_due():
                self.list_files()
                done = self.vacuum_tombstones(between)
            if (rewritten := self.tombstones.rewrite(self.table_state())) is not None:
                done = between(partial(self.tombstones.replace, rewritten)) + (done or Work())
            if (rewritten := rewrite(self._spark, self.log)) is not None:
                done = between(partial(self._replace_files, rewritten)) + (done or Work())
        return done

    def _replace_files(self, rewritten: Rewritten, *, is_alone: bool = False) -> Work:
        # The newest commit must be one of lowmark, and may differ only in its files.
        return rewritten.commit(
            self.log,
            [self._app_id],
            lambda _: self.table_state().to_json(self._definition.name),
            self.layout.keys,
            is_alone=is_alone,
        )

    def keep(self, named: Iterable[int], now: int) -> None:
        """Keep these versions, which cuts name, for a while, also if their cuts are deleted."""
        self._named.with_left(named, now)

    def clean(self, now: int, kept: Collection[int] = ()) -> Work:
        """Remove files that no version needs: none of the log retention, and none of `kept`. And
        the tombstone tables of tables that were replaced long ago (TBL-23).

        Files that only VACUUM finds stay for the file retention. It lists all files. So where the
        log has the others, it runs only once in that time, or once a day.
        """
        size = bytes_on_disk(self._spark, self._folder)
        before = now - self._retention.log_s * 1_000_000
        with self._explained():
            kept = self._named.with_left(kept, now)
            removed, named = self.log.delete_unneeded(before, kept), self.log.files_of(kept)
            live = size_in_bytes(self._spark, self.path)
            if has_tombstones := self.tombstones.exist(self.table_state()):
                removed += self.tombstones.log.delete_unneeded(before)
                live += size_in_bytes(self._spark, self.tombstones.path)
            if named is None or now >= self._vacuumed_at + self._vacuum_every_us:
                self._vacuumed_at = now
                removed += clean(self._spark, self.path, kept, named)
                removed += clean(self._spark, self.tombstones.path) if has_tombstones else 0
            for path in self.tombstones.of_replaced():
                newest = DeltaLog(self._spark, path).newest()
                # A folder without a commit belongs to a rebuild that is about to write it.
                if newest is not None and now - newest.committed_at > REPLACED_KEPT_US:
                    remove_folder(self._spark, path)
        left = bytes_on_disk(self._spark, self._folder)
        return Work(removed, max(0, size - left), live, left)

    def clean_log(self, now: int, kept: Collection[int] = ()) -> None:
        """Remove log files that no version needs: none of the log retention, and none of `kept`. If
        lowmark does not delete its files, all versions of the file retention stay.
        """
        before = now - self.versions_kept_s() * 1_000_000
        self.log.clean(before, self._named.with_left(kept, now))
        if self.tombstones.exist(self.table_state()):
            self.tombstones.log.clean(before)

    def versions_kept_s(self) -> int:
        """How long every version is kept, in seconds."""
        return self._retention.log_s if self.log.is_known else self._retention.table_file_s

    def is_row(self, row_key: bytes) -> str:
        """Whether a row of the table or of its tombstones has this row key, as SQL."""
        key = self._definition.key
        values = key_columns(key, key_pieces(key, f"X'{row_key.hex()}'"))
        parts = (
            f"{part} <=> {value}" for part, value in zip(self.layout.keys, values, strict=True)
        )
        return " AND ".join((f"{BUCKET} = {bucket_of(row_key, self.layout.buckets)}", *parts))

    def erase(self, row_key: bytes, begun_at: int, on_step: Callable[[str], None]) -> None:
        """Remove a row, its tombstones, and all older versions of the table (OPR-2). No apply may
        run at `begun_at` (µs). It can be repeated.
        """
        name, where = self._definition.name, self.is_row(row_key)
        bucket = bucket_of(row_key, self.layout.buckets)
        with self._explained():
            rewritten = without_rows(self._spark, self.path, where, bucket=bucket)
            if rewritten is not None:
                on_step(f"written {name}")
                self._replace_files(rewritten, is_alone=True)
                on_step(f"committed {name}")
            state = self.table_state()
            kept = tuple(row for row in state.blocked_rows if row.row_key != row_key)
            stored = replace(state, blocked_rows=kept).to_json(name)
            commit_marker(self._spark, self.log, stored, [self._app_id])
            on_step(f"marked {name}")
            forget_versions(self._spark, self.log, begun_at, on_step)
            self.tombstones.erase(state, where, begun_at, on_step)
            for path in self.tombstones.of_replaced():
                remove_folder(self._spark, path)
                on_step(f"removed {path.rpartition('/')[2]}")

    def _is(self, rebuild: str) -> None:
        """Store by which rebuild the table was made. Each rebuild has its own tombstone table, and
        an older version of the table keeps its own.
        """
        self._rebuild = rebuild
        self.tombstones = Tombstones(
            self._spark, paths.tombstones(self._folder, rebuild), self._definition.name
        )

    def _open(self, properties: Mapping[str, str] | None) -> Layout:
        if self.log.newest() is None:
            self.log.check_missing()
            if (layout := self._create()) is not None:
                return layout
        properties = properties or self.log.properties()
        self._is(properties.get(REBUILD_PROPERTY, ""))
        self.table_id = properties.get(TABLE_ID_PROPERTY, "")
        _, before = self._own_newest()
        existing, ids = from_properties(properties)
        check_compatible(existing, self._definition)
        if existing.keep_unmapped != self._definition.keep_unmapped:
            raise columns_changed(self._definition.name)
        # Changed columns are altered between two applies (EVO-3).
        declared = replace(with_fixed(existing, self._definition), columns=existing.columns)
        ids = made_strict(ids, existing, declared, before.to_batch)
        self._definition, self._version = declared, ids.version
        kept = {name: properties[name] for name in KEPT_PROPERTIES if name in properties}
        is_kept = kept == self._kept or not self._declares_kept
        if not is_kept:
            # Before the table's properties: if this fails, the table's still differ at the next
            # start.
            self.tombstones.declare(self._kept)
        is_declared = all(
            getattr(existing, name) == getattr(self._definition, name) for name in _DECLARED
        )
        if not is_declared or not is_kept:
            self._declare(
                {**to_properties(self._definition, ids), **({} if is_kept else self._kept)}, before
            )
        if not self._declares_kept:
            self._kept = kept
        self.has_vectors = self._definition.deletion_vectors and properties.get(ENABLED) == "true"
        return layout_of(self._definition, ids, int(properties[BUCKETS_PROPERTY]))

    def _declare(self, properties: Mapping[str, str], before: TableState) -> None:
        """Store the settings of the configuration where readers find them (TBL-16, DLQ-3)."""
        with self._explained():
            set_properties(self._spark, self.path, properties, self._metadata_of(before))

    def _create(self) -> Layout | None:
        """Create the table. None: another process has just created it."""
        self._definition = with_fixed(self._definition, self._definition)
        ids, self.table_id = assign_ids(NO_IDS, self._definition), new_attempt()
        layout = layout_of(self._definition, ids)
        with self._explained():
            self.log.forget_beginning()
            is_new = create_table(
                self._spark,
                self.path,
                row_type(self._spark, layout.column_types),
                {
                    **new_properties(self._definition, ids),
                    **self._kept,
                    TABLE_ID_PROPERTY: self.table_id,
                },
                TableState().to_json(self._definition.name),
                partition_by=[BUCKET],
            )
        return layout if is_new else None


def new_attempt() -> str:
    """A unique id for one attempt at an apply."""
    return uuid.uuid4().hex

"""A table and its graveyard on disk: made, opened, checked, and committed to, with the bookkeeping in every commit (TBL-10, TBL-12).

The bookkeeping lies in the `userMetadata` of the newest commit. What is remembered of rows that no longer exist lies in the
graveyard, a Delta table beside it: entries are added before the table's commit and bear the apply that wrote them and its
attempt. The table's commit names its attempt; entries of attempts that no commit names do not count, and are swept by a
later successful one.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from connector import warehouse as places
from connector.config.retention import VersionRetention
from connector.errors import TableError, WriterConflictError
from connector.spark.failures import explained
from connector.spark.sql import constant
from connector.spark.storage.deletion_vectors import ENABLED, replace_rows
from connector.spark.storage.delta_log import Commit, DeltaLog, folders_in, remove_folder, session_saying, set_properties, user_metadata
from connector.spark.storage.files import Files, files_of, size_in_bytes
from connector.spark.storage.layout import Layout
from connector.spark.storage.maintenance import (
    FILE_RETENTION,
    LOG_RETENTION,
    OWN_LOG_CLEANING,
    Work,
    bytes_on_disk,
    clean,
    retention_properties,
    rewrite,
)
from connector.spark.storage.transaction import Transaction
from connector.state.maintenance_schedule import DAY_US, CommitCount
from connector.state.table_state import TableState
from connector.tables.column_names import BUCKET, STATE
from connector.tables.compatibility import check_columns, check_compatible
from connector.tables.definition import TableDefinition
from connector.tables.stored_definition import NO_IDS, ColumnIds, assign_ids, from_properties, to_properties
from connector.tables.values import DataType

BUCKETS_PROPERTY: Final = "lowmark.buckets"
REBUILD_PROPERTY: Final = "lowmark.rebuild"
MAX_ATTEMPTS: Final = 20
"""So many attempts a table's commit names before they are swept: each is a comparison for every graveyard entry."""
SWEEP_EVERY: Final = 200
"""After so many applies the graveyard is swept at the latest: what is older than the horizon would only pile up."""
TOMBSTONES: Final = "tombstones"
REPLACED_KEPT_US: Final = 7 * DAY_US
"""How long the graveyard is kept of a table that was replaced."""
KEPT_PROPERTIES: Final = (FILE_RETENTION, LOG_RETENTION, OWN_LOG_CLEANING)
"""Those that say how long old versions are kept."""


class Table:
    """One table at `path`, written by one process. Another writer is noticed, and nothing is interleaved (TBL-14)."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        definition: TableDefinition,
        properties: Mapping[str, str] | None = None,
        retention: VersionRetention | None = None,
    ) -> None:
        """Open the table, or make it if there is none. `properties` are those of the table on disk, if they were read already.

        `retention` is declared today; None leaves that of the table as it is.
        """
        self.spark = self._spark = spark
        self._folder = path
        self.path = places.data(path)
        self._definition = definition
        self._log = DeltaLog(spark, self.path)
        self._has_swept = False
        kept = retention or VersionRetention()
        self._kept: Mapping[str, str] = retention_properties(kept.table_file_s)
        self._declares_kept = retention is not None
        self.has_vectors = definition.deletion_vectors
        self._is("")
        self.layout = self._open(properties)

    @classmethod
    def existing(cls, spark: SparkSession, path: str) -> Table:
        """The table at `path` as it was made, for reading. Raises `TableError` if there is none."""
        log = DeltaLog(spark, places.data(path))
        if log.newest() is None:
            raise TableError(f"There is no table at {path}", "Nothing was applied to it yet", "Run the pipeline: connector run --once")
        properties = log.properties()
        return cls(spark, path, from_properties(properties)[0], properties)

    def newest(self) -> tuple[int, TableState]:
        """The version of the newest commit, and what it says. Raises `TableError` if it is not ours.

        Raises `WriterConflictError` if the table was rebuilt since it was opened: its columns may be others.
        """
        commit, table_state = self._newest()
        return commit.version, table_state

    def _newest(self) -> tuple[Commit, TableState]:
        commit = self._log.newest()
        stored = commit.table_state if commit else None
        if commit is None or stored is None or stored.get("table") != self._definition.name:
            version = f" (version {commit.version}, {commit.operation})" if commit else ""
            raise TableError(
                f"The newest commit of {self.path}{version} is not of table {self._definition.name}",
                "Another table lies there, or somebody else wrote to it: only the connector may",
                "Restore the table to our last version (RESTORE TABLE … TO VERSION AS OF), or rebuild it from the changelog",
            )
        table_state = TableState.from_json(stored)
        if table_state.rebuild != self._rebuild:
            raise WriterConflictError(
                f"Table {self._definition.name} was rebuilt meanwhile",
                "`connector table rebuild` has put another in its place",
                "Start again: nothing was written to the new one",
            )
        return commit, table_state

    def table_state(self) -> TableState:
        """What the newest commit says. Raises `TableError` if it is not ours."""
        return self.newest()[1]

    def rows(self, version: int | None = None) -> DataFrame:
        """All rows, bookkeeping columns included, of a version of the Delta table or of the newest one."""
        reader = self._spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(self.path)

    def files(self, version: int) -> Files | None:
        """The files of that version, if it is the newest and they are so few that its commit lists them."""
        return files_of(self._spark, self.path, version)

    def tombstones(self, table_state: TableState) -> DataFrame:
        """What is remembered of rows that are gone, as of the commit that says `table_state`: key columns, `_state`, `_bucket`.

        It stays so, whatever is swept before the rows are asked for. Raises as `has_tombstones_table`, which must be true.
        """
        commit = self._remembered(table_state)
        assert commit is not None, "there is no graveyard"
        if (files := files_of(self._spark, self._tombstones_path, commit.version)) is not None:
            entries = files.rows()
        else:
            entries = self._spark.read.format("delta").option("versionAsOf", commit.version).load(self._tombstones_path)
        # As code that is the same for all attempts: `constant`.
        attempts = table_state.attempt_ids
        named = F.map_from_arrays(F.lit([*attempts]), F.lit([*attempts.values()])) if attempts else F.lit(None).cast("map<int, string>")
        is_named = F.try_element_at(named, F.expr("int(_apply_number)")) == F.col("_attempt_id")
        entries = entries.where(F.expr(f"_apply_number <= {constant(table_state.vacuumed_to, BUCKET)}") | is_named)
        return entries.selectExpr(BUCKET, *self.layout.keys, STATE)

    def has_tombstones_table(self, table_state: TableState) -> bool:
        """Whether anything is remembered of rows that are gone. Raises `TableError` if somebody else took or changed it."""
        return self._forgotten_below(table_state) is not None

    def bury(self, gone: DataFrame, before: TableState, *, attempt: str) -> bool:
        """Add graveyard entries for the apply after `before`, if there are any; tells whether there were.

        They do not count before a commit of the table names the attempt.
        """
        apply = before.apply_number + 1
        age = self.layout.age
        newest = f"greatest(array_max({STATE}.orders.{age}), array_max({STATE}.residual.order.change.{age}))"
        entries = gone.selectExpr(
            *self.layout.keys,
            STATE,
            BUCKET,
            f"{apply}L AS _apply_number",
            f"'{attempt}' AS _attempt_id",
            f"coalesce({newest}, 0L) AS _newest",
        )
        # One file: an apply asks all of them for the rows that it changes.
        entries = entries.coalesce(1)
        expired_below = self._forgotten_below(before)
        with explained(f"table {self._definition.name}"):
            if expired_below is None:
                if entries.isEmpty():
                    return False
                writer = entries.write.format("delta").mode("append").option("delta.dataSkippingStatsColumns", "_newest")
                writer.options(**self._kept).option("userMetadata", user_metadata(_tombstones_state(0))).save(self._tombstones_path)
                return True
            transaction = Transaction(self._spark, self._tombstones_path, None)
            transaction.write(entries)
            if transaction.has_written:
                transaction.commit(apply, _tombstones_state(expired_below))
            return transaction.has_written

    def commit(self, rows: DataFrame | None, buckets: Iterable[int], table_state: TableState) -> None:
        """Replace the rows of `buckets` by `rows` and say `table_state`, in one commit; read back that it was ours.

        Without buckets only the bookkeeping is committed. Raises `WriterConflictError` if another writer was quicker.
        """
        touched = ", ".join(str(bucket) for bucket in sorted(buckets))
        with explained(f"table {self._definition.name}"):
            if rows is None or not touched:
                transaction = Transaction(self._spark, self.path, self._app_id)
                transaction.commit(table_state.apply_number, table_state.to_json(self._definition.name))
            else:
                writer = self._columns_of(rows).write.format("delta").mode("overwrite").partitionBy(BUCKET)
                writer.option("replaceWhere", f"{BUCKET} IN ({touched})").option("userMetadata", self._said(table_state))
                writer.option("txnAppId", self._app_id).option("txnVersion", str(table_state.apply_number)).save(self.path)
        self._check_ours(table_state)

    def commit_rows(self, rows: DataFrame, places: DataFrame, version: int, files: Files | None, table_state: TableState) -> None:
        """Put `rows` in the place of those at `places` in `version`, the newest, which has `files`, if they are known, and say
        `table_state`: one commit, as `commit` makes.
        """
        with explained(f"table {self._definition.name}"):
            replace_rows(
                self._spark,
                self.path,
                version=version,
                files=files,
                places=places,
                rows=self._columns_of(rows),
                app_id=self._app_id,
                app_version=table_state.apply_number,
                table_state=table_state.to_json(self._definition.name),
            )
        self._check_ours(table_state)

    def size_in_bytes(self) -> int:
        """How large the table's files are."""
        return size_in_bytes(self._spark, self.path)

    @property
    def _app_id(self) -> str:
        """Under which Delta keeps the number of the last apply."""
        return f"lowmark/{self._definition.name}"

    def _said(self, table_state: TableState) -> str:
        return user_metadata(table_state.to_json(self._definition.name))

    def _columns_of(self, rows: DataFrame) -> DataFrame:
        """What the table keeps of rows that were worked out."""
        return rows.selectExpr(*(f"`{name}`" for name, _ in self.layout.column_types))

    def _check_ours(self, table_state: TableState) -> None:
        if self.table_state() != table_state:
            raise WriterConflictError(
                f"Apply {table_state.apply_number} of table {self._definition.name} was committed by another process",
                "Two processes apply the same table",
                "Stop one of them; this one has changed nothing",
            )

    def sweep(self, table_state: TableState) -> TableState:
        """Remove graveyard entries that no commit names, or that the horizon has passed; returns the bookkeeping to go on with (TBL-12).

        Now and then: at the first apply of a process that may follow a dead one, when a commit names many attempts, and after many
        applies. Of what no commit names only entries under numbers that a commit has taken go: another apply may be about to commit
        under the next one. What a writer adds later under a number taken before is true of the changelog's changes all the same,
        and changes nothing once they are applied. The horizon is that of a batch which the table covers (MRG-11).
        """
        due = (
            not self._has_swept
            or len(table_state.attempt_ids) > MAX_ATTEMPTS
            or table_state.apply_number - table_state.vacuumed_to > SWEEP_EVERY
        )
        self._has_swept = True
        if not due or table_state.vacuumed_to == table_state.apply_number:
            return table_state
        expired_below = self._forgotten_below(table_state)
        if expired_below is not None:
            horizon = max(expired_below, table_state.horizon or 0)
            dead = (
                f"_apply_number > {table_state.vacuumed_to} AND _apply_number <= {table_state.apply_number} AND NOT ({_named(table_state)})"
            )
            with explained(f"table {self._definition.name}"):
                session = session_saying(self._spark, user_metadata(_tombstones_state(horizon)))
                DeltaTable.forPath(session, self._tombstones_path).delete(f"_newest < {horizon} OR ({dead})")
        return replace(table_state, vacuumed_to=table_state.apply_number, attempt_ids={})

    def passed(self) -> list[CommitCount]:
        """What commits did to the files of the table and of its graveyard since the last call."""
        return [*self._log.passed(), *self._tombstones_log.passed()]

    def begun_at(self) -> int:
        """When the oldest commit was made that is still known, in microseconds."""
        return self._log.oldest_at()

    def version_at(self, at: int) -> int | None:
        """The version that was the newest one at a time (microseconds); None if that is not known."""
        return self._log.version_at(at)

    def superseded_at(self, version: int) -> int | None:
        """When the version after this one was committed; None if there is none, 0 if that is not known any more."""
        commit = self._log.at(version + 1)
        return commit.at if commit is not None else None if version >= self._newest()[0].version else 0

    def compact(self) -> Work | None:
        """Put small files together, of rows and of the graveyard; no row changes (TBL-15). Between two applies of this process.

        None: it was not worth it.
        """
        done = None
        with explained(f"table {self._definition.name}"):
            if (rewritten := rewrite(self._spark, self.path)) is not None:
                # The newest commit must be ours, and stay the same but for its files.
                rewritten.commit(self._log, [self._app_id], lambda _: self.table_state().to_json(self._definition.name))
                done = rewritten.work
            if self.has_tombstones_table(self.table_state()) and (rewritten := rewrite(self._spark, self._tombstones_path)) is not None:
                rewritten.commit(self._tombstones_log, [], dict)
                done = rewritten.work + (done or Work())
        return done

    def clean(self, now: int, keep: Collection[int] = ()) -> Work:
        """Remove files that no version needs which the table's retention keeps; what versions in `keep` need stays (TBL-23).

        So do graveyards of tables that were replaced before.
        """
        before = bytes_on_disk(self._spark, self._folder)
        with explained(f"table {self._definition.name}"):
            removed, live = clean(self._spark, self.path, keep), size_in_bytes(self._spark, self.path)
            if self.has_tombstones_table(self.table_state()):
                removed += clean(self._spark, self._tombstones_path)
                live += size_in_bytes(self._spark, self._tombstones_path)
            for name in folders_in(self._spark, self._folder):
                path = f"{self._folder}/{name}"
                if name.startswith(TOMBSTONES) and path != self._tombstones_path:
                    newest = DeltaLog(self._spark, path).newest()
                    # Without a commit it is one that a rebuild is about to write.
                    if newest is not None and now - newest.at > REPLACED_KEPT_US:
                        remove_folder(self._spark, path)
        after = bytes_on_disk(self._spark, self._folder)
        return Work(removed, max(0, before - after), live, after)

    def clean_log(self, before: int, keep: Collection[int] = ()) -> None:
        """Remove what no version needs of the logs that was the newest one at `before` (microseconds) or later, nor one in `keep`."""
        self._log.clean(before, keep)
        if self.has_tombstones_table(self.table_state()):
            self._tombstones_log.clean(before)

    def _forgotten_below(self, table_state: TableState) -> int | None:
        """Up to which horizon the graveyard has forgotten deletes, 0 if none; None if there is no graveyard. Raises as `_remembered`."""
        commit = self._remembered(table_state)
        return None if commit is None or commit.table_state is None else int(commit.table_state["expired_below"])

    def _remembered(self, table_state: TableState) -> Commit | None:
        """The newest commit of the graveyard; None if there is no graveyard.

        Raises `TableError` if somebody else took or changed it, or if the table was set back behind what it has forgotten.
        """
        commit = self._tombstones_log.newest()
        if commit is None and not table_state.has_tombstones:
            return None
        expired_below = commit.table_state.get("expired_below") if commit and commit.table_state else None
        if isinstance(expired_below, int) and expired_below <= max(0, table_state.horizon or 0):
            return commit
        what = "is gone"
        if commit is not None:
            is_ours = expired_below is not None
            by_whom = f"was changed by somebody else (version {commit.version}, {commit.operation})"
            what = "has forgotten deletes that the table has not seen: the table was set back" if is_ours else by_whom
        raise TableError(
            f"The tombstone table of {self._definition.name} {what}",
            "It remembers what was deleted: without it, late changes would bring rows back",
            f"Put {self._tombstones_path} back as it was, or run `connector table rebuild {self._definition.name}`",
        )

    def _is(self, rebuild: str) -> None:
        """Know by which rebuild the table was made. Each has a graveyard of its own: an older table keeps the one that belongs to it."""
        self._rebuild = rebuild
        self._tombstones_path = places.tombstones(self._folder, rebuild)
        self._tombstones_log = DeltaLog(self._spark, self._tombstones_path)

    def _open(self, properties: Mapping[str, str] | None) -> Layout:
        if self._log.newest() is None:
            if self._log.has_other_files():
                raise TableError(
                    f"{self.path} is not empty, and holds no Delta table", "Something else was put there", "Move it, or rename the table"
                )
            return self._create()
        properties = properties or self._log.properties()
        self._is(properties.get(REBUILD_PROPERTY, ""))
        before = self.table_state()
        existing, ids = from_properties(properties)
        check_compatible(existing, self._definition)
        check_columns(existing, self._definition)
        readers_know = (existing.max_staleness_s, existing.block_rows)
        kept = {name: properties[name] for name in KEPT_PROPERTIES if name in properties}
        is_kept = kept == self._kept or not self._declares_kept
        if not is_kept and (commit := self._tombstones_log.newest()) is not None and commit.table_state is not None:
            # Before the table's: where it is not done, the table's still differ at the next start.
            metadata = user_metadata(commit.table_state)
            with explained(f"table {self._definition.name}"):
                set_properties(self._spark, self._tombstones_path, self._kept, metadata)
        if readers_know != (self._definition.max_staleness_s, self._definition.block_rows) or not is_kept:
            self._declare({**to_properties(self._definition, ids), **({} if is_kept else self._kept)}, before)
        if not self._declares_kept:
            self._kept = kept
        self.has_vectors = self._definition.deletion_vectors and properties.get(ENABLED) == "true"
        return layout_of(self._definition, ids, int(properties[BUCKETS_PROPERTY]))

    def _declare(self, properties: Mapping[str, str], before: TableState) -> None:
        """Keep what the configuration says today: readers find it in the table's properties (TBL-16, DLQ-3)."""
        with explained(f"table {self._definition.name}"):
            set_properties(self._spark, self.path, properties, self._said(before))

    def _create(self) -> Layout:
        ids = assign_ids(NO_IDS, self._definition)
        layout = layout_of(self._definition, ids)
        session = session_saying(self._spark, self._said(TableState()))
        builder = DeltaTable.create(session).location(self.path).partitionedBy(BUCKET)
        for name, type_ in layout.column_types:
            builder = builder.addColumn(name, type_)
        for name, text in {**new_properties(self._definition, ids), **self._kept}.items():
            builder = builder.property(name, text)
        with explained(f"table {self._definition.name}"):
            self._log.forget_beginning()
            builder.execute()
        return layout


def layout_of(definition: TableDefinition, ids: ColumnIds, buckets: int | None = None) -> Layout:
    """The layout of a table with these columns; of a new one, unless `buckets` says how many it has."""
    return Layout(definition, buckets or definition.buckets, tuple(ids.since.get(column.name, 0) for column in definition.columns))


def new_properties(definition: TableDefinition, ids: ColumnIds) -> dict[str, str]:
    """The properties of a table that is made."""
    return {
        **to_properties(definition, ids),
        BUCKETS_PROPERTY: str(definition.buckets),
        ENABLED: str(definition.deletion_vectors).lower(),
        **_statistics(definition),
        "delta.checkpointInterval": "50",
    }


def _named(table_state: TableState) -> str:
    """The condition that holds for entries of the attempts that the commit names."""
    return (
        " OR ".join(f"(_apply_number = {apply} AND _attempt_id = '{attempt}')" for apply, attempt in table_state.attempt_ids.items())
        or "false"
    )


def _tombstones_state(expired_below: int) -> dict[str, object]:
    """What a commit of the graveyard says: entries whose every order is older than that are gone (MRG-10)."""
    return {"tombstones": True, "expired_below": expired_below}


def _statistics(definition: TableDefinition) -> dict[str, str]:
    """Delta keeps statistics of the key columns alone, and has none for bytes and truth values."""
    keys = [f"`{part.name}`" for part in definition.key.parts if part.type not in (DataType.BYTES, DataType.BOOL)]
    return {"delta.dataSkippingStatsColumns": ",".join(keys)} if keys else {"delta.dataSkippingNumIndexedCols": "0"}


def new_attempt() -> str:
    """A name for one attempt at an apply, unlike any other."""
    return uuid.uuid4().hex

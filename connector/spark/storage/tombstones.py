"""The tombstone table of a table. It remembers deleted rows (TBL-12, MRG-10).

Tombstones are added before the table's commit, which names their attempt. Those of attempts that no
commit names do not count, and are removed later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from connector.errors import WriterConflictError
from connector.errors.tables import tombstones_unusable
from connector.spark.failures import explained
from connector.spark.sql import constant
from connector.spark.storage.delta_log import DeltaLog, set_properties
from connector.spark.storage.files import all_files
from connector.spark.storage.hadoop import names_in
from connector.spark.storage.layout import Layout
from connector.spark.storage.maintenance import (
    Rewritten,
    Work,
    commit_marker,
    forget_versions,
    rewrite,
    without_rows,
)
from connector.spark.storage.transaction import CHECKPOINTS, Transaction, create_table, row_type
from connector.state.commits import Commit, user_metadata
from connector.state.table_state import TableState
from connector.tables.column_names import BUCKET, STATE

_COLUMNS: Final = (
    ("_apply_number", "bigint"),
    ("_attempt_id", "string"),
    ("_newest", "bigint"),
)
"""The columns of a tombstone after those of its row."""
_TRIES: Final = 5
"""How often a commit is tried, if other programs commit at the same time."""


class Tombstones:
    """The tombstone table at `path`, of the table `name`. It may not exist yet. Most methods get
    the table state of a commit. They raise `TableError` if another program changed the tombstone
    table, or if the table was restored to a version before the last vacuum of tombstones.
    """

    def __init__(self, spark: SparkSession, path: str, name: str) -> None:
        self._spark, self.path, self._name = spark, path, name
        self.log = DeltaLog(spark, path)

    def of_replaced(self) -> list[str]:
        """The tombstone tables beside this one, of tables that were replaced."""
        folder = self.path.rpartition("/")[0]
        names = names_in(self._spark, folder, folders=True)
        paths = [f"{folder}/{name}" for name in names if name.startswith("tombstones")]
        return [path for path in paths if path != self.path]

    def exist(self, table_state: TableState) -> bool:
        """Whether there is a tombstone table."""
        return self.expired_below(table_state) is not None

    def expired_below(self, table_state: TableState) -> int | None:
        """The horizon below which tombstones were removed (0: none). None: there is no table."""
        commit = self._newest(table_state)
        return None if commit is None else int((commit.stored or {})["expired_below"])

    def _newest(self, table_state: TableState) -> Commit | None:
        commit = self.log.newest()
        if commit is None and not table_state.has_tombstones:
            return None
        expired_below = commit.stored.get("expired_below") if commit and commit.stored else None
        if isinstance(expired_below, int) and expired_below <= max(0, table_state.horizon or 0):
            return commit
        if commit is None:
            what = "is missing"
        elif expired_below is None:
            what = f"was changed by another program{commit.description}"
        else:
            what = "lacks deletes that the table needs: an older version of the table was restored"
        raise tombstones_unusable(self.path, self._name, what)

    def rows(self, table_state: TableState, layout: Layout) -> DataFrame:
        """The tombstones at the commit with `table_state`: key columns, `_state`, `_bucket`. There
        must be a tombstone table. A vacuum before the rows are read does not change them.
        """
        commit = self._newest(table_state)
        assert commit is not None, "there is no tombstone table"
        if (files := self.log.files(commit.version)) is not None:
            entries = files.rows()
        else:
            reader = self._spark.read.format("delta").option("versionAsOf", commit.version)
            entries = reader.load(self.path)
        # The same code for all attempts, see `constant`.
        attempts = table_state.attempt_ids
        named = (
            F.map_from_arrays(F.lit([*attempts]), F.lit([*attempts.values()]))
            if attempts
            else F.lit(None).cast("map<int, string>")
        )
        is_named = F.try_element_at(named, F.expr("int(_apply_number)")) == F.col("_attempt_id")
        entries = entries.where(
            F.expr(f"_apply_number <= {constant(table_state.vacuumed_to, BUCKET)}") | is_named
        )
        return entries.selectExpr(BUCKET, *layout.keys, STATE)

    def files(self, table_state: TableState) -> tuple[str, ...]:
        """The files of the tombstone table, as actions of Delta's log."""
        commit = self._newest(table_state)
        if commit is None:
            return ()
        added = self.log.added(commit.version)
        return all_files(self._spark, self.path).actions() if added is None else added

    def version(self) -> int | None:
        """The newest version. None: there is no tombstone table."""
        commit = self.log.newest()
        return None if commit is None else commit.version

    def still_possible(self, actions: Sequence[str], version: int | None) -> list[str]:
        """The actions that were made for a version, and can be committed after the newest one: if
        that is another one, none that removes a file. Its rows are then in two files, which changes
        nothing.
        """
        is_newest = version == self.version()
        return [action for action in actions if is_newest or not action.startswith('{"remove"')]

    def commit_files(
        self, actions: Sequence[str], version: int | None, table_state: TableState
    ) -> bool:
        """Commit files with tombstones, made for `version`. There must be a tombstone table.
        Returns as `DeltaLog.commit_files`. Another program may replace files meanwhile.
        """
        for left in reversed(range(_TRIES)):
            commit = self._newest(table_state)
            assert commit is not None, "there is no tombstone table"
            stored = tombstones_state(int((commit.stored or {})["expired_below"]))
            possible = self.still_possible(actions, version)
            try:
                return self.log.commit_files(commit.version, possible, stored)
            except WriterConflictError:
                if not left:
                    raise
        raise AssertionError

    def begin(
        self, expired_below: int | None, layout: Layout, properties: Mapping[str, str]
    ) -> Transaction:
        """A commit to the tombstone table. A missing table is created with the properties."""
        if expired_below is None:
            types = dict(layout.column_types)
            of_row = [(name, types[name]) for name in (*layout.key_names, STATE, BUCKET)]
            create_table(
                self._spark,
                self.path,
                row_type(self._spark, [*of_row, *_COLUMNS]),
                {"delta.dataSkippingStatsColumns": "_newest", **CHECKPOINTS, **properties},
                tombstones_state(0),
            )
        return Transaction(self._spark, self.path, None)

    def declare(self, properties: Mapping[str, str]) -> None:
        """Set properties of the tombstone table, if there is one."""
        commit = self.log.newest()
        if commit is not None and commit.stored is not None:
            with explained(f"table {self._name}"):
                set_properties(self._spark, self.path, properties, user_metadata(commit.stored))

    def rewrite(self, table_state: TableState) -> Rewritten | None:
        """Write the rows of small files into larger ones, if it is worth it."""
        return rewrite(self._spark, self.log) if self.exist(table_state) else None

    def without(self, table_state: TableState, horizon: int) -> Rewritten | None:
        """Write the tombstones again, without those that no commit up to `table_state` names or
        that are older than `horizon`. None: there is no such tombstone.
        """
        ids = table_state.attempt_ids.items()
        named = ", ".join(f"{apply}L, '{attempt}'" for apply, attempt in ids)
        is_named = f"try_element_at(map({named}), _apply_number) = _attempt_id" if ids else "false"
        is_failed = (
            f"_apply_number > {table_state.vacuumed_to} AND _apply_number <="
            f" {table_state.apply_number} AND NOT coalesce({is_named}, false)"
        )
        return without_rows(self._spark, self.path, f"(_newest < {horizon} OR ({is_failed}))")

    def expire(self, horizon: int) -> Work:
        """Commit that no tombstone is below `horizon`."""
        commit = self.log.newest()
        assert commit is not None, "there is no tombstone table"
        stored = tombstones_state(horizon)
        with explained(f"table {self._name}"):
            if not self.log.commit_files(commit.version, (), stored):
                Transaction(self._spark, self.path, None).commit(0, stored)
        return Work()

    def erase(
        self, table_state: TableState, where: str, begun_at: int, on_step: Callable[[str], None]
    ) -> None:
        """Remove the tombstones for which the SQL is true, and all older versions (OPR-2). No apply
        may run at `begun_at` (µs).
        """
        if not self.exist(table_state):
            return
        if (rewritten := without_rows(self._spark, self.path, where)) is not None:
            on_step(f"tombstones written {self._name}")
            self.replace(rewritten, is_alone=True)
            on_step(f"tombstones committed {self._name}")
        commit_marker(self._spark, self.log, self.log.newest_stored() or {}, ())
        on_step(f"tombstones marked {self._name}")
        forget_versions(self._spark, self.log, begun_at, on_step)

    def replace(
        self, rewritten: Rewritten, horizon: int | None = None, *, is_alone: bool = False
    ) -> Work:
        """Commit files that were written again. `horizon` None: no tombstone was left out."""
        return rewritten.commit(
            self.log,
            [],
            dict if horizon is None else lambda _: tombstones_state(horizon),
            is_alone=is_alone,
        )


def tombstones_state(expired_below: int) -> dict[str, object]:
    """The metadata of a tombstone commit: those below `expired_below` were removed (MRG-10)."""
    return {"tombstones": True, "expired_below": expired_below}

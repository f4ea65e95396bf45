"""Compares a table with a copy of its rows from elsewhere (OPR-1).

The rows of both are read once, and each adds its digest to the checksum of its bucket, which
follows from the row key. Then only the rows of buckets that differ are read again and compared.
Memory does not grow with the table.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from connector.errors.records import row_not_comparable
from connector.records.views import Shown, Viewed
from connector.services.read import plain_version
from connector.services.rows.files import FileFormat, describe_file, file_columns, file_rows
from connector.services.rows.load import convert_of
from connector.services.rows.values import Convert, Misfit, RowMaker, of_arrow
from connector.tables.stored_definition import from_properties
from connector.tables.values import Unreadable, view_of_value

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig
    from connector.lake.plain_table import PlainTable
    from connector.tables.definition import TableDefinition
    from connector.tables.keys import Key

_BUCKETS: Final = 4096
_AT_ONCE: Final = 250_000
"""The rows of either side that are compared with one reading of both."""
_REPORT_EVERY: Final = 10_000
_LOG: Final = "_delta_log"

_Cells = tuple[bytes | None, ...]
_Row = tuple[bytes, _Cells]
_Side = Callable[[], Iterator[_Row]]


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not the same in both. `kind` is `missing` (the table does not have it), `extra`
    (only the table has it), `different` or `repeated` (the copy has it more than once).

    `key` has the values of the key columns as JSON, and `columns` are those that differ.
    """

    kind: str
    key: tuple[Any, ...]
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reconciled(Viewed):
    """The result of a comparison.

    - `read` names the version of the table in one sentence. `rows` are its rows, `other_rows` those
      of the copy.
    - `not_compared` are the columns that the copy does not have.
    """

    table: str
    against: str
    read: str
    rows: int
    other_rows: int
    not_compared: tuple[str, ...]
    missing: int
    extra: int
    different: int
    repeated: int

    @property
    def is_equal(self) -> Shown[bool]:
        """Whether both have the same rows."""
        return not (self.missing or self.extra or self.different or self.repeated)


def reconcile(
    config: ConnectorConfig,
    table: str,
    against: str | Path,
    *,
    snapshot: bool = False,
    file_format: str | None = None,
    null: str = "",
    on_difference: Callable[[Difference], None] = lambda difference: None,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Reconciled:
    """Compare the rows of a table with a file or with another Delta table. It needs no Java.

    For example: `reconcile(config, "orders", "export.parquet", snapshot=True).is_equal`.

    Args:
        config: It has the table.
        table: The name of the table. Changes that are not applied yet are not looked at.
        against: A file as for `load`, or the folder or URI of a Delta table. Its columns have the
            names and types of the table. Columns that it does not have are not compared.
        snapshot: Compare the newest cut of all tables of the stream. False: the last apply.
        file_format: `csv`, `jsonl` or `parquet`. None: the end of the file name says it.
        null: The text of a CSV field without a value.
        on_difference: Receives each row that is not the same.
        on_rows: Receives the number of rows that were read so far.

    Returns:
        The numbers of rows that are the same in both and that are not.

    Raises:
        ConfigError: There is no such table.
        TableError: A table, or the snapshot, cannot be read.
        ConnectorError: The file cannot be read, has other columns or types, or has a row that the
            table could not hold.
    """
    opened, version = plain_version(config, table, snapshot=snapshot)
    definition, _ = from_properties(opened.properties)
    other = _copy(str(against), definition, file_format, null)
    names = other.maker.names
    mine = _of_table(opened, other.maker, f"table {table}")
    mine, others = _counting((mine, other.rows), on_rows)
    counts = dict.fromkeys(("missing", "extra", "different", "repeated"), 0)
    rows, other_rows = _checksums(mine), _checksums(others)
    for difference in _differences(mine, others, rows, other_rows):
        counts[difference.kind] += 1
        on_difference(_shown(difference, other.maker, definition.key))
    return Reconciled(
        table,
        str(against),
        version.text,
        sum(bucket.rows for bucket in rows),
        sum(bucket.rows for bucket in other_rows),
        tuple(column.name for column in definition.columns if column.name not in names),
        **counts,
    )


@dataclass(frozen=True, slots=True)
class _Copy:
    """The rows of the other side, and what makes rows of its columns."""

    maker: RowMaker
    rows: _Side


def _copy(against: str, definition: TableDefinition, file_format: str | None, null: str) -> _Copy:
    whole = RowMaker(definition, None)

    def maker_of(columns: Sequence[str] | None) -> RowMaker:
        kept = [c for c in definition.columns if columns is None or c.name in columns]
        return RowMaker(replace(definition, columns=tuple(kept)), None)

    if "://" in against or (Path(against) / _LOG).is_dir():
        from connector.lake.plain_table import open_table
        from connector.services.rows.parquet import check_columns

        opened = open_table(against)
        schema = opened.arrow_schema()
        check_columns(Path(against), schema, whole.names, whole.types, whole.key_names)
        maker = maker_of(schema.names)
        return _Copy(maker, _of_table(opened, maker, against))
    file = describe_file(Path(against), file_format)
    maker = maker_of(file_columns(file, whole.names, whole.types, whole.key_names))
    unit = "row" if file.format is FileFormat.PARQUET else "line"
    read = partial(file_rows, file, maker.names, maker.types, maker.key_names, null)
    return _Copy(maker, _side(read, maker, convert_of(file), f"{against}, {unit}"))


def _side(
    numbered: Callable[[], Iterable[tuple[int, Sequence[object] | Misfit]]],
    maker: RowMaker,
    convert: Convert,
    where: str,
) -> _Side:
    """The row keys and cells of rows with their numbers. A row that the table could not have is an
    error.
    """

    def rows() -> Iterator[_Row]:
        for number, values in numbered():
            row = values if isinstance(values, Misfit) else maker.read(values, convert)
            if isinstance(row, Misfit):
                raise row_not_comparable(f"{where} {number}", row.column, row.detail)
            yield row

    return rows


def _of_table(opened: PlainTable, maker: RowMaker, where: str) -> _Side:
    rows = partial(opened.select, maker.names)
    return _side(lambda: enumerate(rows(), 1), maker, of_arrow, f"{where}, row")


def _counting(sides: tuple[_Side, _Side], on_rows: Callable[[int], None]) -> Iterator[_Side]:
    """The same sides, which report the rows that both have read."""
    total = itertools.count(1)

    def counting(side: _Side) -> _Side:
        def rows() -> Iterator[_Row]:
            for row in side():
                number = next(total)
                if number % _REPORT_EVERY == 0:
                    on_rows(number)
                yield row

        return rows

    return map(counting, sides)


@dataclass(slots=True)
class _Bucket:
    """The number of rows of a bucket, and the sum of their digests."""

    rows: int = 0
    sum: int = 0

    def add(self, row: _Row) -> None:
        row_key, cells = row
        digest = blake2b(row_key, digest_size=16)
        for cell in cells:
            digest.update(b"-" if cell is None else b"%d:%b" % (len(cell), cell))
        self.rows += 1
        self.sum += int.from_bytes(digest.digest())


def _bucket_of(row_key: bytes) -> int:
    return zlib.crc32(row_key) % _BUCKETS


def _checksums(side: _Side) -> list[_Bucket]:
    buckets = [_Bucket() for _ in range(_BUCKETS)]
    for row in side():
        buckets[_bucket_of(row[0])].add(row)
    return buckets


@dataclass(frozen=True, slots=True)
class _Unequal:
    """A difference. `columns` are the indexes of those that differ."""

    kind: str
    row_key: bytes
    columns: tuple[int, ...] = ()


def _differences(
    mine: _Side, others: _Side, buckets: list[_Bucket], other_buckets: list[_Bucket]
) -> Iterator[_Unequal]:
    wanted, size = set[int](), 0
    for number, bucket in enumerate(buckets):
        if bucket == other_buckets[number]:
            continue
        rows = max(bucket.rows, other_buckets[number].rows)
        if wanted and size + rows > _AT_ONCE:
            yield from _of_buckets(mine, others, wanted)
            wanted, size = set(), 0
        wanted.add(number)
        size += rows
    if wanted:
        yield from _of_buckets(mine, others, wanted)


def _of_buckets(mine: _Side, others: _Side, wanted: set[int]) -> Iterator[_Unequal]:
    left = {key: cells for key, cells in mine() if _bucket_of(key) in wanted}
    compared = set[bytes]()
    for key, cells in others():
        if _bucket_of(key) not in wanted:
            continue
        if key in compared:
            yield _Unequal("repeated", key)
            continue
        compared.add(key)
        if (own := left.pop(key, None)) is None:
            yield _Unequal("missing", key)
        elif own != cells:
            pairs = enumerate(zip(own, cells, strict=True))
            yield _Unequal("different", key, tuple(n for n, (a, b) in pairs if a != b))
    for key in left:
        yield _Unequal("extra", key)


def _shown(unequal: _Unequal, maker: RowMaker, key: Key) -> Difference:
    names = maker.names[len(maker.key_names) :]
    values = key.read_key(unequal.row_key)
    assert not isinstance(values, Unreadable), "its own key"
    shown = [view_of_value(p.type, v) for p, v in zip(key.parts, values, strict=True)]
    return Difference(unequal.kind, tuple(shown), tuple(names[n] for n in unequal.columns))

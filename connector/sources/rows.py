"""Reads the keys and the cells of rows, whatever their format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from connector.sources import doubts
from connector.sources.columns import Shown, SourceColumn, SourceTable, key_parts
from connector.sources.records import Cells, Fields, Format, Schema, Target, Targets
from connector.sources.schemas import Field
from connector.sources.tables import KnownTables
from connector.sources.unsent import hides_values
from connector.sources.values import (
    ISO_TIME,
    MYSQL,
    Convert,
    Kind,
    kind_of,
    may_be_unsigned,
    of_base64,
)
from connector.tables.definition import TableDefinition
from connector.tables.keys import MAX_KEY_COLUMNS
from connector.tables.nested import ArrayType
from connector.tables.presence import PRESENCE_QUALIFIER
from connector.tables.values import DataType

MAX_PLANS: Final = 10_000
"""The most tables and schemas whose plans are kept."""
_LONGEST_INT: Final = 100


def _changed_key(was_key: str) -> ValueError:
    """The error of a row whose key is another column than that of the table. A key column that was
    renamed is no longer in its row under the old name.
    """
    return ValueError(f"the key of the table is {was_key}, and this row has another key")


class Plan(NamedTuple):
    """How the rows of a table with these schemas are read.

    - `key` has the targets of the key fields, and `key_types` the types of the key columns.
    - `shown_key` has what the key shows of its fields.
    - `targets` has those of the other fields.
    - `others` names, for a cell, the cells of its field that have another type.
    - `with_column` has the fields that have a column. None: the columns follow from a schema.
    - `was_key` is the name of the only key column, if the field of the key has another name.
    - `hidden` has the fields whose NULL may stand for a value that was not sent.
    """

    key: Targets
    key_types: Mapping[str, DataType]
    shown_key: list[Shown]
    targets: Targets
    others: Mapping[str, list[str]]
    with_column: set[str] | None
    was_key: str
    hidden: set[str]


class RowReader:
    """Reads rows, and keeps how those of each table are read.

    Args:
        format: JSON or Avro.
        tables: The tables of the source.
        has_zone: Whether Connect's `Timestamp` is a moment.
    """

    def __init__(
        self,
        format: Format,  # noqa: A002 - the word of the field
        tables: KnownTables,
        *,
        has_zone: bool,
    ) -> None:
        self.format, self.tables, self._has_zone = format, tables, has_zone
        self._plans: dict[tuple[str, Schema | None, Schema | None, tuple[str, ...], str], Plan] = {}

    def plan(
        self, table: str, key: Fields, schema: Schema | None, row: str = "", connector: str = ""
    ) -> Plan:
        """Return how a row is read.

        Args:
            table: The name of the table in change records.
            key: Its key.
            schema: The schema of the record, or None.
            row: The field of the schema that is the row. Empty: the schema is that of the row.
            connector: Debezium's word for the kind of the source. Empty: it is not known.
        """
        cache_key = (table, key.schema, schema, tuple(key.values), connector)
        plan = self._plans.get(cache_key)
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            declared = None if schema is None else schema.field
            if declared is not None and row:
                declared = declared.part(row)
            plan = self._plans[cache_key] = self._made(table, key, declared, connector)
        return plan

    def key(self, key: Fields, plan: Plan) -> dict[str, object]:
        """Return the values of the key columns. Raises `ValueError` for NULL."""
        values: dict[str, object] = {}
        for name, cell in self.format.cells(key.values, plan.key).items():
            if cell is None:
                raise ValueError(f"key column {name} is NULL")
            type_ = plan.key_types[name]
            if type_ is DataType.BYTES:
                values[name] = cell
            elif type_ is DataType.INT64 and len(cell) < _LONGEST_INT:
                values[name] = number = int(cell)
                if b"%d" % number != cell:  # a text, such as 007, is another key than 7
                    raise ValueError(f"key column {name} is {cell!r}, and not INT64")
            else:
                values[name] = cell.decode()
        return values

    def cells(self, table: str, values: Mapping[str, Any], plan: Plan) -> Cells:
        """Return the cells of the fields of a row. New fields without a schema become columns."""
        cells = self.format.cells(values, plan.targets)
        if plan.was_key and plan.was_key in cells:
            raise _changed_key(plan.was_key)
        existing = plan.with_column
        if existing is not None and not existing.issuperset(cells):
            guesses = [
                Shown(field, type_, is_guess=True)
                for field in cells
                if field not in existing and (type_ := self.format.guess(values[field])) is not None
            ]
            existing.update(guess.field for guess in guesses)
            plan.hidden.update(guess.field for guess in guesses if _may_have_lists(guess))
            if guesses:
                self.tables.meet(table, plan.shown_key, guesses)
        return cells

    def _kind(self, field: Field, connector: str) -> Kind:
        return kind_of(field, has_zone=self._has_zone, is_mysql=connector in MYSQL)

    def _made(self, table: str, key: Fields, row: Field | None, connector: str) -> Plan:
        if not 1 <= len(key.values) <= MAX_KEY_COLUMNS:
            raise ValueError(f"a key of {len(key.values)} fields")
        of_key = {
            name: None if key.schema is None else key.schema.field.part(name) for name in key.values
        }
        shown_key = [
            self._shown(name, of_key[name], connector, value) for name, value in key.values.items()
        ]
        fields = () if row is None else tuple(f for f in row.parts if f.name not in key.values)
        shown = [self._shown(field.name, field, connector) for field in fields]
        made = self.tables.meet(table, shown_key, shown)
        if row is None and connector in MYSQL:
            self.tables.doubt(doubts.numbers_without_schema())
        if row is not None and connector and connector not in MYSQL:
            self._doubt_missing_fields(table, made, row)
        was_key, names = made.key[0].name, [part.name for part in key_parts(shown_key)]
        if len(made.key) > 1 or names == [was_key]:
            was_key = ""
        if was_key and any(field.name == was_key for field in fields):
            raise _changed_key(was_key)
        targets = self._targets(table, made, zip(fields, shown, strict=True), connector)
        targets.update(dict.fromkeys(key.values))
        key_targets, key_types = self._key_targets(table, made, shown_key, of_key, connector)
        cells: dict[str, list[str]] = {}
        for column in made.columns:
            cells.setdefault(column.field, []).append(column.cell)
        others = {
            cell: [other for other in same if other != cell]
            for same in cells.values()
            for cell in same
        }
        with_column = {*cells, *key.values} if row is None else None
        hidden = {field.name for field in fields if hides_values(field)}
        if row is None:
            hidden = {c.field for c in made.columns if _may_have_lists(c)}
            declared = self.tables.declared.get(table)
            hidden |= set() if declared is None else _arrays(declared)
        return Plan(
            key_targets, key_types, shown_key, targets, others, with_column, was_key, hidden
        )

    def _doubt_missing_fields(self, table: str, made: SourceTable, row: Field) -> None:
        shown = {field.name for field in row.parts}
        fields = dict.fromkeys(c.field for c in made.columns if c.field not in shown)
        if fields:
            self.tables.doubt(doubts.missing_fields(table, fields))

    def _shown(self, name: str, field: Field | None, connector: str, value: Any = None) -> Shown:
        """The field as its schema shows it, or without one, a value of the key."""
        if field is None:
            return Shown(name, self.format.guess(value) or DataType.STRING, is_guess=True)
        return Shown(name, self._kind(field, connector).type, default=field.default)

    def _convert(self, table: str, field: Field, connector: str) -> Convert | None:
        """How a value of a field becomes a cell. A negative number of MySQL that may be a large one
        is doubted, and so is a time.
        """
        convert = self.format.convert(self._kind(field, connector))
        if connector in MYSQL and field.logical == ISO_TIME:
            self.tables.doubt(doubts.iso_time(f"{table}.{field.name}"))
        if connector not in MYSQL or not may_be_unsigned(field):
            return convert
        column = f"{table}.{field.name}"
        self.tables.unsigned[column] = None
        text = doubts.unsigned_number(column)

        def doubted(value: Any) -> bytes:
            if value < 0 if isinstance(value, int) else value[:1] == b"-":
                self.tables.doubt(text)
            return value if convert is None else convert(value)

        return doubted

    def _targets(
        self,
        table: str,
        made: SourceTable,
        fields: Iterable[tuple[Field, Shown]],
        connector: str,
    ) -> Targets:
        targets = Targets()
        declared = self.tables.declared.get(table)
        for column in () if declared is None else declared.columns:
            if column.type is DataType.BYTES:
                field_name = column.qualifier.decode("utf-8", "replace")
                targets[field_name] = Target(field_name, of_base64)
        for field, shown in fields:
            of_field = made.column(field.name, shown.type)
            cell = field.name if of_field is None else of_field.cell
            targets[field.name] = Target(cell, self._convert(table, field, connector))
            if field.is_optional and field.default is not None:
                self.tables.defaults.setdefault(table, {})[cell] = None
        targets[PRESENCE_QUALIFIER.decode()] = None
        return targets

    def _key_targets(
        self,
        table: str,
        made: SourceTable,
        shown_key: list[Shown],
        fields: Mapping[str, Field | None],
        connector: str,
    ) -> tuple[Targets, dict[str, DataType]]:
        definition = self.tables.declared.get(table)
        declared = {} if definition is None else {p.name: p.type for p in definition.key.parts}
        parts = {part.name: part.type for part in made.key}
        names = [part.name for part in key_parts(shown_key)]
        if len(names) == len(parts) == 1:
            names = list(parts)  # its field has another name than before
        if set(names) != set(parts):
            raise ValueError(f"the key has {', '.join(names)}: the table has {', '.join(parts)}")
        targets, types = Targets(), {}
        for name, shown in zip(names, shown_key, strict=True):
            type_ = parts[name]
            if len(declared) == 1:
                (name,) = declared  # the only one may have any name
            type_ = declared.get(name, type_)
            convert: Convert | None = of_base64 if type_ is DataType.BYTES else None
            if (field := fields[shown.field]) is not None:
                convert = self._convert(table, field, connector)
            targets[shown.field] = Target(name, convert)
            types[name] = type_
        return targets, types


def _may_have_lists(shown: Shown | SourceColumn) -> bool:
    """Whether a column of records without a schema may have lists."""
    return isinstance(shown.type, ArrayType) or (shown.is_guess and shown.type is DataType.JSON)


def _arrays(definition: TableDefinition) -> set[str]:
    """The fields of the columns that a definition declares as arrays."""
    arrays = [column for column in definition.columns if isinstance(column.type, ArrayType)]
    return {name for c in arrays for name in (c.name, c.qualifier.decode("utf-8", "replace"))}

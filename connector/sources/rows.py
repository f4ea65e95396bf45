"""Reads the keys and the cells of rows, whatever their format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from connector.sources.columns import Shown, SourceTable, key_parts
from connector.sources.records import Cells, Fields, Format, Schema, Target, Targets
from connector.sources.schemas import Field
from connector.sources.tables import KnownTables
from connector.sources.values import Convert, Kind, kind_of, of_base64
from connector.tables.keys import MAX_KEY_COLUMNS
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
    """

    key: Targets
    key_types: Mapping[str, DataType]
    shown_key: list[Shown]
    targets: Targets
    others: Mapping[str, list[str]]
    with_column: set[str] | None
    was_key: str


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
        self._plans: dict[tuple[str, Schema | None, Schema | None, tuple[str, ...]], Plan] = {}

    def plan(self, table: str, key: Fields, schema: Schema | None, row: str = "") -> Plan:
        """Return how a row is read.

        Args:
            table: The name of the table in change records.
            key: Its key.
            schema: The schema of the record, or None.
            row: The field of the schema that is the row. Empty: the schema is that of the row.
        """
        cache_key = (table, key.schema, schema, tuple(key.values))
        plan = self._plans.get(cache_key)
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            declared = None if schema is None else schema.field
            if declared is not None and row:
                declared = declared.part(row)
            plan = self._plans[cache_key] = self._made(table, key, declared)
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
            if guesses:
                self.tables.meet(table, plan.shown_key, guesses)
        return cells

    def _kind(self, field: Field) -> Kind:
        return kind_of(field, has_zone=self._has_zone)

    def _made(self, table: str, key: Fields, row: Field | None) -> Plan:
        if not 1 <= len(key.values) <= MAX_KEY_COLUMNS:
            raise ValueError(f"a key of {len(key.values)} fields")
        of_key = {
            name: None if key.schema is None else key.schema.field.part(name) for name in key.values
        }
        shown_key = [self._shown(name, of_key[name], value) for name, value in key.values.items()]
        fields = () if row is None else tuple(f for f in row.parts if f.name not in key.values)
        shown = [self._shown(field.name, field) for field in fields]
        made = self.tables.meet(table, shown_key, shown)
        was_key, names = made.key[0].name, [part.name for part in key_parts(shown_key)]
        if len(made.key) > 1 or len(names) > 1 or names == [was_key]:
            was_key = ""
        if was_key and any(field.name == was_key for field in fields):
            raise _changed_key(was_key)
        targets = self._targets(table, made, zip(fields, shown, strict=True))
        targets.update(dict.fromkeys(key.values))
        key_targets, key_types = self._key_targets(table, made, shown_key, of_key)
        cells: dict[str, list[str]] = {}
        for column in made.columns:
            cells.setdefault(column.field, []).append(column.cell)
        others = {
            cell: [other for other in same if other != cell]
            for same in cells.values()
            for cell in same
        }
        with_column = {*cells, *key.values} if row is None else None
        return Plan(key_targets, key_types, shown_key, targets, others, with_column, was_key)

    def _shown(self, name: str, field: Field | None, value: Any = None) -> Shown:
        """The field as its schema shows it, or without one, a value of the key."""
        if field is None:
            return Shown(name, self.format.guess(value) or DataType.STRING, is_guess=True)
        return Shown(name, self._kind(field).type, default=field.default)

    def _targets(
        self, table: str, made: SourceTable, fields: Iterable[tuple[Field, Shown]]
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
            targets[field.name] = Target(cell, self.format.convert(self._kind(field)))
        targets[PRESENCE_QUALIFIER.decode()] = None
        return targets

    def _key_targets(
        self,
        table: str,
        made: SourceTable,
        shown_key: list[Shown],
        fields: Mapping[str, Field | None],
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
                convert = self.format.convert(self._kind(field))
            targets[shown.field] = Target(name, convert)
            types[name] = type_
        return targets, types

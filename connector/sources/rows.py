"""Reads the keys and the cells of rows, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from connector.sources.columns import Shown, SourceTable, key_parts
from connector.sources.records import Cells, Fields, Format, Schema, Target, Targets
from connector.sources.schemas import Field
from connector.sources.tables import KnownTables
from connector.sources.values import kind_of, of_base64
from connector.tables.keys import MAX_KEY_COLUMNS
from connector.tables.presence import PRESENCE_QUALIFIER
from connector.tables.values import DataType

MAX_PLANS: Final = 10_000
"""The most tables and schemas whose plans are kept."""


class Plan(NamedTuple):
    """How the rows of a table with these schemas are read.

    - `key` has the targets of the key fields, and `key_types` the types of the key columns.
    - `targets` has those of the other fields.
    - `others` names, for a cell, the cells of its field that have another type.
    - `has_schema`: the columns follow from a schema.
    - `with_column` has the fields that have a column.
    - `was_key` is the name of the only key column, if the field of the key has another name.
    """

    key: Targets
    key_types: Mapping[str, DataType]
    targets: Targets
    others: Mapping[str, tuple[str, ...]]
    has_schema: bool
    with_column: set[str]
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

    def cells(self, table: str, values: Mapping[str, Any], key: Fields, plan: Plan) -> Cells:
        """Return the cells of the fields of a row. New fields without a schema become columns."""
        cells = self.format.cells(values, plan.targets)
        if plan.was_key and plan.was_key in cells:
            raise _changed_key(plan.was_key)
        if not plan.has_schema and not plan.with_column.issuperset(cells):
            new = [field for field in cells if field not in plan.with_column]
            shown = [self.format.shown(field, values[field]) for field in new]
            guesses = [guess for guess in shown if guess is not None]
            plan.with_column.update(guess.field for guess in guesses)
            if guesses:
                self.tables.meet(table, self._shown_key(key), guesses)
        return cells

    def _made(self, table: str, key: Fields, row: Field | None) -> Plan:
        if not 1 <= len(key.values) <= MAX_KEY_COLUMNS:
            raise ValueError(f"a key of {len(key.values)} fields")
        fields = () if row is None else tuple(f for f in row.parts if f.name not in key.values)
        shown = [
            Shown(field.name, kind_of(field, has_zone=self._has_zone).type, default=field.default)
            for field in fields
        ]
        made = self.tables.meet(table, self._shown_key(key), shown)
        was_key = ""
        if len(made.key) == len(key.values) == 1:
            (part,) = key_parts(self._shown_key(key))
            was_key = "" if part.name == made.key[0].name else made.key[0].name
        if was_key and any(field.name == was_key for field in fields):
            raise _changed_key(was_key)
        targets = self._targets(
            table, made, zip(fields, (each.type for each in shown), strict=True)
        )
        targets.update(dict.fromkeys(key.values))
        key_targets, key_types = self._key_targets(table, made, key)
        with_column = {column.field for column in made.columns} | {*key.values}
        others, is_declared = _others(made), row is not None
        return Plan(key_targets, key_types, targets, others, is_declared, with_column, was_key)

    def _targets(self, table: str, made: SourceTable, fields: Any) -> Targets:
        targets = Targets()
        declared = self.tables.declared.get(table)
        for name in () if declared is None else declared.bytes_fields:
            targets[name] = Target(name, of_base64)
        for field, type_ in fields:
            column = made.column(field.name, type_)
            convert = self.format.convert(field, has_zone=self._has_zone)
            targets[field.name] = Target(field.name if column is None else column.cell, convert)
        targets[PRESENCE_QUALIFIER.decode()] = None
        return targets

    def _key_targets(
        self, table: str, made: SourceTable, key: Fields
    ) -> tuple[Targets, dict[str, DataType]]:
        declared = self.tables.declared.get(table)
        shown_key = self._shown_key(key)
        parts = {part.name: part for part in made.key}
        names = [part.name for part in key_parts(shown_key)]
        if len(names) == len(parts) == 1:
            names = list(parts)  # its field has another name than before
        if set(names) != set(parts):
            raise ValueError(f"the key has {', '.join(names)}: the table has {', '.join(parts)}")
        targets, types = Targets(), {}
        for name, shown in zip(names, shown_key, strict=True):
            type_ = parts[name].type
            if declared is not None:
                name = declared.key_name(name)
                type_ = declared.key.get(name, type_)
            field = _field_of(key.schema, shown.field)
            convert = None
            if field is not None:
                convert = self.format.convert(field, has_zone=self._has_zone)
            elif type_ is DataType.BYTES:
                convert = of_base64
            targets[shown.field] = Target(name, convert)
            types[name] = type_
        return targets, types

    def _shown_key(self, key: Fields) -> list[Shown]:
        shown = []
        for name, value in key.values.items():
            field, type_ = _field_of(key.schema, name), None
            if field is not None:
                type_ = kind_of(field, has_zone=self._has_zone).type
            guess = None if type_ is not None else self.format.shown(name, value)
            is_guess, type_ = type_ is None, type_ or (guess.type if guess else DataType.STRING)
            shown.append(Shown(name, type_, is_guess))
        return shown


_LONGEST_INT: Final = 100


def _changed_key(was_key: str) -> ValueError:
    """The error of a row whose key is another column than that of the table. A key column that was
    renamed is no longer in its row under the old name.
    """
    return ValueError(f"the key of the table is {was_key}, and this row has another key")


def _field_of(schema: Schema | None, name: str) -> Field | None:
    return None if schema is None else schema.field.part(name)


def _others(table: SourceTable) -> dict[str, tuple[str, ...]]:
    by_field: dict[str, list[str]] = {}
    for column in table.columns:
        by_field.setdefault(column.field, []).append(column.cell)
    return {
        cell: tuple(other for other in cells if other != cell)
        for cells in by_field.values()
        if len(cells) > 1
        for cell in cells
    }

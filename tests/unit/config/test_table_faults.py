"""The errors of a table's definition: all at once, and each with a remedy that helps (TBL-8).

A remedy that names values is tried with each of them: the error is gone, and no other one comes.
"""

from __future__ import annotations

import copy
import re
import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connector.config.parse import parse
from connector.errors import ConfigError
from connector.tables.keys import KeyForm
from connector.tables.values import DataType

TYPES = [*DataType, "INT", "int32", "DOUBLE", "DECIMAL(10, 2)", "blob", "jsonb", "tex", "xyzzy", 5]
FORMS = [*KeyForm, "delimted", "orderd", "row-key", "rowkey", "keyed", 7]
DELIMITERS = ["#", "-", "é", "", "0123456789", "|", "::", "T", "tr"]


def optional(**settings: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=settings)


KEYS = st.builds(
    lambda columns, rest: (
        rest | {"columns": [c | {"name": n} for c, n in zip(columns, "pqr", strict=False)]}
    ),
    st.lists(optional(type=st.sampled_from(TYPES)), max_size=3),
    optional(form=st.sampled_from(FORMS), delimiter=st.sampled_from(DELIMITERS)),
)
COLUMNS = st.lists(
    optional(
        name=st.sampled_from(["a", "A", "b", "p", "_c", "1", "é"]),
        family=st.sampled_from(["f", "g", "no family", ""]),
        qualifier=st.sampled_from(["a", "b"]),
        type=st.sampled_from(TYPES),
        encoding=st.sampled_from(["text", "binary", "BINARY", "txt", "bin", "hex", 1]),
    ),
    max_size=3,
)
TABLES = optional(
    key=KEYS,
    columns=COLUMNS,
    source=st.sampled_from(["s", "no source"]),
    keep_unmapped=st.sampled_from([True, False, "no"]),
    order=st.sampled_from(["commit", "comit", "time"]),
    versions=st.sampled_from(["all", "al", "some"]),
    max_staleness=st.sampled_from(["10m", 5, "5 minutes", -1, "1500ms"]),
    apply_every=st.sampled_from(["1h", 0, "500ms", 30, "1500ms"]),
    buckets=st.sampled_from([1, 3, 8192, "16"]),
)


def faults_of(table: dict[str, Any]) -> dict[str, str]:
    """The errors of a table: each text, by the part of it that says what is wrong where."""
    document = {
        "warehouse": "wh",
        "kafka": {"bootstrap_servers": "h:1"},
        "streams": {"s": {}},
        "tables": {"t": {"stream": "s"} | table},
    }
    try:
        parse(document, {})
    except ConfigError as error:
        texts = re.sub(r"\. Correct all of them.*", "", str(error)).split("\n  - ")
        return {
            re.split(r" (?:is|has the type|as) ", text)[0]: text
            for text in texts
            if not text.endswith("settings are wrong:")
        }
    return {}


def corrected(table: dict[str, Any], text: str) -> list[dict[str, Any]]:
    """The table after an error, once for each value that its text names."""
    changes: list[dict[str, object]] = []
    if setting := re.match(r"tables\.t\.([\w.\[\]]+) is ", text):
        changes = [{setting[1]: value} for value in _values_in(text)]
    elif column := re.search(r"Key column ([pqr]) .*Declare the column as (.+)", text):
        place = f"key.columns[{'pqr'.index(column[1])}].type"
        changes = [{place: type_} for type_ in re.split(", | or ", column[2])]
    elif column := re.match(r"tables\.t\.(columns\[\d\]): .* a binary encoding", text):
        changes = [{f"{column[1]}.encoding": "text"}, {f"{column[1]}.type": "BYTES"}]
    elif "The delimiter of the key" in text:
        changes = [{"key.delimiter": "#" if '"#"' in text else None}]
        if 'form = "delimited"' in text:
            changes.append({"key.form": "delimited"})
    elif row_key := re.search(r"The row key .* Set form = (.+)", text):
        rest = {"key.delimiter": None} if "without a delimiter" in text else {}
        changes = [{"key.form": form} | rest for form in re.findall(r'"(\w+)"', row_key[1])]
    return [_changed(table, change) for change in changes]


def _values_in(text: str) -> list[object]:
    values: list[object] = []
    if listed := re.search(r"allowed: (\w+(?:, \w+)+)\. ", text):
        values += listed[1].split(", ")
    if meant := re.search(r"Did you mean (\w+)\?", text):
        values.append(meant[1])
    if written := re.search(r"Write (?!name|family)\w+ = (.+)$", text):
        values.append(tomllib.loads(f"x = {written[1]}")["x"])
    return [*values, None] if "Remove the setting" in text else values


def _changed(table: dict[str, Any], change: dict[str, object]) -> dict[str, Any]:
    made = copy.deepcopy(table)
    for place, value in change.items():
        *path, last = re.findall(r"\w+", place)
        level: Any = made
        for name in path:
            level = level[int(name)] if name.isdigit() else level[name]
        level[last] = value
        if value is None:
            del level[last]
    return made


@given(TABLES)
def test_the_remedy_of_each_error_of_a_table_passes_the_checks(table: dict[str, Any]) -> None:
    """TBL-8, OPS-1: for example, a key column of the type INT is not answered with FLOAT64."""
    faults = faults_of(table)
    for what, text in faults.items():
        for made in corrected(table, text):
            left = faults_of(made)
            assert left.keys() <= faults.keys() - {what}, (text, made, left)


def test_each_remedy_that_names_a_value_is_tried() -> None:
    """Otherwise the law above could be true of nothing."""
    table = {
        "key": {
            "columns": [{"name": "p", "type": "INT"}, {"name": "q", "type": "JSON"}],
            "form": "row_key",
            "delimiter": "|",
        },
        "columns": [
            {"name": "a", "family": "f", "type": "DECIMAL", "encoding": "binary"},
            {"name": "b", "family": "f", "type": "JSON", "encoding": "binary"},
        ],
        "apply_every": 0,
        "buckets": 3,
    }
    tried = {text: len(corrected(table, text)) for text in faults_of(table).values()}
    assert len(tried) == 8
    assert all(tried.values()), tried


def test_the_errors_of_keys_and_columns_are_reported_together() -> None:
    """TBL-8: those of one column, of a key, and of names that columns share."""
    table = {
        "key": {
            "form": "delimited",
            "delimiter": "-",
            "columns": [
                {"name": "p", "type": "INT"},
                {"name": "q", "type": "DATE"},
                {"name": "_r"},
            ],
        },
        "columns": [
            {"name": "P", "family": "no family", "type": "tex"},
            {"name": "a", "family": "f", "type": "JSON", "encoding": "binary"},
            {"name": "b", "family": "f", "type": "STRING", "qualifier": "a"},
        ],
        "source": "no source",
        "buckets": 3,
    }
    assert [text.partition(". ")[0] for text in faults_of(table).values()] == [
        'tables.t.key.columns[0].type is "INT"',
        "tables.t.key.columns[2]: A key column has the name '_r'",
        "tables.t.key: The delimiter of the key is '-'",
        'tables.t.columns[0].type is "tex"',
        "tables.t.columns[0]: The family of column P is 'no family'",
        "tables.t.columns[1]: Column a has the type JSON and a binary encoding",
        "tables.t.source is 'no source'",
        "tables.t.buckets is 3",
        "Two columns of tables.t have the names p and P",
        "tables.t.columns: a and b both show the cell f:a",
    ]

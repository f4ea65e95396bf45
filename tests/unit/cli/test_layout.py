"""Text in the width of a terminal (OPR-6)."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from connector.cli import layout, terminal
from connector.cli.layout import Table, wrapped

WORDS = st.text("ab1é段字🚀", min_size=1, max_size=40)
TEXTS = st.lists(WORDS, max_size=8).map(" ".join)
CELLS = TEXTS | st.lists(TEXTS, min_size=2, max_size=3).map("\n".join)
WIDTHS = st.integers(20, 130)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    names = draw(st.lists(TEXTS.filter(bool), min_size=1, max_size=8, unique=True))
    right = draw(st.frozensets(st.sampled_from(names)))
    rows = draw(st.lists(st.tuples(*[CELLS] * len(names)), max_size=4))
    return Table(tuple(names), right, rows)


def words(text: str) -> set[str]:
    return set(text.split()) - {"|"}


@given(tables(), WIDTHS)
def test_a_table_fits_into_the_terminal_and_breaks_no_word(table: Table, width: int) -> None:
    """OPR-6: no line is wider than the terminal. Each word is there as it is, or as its beginning
    with its length. Nothing else is left out, but the name of a column without a value.
    """
    lines = list(table.lines(width))
    assert max(map(cell_len, lines)) <= width
    shown = {word.removesuffix(":") for line in lines for word in words(line)}
    limit = width - 4
    cells = [cell for row in table.rows for cell in row]
    names = [
        name for name, *of_name in zip(table.columns, *table.rows, strict=True) if any(of_name)
    ]
    for text in (*names, *cells):
        for word in words(text):
            if cell_len(word) <= limit:
                assert word in shown
            else:
                starts = [each[:-1] for each in shown if each.endswith("…")]
                assert any(word.startswith(start) for start in starts)
                assert f"({len(word):,}" in shown


@given(tables())
def test_a_program_gets_each_row_on_the_lines_of_its_cells(table: Table) -> None:
    """OPR-6: without a terminal, nothing is wrapped, moved or cut."""
    lines = list(table.lines(None))
    heights = [max(cell.count("\n") + 1 for cell in row) for row in table.rows]
    assert len(lines) == 2 + sum(heights)
    assert "…" not in "".join(lines)


@given(CELLS, WIDTHS, st.integers(0, 16))
def test_a_line_of_a_text_is_wider_than_the_terminal_only_if_it_is_one_word(
    text: str, width: int, indent: int
) -> None:
    """OPR-6"""
    lines = wrapped(text, width, indent)
    assert [word for line in lines for word in line.split()] == text.split()
    assert all(cell_len(line) <= width or len(line.split()) == 1 for line in lines)
    assert wrapped(text, None) == text.split("\n")


def test_the_law_of_tables_notices_a_column_that_is_too_narrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A canary."""
    monkeypatch.setattr(layout, "_longest_word", lambda text: 1)
    lines = list(Table(("n", "t"), rows=[("a" * 30, "b" * 30)]).lines(50))
    assert max(map(cell_len, lines)) > 50


def test_columns_that_do_not_fit_are_named_below_the_row() -> None:
    """OPR-6"""
    table = Table(("table", "age", "last job"), frozenset({"age"}))
    table.add_row("orders", "12s", "")
    table.add_row("customers", "3m", "apply failed")
    assert list(table.lines(20)) == [
        "table       age",
        "───────────────",
        "orders      12s",
        "customers    3m",
        "  last job: apply",
        "    failed",
    ]


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "start"),
    [
        (True, "", "\x1b[33mwarning:\x1b[0m old"),
        (True, "1", "warning: old"),
        (False, "", "warning: old"),
    ],
)
def test_warnings_and_reasons_are_in_colour_on_a_terminal_unless_no_color_is_set(
    is_terminal: bool,
    no_color: str,
    start: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OPR-6"""
    monkeypatch.setenv("NO_COLOR", no_color)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    terminal.err("warning: old")
    terminal.show_text("warning: old", "warning:")
    terminal.show_text("old")
    assert capsys.readouterr() == (f"{start}\nold\n", f"{start}\n")

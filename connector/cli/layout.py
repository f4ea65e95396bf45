"""Text in the width of a terminal: paragraphs and tables (OPR-6). The width None has no limit, for
output that a program reads. Lines break at spaces only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from rich.cells import cell_len, chop_cells

_GAP: Final = "   "
_INDENT: Final = "  "
_LEAST_COLUMN: Final = 20
"""A column with longer text may become this narrow, or as its longest word."""
_LEAST_WIDTH: Final = 20


def wrapped(text: str, width: int | None, indent: int = 0) -> list[str]:
    """The lines of a text. Those that go on begin with `indent` spaces, or with fewer before a long
    word. A word that is longer than the width has a line of its own, and is not broken.
    """
    lines = list[str]()
    for paragraph in text.split("\n"):
        if width is None or cell_len(paragraph) <= width:
            lines.append(paragraph)
            continue
        line, *words = paragraph.split(" ")
        for word in words:
            if cell_len(line) + 1 + cell_len(word) <= width:
                line += f" {word}"
            elif word:
                lines += [line.rstrip(" ")] if line.strip(" ") else []
                line = " " * min(indent, width - cell_len(word)) + word
        lines.append(line.rstrip(" "))
    return lines


def cut(text: str, width: int) -> str:
    """The text with the beginning of each word that is longer than `width`, and its length."""
    return "\n".join(
        " ".join(_cut_word(word, width) for word in line.split(" ")) for line in text.split("\n")
    )


def _cut_word(word: str, width: int) -> str:
    if cell_len(word) <= width:
        return word
    return f"{chop_cells(word, width - 1)[0]}… ({len(word):,} characters)"


def _width(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.replace("\n", " ").split(" ")))


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people; columns in `right` are flush right. Escape what comes from outside.

    Columns that do not fit, from the right, go to further lines of each row, as `name: value`.
    """

    columns: tuple[str, ...]
    right: frozenset[str] = frozenset()
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add_row(self, *cells: str) -> None:
        assert len(cells) == len(self.columns)
        self.rows.append(cells)

    @property
    def row_count(self) -> int:
        return len(self.rows)

    def lines(self, width: int | None) -> Iterator[str]:
        """The head, a rule, and the rows. A word that does not fit is cut, with its length."""
        limit = None if width is None else max(width, _LEAST_WIDTH)
        rows = [self.columns, *self.rows]
        if limit is not None:
            longest = limit - 2 * len(_INDENT)
            rows = [tuple(cut(cell, longest) for cell in row) for row in rows]
        widths = _widths(rows, limit)
        head, *rest = rows
        yield from self._row(head[: len(widths)], widths)
        yield "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
        for row in rest:
            yield from self._row(row[: len(widths)], widths)
            yield from _further(head[len(widths) :], row[len(widths) :], limit)

    def _row(self, cells: tuple[str, ...], widths: list[int]) -> Iterator[str]:
        columns = [wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
        for index in range(max(map(len, columns), default=1)):
            shown = list[str]()
            for name, lines, width in zip(self.columns, columns, widths, strict=False):
                text = lines[index] if index < len(lines) else ""
                space = " " * (width - cell_len(text))
                shown.append(f"{space}{text}" if name in self.right else f"{text}{space}")
            yield _GAP.join(shown).rstrip(" ")


def _widths(rows: list[tuple[str, ...]], limit: int | None) -> list[int]:
    """The widths of the columns in the first line of a row."""
    columns = list(zip(*rows, strict=True))
    wanted = [max(map(_width, cells)) for cells in columns]
    if limit is None:
        return wanted
    longest = [max(map(_longest_word, cells)) for cells in columns]
    least = [
        min(all_, max(word, _LEAST_COLUMN)) for all_, word in zip(wanted, longest, strict=True)
    ]
    gaps = len(_GAP)
    number = len(least)
    while number > 1 and sum(least[:number]) + gaps * (number - 1) > limit:
        number -= 1
    left = limit - sum(least[:number]) - gaps * (number - 1)
    widths = list[int]()
    for all_, narrow in zip(wanted[:number], least, strict=False):
        more = max(0, min(all_ - narrow, left))
        widths.append(narrow + more)
        left -= more
    return widths


def _further(names: tuple[str, ...], cells: tuple[str, ...], limit: int | None) -> Iterator[str]:
    """The values of a row that have no column, as many on a line as fit."""
    line = ""
    for name, cell in zip(names, cells, strict=True):
        if not cell:
            continue
        fact = f"{name}: {cell}".replace("\n", " | ")
        joined = f"{line}{_GAP}{fact}" if line else f"{_INDENT}{fact}"
        if line and limit is not None and cell_len(joined) > limit:
            yield line
            joined = f"{_INDENT}{fact}"
        *above, line = wrapped(joined, limit, 2 * len(_INDENT))
        yield from above
    if line:
        yield line

"""What pages hold in memory (WEB-1)."""

from __future__ import annotations

import pytest

from connector.console import pages
from connector.console.pages import OpenedLetters
from connector.dead_letters.ledger import LetterState, LetterStatus
from tests.unit.dead_letters.test_envelope import letter

STATUS = LetterStatus(LetterState.OPEN, 0, 0)


@pytest.mark.parametrize(
    ("given", "counted", "is_cut"), [(3, 3, False), (4, 4, False), (5, 4, True)]
)
def test_letters_are_counted_to_a_number_and_listed_without_their_bytes(
    given: int, counted: int, monkeypatch: pytest.MonkeyPatch, *, is_cut: bool
) -> None:
    """WEB-1: a letter may have ten million bytes, and a topic may have very many letters."""
    monkeypatch.setattr(pages, "LETTERS_COUNTED", 4)
    large = letter(key=b"key", value=b"value", headers=(("name", b"value"),))
    opened = OpenedLetters(iter([(large, STATUS)] * given), 2)
    assert len(list(opened)) == counted
    assert opened.is_cut is is_cut
    assert [(it.key, it.value, it.headers) for it, _ in opened.first] == [(None, None, ())] * 2
    assert opened.first[0][0].id == large.id


def test_letters_are_counted_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """WEB-2: a page ends, however large the letters are."""
    monkeypatch.setattr(pages, "LETTERS_READ_S", 0.0)
    opened = OpenedLetters(iter([(letter(), STATUS)] * 3), 2)
    assert len(list(opened)) < 3
    assert opened.is_cut

"""Nothing from outside reaches a terminal as it is (DLQ-9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.cli.terminal import escaped, show_error, shown_bytes
from connector.errors import ConnectorError
from connector.text import counted


@given(st.text())
def test_escaped_text_is_printable_and_text_that_is_stays(text: str) -> None:
    shown = escaped(text)
    assert (
        shown.isprintable()
        or shown.replace("\xa0", " ").isprintable()
        or all(c.isprintable() or c.isspace() for c in shown)
    )
    assert not any(c in shown for c in "\x00\x07\x08\x1b\x7f\x9b\n\r\u202e\u2066\ufeff\u2028")


@pytest.mark.parametrize("text", ["plain", "Zoë 段 🚀", 'quoted "text"'])
def test_text_that_prints_is_left_alone(text: str) -> None:
    assert escaped(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb", "a\\nb"),
        ("\u202egpj", "\\u202egpj"),
        ("\U000e0001", "\\U000e0001"),
        ("\ud800", "\\ud800"),
    ],
)
def test_characters_that_would_rewrite_the_screen_are_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


@given(st.none() | st.binary(max_size=300), st.integers(1, 80))
def test_bytes_are_shown_within_the_limit(data: bytes | None, limit: int) -> None:
    shown = shown_bytes(data, limit)
    assert len(shown) <= max(limit, len("(none)"))
    assert "\x1b" not in shown


def test_an_error_is_problem_cause_remedy_and_code_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """OPS-10."""
    show_error(ConnectorError("SYSTEM_ERROR", "the problem\x1b[31m", "the cause", "the remedy"))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "error:  the problem\\x1b[31m\ncause:  the cause\n"
        "remedy: The remedy\ncode:   SYSTEM_ERROR\n"
    )


def test_the_command_that_helps_is_shown_between_remedy_and_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_error(ConnectorError("TABLE_DAMAGED", "the problem", "", "the remedy", table="a b\x1b"))
    assert capsys.readouterr().err == (
        "error:  the problem\nremedy: The remedy\n"
        "run:    connector table rebuild 'a b\\x1b'\ncode:   TABLE_DAMAGED\n"
    )


def test_counts_are_grouped_and_agree_with_their_noun() -> None:
    assert [counted(n, "record") for n in (0, 1, 1234)] == [
        "0 records",
        "1 record",
        "1,234 records",
    ]

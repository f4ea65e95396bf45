"""The errors page lists what the source raises, and each error helps its reader."""

from __future__ import annotations

from pathlib import Path

from connector.errors import ErrorCode
from tests.error_codes import ERRORS, errors_page, groups, raised

WITHOUT_REMEDY = {
    "BYTES_INVALID",
    "CHANGE_INVALID",
    "FIELD_INVALID",
    "FIELD_MISSING",
    "FIELD_REPEATED",
    "RECORD_KIND_INVALID",
}
"""Errors whose problem already says what must be written."""


def test_the_page_is_what_the_source_raises() -> None:
    """Write the page again with: python -m tests.documents"""
    assert ERRORS.read_text("utf-8") == errors_page()


def test_the_codes_raised_are_the_codes_listed() -> None:
    assert {one.code for one in raised()} == {code.name for code in ErrorCode}
    assert [code for codes in groups().values() for code in codes] == [*ErrorCode.__members__]


def test_every_error_has_a_problem_and_a_remedy() -> None:
    found = raised()
    assert len(found) > 150
    assert [one.place for one in found if not one.texts[0]] == []
    assert {one.code for one in found if not one.texts[2]} == WITHOUT_REMEDY


# ── canaries ──────────────────────────────────────────────────────────────────────────────────────

MADE_UP = """\
from connector.errors import ConfigError, ErrorCode, TopicError

LEAST = 86_400


def f(topic, old, remedy):
    if old:
        cause = "it is old"
        raise TopicError(ErrorCode.TOPIC_MISSING, f"no {topic.name!r}", cause, topic=topic)
    cause = "it is new" if topic else ""
    error = ConfigError(ErrorCode.NAME_INVALID, "a" f" {len(old):,}" + " b", cause, remedy)
    raise error
"""


def test_errors_are_found_in_made_up_code(tmp_path: Path) -> None:
    (tmp_path / "made_up").mkdir()
    (tmp_path / "made_up/one.py").write_text(MADE_UP, "utf-8")
    first, second = raised(tmp_path / "made_up")
    assert (first.place, first.code, first.error) == (
        "made_up/one.py:9",
        "TOPIC_MISSING",
        "TopicError",
    )
    assert first.texts == ("no {name}", "it is old", "")
    assert first.fields == ("topic",)
    assert second.texts == ("a {number of old} b", "it is new", "…")

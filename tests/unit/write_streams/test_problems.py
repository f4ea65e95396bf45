"""The exceptions of write streams name what happened and what to do (WRS-7, WRS-14)."""

from __future__ import annotations

import pytest

from connector.errors import (
    ErrorCode,
    InvalidChangeError,
    OffsetError,
)
from connector.records.model import Rule
from connector.write_streams.problems import offset_error, refused, row_errors, state_error
from connector.write_streams.rules import Fault, Placing


@pytest.mark.parametrize("fault", list(Fault))
def test_each_state_that_refuses_has_an_error_of_its_name(fault: Fault) -> None:
    error = state_error(fault, "w1/p")
    assert error.code == ErrorCode[fault.name]
    assert "w1/p" in error.problem
    assert error.remedy


def test_a_refused_commit_names_each_write_stream() -> None:
    """`errors` has all of them, and the text the first five."""
    error = refused("committed", {f"w{n}/p": Fault.NOT_FINALIZED for n in range(7)})
    assert error.errors == tuple((f"w{n}/p", "NOT_FINALIZED") for n in range(7))
    assert "w4/p: NOT_FINALIZED, and 2 more" in error.cause


@pytest.mark.parametrize(
    ("placing", "kind"),
    [
        (Placing.OVERLAP, OffsetError),
        (Placing.DIFFERENT, OffsetError),
        (Placing.OUT_OF_RANGE, OffsetError),
    ],
)
def test_an_offset_that_is_refused_names_the_one_to_send_from(
    placing: Placing, kind: type[OffsetError]
) -> None:
    error = offset_error(placing, "w1/p", 300, 250, 100)
    assert type(error) is kind
    assert (error.expected, error.received) == (300, 250)


def test_the_first_invalid_row_is_shown_and_all_are_kept() -> None:
    wrong = {n: InvalidChangeError(Rule.TABLE, "table", "a name", "!") for n in (12, 15)}
    error = row_errors("w1/p", wrong)
    assert error.errors == wrong
    assert "Row 12" in error.cause

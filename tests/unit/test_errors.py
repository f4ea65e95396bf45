from __future__ import annotations

import inspect

import pytest

from connector import errors
from connector.errors import (
    ConnectorError,
    DeliveryError,
    InvalidChangeError,
    JsonViewError,
)
from connector.records.model import Heartbeat

CHILDREN = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, ConnectorError)
]


def test_an_error_says_problem_cause_and_remedy_in_this_order() -> None:
    error = ConnectorError(
        "TOPIC_MISSING", "The topic is gone", "Somebody deleted it", "Create it again"
    )
    assert str(error) == "The topic is gone. Somebody deleted it. Create it again"
    assert (error.problem, error.cause, error.remedy) == (
        "The topic is gone",
        "Somebody deleted it",
        "Create it again",
    )


def test_empty_parts_of_an_error_are_left_out() -> None:
    assert (
        str(ConnectorError("SYSTEM_ERROR", "It failed", remedy="Try again"))
        == "It failed. Try again"
    )


@pytest.mark.parametrize("child", CHILDREN)
def test_the_tree_in_the_docstring_has_every_error(child: type[ConnectorError]) -> None:
    assert errors.__doc__ is not None
    assert child.__name__ in errors.__doc__


def test_an_illegal_change_is_a_value_error_that_names_field_limit_and_value() -> None:
    """REC-14."""
    error = InvalidChangeError("ROW_KEY", "row_key", "1 to 4096 bytes", b"")
    assert isinstance(error, ValueError)
    assert str(error) == "row_key is b'', but must be 1 to 4096 bytes"
    assert (error.rule, error.field, error.limit, error.value) == (
        "ROW_KEY",
        "row_key",
        "1 to 4096 bytes",
        "b''",
    )


def test_a_huge_value_is_shortened_for_display() -> None:
    """REC-14, DLQ-6."""
    assert len(InvalidChangeError("ROW_KEY", "row_key", "short", b"k" * 10_000).value) == 80


def test_a_value_that_python_does_not_write_is_described() -> None:
    """REC-14: an integer of more than 4,300 digits, and what is nested as deep as Python goes."""
    nested: list[object] = []
    for _ in range(20_000):
        nested = [nested]
    assert (
        InvalidChangeError("COMMIT_TIMESTAMP", "commit_timestamp", "less", -(10**5000)).value
        == "an integer of 16610 bits"
    )
    assert InvalidChangeError("TABLE", "table", "text", nested).value == "a list of great depth"
    with pytest.raises(
        InvalidChangeError, match=r"^timestamp is an integer of 16610 bits, but must be "
    ):
        Heartbeat("p", 10**5000)


def test_errors_carry_the_numbers_that_programs_want() -> None:
    assert (
        DeliveryError("RECORDS_UNDELIVERED", "3 were not delivered", undelivered=3).undelivered == 3
    )
    assert (
        ConnectorError("REJECTED_RATIO_EXCEEDED", "halted", reason="UNDECODABLE").reason
        == "UNDECODABLE"
    )
    error = JsonViewError(
        "FIELD_INVALID", "x is not a field", "it was removed", "leave it out", field="x"
    )
    assert (error.field, str(error)) == ("x", "x is not a field. it was removed. Leave it out")

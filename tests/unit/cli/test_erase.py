"""How `connector erase` reports an erasure (OPR-2)."""

from __future__ import annotations

import pytest

from connector.cli.erase import _print
from connector.services.erase import EraseReport, KafkaRecords

AT = 1_714_475_984_000_000


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_key_that_nothing_has_is_reported_as_such(
    capsys: pytest.CaptureFixture[str], *, dry_run: bool
) -> None:
    """OPR-2: a mistyped key is not reported as an erased row."""
    _print(EraseReport(("customers", "others"), (), 0, AT, ()), dry_run=dry_run)
    shown = capsys.readouterr().err
    assert "nothing has this key" in shown
    assert "no row in customers, others" in shown
    assert "erased:" not in shown
    assert ("are refused" in shown) is not dry_run


def test_the_places_that_have_the_row_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """OPR-2"""
    _print(EraseReport(("customers", "others"), ("others",), 2, AT, ()), dry_run=True)
    shown = capsys.readouterr().err
    assert "would be erased: 2 records in the changelog, and the row in others" in shown
    assert "nothing has this key" not in shown


def test_letters_that_stay_in_kafka_have_a_cause_and_a_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """OPR-2: an open letter of another row keeps the begin of the topic."""
    left = KafkaRecords("shop.dead-letters", 0, 1, 2, 2, None, "topic-0-17")
    _print(EraseReport(("customers",), (), 0, AT, (left,)), dry_run=False)
    shown = capsys.readouterr().err
    assert "for ever: Kafka partition 0, offset 2\n" in shown
    assert "cause: the dead letter topic-0-17 of another row is open" in shown
    assert (
        "remedy: replay or discard all open letters before offset 2, then run this command again"
        in shown
    )

"""The status of a bridge, in words (SRC-8)."""

from __future__ import annotations

import pytest

from connector.reports.bridge_status import BridgeStatus, lost_promises, text_of_waiting
from connector.sources.model import SourceFormat, Waiting

NOW = 1_700_000_000_000_000
JSON = SourceFormat.DEBEZIUM_JSON


def facts(status: BridgeStatus) -> str:
    return "; ".join(text for _, text in status.facts(NOW))


def test_the_facts_are_lag_rate_and_the_last_heartbeat() -> None:
    status = BridgeStatus(
        format=JSON, is_known=True, lag=12_345, records_per_s=99.6, heartbeat_at=NOW - 5_000_000
    )
    assert facts(status) == (
        "debezium-json: 12,345 records behind, 100 records/s, last heartbeat 5s ago"
    )
    assert "nothing yet" in facts(BridgeStatus(format=JSON, is_known=True))
    assert "did not answer" in facts(BridgeStatus(format=JSON))


def test_a_bridge_that_is_behind_and_silent_is_a_hint() -> None:
    at = {"format": JSON, "is_known": True, "heartbeat_at": NOW - 120_000_000}
    assert list(BridgeStatus(**at, lag=1).hints(NOW)) != []  # type: ignore[arg-type]
    assert list(BridgeStatus(**at, lag=0).hints(NOW)) == []  # type: ignore[arg-type]


def test_a_new_column_with_a_default_names_the_snapshot_to_signal() -> None:
    """SRC-5."""
    status = BridgeStatus(format=JSON, missing_defaults={"public.orders": ("note",)})
    (hint,) = status.hints(NOW)
    assert "note" in hint
    assert "incremental snapshot of public.orders" in hint


def test_a_transaction_that_lacks_events_is_named_with_the_remedy() -> None:
    waiting = Waiting(
        "events",
        "771",
        NOW - 60_000_000,
        2,
        {"public.a": 3, "public.b": 1},
        {"public.a": 1, "public.b": 1},
    )
    text = text_of_waiting(waiting, NOW)
    assert text.startswith(
        "transaction 771, which ended 1m ago, lacks 2 events of public.a (1 of 3):"
    )
    assert "without them" in text
    assert "clocks" in text_of_waiting(Waiting("clock", "7", NOW), NOW)
    assert "snapshot" in text_of_waiting(Waiting("snapshot", "7", NOW), NOW)


@pytest.mark.parametrize(
    ("format_", "transactions", "lost"),
    [
        (JSON, "dbz.transaction", ""),
        (JSON, "", "no cut"),
        (SourceFormat.UPSERT_AVRO, "", "order of arrival"),
    ],
)
def test_promises_that_do_not_hold_are_named(
    format_: SourceFormat, transactions: str, lost: str
) -> None:
    """SRC-4."""
    text = lost_promises(format_, transactions)
    assert lost in text
    assert bool(lost) == bool(text)

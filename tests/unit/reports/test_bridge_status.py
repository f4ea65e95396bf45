"""The status of a bridge, in words (SRC-8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.reports.bridge_status import BridgeStatus, lost_promises, text_of_waiting
from connector.reports.pipeline_status import PipelineStatus, pipeline_status
from connector.sources.model import SourceFormat, Waiting
from connector.state.process import ProcessRecord

S = 1_000_000
NOW = 1_700_000_000 * S
RECORD = ProcessRecord("h", "m", 7, "1", NOW - 99 * S, NOW - S, 10, is_starting=False)
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


def process(record: ProcessRecord | None) -> PipelineStatus:
    return pipeline_status(record, NOW, is_alive=True)


@pytest.mark.parametrize(
    ("record", "heartbeat_age_s", "why"),
    [
        (RECORD, 5, ""),
        (RECORD, 61, "no heartbeat for 1m1s"),
        (replace(RECORD, since=NOW - 50 * S), 7200, ""),
        (replace(RECORD, since=NOW - 70 * S), None, "no heartbeat for 1m10s"),
        (replace(RECORD, ended_at=NOW - 9 * S), 10, "not running since 2023-11-14T22:13:11Z"),
        (replace(RECORD, ended_at=NOW - 70 * S), 5, ""),
        (replace(RECORD, ended_at=NOW - 70 * S), 61, "not running since 2023-11-14T22:12:10Z"),
        (replace(RECORD, ended_at=NOW - 70 * S, is_once=True), 71, ""),
        (None, 5, ""),
        (None, None, "not running: no process has left a record"),
    ],
    ids=(
        *("runs", "hangs", "has just begun", "began and hangs", "ended", "another one runs"),
        *("ended long ago", "was to end", "no access to the warehouse", "was never started"),
    ),
)
def test_a_bridge_is_down_if_it_does_not_publish_what_there_is(
    record: ProcessRecord | None, heartbeat_age_s: int | None, why: str
) -> None:
    """RUN-1: by its record, and by its heartbeats, which need no access to the warehouse."""
    heartbeat_at = 0 if heartbeat_age_s is None else NOW - heartbeat_age_s * S
    at = {"format": JSON, "is_known": True, "heartbeat_at": heartbeat_at}
    status = BridgeStatus(**at, lag=1, process=process(record))  # type: ignore[arg-type]
    assert status.down(NOW) == why
    assert list(status.hints(NOW)) == ([f"the bridge does not publish: {why}"] if why else [])
    assert replace(status, lag=0).down(NOW) == "", "there is nothing to publish"


def test_the_facts_have_the_process() -> None:
    """RUN-1"""
    status = BridgeStatus(format=JSON, process=process(RECORD))
    assert facts(status).endswith(
        "; runs on h, pid 7, since 2023-11-14T22:11:41Z, version 1: publishes"
    )


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

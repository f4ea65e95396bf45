"""RUN-1: the reasons why a person is needed, and the exit code that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import Column, DataType, Key, KeyPart, StreamConfig, TableDefinition
from connector.errors.tables import commit_unreadable, store_unreachable
from connector.reports.bridge_status import BridgeStatus
from connector.reports.headroom import DAY_US, Headroom
from connector.reports.pipeline_status import PipelineStatus, pipeline_status
from connector.reports.reasons import (
    CODES,
    UNKNOWN,
    WAITS_LONG_US,
    Reason,
    exit_code,
    reasons_of,
)
from connector.reports.source_status import RECENT_S
from connector.reports.stream_status import OpenLetters, StreamStatus, Uncovered, stream_status
from connector.reports.table_status import TableStatus, table_status
from connector.reports.write_stream_status import NONE_RELEASED, release_report
from connector.sources.model import SourceFormat
from connector.state.incomplete_transactions import IncompleteTransaction, TransactionCheck
from connector.state.jobs import Job, JobKind
from connector.state.process import Failure, ProcessRecord
from connector.state.source_checks import SourceChecks, TwoProducers
from connector.state.stream_progress import OpenTransaction, Progress
from connector.state.table_state import TableState
from connector.tables.keys import KeyForm
from connector.watermarks.frontier import Stall
from connector.watermarks.stream_partition import KeyRange
from tests.unit.reports.test_write_stream_status import withheld

S = 1_000_000
NOW = 1_000_000 * S
PAGE = Path(__file__).parents[3] / "docs/howto/check-status.md"
RECORD = ProcessRecord("h", "m", 7, "1", NOW - 99 * S, NOW - S, 10, is_starting=False)
TABLE = TableDefinition(
    name="t",
    stream="s",
    source="t",
    key=Key((KeyPart("id", DataType.STRING),), KeyForm.ROW_KEY),
    columns=(Column("name", "f", b"name", DataType.STRING),),
    max_staleness_s=600,
)
PIPELINE = pipeline_status(RECORD, NOW, is_alive=True)
STREAM = replace(
    stream_status(StreamConfig(name="s", topic="s"), Progress(), NOW),
    ingest_batch=3,
    low_watermark=NOW,
    stalls_unverified=False,
)
APPLIED = replace(
    table_status(TABLE, TableState(apply_number=1, as_of=NOW), Progress(), NOW),
    max_staleness_s=600,
    as_of=NOW,
)
FAILURE = Failure("TABLE_DAMAGED", "a file is gone", NOW - S)
FAILED = Job(JobKind.COMPACTION, "t", NOW - 2, NOW - 1, error="disk full")
STALL = Stall("p", 0, 1, NOW - 20 * S)
GAP = IncompleteTransaction(1, "x", 2, NOW)
LATE = Headroom(1, 5, 0, NOW + DAY_US - S)
BRIDGE = BridgeStatus(format=SourceFormat.DEBEZIUM_JSON, is_known=True, heartbeat_at=NOW, lag=3)


def reasons(
    pipeline: PipelineStatus = PIPELINE,
    stream: StreamStatus = STREAM,
    table: TableStatus = APPLIED,
    **others: object,
) -> list[Reason]:
    given = {"errors": {}, "reload_refused": (), **others}
    return reasons_of({"s": pipeline}, {"s": stream}, {"t": table}, **given)  # type: ignore[arg-type]


def of_pipeline(record: ProcessRecord | None, **given: object) -> list[Reason]:
    status = pipeline_status(record, NOW, **{"is_alive": True, **given})  # type: ignore[arg-type]
    return reasons(status)


def of_stream(**values: object) -> list[Reason]:
    return reasons(stream=replace(STREAM, **values))  # type: ignore[arg-type]


def of_table(**values: object) -> list[Reason]:
    return reasons(table=replace(APPLIED, **values))  # type: ignore[arg-type]


def test_nothing_is_a_reason_if_all_is_in_order() -> None:
    """Without this, a code for everything would pass the tests below."""
    assert reasons() == []
    assert of_stream(bridge=BRIDGE, never_seen=()) == []
    assert of_stream(bridge=replace(BRIDGE, process=PIPELINE)) == []
    waits = Failure("BROKER_UNREACHABLE", "x", NOW - WAITS_LONG_US + 1)
    assert of_pipeline(replace(RECORD, waiting=waits, last_error=waits)) == [], "not for long"
    assert of_pipeline(replace(RECORD, is_once=True, ended_at=NOW - S)) == [], "a nightly job"
    assert of_stream(headroom=(LATE._replace(deleted_at=NOW + DAY_US),)) == [], "a day is left"
    assert of_stream(stalled=(STALL,), stalls_unverified=True) == [], "ingest has not looked"
    released = TransactionCheck(incomplete=(GAP._replace(is_released=True),))
    assert of_stream(transactions=released) == []
    assert of_table(max_staleness_s=None, as_of=None) == []


def test_a_bridge_that_waits_for_long_is_a_reason() -> None:
    """RUN-1: with the error of what it waits for, and so with its remedy."""
    waits = Failure("REGISTRY_UNREACHABLE", "no answer. Start it", NOW - WAITS_LONG_US)
    process = pipeline_status(replace(RECORD, waiting=waits), NOW, is_alive=True)
    (reason,) = of_stream(bridge=replace(BRIDGE, process=process))
    assert reason.line == "BRIDGE_WAITS stream s: REGISTRY_UNREACHABLE: no answer. Start it"


CASES: dict[str, tuple[Callable[[], list[Reason]], str, str]] = {
    "HEADROOM": (
        lambda: of_stream(headroom=(LATE._replace(deleted_at=NOW + 2 * DAY_US), LATE)),
        "stream s",
        "ingest lacks in 23h59m (offset 5 of Kafka partition 1)",
    ),
    "PIPELINE_DOWN": (
        lambda: of_pipeline(replace(RECORD, ended_at=NOW - S, last_error=FAILURE)),
        "stream s",
        "not running since 1970-01-12T13:46:39Z: last error TABLE_DAMAGED: a file is gone",
    ),
    "UNREADABLE": (
        lambda: reasons(errors={"tables.u": commit_unreadable("w/u", "A commit", "x", "")}),
        "tables.u",
        "COMMIT_UNREADABLE: A commit of w/u cannot be read",
    ),
    "TABLE_STOPPED": (
        lambda: of_pipeline(replace(RECORD, stopped={"u": FAILURE})),
        "table u",
        "TABLE_DAMAGED: a file is gone",
    ),
    "PIPELINE_WAITS": (
        lambda: of_pipeline(
            replace(RECORD, waiting=Failure("REGISTRY_UNREACHABLE", "x", NOW - WAITS_LONG_US))
        ),
        "stream s",
        "REGISTRY_UNREACHABLE: x",
    ),
    "BRIDGE_DOWN": (
        lambda: of_stream(bridge=replace(BRIDGE, heartbeat_at=NOW - 61 * S)),
        "stream s",
        "no heartbeat for 1m1s",
    ),
    "RECORDS_HIDDEN": (
        lambda: of_stream(open_transactions=(OpenTransaction(0, 7, 3, NOW - 3600 * S),)),
        "stream s",
        "hides 3 offsets",
    ),
    "TABLE_STALE": (
        lambda: of_table(as_of=NOW - 700 * S, pending_batches=1),
        "table t",
        "11m40s old, and its bound is 10m",
    ),
    "WATERMARK_STALLED": (
        lambda: of_stream(stalled=(STALL,)),
        "stream s",
        "p has moved it for 20s",
    ),
    "WATERMARK_UNKNOWN": (lambda: of_stream(low_watermark=None), "stream s", "not announced"),
    "KEY_RANGE_UNCOVERED": (
        lambda: of_stream(uncovered=Uncovered("root", KeyRange(b"a", None))),
        "stream s",
        "the root root",
    ),
    "UNDECLARED": (lambda: of_stream(undeclared=("q",)), "stream s", "no announcement names q"),
    "NEVER_SEEN": (lambda: of_stream(never_seen=("q",)), "stream s", "no record came from q"),
    "CHANGES_WAIT": (
        lambda: of_table(waiting_changes=2, lagging_partition=STALL),
        "table t",
        "2 changes wait for a heartbeat of stream partition p",
    ),
    "BRIDGE_WAITS": (
        lambda: of_stream(bridge=replace(BRIDGE, lacking="x", waiting="transaction x lacks")),
        "stream s",
        "transaction x lacks",
    ),
    "DEAD_LETTERS": (
        lambda: of_stream(dead_letters=OpenLetters(2, NOW - 60 * S)),
        "stream s",
        "2 dead letters open, the oldest for 1m",
    ),
    "LOSS_UNCONFIRMED": (
        lambda: of_table(lacks_lost_records=True),
        "table t",
        "Kafka deleted records of its stream unread",
    ),
    "ROWS_BLOCKED": (lambda: of_table(blocked_rows=1), "table t", "1 row waits for dead letters"),
    "RELEASES_WITHHELD": (
        lambda: of_stream(write_streams=release_report(0, withheld())),
        "stream s",
        "rows of write streams",
    ),
    "ERASURE_UNFINISHED": (
        lambda: of_stream(unfinished_erasures=("the erasure by me has not ended",)),
        "stream s",
        "the erasure by me has not ended",
    ),
    "TRANSACTIONS_INCOMPLETE": (
        lambda: of_stream(transactions=TransactionCheck(incomplete=(GAP,))),
        "stream s",
        "1 transaction lacks records",
    ),
    "JOB_FAILED": (
        lambda: of_table(last_job=FAILED, as_of=FAILED.ended_at - 1),
        *("table t", "disk full"),
    ),
    "AUDIT_FAILED": (lambda: of_stream(last_audit=FAILED), "stream s", "disk full"),
    "MAINTENANCE_FAILED": (lambda: of_stream(maintenance=(FAILED,)), "stream s", "disk full"),
    "RELOAD_REFUSED": (lambda: reasons(reload_refused=["no"]), "configuration", "no"),
    "TWO_PRODUCERS": (
        lambda: of_stream(
            checks=SourceChecks(two_producers={"p": TwoProducers(0, 1, 2, batches=1, last_at=NOW)})
        ),
        "stream s",
        "two producers write stream partition p",
    ),
    "PIPELINE_UNKNOWN": (
        lambda: of_pipeline(None, unreadable="x"),
        "stream s",
        "its record cannot be read",
    ),
    "STORE_UNREACHABLE": (
        lambda: reasons(errors={f"streams.{n}": store_unreachable("away", "x") for n in range(2)}),
        "streams.0, streams.1",
        "away",
    ),
    "LETTERS_UNKNOWN": (
        lambda: of_stream(dead_letters=OpenLetters(2, is_known=False)),
        "stream s",
        "Kafka does not say which of 2 are open",
    ),
}


REPAIRED = Job(JobKind.REBUILD, "u", NOW - 9, NOW)
WAITS = Failure("REGISTRY_UNREACHABLE", "x", NOW - WAITS_LONG_US)


def ended(**record: object) -> PipelineStatus:
    """A nightly pipeline that has ended, with this record."""
    of_night = replace(RECORD, is_once=True, ended_at=NOW - S, **record)  # type: ignore[arg-type]
    return pipeline_status(of_night, NOW, is_alive=False)


def killed_bridge() -> BridgeStatus:
    """The record of a bridge that was killed while it waited. Another one, without the warehouse,
    has sent heartbeats since.
    """
    record = replace(RECORD, waiting=WAITS, heartbeat_at=NOW - 3600 * S)
    return replace(BRIDGE, process=pipeline_status(record, NOW, is_alive=False))


WHAT_IS_OVER: dict[str, Callable[[], list[Reason]]] = {
    "HEADROOM": lambda: of_stream(headroom=()),
    "PIPELINE_DOWN": lambda: of_pipeline(replace(RECORD, last_error=FAILURE)),
    "UNREADABLE": reasons,
    "TABLE_STOPPED": lambda: reasons_of(
        {"s": ended(stopped={"u": FAILURE})},
        *({}, {"u": replace(APPLIED, last_job=REPAIRED)}, {}, ()),
    ),
    "PIPELINE_WAITS": lambda: of_pipeline(replace(RECORD, last_error=WAITS)),
    "BRIDGE_DOWN": lambda: of_stream(bridge=replace(BRIDGE, heartbeat_at=NOW - 61 * S, lag=0)),
    "RECORDS_HIDDEN": lambda: of_stream(open_transactions=()),
    "TABLE_STALE": lambda: of_table(as_of=NOW, pending_batches=1),
    "WATERMARK_STALLED": lambda: of_stream(stalled=()),
    "WATERMARK_UNKNOWN": lambda: of_stream(low_watermark=NOW),
    "KEY_RANGE_UNCOVERED": lambda: of_stream(uncovered=None),
    "UNDECLARED": lambda: of_stream(undeclared=()),
    "NEVER_SEEN": lambda: of_stream(never_seen=()),
    "CHANGES_WAIT": lambda: of_table(waiting_changes=0, lagging_partition=STALL),
    "BRIDGE_WAITS": lambda: of_stream(bridge=killed_bridge()),
    "DEAD_LETTERS": lambda: of_stream(dead_letters=OpenLetters(0, NOW - 60 * S)),
    "LOSS_UNCONFIRMED": lambda: of_table(lacks_lost_records=False),
    "ROWS_BLOCKED": lambda: of_table(blocked_rows=0),
    "RELEASES_WITHHELD": lambda: of_stream(write_streams=NONE_RELEASED),
    "ERASURE_UNFINISHED": lambda: of_stream(unfinished_erasures=()),
    "TRANSACTIONS_INCOMPLETE": lambda: of_stream(transactions=TransactionCheck()),
    "JOB_FAILED": lambda: of_table(last_job=FAILED, as_of=FAILED.ended_at + 1),
    "AUDIT_FAILED": lambda: of_stream(last_audit=replace(FAILED, error="")),
    "MAINTENANCE_FAILED": lambda: of_stream(maintenance=(replace(FAILED, error="", files=0),)),
    "RELOAD_REFUSED": lambda: reasons(reload_refused=()),
    "TWO_PRODUCERS": lambda: of_stream(
        checks=SourceChecks(
            two_producers={"p": TwoProducers(0, 1, 2, batches=1, last_at=NOW - RECENT_S * S)}
        )
    ),
    "PIPELINE_UNKNOWN": reasons,
    "STORE_UNREACHABLE": reasons,
    "LETTERS_UNKNOWN": lambda: of_stream(dead_letters=OpenLetters(0, is_known=False)),
}
"""By code, what is left when the cause is gone. The cause can be gone without a success of the work
that failed.

- A killed process leaves its record as it was.
- An apply that finds nothing to do is no job. `tests/unit/spark/test_maintenance_rounds.py` has the
  maintenance.
- What is computed anew for each status ends with its cause.
- An audit and an erasure prove something of the past: only the same work can prove that it is over.
"""


@pytest.mark.parametrize("code", CODES)
def test_each_reason_ends_with_its_cause(code: str) -> None:
    """RUN-1: a reason that does not end makes `status --check` useless."""
    assert WHAT_IS_OVER[code]() == []


def test_a_reason_stays_until_its_cause_is_gone() -> None:
    """Without this, a reason that never appears would pass the test above."""
    assert [reason.code for reason in of_table(last_job=FAILED, as_of=FAILED.ended_at)] == [
        "JOB_FAILED"
    ]
    for job in (None, replace(REPAIRED, error="no"), replace(REPAIRED, ended_at=FAILURE.at)):
        table = replace(APPLIED, last_job=job, as_of=NOW)
        pipelines = {"s": ended(stopped={"u": FAILURE})}
        (reason,) = reasons_of(pipelines, {}, {"u": table}, {}, ())[:1]
        assert reason.code == "TABLE_STOPPED"
    running = {"s": replace(PIPELINE, stopped={"u": FAILURE})}
    repaired = {"u": replace(APPLIED, last_job=REPAIRED)}
    assert [reason.code for reason in reasons_of(running, {}, repaired, {}, ())] == [
        "TABLE_STOPPED"
    ], "the pipeline has not opened it again"


@pytest.mark.parametrize("code", CODES)
def test_each_reason_has_its_code_its_subject_and_its_text(code: str) -> None:
    act, subject, text = CASES[code]
    (reason,) = act()
    assert (reason.code, reason.subject) == (code, subject)
    assert text in reason.text
    assert reason.line.startswith(f"{code} {subject}: ")
    assert exit_code([reason]) == (2 if code in UNKNOWN else 1)


def test_each_code_is_on_the_page_in_this_order() -> None:
    rows = [line.split("`")[1] for line in PAGE.read_text("utf-8").splitlines() if "| `" in line]
    assert tuple(row for row in rows if row in CODES) == CODES


def test_streams_of_one_pipeline_are_one_reason() -> None:
    down = pipeline_status(None, NOW)
    (reason,) = reasons_of({"a": down, "b": down}, {}, {}, {}, ())
    assert reason.line == "PIPELINE_DOWN streams a, b: not running: no process has left a record"
    stopped = replace(PIPELINE, stopped={"u": FAILURE})
    unreadable = {"tables.u": commit_unreadable("w/u", "A commit", "x", "")}
    both = reasons_of({"a": stopped, "b": stopped}, {}, {}, unreadable, ())
    assert [reason.code for reason in both] == ["TABLE_STOPPED"], "the same table"


@given(st.lists(st.sampled_from(CODES)))
def test_a_reason_that_needs_a_person_outweighs_what_is_unknown(codes: list[str]) -> None:
    """RUN-1: 0 only without a reason, and 2 only if nothing is known to need a person."""
    code = exit_code([Reason(code, "x", "y") for code in codes])
    assert (code == 0) == (not codes)
    assert (code == 1) == any(code not in UNKNOWN for code in codes)


def test_the_most_urgent_reason_is_the_first() -> None:
    stream = replace(STREAM, dead_letters=OpenLetters(1), maintenance=(FAILED,), undeclared=("q",))
    listed = reasons(pipeline_status(None, NOW), stream, reload_refused=["no"])
    assert [reason.code for reason in listed] == [
        *("PIPELINE_DOWN", "UNDECLARED", "DEAD_LETTERS", "MAINTENANCE_FAILED", "RELOAD_REFUSED"),
    ]

"""RUN-1: whether a pipeline runs, by its record."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from connector.reports.pipeline_status import CLOCKS_DIFFER_US, pipeline_status
from connector.state.process import Failure, ProcessRecord

S = 1_000_000
NOW = 1_000_000 * S
RECORD = ProcessRecord("h", "m", 7, "1.2", NOW - 99 * S, NOW, 10)


@given(
    st.integers(-2 * CLOCKS_DIFFER_US, 4 * CLOCKS_DIFFER_US),
    st.sampled_from([True, False, None]),
    st.booleans(),
)
def test_a_process_runs_while_its_record_is_new(
    age: int, is_alive: bool | None, has_ended: bool
) -> None:
    """RUN-1: an end and a process that is gone are certain, and a clock that differs is unknown."""
    record = replace(RECORD, ended_at=NOW if has_ended else None)
    runs = pipeline_status(record, NOW + age, is_alive=is_alive).is_running
    if has_ended or is_alive is False:
        assert runs is False
    elif is_alive:
        assert runs is (age <= 30 * S)
    elif age < -CLOCKS_DIFFER_US:
        assert runs is None
    else:
        assert runs is (age <= 30 * S + CLOCKS_DIFFER_US)


def test_the_line_says_what_it_does() -> None:
    def doing(**values: object) -> str:
        record = replace(RECORD, **values)  # type: ignore[arg-type]
        return pipeline_status(record, NOW, is_alive=True).text.partition("version 1.2: ")[2]

    assert pipeline_status(RECORD, NOW, is_alive=True).text == (
        "runs on h, pid 7, since 1970-01-12T13:45:01Z, version 1.2: starting"
    )
    assert doing(is_starting=False) == "waits for changes"
    waiting = Failure("BROKER_UNREACHABLE", "x", NOW - 40 * S)
    assert doing(waiting=waiting) == "waits for Kafka since 40s (BROKER_UNREACHABLE)"
    begun = {"batches": {"s": NOW - 3 * S}, "applies": {"b": NOW - 2 * S, "a": NOW - 12 * S}}
    both = "ingest batch of s since 3s, apply of a, b since 12s"
    assert doing(is_starting=False, **begun) == both

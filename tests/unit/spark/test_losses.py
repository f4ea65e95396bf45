"""Which errors are due to lost executors, what they name, and how often a step is repeated (SCL-4).
No session is needed.
"""

from __future__ import annotations

import threading

import pytest
from pyspark.errors import PySparkException

from connector.errors import ConnectorError, TableError
from connector.events import Event
from connector.spark import cluster
from connector.spark.failures import NO_EXECUTORS, applying, cause_of, ingesting, lost_executor

STACK = """An error occurred while calling o99.collectToPython.
: org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.Somewhere(There.scala:1)
Caused by: org.apache.spark.SparkException: Task failed
\tat org.apache.spark.Elsewhere(There.scala:2)
Caused by: java.io.IOException: No route to host
\tat java.base/java.net.Socket(Socket.java:3)
\t... 3 more
"""
IN_TASK = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure:"
    " Lost task 0.3 in stage 3.0 (TID 9) (127.0.0.1 executor 1): ExecutorLostFailure (executor 1"
    " exited caused by one of the running tasks) Reason: Command exited with code 137"
)
CHECKPOINT = (
    "[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_23_0 not found! Either the executor"
    " that originally checkpointed this partition is no longer alive"
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (STACK, "java.io.IOException: No route to host"),
        (IN_TASK, IN_TASK.partition("executor 1): ")[2]),
        ("An error occurred while calling o1.count.\n: a.B: the text\n\tat x", "a.B: the text"),
        ("", "PySparkException"),
    ],
)
def test_an_error_names_its_innermost_cause(text: str, cause: str) -> None:
    """SCL-4, OPS-10: and not the call, or the frame around it."""
    with pytest.raises(TableError) as error, applying("orders"):
        raise PySparkException(text)
    assert error.value.cause == cause == cause_of(PySparkException(text))


def failed(text: str) -> ConnectorError:
    with pytest.raises(ConnectorError) as error, ingesting("orders"):
        raise PySparkException(text)
    return error.value


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FIRST_PAUSE_S", 0.0)


def test_a_step_is_repeated_after_a_loss_up_to_a_limit() -> None:
    calls, said = list[int](), list[Event]()

    def step() -> int:
        calls.append(len(calls))
        if len(calls) <= losses:
            raise failed((CHECKPOINT, IN_TASK)[len(calls) % 2])
        return len(calls)

    losses = cluster.REPEATS
    assert cluster.repeating(step, "table orders", said.append) == cluster.REPEATS + 1
    assert len(said) == cluster.REPEATS
    assert said[0].line.startswith("table orders: executors were lost (ExecutorLostFailure")

    losses = 10**6
    calls.clear()
    with pytest.raises(ConnectorError, match=r"lost|Checkpoint"):
        cluster.repeating(step, "table orders")
    assert len(calls) == cluster.REPEATS + 1


def test_other_errors_and_a_stop_end_the_repetition() -> None:
    calls = list[int]()

    def step(error: Exception) -> None:
        calls.append(1)
        raise error

    stop = threading.Event()
    stop.set()
    waiting = failed(f"[SPARK_JOB_CANCELLED] Job 3 cancelled {NO_EXECUTORS}")
    assert waiting.code == "SPARK_WITHOUT_EXECUTORS"
    for error, stopped in (
        (failed(STACK), None),
        (waiting, None),
        (ConnectorError("SPARK_FAILED", CHECKPOINT, "", ""), None),
        (failed(CHECKPOINT), stop),
    ):
        calls.clear()
        with pytest.raises(ConnectorError) as raised:
            cluster.repeating(lambda error=error: step(error), "stream s", stop=stopped)
        assert (raised.value, len(calls)) == (error, 1)


def test_losses_that_are_over_do_not_count() -> None:
    losses, error = cluster.Losses(), failed(IN_TASK)
    assert lost_executor(error) is not None
    for _ in range(3):
        for _ in range(cluster.REPEATS):
            assert losses.pause_after(error) is not None
        assert losses.pause_after(error) is None
        losses.over()
    assert losses.pause_after(failed(STACK)) is None


def test_a_cluster_that_ended_the_application_is_named() -> None:
    """SCL-4: whether or not the session is there yet."""
    text = "Job aborted due to stage failure: Master removed our application: FAILED"
    error = failed(text)
    assert error.code == "SPARK_SESSION_ENDED"
    assert error.cause.startswith("Master removed our application: FAILED")

"""How many applies begin at once, and which classes of Spark are not atomic. Without a session."""

from __future__ import annotations

from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Event

from connector.spark.session import S3_LOG_STORE, SETTINGS, is_not_atomic
from connector.spark.turns import Entry


def test_so_many_applies_begin_as_there_is_room_for() -> None:
    """SCL-5: the limit is asked for again when an apply ends."""
    room, entered = [1], list[int]()
    leave, all_were_in = [Event() for _ in range(3)], Event()
    entry = Entry(lambda: room[0])

    def apply(number: int) -> None:
        with entry:
            entered.append(number)
            if len(entered) == len(leave):
                all_were_in.set()
            leave[number].wait(30)

    with ThreadPoolExecutor(len(leave)) as threads:
        for number in range(len(leave)):
            threads.submit(apply, number)
        assert not all_were_in.wait(0.05)
        assert len(entered) == 1
        room[0] = 2
        leave[entered[0]].set()
        assert all_were_in.wait(30), "both that waited are in at once"
        for event in leave:
            event.set()


def test_no_apply_begins_once_the_entry_is_closed() -> None:
    """SCL-5: a run that ends with an error waits for the applies in flight, not for all tables."""
    entry, is_in, leave = Entry(lambda: 1), Event(), Event()
    begun = list[str]()

    def apply(name: str) -> None:
        with entry:
            begun.append(name)
            is_in.set()
            leave.wait(30)

    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(apply, "first")
        assert is_in.wait(30)
        waiting = [threads.submit(apply, "waiting") for _ in range(2)]
        entry.close()
        assert all(isinstance(one.exception(30), CancelledError) for one in waiting)
        leave.set()
        first.result(30)
    assert begun == ["first"]
    entry.open()
    apply("again")
    assert begun == ["first", "again"]


def test_a_class_that_looks_and_then_writes_is_not_atomic() -> None:
    """STO-3"""
    assert is_not_atomic("io.delta.storage.HDFSLogStore")
    assert is_not_atomic("io.delta.storage.S3SingleDriverLogStore")
    assert is_not_atomic("org.apache.spark.sql.delta.storage.S3SingleDriverLogStore")
    assert is_not_atomic("org.apache.spark.sql.delta.storage.HDFSLogStore")
    assert is_not_atomic("io.delta.storage.AzureLogStore")
    assert not is_not_atomic(SETTINGS[S3_LOG_STORE])
    assert not is_not_atomic("io.delta.storage.S3DynamoDBLogStore")

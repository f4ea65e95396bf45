"""An iterator in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from connector.errors import ConnectorError, DeliveryError, ErrorCode
from connector.kafka.dead_letters.child_process import from_child


def numbers(count: int, error: ConnectorError | None = None) -> Iterator[tuple[int, int]]:
    for number in range(count):
        yield os.getpid(), number
    if error is not None:
        raise error


def dying() -> Iterator[int]:
    yield 1
    os._exit(3)


class Dying:
    def __reduce__(self) -> str:
        os._exit(3)


def dying_in_the_middle() -> Iterator[object]:
    yield b"written at once" * 100_000, Dying()


def talking() -> Iterator[int]:
    print("for people")
    os.system("echo for people, too")
    yield 1


def test_all_comes_in_order_from_one_other_process() -> None:
    found = list(from_child(partial(numbers, 50_000)))
    (pid,) = {pid for pid, _ in found}
    assert pid != os.getpid()
    assert [number for _, number in found] == list(range(50_000))


def test_its_error_is_ours_and_comes_behind_all_that_was_found() -> None:
    error = DeliveryError(
        ErrorCode.DEAD_LETTERS_UNDELIVERED,
        "it was not delivered",
        "the broker said no",
        "try again",
        undelivered=7,
    )
    found = from_child(partial(numbers, 3, error))
    assert [number for _, number in (next(found), next(found), next(found))] == [0, 1, 2]
    with pytest.raises(DeliveryError) as raised:
        next(found)
    assert (str(raised.value), raised.value.undelivered) == (str(error), 7)


def test_what_is_printed_there_is_talk() -> None:
    assert list(from_child(talking)) == [1]


@pytest.mark.parametrize("how", [dying, dying_in_the_middle])
def test_its_death_is_an_error_with_a_remedy(how: Callable[[], Iterator[object]]) -> None:
    found = from_child(how)
    with pytest.raises(ConnectorError, match=r"ended\. Its exit code is 3.*Run this again"):
        list(found)


def test_it_ends_with_whoever_takes_from_it() -> None:
    found = from_child(partial(numbers, 10**9))
    pid, _ = next(found)
    os.kill(pid, 0)
    found.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

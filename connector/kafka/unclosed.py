"""Finishes what a program leaves open when it ends (PUB-8).

Each object that sends or reads is watched until it is closed. Python calls exit handlers after the
last line of a program, `sys.exit` and an unhandled exception, and a worker of `multiprocessing` has
finalizers. There, all open objects together get `EXIT_TIMEOUT_S`. The error that `close` would
raise is written to standard error, and a process that would end with exit code 0 ends with 1.

Watched objects are not kept alive. A forked process finishes nothing of its parent.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from connector.errors import ConnectorError

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_TIMEOUT_S: Final = 10.0
"""How long the end of a program waits for everything that was left open."""


class Unclosed(Protocol):
    """The work that an object leaves. It must not refer to the object."""

    def finish(self, timeout_s: float) -> str:
        """Close, as at the end of a program. Return what the user must know, or an empty text.

        Raises what is not delivered.
        """

    def dropped(self) -> bool:
        """Go on without the object, which was collected. Return whether something is to be
        finished. It must not wait, because Python may collect the object in any thread.
        """
        return False

    def is_finished(self) -> bool:
        """Return whether nothing is left of a dropped object. It must not wait."""
        return True


def watch(owner: object, unclosed: Unclosed) -> Callable[[], object]:
    """Finish at the end of the program, unless the function that this returns is called before."""
    for finished in [dropped for dropped in list(_dropped) if dropped.is_finished()]:
        with suppress(ValueError):  # another thread has removed it
            _dropped.remove(finished)
    _watch_worker()
    finalizer = weakref.finalize(owner, _drop, unclosed)
    finalizer.atexit = False  # `_finish` does it, with one limit for all of them
    _watched[id(unclosed)] = finalizer, unclosed

    def closed() -> None:
        finalizer.detach()
        _watched.pop(id(unclosed), None)

    return closed


def try_after(error: BaseException, step: Callable[[], None]) -> None:
    """Do a last step after an exception. An error of the step becomes a note of it."""
    try:
        step()
    except ConnectorError as further:
        error.add_note(f"in addition: {further}")


def warn(text: str) -> None:
    """Write a sentence to standard error. Without it, there is no reader."""
    with suppress(OSError, ValueError, RuntimeError, AttributeError):
        sys.stderr.write(f"lowmark: {text}\n")
        sys.stderr.flush()


_watched: Final[dict[int, tuple[weakref.finalize, Unclosed]]] = {}  # type: ignore[type-arg]
_dropped: Final[list[Unclosed]] = []
_of_worker: Final = list[object]()
"""What finishes this worker of `multiprocessing`, once it is known to be one."""


class _FailedExit:
    """Ends the process with exit code 1. A module keeps it, so Python destroys it after all exit
    handlers, and after it has written the standard streams.
    """

    def __del__(self, end: Callable[[int], object] = os._exit) -> None:
        end(1)


_failed: Final[list[_FailedExit]] = []


def _drop(unclosed: Unclosed) -> None:
    _watched.pop(id(unclosed), None)
    if unclosed.dropped():
        _dropped.append(unclosed)


def _finish() -> bool:
    """Finish everything that is open. Return whether all of it is delivered."""
    # Other threads may still open and close: copying is one step, and a loop is not.
    left = [*list(_dropped), *(unclosed for _, unclosed in list(_watched.values()))]
    _forget()
    deadline, is_delivered = time.monotonic() + EXIT_TIMEOUT_S, True
    for unclosed in left:
        try:
            text = unclosed.finish(max(0.0, deadline - time.monotonic()))
        except BaseException as error:  # noqa: BLE001, it has no effect in an exit handler
            is_delivered = False
            text = f"{_described(error)}. Call `close` at the end, or use `with`"
        if text:
            warn(f"The program ended without `close`. {text}")
    return is_delivered


def _described(error: BaseException) -> str:
    if not isinstance(error, ConnectorError):
        return repr(error)
    return ". ".join(part.removesuffix(".") for part in (error.problem, error.cause) if part)


def _forget() -> None:
    """Watch nothing."""
    for finalizer, _ in list(_watched.values()):
        finalizer.detach()
    _watched.clear()
    _dropped.clear()


def _after_fork() -> None:
    _forget()
    _of_worker.clear()


def _at_exit() -> None:
    # After an exception the exit code is not 0 already. A host that embeds Python has its own.
    has_failed = getattr(sys, "last_value", None) is not None
    if not _finish() and sys.orig_argv and not has_failed:
        _failed.append(_FailedExit())


def _watch_worker() -> None:
    """Finish at the end of a worker of `multiprocessing`, which calls no exit handlers."""
    if _of_worker or "multiprocessing.util" not in sys.modules:
        return
    import multiprocessing
    from multiprocessing.util import Finalize

    if multiprocessing.parent_process() is not None:
        _of_worker.append(Finalize(None, _at_end_of_worker, exitpriority=-100))  # after all others


def _at_end_of_worker() -> None:
    is_failing = sys.exc_info()[0] is not None
    if not _finish() and not is_failing:
        sys.exit(1)


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)

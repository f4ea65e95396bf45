"""Runs an iterator ahead in a child process, because a Python process uses one core.

    here                                              there: `main`
    the module path, and then
    the pickled call              ── its stdin ──▶    calls it
    takes the items in order      ◀── its stdout ──   the pickled items, and at the end None or the
                                  error

The child runs ahead until the pipe is full. Use it only for code that reads, because it may be
killed at any time.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

from connector.errors import ConnectorError, ErrorCode

PIPE_BYTES: Final = 1024 * 1024
"""The maximum that Linux allows every user."""
_PROGRAM: Final = (
    f"import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from {__name__} import main;"
    " main()"
)

_Item = TypeVar("_Item")


def from_child(call: Callable[[], Iterator[_Item]]) -> Iterator[_Item]:
    """Yield the items of `call()` from a child process.

    `call` must be a function of a module that can be imported. Its arguments and its items must be
    picklable. Raises the `ConnectorError` that `call` raised, or one if the process has died. The
    process ends with this iterator.
    """
    command = [sys.executable, "-P", "-c", _PROGRAM]
    # Ctrl-C goes to the parent process, which ends the child later.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pipesize=PIPE_BYTES,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):
                pickle.dump(sys.path, process.stdin)
                pickle.dump(call, process.stdin)
                process.stdin.close()
            while True:
                try:
                    is_item, what = pickle.load(process.stdout)  # noqa: S301, our own process wrote it
                except (EOFError, pickle.UnpicklingError):
                    raise ConnectorError(
                        ErrorCode.CHILD_PROCESS_FAILED,
                        "The helper process for dead letters ended",
                        f"Its exit code is {process.wait()}. A negative code is a signal: for"
                        " example, -9 can mean that there was not enough memory",
                        "Run this again. It continues with what is left",
                    ) from None
                if is_item:
                    yield what
                elif what is None:
                    return
                else:
                    raise what
        finally:
            process.kill()


def main() -> None:
    """The main function of the child process."""
    # Printed text must not go into the pipe.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # If the parent has ended, stop.
    with suppress(BrokenPipeError):
        try:
            for item in pickle.load(sys.stdin.buffer)():  # noqa: S301, the parent process wrote it
                pickle.dump((True, item), out, pickle.HIGHEST_PROTOCOL)
                out.flush()
            end = None
        except ConnectorError as error:
            end = error
        pickle.dump((False, end), out)
        out.flush()

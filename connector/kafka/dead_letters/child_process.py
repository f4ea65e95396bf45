"""An iterator that runs in a process of its own, ahead of whoever takes from it: a process of Python uses one core.

    here                                              there: `main`
    where modules lie, and then
    what to call, pickled         ── its stdin ──▶    calls it
    takes what comes, in order    ◀── its stdout ──   the items, pickled; at the end that it is the end, or the error that it was

It works ahead by as much as the pipe holds. It is for what only reads: it may be ended anywhere.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

from connector.errors import ConnectorError

PIPE_BYTES: Final = 1024 * 1024
"""As much as Linux gives to everybody."""
_PROGRAM: Final = f"import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from {__name__} import main; main()"

_Item = TypeVar("_Item")


def from_child(call: Callable[[], Iterator[_Item]]) -> Iterator[_Item]:
    """What `call()` yields, which is a function of a module that can be imported, with arguments that can be pickled, as the items can.

    Raises the `ConnectorError` that it raised, and one where the process has died. It ends with this iterator.
    """
    command = [sys.executable, "-P", "-c", _PROGRAM]
    # Ctrl-C is for whoever takes from it, and ends it in its own time.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pipesize=PIPE_BYTES, start_new_session=True) as process:
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
                        "The process that works ahead has died",
                        f"its exit code is {process.wait()}; a negative one is a signal, -9 perhaps for want of memory",
                        "Run this again: what was done until then is known",
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
    """The other side."""
    # What anything prints is talk, and not for the pipe.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Whoever has gone away wants nothing more.
    with suppress(BrokenPipeError):
        try:
            for item in pickle.load(sys.stdin.buffer)():  # noqa: S301, who started this process wrote it
                pickle.dump((True, item), out, pickle.HIGHEST_PROTOCOL)
                out.flush()
            end = None
        except ConnectorError as error:
            end = error
        pickle.dump((False, end), out)
        out.flush()

"""A command as an operator starts it, for example `connector run`, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

PATIENCE_S: Final = 600.0
_POLL_S: Final = 0.1
CONNECTOR: Final = Path(sys.executable).with_name("connector")
"""The command of the environment that runs this program."""
QUICK_JAVA: Final = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"}
"""In a run of a minute, the optimising compiler of the JVM costs more time than it saves."""

_Value = TypeVar("_Value")


class DemoError(Exception):
    """The demo cannot go on."""


def own_environment() -> dict[str, str]:
    """The variables of this process. Of those that outrank a configuration file, only the settings
    of an object store are kept: the other ones are meant for another pipeline.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CONNECTOR__") or name.startswith("CONNECTOR__STORAGE__")
    }


class Pipeline:
    """One `connector run`, or another command. Its output goes to `log`. The end of a `with` block
    kills it.
    """

    def __init__(
        self,
        config: Path,
        log: Path,
        *options: str,
        settings: Mapping[str, str],
        command: str = "run",
    ) -> None:
        """`settings` are environment variables. They outrank the configuration file."""
        self._log, self._command = log, command
        with log.open("ab") as output:
            # A session of its own: the command and its JVM are one group, which is killed whole.
            self._process = subprocess.Popen(
                [str(CONNECTOR), "--config", str(config), command, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**own_environment(), **QUICK_JAVA, **settings},
                start_new_session=True,
            )

    def wait_for(self, look: Callable[[], _Value | None], what: str) -> _Value:
        """Call `look` until it returns a value, and return this value. Raises `DemoError` if the
        process ends before, or after ten minutes.
        """
        deadline = time.monotonic() + PATIENCE_S
        while (value := look()) is None:
            if self._process.poll() is not None:
                raise self._error(f"ended with code {self._process.returncode}")
            if time.monotonic() > deadline:
                raise self._error(f"has not shown {what} after {PATIENCE_S:g} s")
            time.sleep(_POLL_S)
        return value

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def finish(self) -> None:
        """Wait for its end. Raises `DemoError` if it failed."""
        if self._process.wait():
            raise self._error(f"ended with code {self._process.returncode}")

    def kill(self) -> None:
        """Send SIGKILL to all its processes, like a power failure. Returns when it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def _error(self, what: str) -> DemoError:
        end = self._log.read_text("utf-8", "replace").splitlines()[-20:]
        return DemoError(
            "\n".join([f"connector {self._command} {what}. The end of {self._log}:", *end])
        )

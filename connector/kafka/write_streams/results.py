"""The result of an append, which is known later (WRS-5)."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

from connector.errors import ConnectorError

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The rows of an append are in the topic, from `offset` on.

    `repeated` is the number of rows that an earlier append had sent: 0, or `rows`.
    """

    offset: int
    rows: int
    repeated: int = 0


class Pending(Generic[_Answer]):
    """An answer that the thread of a session gives once."""

    def __init__(self) -> None:
        self._known = threading.Event()
        self._answer: _Answer | None = None
        self._error: ConnectorError | None = None

    @property
    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        return self._known.is_set()

    def result(self, timeout_s: float | None = None) -> _Answer:
        """Wait for the answer.

        Args:
            timeout_s: How long to wait. None: until it is known, at most `max_retry_s` of the
                session after the last transaction that succeeded.

        Returns:
            The answer.

        Raises:
            NotSentError: It is not in the topic, and will not be. The session has ended.
            OutcomeUnknownError: It may be in the topic. The session has ended.
            WriterConflictError: Another session of this name was opened. `outcome` is "not taken"
                or "unknown".
            TimeoutError: It is not known yet.
        """
        if not self._known.wait(timeout_s):
            raise TimeoutError(f"not known within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer

    def give(self, answer: _Answer) -> None:
        self._answer = answer
        self._known.set()

    def fail(self, error: ConnectorError) -> None:
        self._error = error
        self._known.set()


class Append(Pending[AppendResult]):
    """An append in flight. `result` waits for its transaction."""

"""The wait of a long-running process for Kafka, a schema registry or an object store (RUN-2), or
for the end of an erasure (OPR-2).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from connector.errors import BrokerError, ConnectorError, DeliveryError
from connector.events import OnEvent, info, warning
from connector.text import duration

if TYPE_CHECKING:
    from connector.config.settings import RegistryConfig

Done = TypeVar("Done")
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_LONG_ENOUGH_S: Final = 60.0
"""After work of this length, the next pause is the first one again."""
_AGAIN_EVERY_S: Final = 60.0
_ENDS: Final = frozenset({"STORE_UNREACHABLE", "ERASURE_RUNNING"})
"""The codes of further errors whose cause ends by itself."""
_DECIDED: Final = frozenset(
    {
        *("KAFKA_ACCESS_DENIED", "KAFKA_LOGIN_FAILED", "KAFKA_TLS_FAILED"),
        *("REGISTRY_ACCESS_DENIED", "REGISTRY_SCHEMA_DIFFERENT"),
    }
)
"""The codes of answers that stay the same until a person has decided something."""


def is_away(error: BaseException) -> bool:
    """Whether the cause of an error may end without a person: Kafka, a registry or a store does
    not answer, or an erasure runs.
    """
    is_kafka = isinstance(error, BrokerError | DeliveryError) and error.code not in _DECIDED
    return is_kafka or (isinstance(error, ConnectorError) and error.code in _ENDS)


class Surroundings:
    """The surroundings of `who`, for example "the pipeline", which waits until they are back.

    It says so at once, again each minute, and when they are back. `stop` ends each wait. With
    `fails_fast`, it does not wait.
    """

    def __init__(
        self,
        who: str,
        stop: threading.Event,
        on_event: OnEvent,
        *,
        fails_fast: bool = False,
        **fields: object,
    ) -> None:
        """`fields` are those of its events, for example `stream`."""
        self._fields = fields
        self._who, self._stop, self._on_event = who, stop, on_event
        self._fails_fast = fails_fast
        self.away: ConnectorError | None = None
        """The error of what does not answer now. None: all answer."""
        self._since = self._warned_at = self._began_at = 0.0
        self._next_s = _FIRST_PAUSE_S

    def outlived(self, error: BaseException) -> bool:
        """Wait after an error, if its cause may end without a person. Returns whether the caller
        is to try again, or to look at `stop`.
        """
        if self._fails_fast or not isinstance(error, ConnectorError) or not is_away(error):
            return False
        now = time.monotonic()
        if self.away is None:
            self._since, self._warned_at = now, float("-inf")
            if now - self._began_at > _LONG_ENOUGH_S:
                self._next_s = _FIRST_PAUSE_S
        self.away = error
        if now - self._warned_at >= _AGAIN_EVERY_S:
            self._warned_at = now
            since = f", since {duration(now - self._since)}" if now > self._since else ""
            text = f"{self._who} waits{since}, and goes on by itself: {error}"
            self._on_event(warning("WAITING", text, error=error.code, **self._fields))
        self._stop.wait(self._next_s)
        self._next_s = min(2 * self._next_s, _LONGEST_PAUSE_S)
        return True

    def are_there(self) -> None:
        """Note that all answer. The caller begins to work."""
        self._began_at = time.monotonic()
        if self.away is not None:
            self.away = None
            waited = duration(self._began_at - self._since)
            self._on_event(info("GOES_ON", f"{self._who} goes on after {waited}", **self._fields))

    def ask_registry(self, registry: RegistryConfig | None) -> None:
        """If the registry did not answer, ask it: work that begins does so only when it reads a
        record. Raises `BrokerError`.
        """
        from connector.kafka.schema_registry import RegistryClient

        is_away = self.away is not None and self.away.code == "REGISTRY_UNREACHABLE"
        if is_away and registry is not None:
            with RegistryClient(registry) as client:
                client.schema(0)  # any answer will do

    def wait_for(self, act: Callable[[], Done]) -> Done | None:
        """Call `act` until its surroundings are there. None: `stop` was set."""
        while not self._stop.is_set():
            try:
                done = act()
            except ConnectorError as error:
                if not self.outlived(error):
                    raise
            else:
                self.are_there()
                return done
        return None

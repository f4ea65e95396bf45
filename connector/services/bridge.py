"""Publish the records of foreign topics as the changes of a stream (SRC-1)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from connector.config.settings import find_stream
from connector.errors import BrokerError, DeliveryError
from connector.errors.settings import setting_missing
from connector.services.events import OnEvent, info, log_event, warning

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.kafka.bridge.session import BridgeCounts

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_LONG_ENOUGH_S: Final = 60.0
"""After a session of this length, the next pause is the first one again."""


def run_bridge(
    config: ConnectorConfig,
    stream: str | None = None,
    *,
    once: bool = False,
    skip: str = "",
    stop: threading.Event | None = None,
    on_event: OnEvent = log_event,
) -> BridgeCounts:
    """Publish the records of the source of a stream as its changes.

    You can kill the process at any moment and call `run_bridge` again: it goes on where it was, and
    publishes the same changes. It needs no access to the warehouse. For example:
    `run_bridge(load_config(), "shop", once=True)`.

    Args:
        config: A stream with a section `[streams.NAME.source]`.
        stream: The name of the stream. None: the only one.
        once: Publish up to the end that each topic of the source has now, and return. Otherwise it
            runs until `stop` is set, and waits for brokers and a registry that do not answer.
        skip: The id of a transaction that lacks events. It is published without them.
        stop: Set it from another thread or from a signal handler.
        on_event: Receives warnings and progress.

    Returns:
        The numbers of published changes and dead letters, and of records that were left out by
        rule.

    Raises:
        ConfigError: There is no such stream, or it has no source.
        TopicError: A topic is missing or was made again, or records were deleted before they were
            read.
        InvalidChangeError: A row cannot be a change, and the settings of the source say to stop.
        BrokerError, DeliveryError: Kafka or the registry does not answer at the start, or with
            `once`.
    """
    from connector.kafka.bridge.session import BridgeCounts

    of_stream = find_stream(config, stream)
    if of_stream.source is None:
        section = f"streams.{of_stream.name}.source"
        raise setting_missing(
            f"The section [{section}]",
            "the topics that the bridge reads",
            f"Add [{section}] with format and topics",
        )
    counts, bridge_stop = BridgeCounts(), stop or threading.Event()
    pause_s, has_started = _FIRST_PAUSE_S, False

    def on_start() -> None:
        nonlocal has_started
        has_started = True
        if not once:
            text = f"the bridge of stream {of_stream.name} runs; stop with Ctrl-C or SIGTERM"
            on_event(info("BRIDGE_RUNNING", text, stream=of_stream.name))

    while not bridge_stop.is_set():
        began_at = time.monotonic()
        try:
            _session(config, of_stream, counts, on_event, bridge_stop, on_start, once, skip)
        except (BrokerError, DeliveryError) as error:
            if once or not has_started:
                raise
            if time.monotonic() - began_at > _LONG_ENOUGH_S:
                pause_s = _FIRST_PAUSE_S
            text = f"the bridge of stream {of_stream.name} begins again in {pause_s:g} s: {error}"
            on_event(warning("BRIDGE_RETRIES", text, stream=of_stream.name))
            bridge_stop.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        else:
            break
    return counts

"""Publish the records of foreign topics as the changes of a stream (SRC-1)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from connector.config.settings import find_source
from connector.errors import BrokerError, DeliveryError
from connector.events import Event, OnEvent, info, log_event, reached, warning
from connector.services.process import recorded
from connector.services.surroundings import Surroundings

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig
    from connector.kafka.bridge.session import BridgeCounts

_RUNNING: Final = "the bridge runs; stop with Ctrl-C or SIGTERM"


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

    You can kill the process at any moment and call it again: it goes on where it was. For example:
    `run_bridge(load_config(source_tables=False), "shop", once=True)`.

    Args:
        config: A stream with a section `[streams.NAME.source]`.
        stream: The name of the stream. None: the only one.
        once: Publish up to the present end of each topic of the source, and return. Otherwise it
            runs until `stop` is set, and waits for Kafka and a registry.
        skip: The id of a transaction that lacks events. It is published without them.
        stop: Set it from another thread or a signal handler.
        on_event: Receives events.

    Returns:
        The numbers of changes, of dead letters, and of records that were left out.

    Raises:
        ConfigError: There is no such stream, or it has no source.
        TopicError: A topic is missing or was made again, or records were deleted too early.
        WriterConflictError: Another bridge of the stream began later. It goes on.
        BrokerError, DeliveryError: With `once`, Kafka or the registry does not answer. Or a person
            must decide, for example about rights.
        ConnectorError: A truncation, or a row without a value, if the source has it as "stop".
    """
    from connector.kafka.bridge.claim import BridgeClaim
    from connector.kafka.bridge.session import BridgeCounts, BridgeSession

    of_stream, _ = find_source(config, stream)
    counts, claim = BridgeCounts(), BridgeClaim(config.kafka, of_stream.topic)
    until, name, has_begun = stop or threading.Event(), of_stream.name, once

    def report(read: int, total: int) -> None:
        on_event(reached("offsets of the source read", read, total, stream=name))

    def warn(code: str, text: str) -> None:
        on_event(warning(code, f"the bridge: {text}", stream=name))

    with recorded(config, on_event, once=once, bridge=name) as on_event:
        surroundings = Surroundings("the bridge", until, on_event, fails_fast=once, stream=name)
        while not until.is_set():
            try:
                with ExitStack() as stack:
                    surroundings.ask_registry(config.registry)
                    session = BridgeSession(config, of_stream, claim, counts, warn, stack)
                    surroundings.are_there()
                    on_event(Event("debug", "STEP", "bridge begun", {"stream": name}))
                    if not has_begun:
                        on_event(info("BRIDGE_RUNNING", _RUNNING, stream=name))
                    has_begun = True
                    session.run(until.is_set, once=once, skip=skip, on_read=report)
                break
            except (BrokerError, DeliveryError) as error:
                if not surroundings.outlived(error):
                    raise
    return counts


@contextmanager
def bridges(
    config: ConnectorConfig, *, once: bool, stop: threading.Event, on_event: OnEvent
) -> Iterator[None]:
    """Run the bridges of all streams that have a source, beside the block. With `once`, they run
    before the block.

    At the end of the block, or if a bridge fails, `stop` is set. Raises as `run_bridge` does.
    """
    # The block imports modules of this package, too. Two threads that import from one package at
    # the same time can each see a part of it, and both fail. So it is loaded before they start.
    import connector.kafka.bridge.session  # noqa: F401

    names = [name for name, stream in config.streams.items() if stream.source is not None]
    if once:
        for name in names:
            run_bridge(config, name, once=True, stop=stop, on_event=on_event)
        yield
        return
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            run_bridge(config, name, stop=stop, on_event=on_event)
        except BaseException as error:  # noqa: BLE001, it is raised in the other thread
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(name,), name=f"bridge {name}") for name in names]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]

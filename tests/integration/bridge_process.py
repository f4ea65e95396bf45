"""A program that runs a bridge once, and that may be killed on the way (SRC-1).

    python -m tests.integration.bridge_process CONFIG STEP COUNT

STEP is a name of `STEPS`: the process ends by SIGKILL after the COUNT-th such call. With `never` it
goes on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from connector.kafka.bridge import session, tables
from connector.kafka.bridge.reader import SourceReader
from connector.kafka.produce.producer import ChangeProducer
from connector.services import load_config, run_bridge

STEPS: dict[str, tuple[Any, str]] = {
    "poll": (SourceReader, "poll"),
    "publish tables": (tables, "publish_source_tables"),
    "send": (ChangeProducer, "send"),
    "flush": (ChangeProducer, "flush"),
    "reached": (ChangeProducer, "reached"),
}


def kill_after(step: str, count: int) -> None:
    owner, name = STEPS[step]
    call: Callable[..., Any] = getattr(owner, name)
    left = [count]

    def counted(*values: Any, **options: Any) -> Any:
        result = call(*values, **options)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


if __name__ == "__main__":
    file, step, count = sys.argv[1:]
    session.CHECKPOINT_S = 0.0  # type: ignore[misc]  # a checkpoint after each poll
    session._IDLE_S = 0.5  # type: ignore[misc]
    if step != "never":
        kill_after(step, int(count))
    print(run_bridge(load_config(file, {}, source_tables=False), "shop", once=True).changes)

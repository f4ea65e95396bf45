"""No unit test waits for a broker that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest


@pytest.fixture(autouse=True, scope="module")
def status_asks_kafka_briefly() -> Iterator[None]:
    """A status without a broker waits for a second otherwise."""
    # The package has a function of this name.
    status = import_module("connector.services.status")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status, "ASK_TIMEOUT_S", 0.1)
        yield

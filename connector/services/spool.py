"""The spool of a producer: what it has, and the acceptance of losses (PUB-3)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.kafka.produce.spool_file import Loss
    from connector.kafka.produce.spool_repair import SpoolStatus


def spool_status(path: Path) -> SpoolStatus:
    """Read and check a spool. Nothing is changed. A producer may use it meanwhile.

    Args:
        path: The path of the spool.

    Returns:
        Its topic, its records and its losses.

    Raises:
        SpoolError: There is no spool, or it cannot be read.
    """
    from connector.kafka.produce import spool_repair

    return spool_repair.status(path)


def accept_losses(path: Path) -> tuple[Loss, ...]:
    """Accept the losses of a spool, so that heartbeats may pass the lost records.

    If a producer uses the spool, the losses that it has found are accepted, and it continues. If
    the file cannot be read, a new one gets each readable record, and the old one is kept beside it
    with the suffix `.damaged`.

    Args:
        path: The path of the spool.

    Returns:
        The accepted losses. A loss with the numbers 0 to 0 is a file of which nothing could be
        read.

    Raises:
        SpoolError: There is no spool, or it cannot be written.
    """
    from connector.kafka.produce import spool_repair

    return spool_repair.accept(path)

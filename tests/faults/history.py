"""A log of all actions on a system, for a check afterwards. It is written at once, and kept if a
test fails.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class History:
    """Writes one line of JSON for each record sent and each fault made, to `folder/history.jsonl`.
    Several threads may use it.
    """

    folder: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _began: float = field(default_factory=time.monotonic)

    def note(self, what: str, **facts: object) -> None:
        line = json.dumps(
            {"s": round(time.monotonic() - self._began, 3), "what": what, **facts}, default=str
        )
        with self._lock, (self.folder / "history.jsonl").open("a") as file:
            file.write(line + "\n")


@contextmanager
def kept_on_failure(seed: int) -> Iterator[History]:
    """A folder for a run: the history, the warehouse, the broker and the logs.

    It is removed if the block succeeds. Otherwise its name is printed.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"lowmark-faults-{seed}-"))
    try:
        yield History(folder)
    except BaseException as error:
        error.add_note(
            f"seed {seed}; the history and all that it was written from are kept in {folder}"
        )
        raise
    shutil.rmtree(folder, ignore_errors=True)

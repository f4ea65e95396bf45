"""What was done to a system, and by what it is judged afterwards: written down as it happens, kept where something was found."""

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
    """One line of JSON for each thing that was sent or broken, in `folder/history.jsonl`. For any number of threads."""

    folder: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _began: float = field(default_factory=time.monotonic)

    def note(self, what: str, **facts: object) -> None:
        line = json.dumps({"s": round(time.monotonic() - self._began, 3), "what": what, **facts}, default=str)
        with self._lock, (self.folder / "history.jsonl").open("a") as file:
            file.write(line + "\n")


@contextmanager
def kept_on_failure(seed: int) -> Iterator[History]:
    """A folder for a run: the history, the warehouse, the broker and the logs. It goes if the block ends well, else its name is said."""
    folder = Path(tempfile.mkdtemp(prefix=f"lowmark-faults-{seed}-"))
    try:
        yield History(folder)
    except BaseException as error:
        error.add_note(f"seed {seed}; the history and all that it was written from are kept in {folder}")
        raise
    shutil.rmtree(folder, ignore_errors=True)

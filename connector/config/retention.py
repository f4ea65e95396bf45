"""How long replaced files and snapshots of a stream are kept (TBL-23)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_FILE_RETENTION_S: Final = 86_400
LEAST_DEFAULT_SNAPSHOT_RETENTION_S: Final = 3_600


@dataclass(frozen=True, slots=True)
class VersionRetention:
    """How long a stream keeps files of old versions, and its tables the versions of recorded cuts.

    The time begins when a newer version is committed.
    """

    file_s: int = DEFAULT_FILE_RETENTION_S
    snapshot_s: int = DEFAULT_FILE_RETENTION_S

    @property
    def table_file_s(self) -> int:
        """How long tables keep files, in seconds.

        It is longer than the rows of cuts that name them, so that a read that has begun can finish.
        """
        return max(self.file_s, self.snapshot_s + min(self.snapshot_s // 10, 3_600))

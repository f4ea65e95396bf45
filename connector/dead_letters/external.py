"""External dead letters: a producer set a change aside, or another tool wrote them (DLQ-1, DLQ-7).

Ingest reads the dead-letter topic from the stored offset on, and stores the count with its
progress. So the count is known without a scan (OPS-5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from connector.dead_letters.envelope import DeadLetter


@dataclass(frozen=True, slots=True)
class ExternalDeadLetters:
    """The number of external dead letters below the offsets `read_to` of the dead-letter topic
    `topic_id`.

    Actions on them do not change `count`. `since` is the first failure of the oldest one (µs).
    """

    topic_id: str = ""
    count: int = 0
    since: int | None = None
    read_to: Mapping[int, int] = field(default_factory=dict)

    def after(
        self, letters: Iterable[DeadLetter], ends: Mapping[int, int], change_topic_id: str
    ) -> ExternalDeadLetters:
        """Return the count after reading `letters`, which are below the offsets `ends`.

        A dead letter of a record of the change topic is not external.
        """
        count, since = self.count, self.since
        for letter in letters:
            if letter.position.topic_id != change_topic_id:
                count += 1
                since = min(since or letter.first_failed_at, letter.first_failed_at)
        return ExternalDeadLetters(self.topic_id, count, since, dict(ends))


NO_EXTERNAL: Final = ExternalDeadLetters()

"""Dead letters that neither ingest nor an apply made: a producer set a change aside, or another tool wrote them (DLQ-1, DLQ-7).

Ingest goes on reading their topic where it was, and keeps the count with its progress: so it is known without a scan (OPS-5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from connector.dead_letters.envelope import DeadLetter


@dataclass(frozen=True, slots=True)
class ExternalDeadLetters:
    """How many lie before the offsets `read_to` of the dead-letter topic with the id `topic_id`, whatever was done about them since, and
    when the first of them failed (microseconds).
    """

    topic_id: str = ""
    count: int = 0
    since: int | None = None
    read_to: Mapping[int, int] = field(default_factory=dict)

    def after(self, letters: Iterable[DeadLetter], ends: Mapping[int, int], change_topic_id: str) -> ExternalDeadLetters:
        """What is known once `letters`, which lie before `ends`, are read as well. Those of records of the change topic are ours."""
        count, since = self.count, self.since
        for letter in letters:
            if letter.position.topic_id != change_topic_id:
                count += 1
                since = min(since or letter.first_failed_at, letter.first_failed_at)
        return ExternalDeadLetters(self.topic_id, count, since, dict(ends))

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        read_to = {str(number): offset for number, offset in self.read_to.items()}
        return {"topic_id": self.topic_id, "count": self.count, "since": self.since, "read_to": read_to}

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> ExternalDeadLetters:
        """The inverse of `to_json`."""
        read_to = {int(number): int(offset) for number, offset in stored["read_to"].items()}
        return ExternalDeadLetters(str(stored["topic_id"]), int(stored["count"]), stored["since"], read_to)


NO_EXTERNAL: Final = ExternalDeadLetters()

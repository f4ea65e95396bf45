"""Dead letters of a bridge: records of its source that are no change (SRC-6).

The letter has the bytes and the position of the foreign record. Its headers say where the record
was, and which place in the order was assigned to it: `ORDER_HEADER`. A replay reads the record
again, and sends the change of its row with this place. A row that was read twice has one letter,
because the id of a letter is the position.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Self

from connector.records.rejection import Headers

ORDER_HEADER: Final = "connector.source.order"
"""The header of a letter with its place:
`<commit timestamp>/<tie breaker>/<number of changes of the transaction>/<its id>`.
"""


@dataclass(frozen=True, slots=True)
class AssignedOrder:
    """The place that a bridge has assigned to a row.

    `commit_timestamp` is in microseconds. `count` is the number of changes of the transaction, or 0
    if the row has none.
    """

    commit_timestamp: int
    tie_breaker: int
    count: int
    transaction: str

    def __str__(self) -> str:
        return f"{self.commit_timestamp}/{self.tie_breaker}/{self.count}/{self.transaction}"

    @classmethod
    def from_headers(cls, headers: Headers) -> Self | None:
        """Return the place that headers name. None: they are not those of a bridge's letter."""
        for name, value in reversed(headers):
            if name == ORDER_HEADER:
                try:
                    *numbers, transaction = (value or b"").decode().split("/", 3)
                    commit_timestamp, tie_breaker, count = map(int, numbers)
                except ValueError:
                    return None
                return cls(commit_timestamp, tie_breaker, count, transaction)
        return None


def document_of(value: bytes | None) -> Any:
    """Return the JSON document of a foreign record. Raises ValueError if it is not JSON."""
    try:
        return json.loads(value or b"")
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


def bytes_of(document: Any) -> bytes:
    """Return a JSON document as a foreign record. It is the inverse of `document_of`."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )

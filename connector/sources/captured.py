"""Which of the tables that Debezium captures have a topic that is read (SRC-2)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from fnmatch import fnmatchcase


def reads_table(
    transactions: str, topics: Collection[str], exists: Callable[[str], bool]
) -> Callable[[str], bool | None]:
    """Return whether the topic of a table is in `topics`, which may have `*` and `?`.

    Debezium's topic of `public.customers` is `dbz.public.customers` if the transaction topic is
    `dbz.transaction`. If such a topic `exists` and is not read, neither is the table. If it does
    not exist, a transform may have given the table another topic: then the answer is `None`.
    """
    prefix = transactions.removesuffix("transaction")
    if not all(topic.startswith(prefix) for topic in topics):
        return lambda table: True

    def reads(table: str) -> bool | None:
        topic = f"{prefix}{table}"
        if any(fnmatchcase(topic, pattern) for pattern in topics):
            return True
        return False if exists(topic) else None

    return reads

"""Which truncations of a stream its progress has (EVO-13)."""

from __future__ import annotations

from connector.records.model import Truncate
from connector.state.truncations import MAX_TABLES, NEVER_TRUNCATED


def test_the_tables_that_were_truncated_last_are_remembered() -> None:
    """EVO-13: no other table has a truncation after `others_to`. The greatest rank of each table
    counts.
    """
    names = [f"t{number:04}" for number in range(MAX_TABLES)]
    known = NEVER_TRUNCATED.after(1, [Truncate("p", name, 5) for name in names])
    known = known.after(2, [Truncate("p", names[0], 3)])
    assert (set(known.tables), known.others_to) == (set(names), 0)
    known = known.after(3, [Truncate("p", "a", 1)])
    assert set(known.tables) == {"a", *names} - {names[1]}
    assert known.others_to == 1
    last = {name: known.last_batch(name) for name in ("a", names[0], names[1], "never")}
    assert last == {"a": 3, names[0]: 2, names[1]: 1, "never": 1}
    assert (known.ranks()[names[0]], known.ranks()["a"]) == ((5, 0, 0), (1, 0, 0))

"""Which erased rows refuse changes, and until when (OPR-2)."""

from __future__ import annotations

from connector.dead_letters.ledger import Action, Ledger, LedgerEntry
from connector.state.erased_keys import ErasedKeys, EraseKey, erased_by, key_hash


def record(name: str, to: int) -> EraseKey:
    return EraseKey(1, "s", "t", name, to, "a reason", 1, "me")


def test_the_newest_erasure_of_a_row_is_in_force_until_the_horizon() -> None:
    """OPR-2."""
    erased = erased_by(b"secret", [record("a", 30), record("b", 10), record("a", 20)])
    assert erased == ErasedKeys(b"secret", {"a": 30, "b": 10})
    assert erased.in_force(None) == erased
    assert erased.in_force(20).erased_to == {"a": 30}


def test_a_hash_depends_on_secret_table_and_key() -> None:
    """OPR-2."""
    inputs = [(b"s", "t", b"k"), (b"z", "t", b"k"), (b"s", "tk", b""), (b"s", "t", b"l")]
    assert len({key_hash(*given) for given in inputs}) == len(inputs)


def test_the_ledger_forgets_what_was_before_an_erasure() -> None:
    """OPR-2: a selection may have the key."""
    ledger = Ledger()
    ledger.set_history("l", (LedgerEntry(Action.PARKED, 1, "me", "why", "key-prefix=Ada"),))
    erased = LedgerEntry(Action.ERASED, 2, "me", "ticket", "id=l")
    assert ledger.with_entry("l", erased) == (erased,)

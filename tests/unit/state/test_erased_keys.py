"""Which erased rows refuse changes (OPR-2)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from connector import warehouse as paths
from connector.dead_letters.ledger import Action, Ledger, LedgerEntry
from connector.errors import TableError
from connector.lake.overrides import Overrides
from connector.state.erased_keys import ErasedKeys, EraseKey, erased_by, key_hash, unfinished


def record(name: str, to: int) -> EraseKey:
    return EraseKey(1, "s", "t", name, to, "a reason", 1, "me")


def test_the_newest_erasure_of_a_row_holds_for_ever() -> None:
    """OPR-2: the source tables are known, too, because a record that cannot be decoded has none."""
    records = [record("a", 30), replace(record("b", 10), source="u"), record("a", 20)]
    erased = erased_by(b"secret", records)
    assert erased == ErasedKeys(b"secret", {"a": 30, "b": 10}, frozenset({"t", "u"}))


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


def test_an_erasure_is_unfinished_until_its_end_is_recorded() -> None:
    """OPR-2: one that was killed, and was run again to its end, is finished."""
    begun, other = record("a", 30), record("b", 10)
    ended = replace(begun, ended_at=2)
    (text,) = unfinished([begun, begun, ended, other])
    assert text == "the erasure by me at 1970-01-01T00:00:00.000001Z has not ended: a reason"
    assert unfinished([begun, ended, begun]) != ()


def test_without_its_secret_no_erased_row_is_known(tmp_path: Path) -> None:
    """OPR-2: a new secret would hide all older erasures."""
    overrides, secret = Overrides(str(tmp_path)), bytes(range(32))
    assert overrides.erased("s") == ErasedKeys()
    assert overrides.erasure_secret(secret) == overrides.erasure_secret(b"other") == secret
    overrides.add(record("a", 30))
    assert overrides.erased("s") == ErasedKeys(secret, {"a": 30}, frozenset({"t"}))
    file = Path(paths.erasure_secret(str(tmp_path)))
    assert file.stat().st_mode & 0o777 == 0o600, "no other user reads it"
    file.unlink()
    for ask in (
        lambda: Overrides(str(tmp_path)).erased("s"),
        lambda: overrides.erasure_secret(b""),
    ):
        with pytest.raises(TableError) as caught:
            ask()
        assert caught.value.code == "ERASURE_SECRET_MISSING"

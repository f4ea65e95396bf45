"""Dead letters of a bridge, and their replays (SRC-6)."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.cli.letter_view import print_letter
from connector.dead_letters.envelope import DeadLetter, from_record, to_headers
from connector.dead_letters.ledger import LetterState, LetterStatus
from connector.dead_letters.repair import (
    Content,
    Step,
    Unrepairable,
    content_of,
    edited,
    repair,
    view,
)
from connector.dead_letters.replay import Decision, Verdict, decide
from connector.dead_letters.source_letters import ORDER_HEADER, AssignedOrder
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import DataChange
from connector.records.rejection import Position, Reason
from connector.services.source_letters import read_again
from connector.sources.changes import Changes
from connector.sources.debezium import DebeziumDecoder
from connector.sources.model import OnMissingValue
from connector.sources.records import JsonFormat
from connector.sources.tables import KnownTables
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.nested import ArrayType
from connector.tables.values import DataType
from tests.unit.dead_letters.test_replay import DOOR, NOW

USERS = TableDefinition(
    name="users",
    stream="s",
    source="public.users",
    key=Key(parts=(KeyPart("id", DataType.INT64),), form=KeyForm.ORDERED),
    columns=(
        Column("bio", "f", b"bio", DataType.STRING),
        Column("tags", "f", b"tags", ArrayType(DataType.STRING)),
    ),
)
ORDER = AssignedOrder(1_700_000_000_000_000, 7, 3, "824")
POSITION = Position("dbz.public.users", "AAAAAAAAAAAAAAAAAAAAAA", 2, 41)
LINEAGE = (("connector.source", b"dbz.public.users/2/41"), ("connector.source.position", b"0/1"))


def envelope(**fields: object) -> dict[str, object]:
    return {
        "op": "c",
        "after": {"id": 1, "bio": "text"},
        "source": {"schema": "public", "table": "users", "lsn": 1, "sequence": '["1","1"]'},
        "transaction": {"id": "824:1", "total_order": 2, "data_collection_order": 1},
        **fields,
    }


def letter(value: bytes, order: AssignedOrder = ORDER) -> DeadLetter:
    return DeadLetter(
        position=POSITION,
        key=b'{"id": 1}',
        value=value,
        headers=(*LINEAGE, (ORDER_HEADER, str(order).encode())),
        reason=Reason.UNREADABLE_SOURCE,
        rule="UNREADABLE",
        detail="it is broken",
        first_failed_at=NOW,
        record_timestamp=1_700_000_001_000_000,
    )


def decided(
    subject: DeadLetter, *steps: str, missing: OnMissingValue = OnMissingValue.LETTER
) -> Decision:
    decoder = DebeziumDecoder(JsonFormat(), KnownTables(declared=[USERS]))
    changes = Changes({"public.users": USERS}.get, on_missing_value=missing)
    read = partial(read_again, decoder=decoder, changes=changes, kafka_partitions=4)
    return decide(
        subject,
        LetterStatus(LetterState.OPEN, 0, 0),
        replace(DOOR, read_source=read),
        Schemas(),
        now=NOW,
        steps=[Step.parse(step) for step in steps],
    )


def change_of(decision: Decision) -> DataChange:
    assert decision.verdict is Verdict.REPLAY, decision.why
    assert decision.content is not None
    record = decode(decision.content.value, Schemas())
    assert isinstance(record, ChangeRecord)
    assert isinstance(record.record, DataChange)
    return record.record


@given(
    st.builds(
        AssignedOrder,
        *(st.integers(0, 2**63 - 1) for _ in range(3)),
        st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_the_assigned_place_is_in_a_header(order: AssignedOrder) -> None:
    """SRC-6."""
    assert AssignedOrder.from_headers(letter(b"{", order).headers) == order


@pytest.mark.parametrize("text", [b"", b"1/2/3", b"a/2/3/x", b"\xff/1/2/3", None])
def test_another_header_is_no_place(text: bytes | None) -> None:
    assert AssignedOrder.from_headers(((ORDER_HEADER, text),)) is None


def test_a_record_that_is_read_twice_has_one_letter_with_its_bytes() -> None:
    """SRC-6, poison_is_contained: the id is the position, whatever was assigned."""
    first, second = letter(b"\xff{"), letter(b"\xff{", replace(ORDER, commit_timestamp=5))
    assert first.id == second.id == "AAAAAAAAAAAAAAAAAAAAAA-2-41"
    stored = from_record(first.key, first.value, to_headers(first))
    assert stored == first
    assert (stored.value, stored.reason) == (b"\xff{", Reason.UNREADABLE_SOURCE)


def test_a_replay_sends_the_change_with_the_assigned_time() -> None:
    """SRC-6: commit timestamp, transaction with its count, sequence, and lineage."""
    decision = decided(letter(json.dumps(envelope()).encode()))
    change = change_of(decision)
    assert (change.commit_timestamp, change.tie_breaker) == (ORDER.commit_timestamp, 2)
    assert change.table == "public.users"
    assert change.transaction is not None
    transaction = change.transaction
    assert (transaction.server_transaction_id, transaction.record_sequence) == ("824", 2)
    assert transaction.number_of_records_in_transaction == 3
    assert decision.content is not None
    assert decision.content.key == change.row_key
    assert decision.content.headers[:-1] == LINEAGE
    assert decision.content.headers[-1][0] == "connector.replay"


def test_a_row_of_another_transaction_has_no_count() -> None:
    """SRC-6, ING-2: what was assigned to poison may be the place of its neighbour."""
    value = json.dumps(envelope(transaction=None)).encode()
    change = change_of(decided(letter(value)))
    assert (change.transaction, change.tie_breaker) == (None, ORDER.tie_breaker)


def test_a_repair_changes_the_document_of_the_source() -> None:
    """SRC-6, DLQ-12: `set` and `unset` reach into the foreign JSON."""
    broken = letter(
        json.dumps(envelope(after={"id": 1, "bio": "__debezium_unavailable_value"})).encode()
    )
    refused = decided(broken)
    assert refused.verdict is Verdict.REFUSE
    assert "no event has the value of bio" in refused.why
    repaired = decided(broken, 'set record.after.bio="from a person"')
    values = [entry.value for entry in change_of(repaired).entries if hasattr(entry, "value")]
    assert b"from a person" in values
    assert repaired.repair_note is not None
    assert b"from a person" not in [
        entry.value
        for entry in change_of(decided(broken, missing=OnMissingValue.NULL)).entries
        if hasattr(entry, "value")
    ]
    without = repair(content_of(broken), [Step.parse("unset record.after.bio")], Schemas())
    assert isinstance(without, Content)
    assert json.loads(without.value or b"")["after"] == {"id": 1}


def test_a_value_that_is_missing_is_missing_in_a_replay() -> None:
    """SRC-3, SRC-6, nothing_invented: a letter has no header of Debezium that says that the key of
    its row has changed. Its rule says it.
    """
    value = json.dumps(envelope(after={"id": 1, "tags": None})).encode()
    lacking = replace(letter(value), rule="MISSING_VALUE")
    refused = decided(lacking)
    assert refused.verdict is Verdict.REFUSE
    assert "no event has the value of tags" in refused.why
    assert change_of(decided(lacking, missing=OnMissingValue.NULL)).table == "public.users"
    assert change_of(decided(lacking, 'set record.after.tags=["x"]')).table == "public.users"
    assert change_of(decided(letter(value))).table == "public.users", "a new row with NULL"


@pytest.mark.parametrize(
    ("value", "step", "why"),
    [
        (b"{", "", "rejected again as UNREADABLE_SOURCE: UNREADABLE"),
        (b"{", "set record.op=1", "is not JSON. Set the whole record"),
        (json.dumps(envelope(op="t", after=None)).encode(), "", "truncates a table"),
        (json.dumps(envelope(op="m")).encode(), "", "it is no row"),
        (json.dumps(envelope()).encode(), f'unset headers["{ORDER_HEADER}"]', "no valid header"),
        (json.dumps(envelope()).encode(), "reframe 1", "has no schema of lowmark"),
        (json.dumps(envelope()).encode(), "unset key", "does not follow from its value"),
    ],
)
def test_letters_without_a_row_are_refused(value: bytes, step: str, why: str) -> None:
    """SRC-6, replay_is_safe: a refused letter says why, and stays."""
    result = decided(letter(value), *([step] if step else []))
    assert (result.verdict, result.attempt) == (Verdict.REFUSE, 0)
    assert why in result.why


def test_the_view_has_the_document_or_the_bytes() -> None:
    """SRC-6, DLQ-9."""
    assert view(content_of(letter(b'{"a": [1]}')), Schemas())["record"] == {"a": [1]}
    assert view(content_of(letter(b"{x")), Schemas())["value"] == "{x"
    steps = edited(content_of(letter(b'{"a": 1}')), Schemas(), lambda text: text.replace("1", "2"))
    assert not isinstance(steps, Unrepairable)
    assert steps[0].text.startswith("set record=")


def test_a_letter_is_shown_with_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    """SRC-6, DLQ-9."""
    status = LetterStatus(LetterState.OPEN, 0, 0)
    print_letter(letter(b'{"op": "c"}'), Schemas(), status)
    print_letter(letter(b"\x00\x01"), Schemas(), status)
    shown = capsys.readouterr().out
    assert '"op": "c"' in shown
    assert "is not JSON" in shown
    assert f"{ORDER_HEADER} = {ORDER}" in shown
    assert "UNREADABLE_SOURCE UNREADABLE" in shown

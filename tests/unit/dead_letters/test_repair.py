"""Mending dead letters: what each step does, and what it is not fit for (DLQ-12)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.ledger import RepairNote
from connector.dead_letters.repair import (
    Content,
    Step,
    Unrepairable,
    content_of,
    edited,
    from_view,
    note,
    repair,
    view,
)
from connector.records.codec import SCHEMA, ChangeRecord, Schemas, decode, encode, frame, framed
from connector.records.json_view import to_line
from connector.records.model import (
    CONTROL_KEY,
    DataChange,
    Heartbeat,
    Record,
    SetCell,
    WriteStreamOffset,
)
from connector.records.rejection import Headers
from tests.property.strategies import HEADERS, RECORDS, dead_letters

CHANGE = DataChange(
    stream_partition="p",
    table="users",
    row_key=b"k",
    commit_timestamp=9,
    entries=(SetCell("f", b"q", b"v", 9),),
)
BODY = encode(CHANGE, 4)
SCHEMAS = Schemas()


def repair_note(content: Content, *steps: str) -> Content:
    found = repair(content, [Step.parse(step) for step in steps], SCHEMAS)
    assert isinstance(found, Content), found
    return found


def why_not(content: Content, *steps: str) -> str:
    found = repair(content, [Step.parse(step) for step in steps], SCHEMAS)
    assert isinstance(found, Unrepairable), found
    return found.why


def of(value: bytes | None, key: bytes | None = b"k", headers: Headers = ()) -> Content:
    return Content(key, value, headers)


def record(content: Content) -> Record:
    found = decode(content.value, SCHEMAS)
    assert isinstance(found, ChangeRecord), found
    return found.record


@pytest.mark.parametrize("value", [BODY, frame(BODY, 7), frame(BODY, None)])
def test_reframing_names_another_schema_for_the_same_body(value: bytes) -> None:
    """DLQ-12: for UNKNOWN_FRAMING and UNKNOWN_SCHEMA."""
    assert repair_note(of(value), "reframe=12").value == frame(BODY, 12)
    assert repair_note(of(value), "reframe=2147483647").value == frame(BODY, 2**31 - 1)
    assert repair_note(of(value), "reframe=single-object").value == frame(BODY, None)


def test_a_row_of_a_write_stream_is_reframed() -> None:
    """DLQ-12, WRS-16."""
    row = replace(CHANGE, write_stream=WriteStreamOffset("job/a", 7))
    schemas = Schemas({7: SCHEMA})
    for value in (framed(row, 4), framed(row, 4, 7)):
        for step, reframed in (("single-object", framed(row, 4)), ("12", framed(row, 4, 12))):
            found = repair(of(value), [Step.parse(f"reframe={step}")], schemas)
            assert found == of(reframed)


@given(RECORDS, st.sampled_from([b"", frame(b"", 4711), b"\xc3\x01foreign?"]))
def test_a_body_without_a_known_framing_is_reframed(written: Record, framing: bytes) -> None:
    """DLQ-12: a bare body, a schema id without a schema, an unknown fingerprint."""
    found = repair_note(of(framing + encode(written, 4)), "reframe=single-object")
    assert found.value == framed(written, 4)


def test_a_body_of_a_schema_that_is_not_released_is_not_named_as_a_released_one() -> None:
    """DLQ-12: its fields could be taken for other fields."""
    schema = json.loads(SCHEMA)
    schema["fields"].append({"name": "colour", "type": "string"})
    schemas = Schemas({7: json.dumps(schema)})
    for value, known in (
        (frame(BODY, 7) + b"\0", schemas),
        (BODY + b"\0", SCHEMAS),
        (b"", SCHEMAS),
    ):
        found = repair(of(value), [Step.parse("reframe=single-object")], known)
        assert isinstance(found, Unrepairable)
        assert found.why == "reframe=single-object: the body was not written with a released schema"


def test_a_record_in_another_unit_is_replaced_as_a_whole_or_taken_as_it_is() -> None:
    """DLQ-12, REC-26: a step that encodes it again would lose the unit of its other numbers."""
    texts = {
        number: SCHEMA.replace("timestamp-micros", f"timestamp-{unit}")
        for number, unit in ((7, "nanos"), (8, "millis"))
    }
    schemas, change = Schemas(texts), replace(CHANGE, entries=(SetCell("f", b"q", b"v", 0),))

    def after(id_: int, step: str) -> ChangeRecord | str:
        found = repair(of(framed(change, 4, id_)), [Step.parse(step)], schemas)
        if isinstance(found, Unrepairable):
            return found.why
        decoded = decode(found.value, schemas)
        assert isinstance(decoded, ChangeRecord), decoded
        return decoded

    for step in ('replace=data_change.table="t"', "commit-timestamp=5"):
        why = after(7, step)
        assert "timestamp-nanos for data_change.commit_timestamp" in str(why)
        assert "step record" in str(why)
    renamed = replace(change, table="t")
    in_micros = replace(renamed, commit_timestamp=9000)
    assert after(8, 'replace=data_change.table="t"') == ChangeRecord(in_micros, 4)
    line = to_line(view(of(framed(renamed, 4)), schemas))
    assert after(7, f"record={line}") == ChangeRecord(renamed, 4)
    assert after(7, "reframe=single-object") == ChangeRecord(change, 4)


def test_another_systems_framing_is_cut_and_ours_put_in_its_place() -> None:
    assert repair_note(
        of(b"\x03\x00" + b"u" * 16 + BODY), "cut-prefix=18", "reframe=12"
    ).value == frame(BODY, 12)
    assert "has 2 bytes" in why_not(of(b"ab"), "cut-prefix=3")
    assert repair_note(of(b"ab"), "cut-prefix=2").value == b""
    assert "has 0 bytes" in why_not(of(None), "cut-prefix=1")


def test_the_key_is_set_or_taken_from_the_record() -> None:
    """DLQ-12: for KEY_MISMATCH."""
    assert repair_note(of(BODY), "set-key=u#1").key == b"u#1"
    assert repair_note(of(BODY), "set-key=base64:/w==").key == b"\xff"
    assert repair_note(of(frame(BODY, None), key=b"wrong"), "key-from-record").key == b"k"
    assert (
        repair_note(of(frame(encode(Heartbeat("p", 1), 4), None)), "key-from-record").key
        == CONTROL_KEY
    )
    assert "cannot be decoded" in why_not(of(b"rubbish"), "key-from-record")


def test_headers_are_set_and_dropped_by_name() -> None:
    content = of(BODY, headers=(("a", b"1"), ("b", None), ("a", b"2")))
    assert repair_note(content, "set-header=a=x=y").headers == (("b", None), ("a", b"x=y"))
    assert repair_note(content, "drop-header=a").headers == (("b", None),)


def test_a_field_is_replaced_also_where_it_broke_a_rule() -> None:
    """DLQ-12: for INVALID."""
    broken = of(frame(BODY.replace(b"\x02f\x02q", b"\x02!\x02q"), None))
    assert not isinstance(decode(broken.value, SCHEMAS), ChangeRecord)
    assert record(repair_note(broken, 'replace=data_change.entries[0].family="f"')) == CHANGE
    assert "family" in why_not(broken, 'replace=data_change.table="t"')


def test_the_commit_timestamp_is_set() -> None:
    """DLQ-12: for COMMIT_TIMESTAMP_IN_FUTURE."""
    for text in ("1735722000000000", "2025-01-01T09:00:00Z"):
        found = record(repair_note(of(frame(BODY, None)), f"commit-timestamp={text}"))
        assert isinstance(found, DataChange)
        assert (found.commit_timestamp, found.entries) == (1735722000000000, CHANGE.entries)
    assert "the record has no" in why_not(
        of(frame(encode(Heartbeat("p", 1), 4), None)), "commit-timestamp=1"
    )


@pytest.mark.parametrize(
    "place",
    [
        "nothing.table",
        "data_change.entries[7].family",
        "data_change.table.x",
        "data_change.entries[1]",
    ],
)
def test_a_field_that_the_record_does_not_have_is_said(place: str) -> None:
    assert "the record has no" in why_not(of(frame(BODY, None)), f'replace={place}="x"')


NO_STEPS = [
    "",
    "x",
    "reframe",
    "reframe=",
    "reframe=-1",
    "cut-prefix=0",
    "cut-prefix=x",
    "cut-prefix=١",
    "set-header=x",
    "set-header==x",
]
NO_STEPS += [
    "reframe=2147483648",
    "cut-prefix=2147483648",
    "commit-timestamp=12345678901234567890",
    "replace=a=[",
    "set-header=a=base64:!",
    "set-header=a\0b=1",
]
NO_STEPS += [
    "set-key=base64:!",
    "key-from-record=k",
    "replace=table",
    "replace=table=users",
    "replace==1",
    "commit-timestamp=soon",
]


@pytest.mark.parametrize("text", [*NO_STEPS, "commit-timestamp=2025-01-01T09:00:00"])
def test_a_step_that_is_none_is_refused_before_any_letter_is_looked_at(text: str) -> None:
    with pytest.raises(ValueError):
        Step.parse(text)


NOT_UTF_8 = [
    "\udcff",
    "set-key=\udcff",
    "set-key=base64:\udcff",
    "set-header=\udcff=x",
    "set-header=x=\udcff",
    "drop-header=\udcff",
]
NOT_UTF_8 += [
    "replace=\udcff=1",
    'replace=data_change.table="\udcff"',
    'record={"\udcff": 1}',
    "commit-timestamp=2025-01-01\udcff09:00:00Z",
]


@pytest.mark.parametrize("text", NOT_UTF_8)
def test_a_step_that_is_not_utf_8_is_refused_before_any_letter_is_looked_at(text: str) -> None:
    """DLQ-11, DLQ-12: on a command line that is not UTF-8; neither a record nor the ledger could
    hold it.
    """
    with pytest.raises(ValueError, match="is not UTF-8"):
        Step.parse(text)


@pytest.mark.parametrize(
    "place",
    [
        "table",
        "source_cluster_id",
        "change_sequence_number",
        "entries[0].family",
        "row_key",
        "x",
        "transaction",
        "change_type",
    ],
)
def test_escapes_in_json_that_stand_for_no_text_are_no_record(place: str) -> None:
    """DLQ-12, REC-14: a step may say in ASCII what is no text."""
    for text in (r'"\udcff"', r'{"\udcff": 1}', r'{"server_transaction_id": "\udcff"}'):
        assert "Unrepairable" in repr(
            repair(
                of(frame(BODY, None)), [Step.parse(f"replace=data_change.{place}={text}")], SCHEMAS
            )
        )


NEAR_THE_LIMIT = range(800, 1000, 2)
"""Levels of JSON, of which Python reads as many as the depth of the call leaves of a thousand."""


@pytest.mark.parametrize(
    "step",
    [
        "record={}",
        'record={{"x": {}}}',
        "replace=data_change.table={}",
        "replace=data_change.entries[0].value={}",
    ],
)
def test_json_of_any_depth_is_refused_as_a_step_or_for_the_letter(step: str) -> None:
    """DLQ-12: of many letters, one that a step is not fit for concerns that one."""
    found = []
    for depth in NEAR_THE_LIMIT:
        try:
            parsed = Step.parse(step.format("[" * depth + "]" * depth))
        except ValueError:
            continue
        found.append(repair(of(frame(BODY, None)), [parsed], SCHEMAS))
    assert found
    assert all(isinstance(one, Unrepairable) for one in found)


@pytest.mark.parametrize(
    "given", ["NaN", "[1e999]", '{"heartbeat": -Infinity}', "9" * 5000, r'"\udcff"', "[" * 100_000]
)
def test_json_that_cannot_be_written_again_is_no_record_of_an_editor(given: str) -> None:
    assert isinstance(edited(of(frame(BODY, None)), SCHEMAS, lambda text: given), Unrepairable)


@given(RECORDS, st.integers(1, 9))
def test_the_view_in_an_editor_unchanged_gives_the_same_record(
    known: Record, kafka_partitions: int
) -> None:
    """DLQ-12, REC-22."""
    content = of(framed(known, kafka_partitions))
    shown = view(content, SCHEMAS)
    assert isinstance(shown, dict)
    assert from_view(content, json.dumps(shown, indent=2)) == content


def test_an_editor_makes_a_step_of_what_was_changed() -> None:
    """DLQ-12."""
    content = of(
        frame(
            encode(replace(CHANGE, entries=(SetCell("f", b"q", b"\xe2\x80\xae\x1b", 9),)), 4), None
        )
    )
    seen: list[str] = []

    def edit(text: str) -> str:
        seen.append(text)
        return text.replace('"users"', '"people"')

    step = edited(content, SCHEMAS, edit)
    assert isinstance(step, Step)
    assert all(char.isprintable() or char == "\n" for char in seen[0])
    found = record(repair_note(content, step.text))
    assert isinstance(found, DataChange)
    assert (found.table, found.entries[0]) == ("people", SetCell("f", b"q", b"\xe2\x80\xae\x1b", 9))


def test_an_editor_gets_json_also_where_characters_are_escaped() -> None:
    """DLQ-12: what cannot be printed is shown as JSON writes it in ASCII."""
    content = of(frame(encode(Heartbeat("a\u202eb", 9), 4), None))
    step = edited(content, SCHEMAS, lambda text: text.replace(r'"a\u202eb"', r'"a\u202ec"'))
    assert isinstance(step, Step)
    assert record(repair_note(content, step.text)) == Heartbeat("a\u202ec", 9)


@pytest.mark.parametrize(
    ("given", "why"),
    [("{", "not JSON"), ("{}", "exactly one of"), ('{"heartbeat": 3}', "stream_partition")],
)
def test_what_comes_out_of_an_editor_must_be_a_record(given: str, why: str) -> None:
    found = edited(of(frame(BODY, None)), SCHEMAS, lambda text: given)
    assert isinstance(found, Unrepairable)
    assert why in found.why


def test_an_editor_that_changes_nothing_makes_no_step() -> None:
    assert edited(of(frame(BODY, None)), SCHEMAS, lambda text: text + "\n") is None
    assert edited(of(frame(BODY, None)), SCHEMAS, lambda text: None) is None
    assert isinstance(edited(of(b"rubbish"), SCHEMAS, lambda text: text), Unrepairable)


STEPS = [
    "cut-prefix=1",
    "reframe=3",
    "reframe=single-object",
    "set-key=",
    "key-from-record",
    "drop-header=a",
    "set-header=a=b",
]
STEPS += [
    'replace=data_change.table="t"',
    "replace=data_change={}",
    "replace=heartbeat=[]",
    "commit-timestamp=1",
]


@given(dead_letters(), st.lists(st.sampled_from(STEPS)))
def test_mending_never_raises_and_leaves_the_original(letter: DeadLetter, steps: list[str]) -> None:
    """DLQ-12: of many letters, one that a step is not fit for concerns that one."""
    before = content_of(letter)
    found = repair(before, [Step.parse(step) for step in steps], SCHEMAS)
    assert isinstance(found, Unrepairable | Content)
    assert content_of(letter) == before == Content(letter.key, letter.value, letter.headers)


@given(st.none() | st.binary(), st.none() | st.binary(), HEADERS)
def test_contents_that_differ_have_other_digests(
    key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    one = Content(key, value, headers)
    others = [
        Content(value, key, headers),
        Content(key, value, (*headers, ("a", None))),
        Content(key, (value or b"") + b"x", headers),
    ]
    others += [
        Content((key or b"") + b"x", value, headers),
        Content(key, value, (("a", b"x"), *headers)),
    ]
    assert all((other == one) == (other.digest() == one.digest()) for other in others)


def test_what_was_mended_is_noted_with_digests() -> None:
    """DLQ-12."""
    before, after = of(b"a"), of(b"b")
    assert note([], before, before) is None
    assert note([Step.parse("reframe=1")], before, after) == RepairNote(
        ("reframe=1",), before.digest(), after.digest()
    )
    assert note([], before, after, is_forced=True) == RepairNote(
        ("--force",), before.digest(), after.digest()
    )
    long = f"set-key={'k' * 1000}"
    assert note([Step.parse(long)], before, after) == RepairNote(
        (long[:500],), before.digest(), after.digest()
    )


def test_a_whole_record_says_over_how_many_kafka_partitions_its_keys_are_spread() -> None:
    """DLQ-12, REC-24."""
    assert "kafka_partitions is missing" in why_not(
        of(BODY), 'record={"stream_partition": "p", "heartbeat": {"timestamp": 5}}'
    )
    found = repair_note(
        of(BODY, headers=(("a", b"1"),)),
        'record={"stream_partition": "p", "kafka_partitions": 3, "heartbeat": {"timestamp": 5}}',
    )
    assert found == of(frame(encode(Heartbeat("p", 5), 3), None), headers=(("a", b"1"),))

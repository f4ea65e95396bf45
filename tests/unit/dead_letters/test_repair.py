"""Repairing dead letters: what each step does, and which letters it does not fit (DLQ-12)."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    note,
    repair,
    view,
)
from connector.records.codec import SCHEMA, ChangeRecord, Schemas, decode, encode, frame, framed
from connector.records.json_view import to_line
from connector.records.model import (
    CONTROL_KEY,
    DataChange,
    DeleteFamily,
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


def repaired(content: Content, *steps: str) -> Content:
    result = repair(content, [Step.parse(step) for step in steps], SCHEMAS)
    assert isinstance(result, Content), result
    return result


def why_not(content: Content, *steps: str) -> str:
    result = repair(content, [Step.parse(step) for step in steps], SCHEMAS)
    assert isinstance(result, Unrepairable), result
    return result.why


def of(value: bytes | None, key: bytes | None = b"k", headers: Headers = ()) -> Content:
    return Content(key, value, headers)


def record(content: Content) -> Record:
    found = decode(content.value, SCHEMAS)
    assert isinstance(found, ChangeRecord), found
    return found.record


@pytest.mark.parametrize("value", [BODY, frame(BODY, 7), frame(BODY, None)])
def test_reframing_names_another_schema_for_the_same_body(value: bytes) -> None:
    """DLQ-12: for UNKNOWN_FRAMING and UNKNOWN_SCHEMA."""
    assert repaired(of(value), "reframe 12").value == frame(BODY, 12)
    assert repaired(of(value), "reframe 2147483647").value == frame(BODY, 2**31 - 1)
    assert repaired(of(value), "reframe single-object").value == frame(BODY, None)


def test_a_row_of_a_write_stream_is_reframed() -> None:
    """DLQ-12, WRS-16."""
    row = replace(CHANGE, write_stream=WriteStreamOffset("job/a", 7))
    schemas = Schemas({7: SCHEMA})
    for value in (framed(row, 4), framed(row, 4, 7)):
        for step, reframed in (("single-object", framed(row, 4)), ("12", framed(row, 4, 12))):
            found = repair(of(value), [Step.parse(f"reframe {step}")], schemas)
            assert found == of(reframed)


@given(RECORDS, st.sampled_from([b"", frame(b"", 4711), b"\xc3\x01foreign?"]))
def test_a_body_without_a_known_framing_is_reframed(written: Record, framing: bytes) -> None:
    """DLQ-12: a bare body, a schema id without a schema, an unknown fingerprint."""
    found = repaired(of(framing + encode(written, 4)), "reframe single-object")
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
        found = repair(of(value), [Step.parse("reframe single-object")], known)
        assert isinstance(found, Unrepairable)
        assert found.why == "reframe single-object: the body was not written with a released schema"


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

    for step in (
        'set record.data_change.table="t"',
        "set record.data_change.commit_timestamp=5",
        "unset record.data_change.row_image",
    ):
        why = after(7, step)
        assert "timestamp-nanos for data_change.commit_timestamp" in str(why)
        assert "Set the whole record" in str(why)
    renamed = replace(change, table="t")
    in_micros = replace(renamed, commit_timestamp=9000)
    assert after(8, 'set record.data_change.table="t"') == ChangeRecord(in_micros, 4)
    line = to_line(view(of(framed(renamed, 4)), schemas)["record"])
    assert after(7, f"set record={line}") == ChangeRecord(renamed, 4)
    assert after(7, "reframe single-object") == ChangeRecord(change, 4)


def test_the_framing_of_another_system_is_replaced_by_ours() -> None:
    """DLQ-12: for UNKNOWN_FRAMING. Each letter may keep the schema id that follows."""
    foreign = of(b"\x03\x00" + b"u" * 16 + BODY)
    assert repaired(foreign, "reframe 12@18").value == frame(BODY, 12)
    assert repaired(foreign, "reframe single-object@18").value == frame(BODY, None)
    assert repaired(of(b"MAGIC" + frame(BODY, 7)), "reframe 12@5").value == frame(BODY, 12)
    assert repaired(of(b"MAGIC" + frame(BODY, 7)), "reframe own@5").value == frame(BODY, 7)
    assert repaired(of(b"ab"), "reframe own@2").value == b""
    assert "has 2 bytes" in why_not(of(b"ab"), "reframe 12@3")
    assert "has 0 bytes" in why_not(of(None), "reframe own@1")


def test_the_key_is_set_or_taken_from_the_record() -> None:
    """DLQ-12: for KEY_MISMATCH."""
    assert repaired(of(BODY), 'set key="u#1"').key == b"u#1"
    assert repaired(of(BODY), 'set key={"base64": "/w=="}').key == b"\xff"
    wrong = of(frame(BODY, None), key=b"wrong")
    assert repaired(wrong, "unset key").key == repaired(wrong, "set key=null").key == b"k"
    beat = of(frame(encode(Heartbeat("p", 1), 4), None))
    assert repaired(beat, "unset key").key == CONTROL_KEY
    assert "cannot be decoded" in why_not(of(b"rubbish"), "unset key")


def test_headers_are_set_and_removed_by_name_or_index() -> None:
    """DLQ-12: a header that is set replaces all headers of its name."""
    content = of(BODY, headers=(("a", b"1"), ("b.c", None), ("a", b"2")))
    assert repaired(content, 'set headers.a="x=y"').headers == (("b.c", None), ("a", b"x=y"))
    assert repaired(content, "set headers.d=null").headers == (*content.headers, ("d", None))
    assert repaired(content, "unset headers.a").headers == (("b.c", None),)
    assert repaired(content, 'unset headers["b.c"]').headers == (("a", b"1"), ("a", b"2"))
    assert repaired(content, "unset headers.z") == content
    assert repaired(content, 'set headers[2].value="3"').headers[2] == ("a", b"3")
    assert repaired(content, "unset headers[0]").headers == content.headers[1:]
    assert repaired(content, "unset headers").headers == ()
    assert repaired(content, 'set headers=[{"name": "n", "value": "v"}]').headers == (("n", b"v"),)
    assert "the letter has no headers.a.value" in why_not(content, 'set headers.a.value="1"')
    assert "the letter has no headers[3]" in why_not(content, "unset headers[3]")
    assert "name is missing" in why_not(content, 'set headers=[{"value": "v"}]')


def test_the_value_is_set_as_bytes() -> None:
    """DLQ-12: for a value that cannot be decoded."""
    assert repaired(of(b"rubbish"), 'set value={"base64": "/w=="}').value == b"\xff"
    assert repaired(of(BODY), "set value=null").value is None
    assert "the letter has no value.base64" in why_not(of(frame(BODY, None)), "set value.base64=1")


def test_a_field_is_set_also_if_it_breaks_a_rule() -> None:
    """DLQ-12: for INVALID."""
    broken = of(frame(BODY.replace(b"\x02f\x02q", b"\x02!\x02q"), None))
    assert not isinstance(decode(broken.value, SCHEMAS), ChangeRecord)
    assert record(repaired(broken, 'set record.data_change.entries[0].family="f"')) == CHANGE
    assert "family" in why_not(broken, 'set record.data_change.table="t"')
    assert "cannot be decoded" in why_not(of(b"rubbish"), 'set record.data_change.table="t"')


def test_a_field_or_an_entry_is_removed() -> None:
    """DLQ-12."""
    more = replace(CHANGE, entries=(*CHANGE.entries, DeleteFamily("g")), tie_breaker=3)
    content = of(framed(more, 4))
    steps = ("unset record.data_change.entries[1]", "unset record.data_change.tie_breaker")
    assert record(repaired(content, *steps)) == CHANGE
    assert "entries is missing" in why_not(content, "unset record.data_change.entries")
    assert "the letter has no record.data_change.transaction" in why_not(
        content, "unset record.data_change.transaction"
    )


def test_the_commit_timestamp_is_set() -> None:
    """DLQ-12: for COMMIT_TIMESTAMP_IN_FUTURE."""
    for text in ("1735722000000000", '"2025-01-01T09:00:00Z"'):
        step = f"set record.data_change.commit_timestamp={text}"
        change = record(repaired(of(frame(BODY, None)), step))
        assert isinstance(change, DataChange)
        assert (change.commit_timestamp, change.entries) == (1735722000000000, CHANGE.entries)
    beat = of(frame(encode(Heartbeat("p", 1), 4), None))
    assert "the letter has no" in why_not(beat, "set record.data_change.commit_timestamp=1")


@pytest.mark.parametrize(
    "path",
    [
        "nothing.table",
        "data_change.entries[7].family",
        "data_change.table.x",
        "data_change.entries[1]",
    ],
)
def test_a_field_that_the_record_does_not_have_is_named(path: str) -> None:
    """DLQ-12."""
    why = why_not(of(frame(BODY, None)), f'set record.{path}="x"')
    assert f"the letter has no record.{path}" in why


NO_STEPS = ["", "x", "key", "reframe", "reframe ", "reframe -1", "reframe ١", "reframe own"]
NO_STEPS += [
    "reframe 2147483648",
    "reframe 1@0",
    "reframe 1@",
    "reframe 1@x",
    "reframe 1@9999999999",
]
NO_STEPS += ["set", "set key", "set key=", "set key=u#1", "set =1", "set table=1", "set record.=1"]
NO_STEPS += ["set [0]=1", "set record..a=1", "set record.a=[", 'set headers["a=1']
NO_STEPS += [r'set headers["\x"]=1', "unset", "unset record", "unset value", "unset table"]
NO_STEPS += ["unset record.a=1"]


@pytest.mark.parametrize("text", NO_STEPS)
def test_a_text_that_is_not_a_step_is_refused_before_a_letter_is_read(text: str) -> None:
    with pytest.raises(ValueError):
        Step.parse(text)


NOT_UTF_8 = ["\udcff", 'set key="\udcff"', "set headers.\udcff=1", "unset headers.\udcff"]
NOT_UTF_8 += ['set record.data_change.table="\udcff"', 'set record={"\udcff": 1}', "reframe \udcff"]


@pytest.mark.parametrize("text", NOT_UTF_8)
def test_a_step_that_is_not_utf_8_is_refused_before_a_letter_is_read(text: str) -> None:
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
                of(frame(BODY, None)),
                [Step.parse(f"set record.data_change.{place}={text}")],
                SCHEMAS,
            )
        )


NEAR_THE_LIMIT = range(800, 1000, 2)
"""Levels of JSON, of which Python reads as many as the depth of the call leaves of a thousand."""


@pytest.mark.parametrize(
    "step",
    [
        "set record={}",
        'set record={{"x": {}}}',
        "set record.data_change.table={}",
        "set record.data_change.entries[0].value={}",
        "set headers={}",
        "set key={}",
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


@given(RECORDS, st.integers(1, 9), st.none() | st.binary(), HEADERS)
def test_the_view_of_a_letter_gives_the_same_letter(
    written: Record, kafka_partitions: int, key: bytes | None, headers: Headers
) -> None:
    """DLQ-12, REC-22: its parts are the arguments of `set`."""
    content = of(framed(written, kafka_partitions), key, headers)
    shown = view(content, SCHEMAS)
    assert shown.keys() == {"key", "headers", "record"}
    parts = [part for part in shown if part != "key" or key is not None]
    assert repaired(content, *(f"set {part}={to_line(shown[part])}" for part in parts)) == content


def test_the_view_of_a_letter_that_cannot_be_decoded_has_its_bytes() -> None:
    """DLQ-12."""
    assert view(of(b"\xff"), SCHEMAS) == {"key": "k", "headers": [], "value": {"base64": "/w=="}}
    assert view(of(None, None), SCHEMAS) == {"key": None, "headers": [], "value": None}


def edits_of(content: Content, edit: Callable[[str], str | None]) -> tuple[Step, ...]:
    steps = edited(content, SCHEMAS, edit)
    assert isinstance(steps, tuple), steps
    return steps


def test_an_editor_makes_steps_of_the_changes() -> None:
    """DLQ-12: one for each part of the letter, and the key may follow from the record."""
    raw = replace(CHANGE, entries=(SetCell("f", b"q", b"\xe2\x80\xae\x1b", 9),))
    content = of(framed(raw, 4), b"wrong", (("a", b"1"),))
    texts: list[str] = []

    def edit(text: str) -> str:
        texts.append(text)
        letter = json.loads(text.replace('"users"', '"people"'))
        letter["record"]["data_change"]["row_key"] = "l"
        del letter["key"], letter["headers"]
        return json.dumps(letter)

    steps = edits_of(content, edit)
    assert all(char.isprintable() or char == "\n" for char in texts[0])
    assert [step.text.partition("=")[0] for step in steps] == [
        "set record",
        "set headers",
        "set key",
    ]
    result = repaired(content, *(step.text for step in steps))
    assert (result.key, result.headers) == (b"l", ())
    assert record(result) == replace(raw, table="people", row_key=b"l")


def test_an_editor_gets_json_also_where_characters_are_escaped() -> None:
    """DLQ-12: what cannot be printed is shown as JSON writes it in ASCII."""
    content = of(frame(encode(Heartbeat("a\u202eb", 9), 4), None))
    steps = edits_of(content, lambda text: text.replace(r'"a\u202eb"', r'"a\u202ec"'))
    assert record(repaired(content, *(step.text for step in steps))) == Heartbeat("a\u202ec", 9)


def test_a_record_is_written_in_place_of_a_value_that_cannot_be_decoded() -> None:
    """DLQ-12: for UNDECODABLE."""
    line = to_line(view(of(framed(CHANGE, 4)), SCHEMAS))
    (step,) = edits_of(of(framed(CHANGE, 4)[:-1]), lambda text: line)
    assert record(repaired(of(framed(CHANGE, 4)[:-1]), step.text)) == CHANGE
    (step,) = edits_of(of(b"\xff"), lambda text: text.replace("/w==", "AA=="))
    assert repaired(of(b"\xff"), step.text).value == b"\x00"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object"),
        ('{"record": {}, "table": 1}', "must be an object"),
        ("{}", "must have a record, or a value"),
        ('{"record": {}, "value": "x"}', "must have a record, or a value"),
        ('{"record": {}}', "exactly one of"),
        ('{"record": {"heartbeat": 3}}', "stream_partition"),
        ('{"value": "x"}', "cannot be decoded"),
    ],
)
def test_an_edited_text_must_be_a_letter(given: str, why: str) -> None:
    """DLQ-12: without a key, the value must be a record."""
    result = edited(of(frame(BODY, None)), SCHEMAS, lambda text: given)
    assert isinstance(result, Unrepairable)
    assert why in result.why


def test_an_editor_that_changes_nothing_makes_no_step() -> None:
    """DLQ-12."""
    for content in (of(frame(BODY, None)), of(b"rubbish"), of(None, None, (("a", None),))):
        assert edited(content, SCHEMAS, lambda text: text + "\n") == ()
        assert edited(content, SCHEMAS, lambda text: None) == ()


STEPS = ["reframe own@1", "reframe 3", "reframe single-object", "set key=null", 'set key=""']
STEPS += ["unset key", "unset headers.a", 'set headers.a="b"', "unset headers[0]", "set value=null"]
STEPS += ['set record.data_change.table="t"', "set record.data_change={}", "unset key.base64"]
STEPS += ["set record.heartbeat=[]", "set record.data_change.commit_timestamp=1", "set record={}"]


@given(dead_letters(), st.lists(st.sampled_from(STEPS)))
def test_a_repair_never_raises_and_leaves_the_original(
    letter: DeadLetter, steps: list[str]
) -> None:
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


def test_a_repair_is_noted_with_digests() -> None:
    """DLQ-12."""
    before, after = of(b"a"), of(b"b")
    assert note([], before, before) is None
    assert note([Step.parse("reframe 1")], before, after) == RepairNote(
        ("reframe 1",), before.digest(), after.digest()
    )
    long = f'set key="{"k" * 1000}"'
    assert note([Step.parse(long)], before, after) == RepairNote(
        (long[:500],), before.digest(), after.digest()
    )


def test_a_whole_record_says_over_how_many_kafka_partitions_its_keys_are_spread() -> None:
    """DLQ-12, REC-24."""
    assert "kafka_partitions is missing" in why_not(
        of(BODY), 'set record={"stream_partition": "p", "heartbeat": {"timestamp": 5}}'
    )
    found = repaired(
        of(BODY, headers=(("a", b"1"),)),
        'set record={"stream_partition": "p", "kafka_partitions": 3,'
        ' "heartbeat": {"timestamp": 5}}',
    )
    assert found == of(frame(encode(Heartbeat("p", 5), 3), None), headers=(("a", b"1"),))

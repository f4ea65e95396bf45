"""How a dead letter is shown (DLQ-8, DLQ-9)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.cli.letter_view import decoded_lines, hex_lines, print_letter, summary
from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.ledger import Action, LedgerEntry, LetterState, LetterStatus, RepairNote
from connector.records.codec import Schemas, encode, frame
from connector.records.json_view import to_line
from connector.records.model import DataChange, SetCell
from connector.records.rejection import Position, Reason

CHANGE = DataChange(
    stream_partition="p",
    table="t",
    row_key=b"k",
    commit_timestamp=1,
    entries=(SetCell("f", b"q", b"\x1b[2J"),),
)
OPEN = LetterStatus(LetterState.OPEN, 0, 0)
VALUE = frame(encode(CHANGE, 4), None)


def letter(value: bytes | None = VALUE, **other: object) -> DeadLetter:
    fields: dict[str, object] = {
        "position": Position("orders", "id-0", 3, 17),
        "key": b"k",
        "value": value,
        "headers": (),
        "reason": Reason.KEY_MISMATCH,
        "rule": "",
        "detail": "the key is another",
        "attempt": 0,
        "first_failed_at": 1_714_475_984_000_000,
        "record_timestamp": 1_714_475_984_000_000,
        "schema_id": None,
        "ingest_batch": 7,
        "order_position": "7/3/17/0",
    }
    return DeadLetter(**(fields | other))  # type: ignore[arg-type]


def test_one_letter_is_explained_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """DLQ-9: where it came from, what is wrong, what to do, the bytes in hex beside what they
    say.
    """
    print_letter(letter(), Schemas(), OPEN)
    shown = capsys.readouterr().out
    for words in (
        "id-0-3-17",
        "KEY_MISMATCH",
        "the key is another",
        Reason.KEY_MISMATCH.cause,
        Reason.KEY_MISMATCH.remedy,
        "2024-04-30T11:19:44",
    ):
        assert words in shown
    assert "00000000  c3 01" in shown
    assert '"table": "t"' in shown


@given(
    st.none() | st.binary(max_size=600),
    st.none() | st.binary(max_size=300),
    st.text(),
    st.lists(st.tuples(st.text(), st.none() | st.binary())),
)
def test_no_letter_writes_a_control_character(
    value: bytes | None, key: bytes | None, text: str, headers: list[tuple[str, bytes | None]]
) -> None:
    """DLQ-9: bytes from outside never reach the terminal unescaped."""
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("connector.cli.letter_view.out", lines.append)
        subject = letter(
            value, key=key, detail=text, headers=tuple(headers), table=text, order_position=text
        )
        done = LedgerEntry(
            Action.REPLAYED, 1, text, text, text, repair_note=RepairNote((text,), text, text)
        )
        print_letter(subject, Schemas(), OPEN, (done,))
    assert all(not any(c < " " or "\x7f" <= c < "\xa0" for c in line) for line in lines)


def test_the_byte_at_which_decoding_failed_is_pointed_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DLQ-9."""
    print_letter(letter(VALUE + b"zz"), Schemas(), OPEN)
    shown = capsys.readouterr().out.splitlines()
    under = next(
        number
        for number, line in enumerate(shown)
        if line.strip() == "^^" or line.split("  ")[0].strip() == "^^"
    )
    column = shown[under].index("^^")
    assert shown[under - 1][column : column + 2] == "7a"


def test_a_long_value_is_cut_unless_all_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    print_letter(letter(bytes(1000)), Schemas(), OPEN)
    assert "488 more bytes; --all" in capsys.readouterr().out
    print_letter(letter(bytes(1000)), Schemas(), OPEN, everything=True)
    shown = capsys.readouterr().out
    assert "000003e0" in shown
    assert "--all" not in shown


def test_a_record_that_decodes_but_breaks_a_rule_is_shown_decoded() -> None:
    """DLQ-9: also where `decode` refuses it."""
    damaged = VALUE.replace(b"\x02f\x02q", b"\x02!\x02q")
    assert any('"family": "!"' in line for line in decoded_lines(damaged, Schemas()))


@given(st.binary(max_size=200))
def test_hex_lines_have_every_byte(data: bytes) -> None:
    assert bytes.fromhex("".join(line[10:58] for line in hex_lines(data))) == data


def test_a_program_gets_the_original_bytes() -> None:
    """DLQ-1, REC-22."""
    said = json.loads(
        to_line(
            summary(
                letter(b"\xff\x00", key=None, headers=(("h", b"x"), ("n", None))), OPEN, whole=True
            )
        )
    )
    assert said["value"] == {"base64": "/wA="}
    assert "key" not in said
    assert said["headers"] == [{"name": "h", "value": "x"}, {"name": "n", "value": None}]
    assert (said["id"], said["reason"], said["kafka_partition"], said["offset"]) == (
        "id-0-3-17",
        "KEY_MISMATCH",
        3,
        17,
    )

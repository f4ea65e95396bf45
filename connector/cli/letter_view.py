"""A dead letter for people and programs: its facts, its bytes in hex, and the decoded record beside
them (DLQ-9).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, Final

from rich.cells import cell_len

from connector.cli.layout import wrapped
from connector.cli.terminal import escaped, out, show_fact, shown_bytes, width_of
from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.ledger import LedgerEntry, LetterStatus
from connector.dead_letters.source_letters import document_of
from connector.records.codec import Schemas, read
from connector.records.json_view import view_of_datum
from connector.records.rejection import Headers, Reason, Rejection
from connector.records.views import view, view_of_bytes, view_of_time
from connector.text import counted

HEX_BYTES_A_LINE: Final = 16
HEX_BYTES_SHOWN: Final = 512
LINES_SHOWN: Final = 200
CHARACTERS_SHOWN: Final = 200
"""Of a line of what a value says."""
_HEX_WIDTH: Final = 8 + 2 + 3 * HEX_BYTES_A_LINE + 2 + HEX_BYTES_A_LINE
_FAILED_AT: Final = re.compile(r"at byte (\d+) of ")


def summary(
    letter: DeadLetter,
    status: LetterStatus,
    history: tuple[LedgerEntry, ...] = (),
    *,
    whole: bool = False,
) -> dict[str, Any]:
    """A letter for a program; `whole`: with key, value and headers, and its history."""
    shown = {**view(letter), "state": status.state.value, "attempt": status.attempt}
    if whole:
        shown |= view_of_content(letter.key, letter.value, letter.headers)
        shown["history"] = [entry.to_json() | {"at": view_of_time(entry.at)} for entry in history]
    return {name: value for name, value in shown.items() if value is not None}


def view_of_content(key: bytes | None, value: bytes | None, headers: Headers) -> dict[str, Any]:
    """Key, value and headers for a program, bytes as in the JSON view."""
    named = [{"name": name, "value": view_of_bytes(content)} for name, content in headers]
    return {"key": view_of_bytes(key), "value": view_of_bytes(value), "headers": named}


def print_letter(
    letter: DeadLetter,
    schemas: Schemas,
    status: LetterStatus,
    history: tuple[LedgerEntry, ...] = (),
    *,
    everything: bool = False,
) -> None:
    """Explain a letter on standard output; all that came from outside is escaped."""
    for name, fact in facts(letter, status, history):
        show_fact(name, fact, 14)
    out("")
    _print_value(letter, schemas, everything)


def facts(
    letter: DeadLetter, status: LetterStatus, history: tuple[LedgerEntry, ...] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each fact about a letter, which is not escaped."""
    position = letter.position
    texts = {
        "dead letter": letter.id,
        "reason": f"{letter.reason} {letter.rule}".rstrip(),
        "detail": letter.detail,
        "cause": letter.reason.cause,
        "remedy": letter.reason.remedy,
        "state": status.state,
        "topic": (
            f"{position.topic} (id {position.topic_id}), Kafka partition"
            f" {position.kafka_partition}, offset {position.offset}"
        ),
        "table": letter.table,
        "group": letter.group,
        "arrived": view_of_time(letter.record_timestamp),
        "first failed": view_of_time(letter.first_failed_at),
        "attempt": status.attempt,
        "ingest batch": letter.ingest_batch,
        "order position": letter.order_position,
        "schema": letter.schema_id,
        "key": f"{shown_bytes(letter.key, 200)}  ({counted(len(letter.key or b''), 'byte')})",
    }
    for name, fact in texts.items():
        if fact is not None:
            yield name, str(fact)
    for entry in history:
        yield "done", _history_line(entry)
    for name, value in letter.headers:
        yield "header", f"{name} = {shown_bytes(value, 200)}"


def _history_line(entry: LedgerEntry) -> str:
    line = (
        f"{view_of_time(entry.at)} {entry.action} by {entry.by}: {entry.why} (of {entry.selection},"
        f" attempt {entry.attempt})"
    )
    if (note := entry.repair_note) is None:
        return line
    digests = f"SHA-256 {note.before[:12]} to {note.after[:12]}"
    return f"{line}; repaired: {', '.join(note.steps)} ({digests})"


def _print_value(letter: DeadLetter, schemas: Schemas, everything: bool) -> None:
    if letter.value is None:
        out("There is no value.")
        return
    hexes, lines = value_lines(letter.value, letter.reason, schemas, everything=everything)
    title = f"value, {counted(len(letter.value), 'byte')}"
    _print_beside([title, *hexes], ["decoded", *lines])
    if not everything and len(letter.value) > HEX_BYTES_SHOWN:
        out(f"… {len(letter.value) - HEX_BYTES_SHOWN:,} more bytes; --all shows them")


def value_lines(
    value: bytes, reason: Reason, schemas: Schemas, *, everything: bool = False
) -> tuple[list[str], list[str]]:
    """Return the lines of a value in hex, and those of the decoded record or document. Long values
    are shortened, but not with `everything`.
    """
    is_foreign = reason is Reason.UNREADABLE_SOURCE
    decoded = document_lines(value) if is_foreign else decoded_lines(value, schemas)
    failure = _FAILED_AT.match(decoded[-1])
    shown = value if everything else value[:HEX_BYTES_SHOWN]
    hexes = list(hex_lines(shown, int(failure[1]) if failure else None))
    return hexes, decoded if everything else _shortened_lines(decoded)


def _print_beside(left: list[str], right: list[str]) -> None:
    """Print lines beside others, or below them on a terminal that is too narrow."""
    width = width_of(sys.stdout)
    if width is not None and _HEX_WIDTH + 2 + max(map(cell_len, right)) > width:
        for line in left:
            out(line)
        for line in right:
            indent = len(line) - len(line.lstrip(" ")) + 2
            for part in wrapped(line, width, indent):
                out(part)
        return
    for at_left, at_right in zip_longest(left, right, fillvalue=""):
        out(f"{at_left:<{_HEX_WIDTH}}  {at_right}".rstrip())


def _shortened_lines(lines: list[str]) -> list[str]:
    shown = [
        line
        if len(line) <= CHARACTERS_SHOWN
        else f"{line[:CHARACTERS_SHOWN]}… ({len(line):,} characters)"
        for line in lines[:LINES_SHOWN]
    ]
    if (more := len(lines) - LINES_SHOWN) > 0:
        shown.append(f"… {more:,} more lines; --all shows them")
    return shown


def hex_lines(data: bytes, mark: int | None = None) -> Iterator[str]:
    """Offset, bytes in hex, and printable ASCII; a line below points at the byte `mark`."""
    for start in range(0, len(data), HEX_BYTES_A_LINE):
        line = data[start : start + HEX_BYTES_A_LINE]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
        yield f"{start:08x}  {line.hex(' '):<{3 * HEX_BYTES_A_LINE}} {text}"
        column = -1 if mark is None else mark - start
        if 0 <= column <= len(line) and column < HEX_BYTES_A_LINE:
            yield " " * (10 + 3 * column) + "^^"


def document_lines(value: bytes) -> list[str]:
    """The JSON document of a source; or why it is not JSON."""
    try:
        text = json.dumps(document_of(value), indent=2, ensure_ascii=False)
    except ValueError as error:
        return ["is not JSON:", escaped(str(error))]
    return [escaped(line) for line in text.splitlines()]


def decoded_lines(value: bytes, schemas: Schemas) -> list[str]:
    """The record with its Avro field names, also if it breaks a rule; or why it is unreadable."""
    datum = read(value, schemas)
    if isinstance(datum, Rejection):
        return ["cannot be decoded:", escaped(datum.detail)]
    text = json.dumps(view_of_datum(datum), indent=2, ensure_ascii=False, default=str)
    return [escaped(line) for line in text.splitlines()]

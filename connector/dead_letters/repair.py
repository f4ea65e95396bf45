"""Repairs a dead letter: makes a changed record that is sent in place of the original record
(DLQ-12).

The original is never changed. It stays in its topic. A repair changes a `Content` (key, value and
headers) with steps, in the given order. A step is a line of text, `VERB=ARGUMENT`, which the ledger
stores unchanged. `STEPS` describes each verb. A step that changes a field uses the JSON view
(REC-22): the record is decoded and changed. The result must be a valid record, and is encoded in
the newest schema. If a step does not fit a dead letter, the result is a value, `Unrepairable`. The
other dead letters are not affected.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.filter import bytes_of_text
from connector.dead_letters.ledger import RepairNote
from connector.errors import JsonViewError
from connector.records import codec
from connector.records.codec import Schemas
from connector.records.json_view import entry_fields, from_json, to_line
from connector.records.model import CONTROL_KEY, Rule
from connector.records.rejection import Headers, Rejection
from connector.records.views import view_of_datum
from connector.text import is_header_name, is_utf_8

_PLACE: Final = re.compile(r"[^.\[\]]+|\[\d{1,6}\]")
FORCE: Final = "--force"
"""In the ledger, after the steps: a new change with the same result was sent (DLQ-13)."""
STEPS: Final[Mapping[str, tuple[str, str]]] = {
    "cut-prefix": (
        "N",
        "removes the first N bytes of the value, for example the framing of another system",
    ),
    "reframe": (
        "ID",
        (
            "replaces the framing of the value, or adds a framing to a bare body. `ID` is a schema"
            " id of the registry, or `single-object` for a body of a released schema"
        ),
    ),
    "set-key": ("KEY", "sets the Kafka key. `KEY` is text, or base64 after `base64:`"),
    "key-from-record": (
        "",
        (
            "sets the Kafka key that the record must have: the row key of a change, or the reserved"
            " key of control records"
        ),
    ),
    "set-header": (
        "NAME=VALUE",
        "sets a header. It replaces all headers of that name",
    ),
    "drop-header": ("NAME", "removes all headers of that name"),
    "replace": (
        "FIELD=JSON",
        ('replaces a field of the JSON view, for example `data_change.entries[0].family="f"`'),
    ),
    "commit-timestamp": (
        "TIME",
        "sets the commit timestamp. `TIME` is ISO 8601 with a time zone, or microseconds",
    ),
    "record": (
        "JSON",
        "replaces the whole record. `JSON` is its JSON view. The option `--edit` makes this step",
    ),
}
"""For each verb: the form of its argument (empty: no argument), and a description."""


@dataclass(frozen=True, slots=True)
class Content:
    """The parts of a record that can be repaired."""

    key: bytes | None
    value: bytes | None
    headers: Headers

    def digest(self) -> str:
        """Return SHA-256 in hex of key, value and headers with their lengths. Different contents
        have different input.
        """
        parts = [
            self.key,
            self.value,
            *(
                part
                for name, value in self.headers
                for part in (name.encode("utf-8", "surrogatepass"), value)
            ),
        ]
        found = hashlib.sha256()
        for part in parts:
            found.update(b"-" if part is None else b"%d:" % len(part) + part)
        return found.hexdigest()


@dataclass(frozen=True, slots=True)
class Unrepairable:
    """The reason why a step does not fit a dead letter, in one sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step, checked as far as possible without a dead letter. `text` is the given text."""

    text: str
    verb: str
    argument: str

    @classmethod
    def parse(cls, text: str) -> Step:
        """Parse a step. Raises ValueError with the mistake in the text."""
        if not is_utf_8(text):
            raise ValueError(
                f"{text[:80]!r} is not UTF-8. If a key or a header value is not text, write it as"
                " base64 after base64:"
            )
        verb, equals, argument = text.partition("=")
        if verb not in STEPS:
            raise ValueError(f"{verb!r} is not a step. The steps are {', '.join(STEPS)}")
        form, _ = STEPS[verb]
        if bool(form) != bool(equals):
            raise ValueError(f"write {verb}={form}" if form else f"{verb} takes no argument")
        _CHECKS.get(verb, lambda given: None)(argument)
        return cls(text, verb, argument)


def content_of(letter: DeadLetter) -> Content:
    """Return the rejected content, unchanged."""
    return Content(letter.key, letter.value, letter.headers)


def repair(content: Content, steps: Sequence[Step], schemas: Schemas) -> Content | Unrepairable:
    """Return the content after all steps, or why a step does not fit. Never raises. `schemas` are
    used for decoding.
    """
    for step in steps:
        repair_note = _after_step(content, step, schemas)
        if isinstance(repair_note, Unrepairable):
            return Unrepairable(f"{step.text}: {repair_note.why}")
        content = repair_note
    return content


def note(
    steps: Sequence[Step], before: Content, after: Content, *, is_forced: bool = False
) -> RepairNote | None:
    """Return the note for the ledger, or None if there was no repair."""
    texts = [*(step.text[:500] for step in steps), *([FORCE] if is_forced else [])]
    return RepairNote(tuple(texts), before.digest(), after.digest()) if texts else None


def view(content: Content, schemas: Schemas) -> dict[str, Any] | Unrepairable:
    """Return the JSON view of a record for an editor. The record may break a rule of REC-14.

    If it cannot be decoded, return `Unrepairable`.
    """
    datum = codec.read(content.value, schemas)
    if isinstance(datum, Rejection):
        return Unrepairable(f"the value cannot be decoded: {datum.detail}")
    found: dict[str, Any] = view_of_datum(datum)
    for entry in found.get("data_change", {}).get("entries", ()):
        for name in entry.keys() - set(entry_fields(entry["kind"])):
            del entry[name]
    return found


def from_view(content: Content, edited: str) -> Content | Unrepairable:
    """Return the content with the record of the JSON view, in the newest schema. Key and headers do
    not change. Never raises.
    """
    try:
        parsed = from_json(edited)
    except JsonViewError as error:
        return Unrepairable(str(error))
    if parsed.kafka_partitions is None:
        return Unrepairable(
            "kafka_partitions is missing: set it to the number of Kafka partitions over which the"
            " producer spreads its keys"
        )
    return replace(content, value=codec.framed(parsed.record, parsed.kafka_partitions))


def edited(
    content: Content, schemas: Schemas, edit: Callable[[str], str | None]
) -> Step | Unrepairable | None:
    """Let an editor change a record, and return the step that makes the same change.

    `edit` gets the JSON view in several lines of printable characters, and returns the edited text.
    The result is `None` if nothing was changed. It is `Unrepairable` if the record cannot be
    decoded, or if the edited text is not a valid record.
    """
    shown = view(content, schemas)
    if isinstance(shown, Unrepairable):
        return shown
    text = json.dumps(shown, indent=2, ensure_ascii=False)
    text = "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )
    given = edit(text)
    try:
        parsed: Any = None if given is None else json.loads(given)
    except (ValueError, RecursionError) as error:
        return Unrepairable(f"the edited text is not JSON: {error}")
    if given is None or parsed == shown:
        return None
    try:
        line = to_line(parsed)
    except (ValueError, RecursionError) as error:  # json.loads accepts NaN, which is not JSON
        return Unrepairable(f"the edited text is not JSON: {error}")
    step = Step(f"record={line}", "record", line)
    repair_note = _after_step(content, step, schemas)
    return repair_note if isinstance(repair_note, Unrepairable) else step


def _after_step(content: Content, step: Step, schemas: Schemas) -> Content | Unrepairable:
    try:
        return _take(content, step, schemas)
    # the allowed depth of JSON depends on the depth of the call: here it is deeper than at the
    # check
    except RecursionError:
        return Unrepairable("the JSON is nested too deep")


def _take(content: Content, step: Step, schemas: Schemas) -> Content | Unrepairable:
    match step.verb:
        case "cut-prefix":
            count = int(step.argument)
            if len(content.value or b"") < count:
                return Unrepairable(f"the value has {len(content.value or b'')} bytes")
            return replace(content, value=(content.value or b"")[count:])
        case "reframe":
            body = codec.body_of(content.value or b"")
            if step.argument != "single-object":
                return replace(content, value=codec.frame(body, int(step.argument)))
            reframed = codec.frame(body, None)
            if codec.names_other_schema(content.value or b"", schemas) or isinstance(
                codec.read(reframed, schemas), Rejection
            ):
                return Unrepairable("the body was not written with a released schema")
            return replace(content, value=reframed)
        case "set-key":
            return replace(content, key=bytes_of_text(step.argument))
        case "key-from-record":
            return _with_key_of_record(content, schemas)
        case "set-header":
            name, _, text = step.argument.partition("=")
            return replace(
                content, headers=(*_without(content.headers, name), (name, bytes_of_text(text)))
            )
        case "drop-header":
            return replace(content, headers=_without(content.headers, step.argument))
        case "replace":
            place, _, text = step.argument.partition("=")
            return _with_field(content, place, json.loads(text), schemas)
        case "commit-timestamp":
            at: int | str = int(step.argument) if step.argument.isdigit() else step.argument
            return _with_field(content, "data_change.commit_timestamp", at, schemas)
        case _:
            assert step.verb == "record", step.verb
            return from_view(content, step.argument)


def _with_key_of_record(content: Content, schemas: Schemas) -> Content | Unrepairable:
    datum = codec.read(content.value, schemas)
    if isinstance(datum, Rejection):
        return Unrepairable(f"the value cannot be decoded: {datum.detail}")
    change = datum["data_change"]
    return replace(content, key=CONTROL_KEY if change is None else change["row_key"])


def _with_field(
    content: Content, place: str, value: object, schemas: Schemas
) -> Content | Unrepairable:
    found = view(content, schemas)
    if isinstance(found, Unrepairable):
        return found
    decoded = codec.decode(content.value, schemas)
    if isinstance(decoded, Rejection) and decoded.rule == Rule.LOGICAL_TYPE:
        # The new record has the newest schema, and its other numbers would get the wrong unit.
        return Unrepairable(f"{decoded.detail}. Replace the whole record, with the step record")
    *path, last = (
        int(name[1:-1]) if name.startswith("[") else name for name in _PLACE.findall(place)
    )
    within: Any = found
    try:
        for name in path:
            within = within[name]
        if isinstance(last, int):
            within[last]  # fails for a missing item: a list cannot get longer
        if not isinstance(within, (dict, list)):
            return Unrepairable(f"the record has no {place}")
        within[last] = value
    except (KeyError, IndexError, TypeError):
        return Unrepairable(f"the record has no {place}")
    return from_view(content, json.dumps(found))


def _without(headers: Headers, name: str) -> Headers:
    return tuple(header for header in headers if header[0] != name)


def _is_number(argument: str, digits: int) -> bool:
    return argument.isascii() and argument.isdigit() and len(argument) <= digits


def _check_count(argument: str) -> None:
    if not (_is_number(argument, 10) and 0 < int(argument) < 2**31):
        raise ValueError(f"{argument!r} is not a number of bytes")


def _check_schema(argument: str) -> None:
    if argument != "single-object" and not (_is_number(argument, 10) and int(argument) < 2**31):
        raise ValueError(f"{argument!r} is neither the ID of a schema nor single-object")


def _check_time(argument: str) -> None:
    if _is_number(argument, 19):
        return
    try:
        moment = datetime.fromisoformat(argument)
    except ValueError:
        raise ValueError(
            f"{argument[:80]!r} is neither microseconds nor a time such as 2025-01-01T09:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise ValueError(f"{argument!r} has no time zone; write {argument}Z for UTC")


def _check_bytes(argument: str) -> None:
    try:
        bytes_of_text(argument)
    except ValueError as error:
        raise ValueError(f"{argument[:80]!r} has no valid base64 after base64: ({error})") from None


def _check_header(argument: str) -> None:
    name, equals, text = argument.partition("=")
    if not name or not equals:
        raise ValueError("write a header as NAME=VALUE")
    if not is_header_name(name):
        raise ValueError(f"{name!r} cannot be the name of a header")
    _check_bytes(text)


def _check_replace(argument: str) -> None:
    place, equals, text = argument.partition("=")
    if not equals or not _PLACE.findall(place):
        raise ValueError('write a field as FIELD=JSON, for example data_change.table="users"')
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text!r} is not JSON ({error}). Text needs quotes") from None


_CHECKS: Final = {
    "cut-prefix": _check_count,
    "reframe": _check_schema,
    "set-key": _check_bytes,
    "set-header": _check_header,
    "replace": _check_replace,
    "commit-timestamp": _check_time,
}

"""Repairs a dead letter: makes a changed record that is sent in place of the original record
(DLQ-12).

The original is never changed. It stays in its topic. A repair changes a `Content` (key, value and
headers) with steps, in the given order. A step is a line of text, `VERB ARGUMENT`, which the ledger
stores unchanged. `STEPS` describes each verb. The paths of `set` and `unset` are those of the view:

    {"key": "u#1", "headers": [{"name": "trace", "value": "7"}], "record": {…}}

`record` is the JSON view of the record (REC-22). It may break a rule of a record. In a letter of a
bridge, it is the JSON document of the source (SRC-6). If the value cannot be decoded, the view has
its bytes, as `value`, in place of `record`. A record that a step
changes must be valid afterwards, and is encoded again. If a step does not fit a dead letter, the
result is a value, `Unrepairable`. The other dead letters are not affected.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, NamedTuple

from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.ledger import RepairNote
from connector.dead_letters.source_letters import AssignedOrder, bytes_of, document_of
from connector.errors import JsonViewError
from connector.records import codec
from connector.records.codec import Schemas
from connector.records.json_view import entry_fields, from_json, read_value, to_line, view_of_datum
from connector.records.model import CONTROL_KEY, Rule
from connector.records.rejection import Headers, Reason, Rejection
from connector.records.views import Json, view_of_bytes
from connector.text import is_plain


class StepText(NamedTuple):
    """The form of the argument of a step, and what the step does."""

    argument: str
    effect: str


STEPS: Final[Mapping[str, StepText]] = {
    "reframe": StepText(
        "SCHEMA[@N]",
        "replaces the framing of the value, or adds a framing to a bare body. `SCHEMA` is a schema"
        " id of the registry, or `single-object` for a body of a released schema. With `@N`, the"
        " first N bytes are removed before, for example the framing of another system. `own@N` only"
        " removes them, and keeps the framing that follows",
    ),
    "set": StepText(
        "PATH=JSON",
        "sets a part of the view, for example `key`, `headers.trace`, `record`,"
        ' `record.data_change.entries[0].family` or `headers["a.b"]`. A header that is set replaces'
        " all headers of that name",
    ),
    "unset": StepText(
        "PATH",
        "removes a part of the view. `unset headers.trace` removes all headers of that name. `unset"
        " key` gives the letter the key that its record must have: the row key of a change, or the"
        " reserved key of control records",
    ),
}

_OWN, _SINGLE_OBJECT = "own", "single-object"
_SCHEMA: Final = re.compile(rf"([0-9]{{1,10}}|{_OWN}|{_SINGLE_OBJECT})(?:@([1-9][0-9]{{0,8}}))?")
_SEGMENT: Final = re.compile(r'\.([^.\[\]="]+)|\[([0-9]{1,6})\]|\[("(?:[^"\\]|\\.)*")\]')
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """The parts of a record that can be repaired."""

    key: bytes | None
    value: bytes | None
    headers: Headers

    def digest(self) -> str:
        """Return SHA-256 in hex of key, value and headers, each with its length."""
        names = ((name.encode("utf-8", "surrogatepass"), value) for name, value in self.headers)
        digest = hashlib.sha256()
        for part in (self.key, self.value, *chain.from_iterable(names)):
            digest.update(b"-" if part is None else b"%d:" % len(part) + part)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Header:
    name: str
    value: bytes | None = None


@dataclass(frozen=True, slots=True)
class Unrepairable:
    """The reason why a step does not fit a dead letter, in one sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step, checked as far as possible without a dead letter.

    - `text` is the given text.
    - `path` is the path of `set` or `unset`.
    - `value` is the JSON value of `set`. For `reframe`, it is the schema and the number of bytes to
      remove.
    """

    text: str
    verb: str
    path: Path = ()
    value: Any = None

    @classmethod
    def parse(cls, text: str) -> Step:
        """Parse a step, for example `unset key`. Raises ValueError with the mistake in the text."""
        if not is_plain(text, with_nul=True):
            raise ValueError(
                f"{text[:80]!r} is not UTF-8. If a key or a header value is not text, write it as"
                ' {"base64": "…"}'
            )
        verb, _, argument = text.partition(" ")
        if verb not in STEPS:
            raise ValueError(f"{verb!r} is not a step. The steps are {', '.join(STEPS)}")
        if verb == "reframe":
            return cls(text, verb, value=_parsed_schema(argument))
        path, rest = _parsed_path(argument)
        if verb == "unset":
            if rest or path in (("record",), ("value",)):
                raise ValueError("write unset PATH, for example unset record.data_change.row_image")
            return cls(text, verb, path)
        if not rest.startswith("="):
            raise ValueError('write set PATH=JSON, for example set record.data_change.table="u"')
        try:
            return cls(text, verb, path, json.loads(rest[1:]))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{rest[1:]!r} is not JSON ({error}). Text needs quotes") from None


def content_of(letter: DeadLetter) -> Content:
    return Content(letter.key, letter.value, letter.headers)


def repair(content: Content, steps: Sequence[Step], schemas: Schemas) -> Content | Unrepairable:
    """Return the content after all steps, or why a step does not fit. Never raises."""
    for step in steps:
        try:
            content = _after(content, step, schemas)
        except (_MisfitError, JsonViewError) as error:
            return Unrepairable(f"{step.text[:200]}: {error}")
        except RecursionError:  # how deep JSON may be depends on the depth of the call
            return Unrepairable(f"{step.text[:200]}: the JSON is nested too deep")
    return content


def note(steps: Sequence[Step], before: Content, after: Content) -> RepairNote | None:
    """Return the note for the ledger, or None if there was no repair."""
    texts = tuple(step.text[:500] for step in steps)
    return RepairNote(texts, before.digest(), after.digest()) if texts else None


def view(content: Content, schemas: Schemas) -> Json:
    """Return the view of a letter, with the parts that this module's docstring names."""
    record = _record_view(content, schemas)
    last = (
        {"value": view_of_bytes(content.value)}
        if isinstance(record, Rejection)
        else {"record": record}
    )
    headers = [{"name": name, "value": view_of_bytes(value)} for name, value in content.headers]
    return {"key": view_of_bytes(content.key), "headers": headers, **last}


def edited(
    content: Content, schemas: Schemas, edit: Callable[[str], str | None]
) -> tuple[Step, ...] | Unrepairable:
    """Let an editor change a letter, and return the steps that make the same change.

    `edit` gets the view in several lines of printable characters, and returns the edited text. The
    result is empty if nothing was changed. It is `Unrepairable` if the edited text is not a view of
    a valid record.
    """
    shown = view(content, schemas)
    text = json.dumps(shown, indent=2, ensure_ascii=False)
    text = "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )
    given = edit(text)
    if given is None:
        return ()
    try:
        steps = _steps_between(shown, json.loads(given))
    except (ValueError, RecursionError) as error:
        return Unrepairable(f"the edited text is not JSON: {error}")
    if isinstance(steps, Unrepairable):
        return steps
    repaired = repair(content, steps, schemas)
    return repaired if isinstance(repaired, Unrepairable) else steps


def _steps_between(before: Json, after: Any) -> tuple[Step, ...] | Unrepairable:
    """The step for each part of a view that differs. The key is the last one, because it may follow
    from the record. Raises ValueError for JSON that cannot be written again.
    """
    parts = ("value", "record", "headers", "key")
    if not isinstance(after, dict) or not after.keys() <= set(parts):
        return Unrepairable("the edited text must be an object with key, headers and record")
    if ("record" in after) == ("value" in after):
        return Unrepairable("the edited text must have a record, or a value that is not decoded")
    after = {"key": None, "headers": [], **after}
    return tuple(
        Step.parse(f"set {part}={to_line(after[part])}")
        for part in parts
        if part in after and (part not in before or after[part] != before[part])
    )


class _MisfitError(Exception):
    """A step does not fit a dead letter. The text is the reason."""


def _after(content: Content, step: Step, schemas: Schemas) -> Content:
    """Return the content after one step. Raises `_MisfitError` and `JsonViewError`."""
    if step.verb == "reframe":
        if AssignedOrder.from_headers(content.headers):
            raise _MisfitError("the record of a source has no schema of lowmark")
        schema, removed = step.value
        return replace(content, value=_reframed(content.value or b"", schema, removed, schemas))
    part = step.path[0]
    value = step.value if len(step.path) == 1 else _changed(content, step, schemas)
    match part:
        case "key":
            key = (
                _key_of_record(content, schemas)
                if value is None
                else read_value(bytes, value, "key")
            )
            return replace(content, key=key)
        case "headers":
            return replace(content, headers=_headers(value))
        case "value":
            return replace(
                content, value=None if value is None else read_value(bytes, value, "value")
            )
        case _ if AssignedOrder.from_headers(content.headers):
            return replace(content, value=bytes_of(value))
        case _:
            return replace(content, value=_encoded(value))


def _changed(content: Content, step: Step, schemas: Schemas) -> Any:
    """The part of the view that a step changes, with the change within it."""
    part, within = str(step.path[0]), step.path[1:]
    shown = view(content, schemas)
    if part == "record" and AssignedOrder.from_headers(content.headers):
        if part not in shown:
            raise _MisfitError("the value is not JSON. Set the whole record")
    elif part == "record":
        decoded = codec.decode(content.value, schemas)
        if isinstance(decoded, Rejection) and decoded.rule == Rule.LOGICAL_TYPE:
            # The new record has the newest schema, and its other numbers would get a wrong unit.
            raise _MisfitError(f"{decoded.detail}. Set the whole record")
        if part not in shown:
            assert isinstance(decoded, Rejection)
            raise _MisfitError(f"the value cannot be decoded: {decoded.detail}")
    if part == "headers" and isinstance(within[0], str) and len(within) == 1:
        others = [header for header in shown[part] if header["name"] != within[0]]
        header = [{"name": within[0], "value": step.value}] if step.verb == "set" else []
        return [*others, *header]
    *path, last = within
    try:
        parent: Any = shown[part]
        for name in path:
            parent = parent[name]
        if isinstance(last, int) or step.verb == "unset":
            parent[last]  # a list cannot get longer, and only what is there can be removed
        if step.verb == "unset":
            del parent[last]
        else:
            parent[last] = step.value
    except (KeyError, IndexError, TypeError):
        raise _MisfitError(f"the letter has no {_text_of(step.path)}") from None
    return shown[part]


def _encoded(document: Any) -> bytes:
    parsed = from_json(json.dumps(document))
    if parsed.kafka_partitions is None:
        raise _MisfitError(
            "kafka_partitions is missing: set it to the number of Kafka partitions over which the"
            " producer spreads its keys"
        )
    return codec.framed(parsed.record, parsed.kafka_partitions)


def _reframed(value: bytes, schema: str, removed: int, schemas: Schemas) -> bytes:
    if len(value) < removed:
        raise _MisfitError(f"the value has {len(value)} bytes")
    value = value[removed:]
    if schema == _OWN:
        return value
    if schema != _SINGLE_OBJECT:
        return codec.frame(codec.body_of(value), int(schema))
    reframed = codec.frame(codec.body_of(value), None)
    if codec.names_other_schema(value, schemas) or isinstance(
        codec.read(reframed, schemas), Rejection
    ):
        raise _MisfitError("the body was not written with a released schema")
    return reframed


def _key_of_record(content: Content, schemas: Schemas) -> bytes:
    if AssignedOrder.from_headers(content.headers):
        raise _MisfitError("the key of a record of a source does not follow from its value")
    datum = codec.read(content.value, schemas)
    if isinstance(datum, Rejection):
        raise _MisfitError(f"the value cannot be decoded: {datum.detail}")
    change = datum["data_change"]
    key: bytes = CONTROL_KEY if change is None else change["row_key"]
    return key


def _record_view(content: Content, schemas: Schemas) -> Any | Rejection:
    if AssignedOrder.from_headers(content.headers):
        try:
            return document_of(content.value)
        except ValueError as error:
            return Rejection(Reason.UNDECODABLE, f"it is not JSON: {error}")
    datum = codec.read(content.value, schemas)
    if isinstance(datum, Rejection):
        return datum
    record: Json = view_of_datum(datum)
    for entry in record.get("data_change", {}).get("entries", ()):
        for name in entry.keys() - set(entry_fields(entry["kind"])):
            del entry[name]
    return record


def _headers(value: object) -> Headers:
    headers = read_value(tuple[_Header, ...], [] if value is None else value, "headers")
    return tuple((header.name, header.value) for header in headers)


def _parsed_schema(argument: str) -> tuple[str, int]:
    parts = _SCHEMA.fullmatch(argument)
    if parts is None or (parts[1].isdigit() and int(parts[1]) >= 2**31):
        raise ValueError(
            f"{argument[:80]!r} is neither the id of a schema nor {_SINGLE_OBJECT}, with @N for a"
            " number of bytes before the body"
        )
    if parts[1] == _OWN and parts[2] is None:
        raise ValueError(f"write {_OWN}@N, with the number of bytes to remove")
    return parts[1], int(parts[2] or 0)


def _parsed_path(argument: str) -> tuple[Path, str]:
    text, at, path = f".{argument}", 0, list[str | int]()
    while segment := _SEGMENT.match(text, at):
        name, index, quoted = segment.groups()
        path.append(name or (int(index) if index else json.loads(quoted)))
        at = segment.end()
    if not path or path[0] not in ("key", "headers", "record", "value"):
        raise ValueError(
            f"{argument[:80]!r} does not begin with key, headers, record or value, as a path does"
        )
    return tuple(path), text[at:]


def _text_of(path: Path) -> str:
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path)[1:]

"""The exceptions of lowmark.

A bad record is a value (`connector.records.rejection.Rejection`). A bad situation is an exception
of this module. A mistake in the code is a failed assertion. Every exception has the problem, the
cause and the remedy, in this order, and a stable code. Values that a program may need are
attributes.

    ConnectorError
    ├── ConfigError          a setting is missing, misspelt, or not allowed (OPS-1)
    ├── InvalidChangeError   a change would break a limit (REC-14); also a ValueError
    ├── JsonViewError        a line of JSON is not a valid record (REC-22)
    ├── DeliveryError        records were not delivered, or the result is unknown (REC-17, WRS-8)
    │   └── QueueFullError   a write session or an outbox has no space (PUB-3, WRS-9)
    ├── WriteStreamError     a write stream refuses a request (WRS-12 to WRS-14)
    │   ├── RowErrors        rows of an append are not valid (WRS-5)
    │   └── OffsetError      the offset of an append does not fit (WRS-7)
    ├── OutboxError          the outbox of a producer is in use, foreign or damaged (PUB-3)
    ├── TopicError           a topic is missing, replaced, or does not fit its use (REC-1 to REC-4)
    ├── BrokerError          Kafka, the schema registry or the local broker does not answer
    ├── TableError           a Delta table is damaged, or not lowmark's, or has another definition
    │                        (TBL-8), or its disk or store refuses
    ├── WriterConflictError  another writer was active, or a state was restored (TBL-5, TBL-14)
    ├── OutOfRangeError      a range of commit time cannot be read (SUB-1)
    └── StaleTableError      a table is older than its reader allows (TBL-16)

The modules of this package are the catalogue: each error has one function there, with its code,
class and texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Self


def as_sentence(text: str) -> str:
    """The text with a capital letter at its begin."""
    return text[:1].upper() + text[1:]


class ConnectorError(Exception):
    """A situation that lowmark cannot repair.

    - `code` is the stable name of the error, or the rule of an `InvalidChangeError`.
    - `problem`, `cause` and `remedy` are sentences without a final full stop. `cause` and `remedy`
      may be empty. `str()` joins the parts that are not empty.
    - `fields` has the values that a program needs for the remedy, by name. For example `stream`,
      `table` or `topic`. Each is also an attribute of the error.
    """

    def __init__(
        self,
        code: str,
        problem: str,
        cause: str = "",
        remedy: str = "",
        **fields: object,
    ) -> None:
        super().__init__(code, problem, cause, remedy)
        self.code = str(code)
        self.problem = problem
        self.cause = cause
        self.remedy = remedy
        self.fields = fields
        vars(self).update(fields)

    def at(self, path: str) -> Self:
        """Put the path of the part of a document before `problem`, and return the error."""
        self.problem = f"{path}: {self.problem}"
        return self

    def __str__(self) -> str:
        parts = (self.problem, self.cause, as_sentence(self.remedy))
        return ". ".join(part for part in parts if part)


class ConfigError(ConnectorError):
    """A setting is missing, misspelt, or has a value that is not allowed. `problem` names the
    setting and its value.
    """


class InvalidChangeError(ConnectorError, ValueError):
    """A value breaks a limit of REC-14, or a rule of REC-9 or REC-16.

    - `rule` is the name of the broken rule: a `connector.records.model.Rule`, or `UNKNOWN_ENTRY`,
      `INVALID_SEQUENCE_NUMBER`, `UNENCODABLE`, `TOO_LARGE`, `UNREADABLE_VALUE` or
      `COMMIT_TIMESTAMP_TOO_OLD`; of a row of a `TableWriter` also `UNKNOWN_FIELD` or
      `REQUIRED_FIELD`.
    - `field` is the Avro field, or that of a row.
    - `limit` is the allowed value, in words.
    - `value` is the given value, shortened for display.
    - `index` is the index of the change in its batch, counted from 0. It is `None` if there was no
      batch.
    """

    index: int | None = None

    def __init__(self, rule: str, field: str, limit: str, value: object, remedy: str = "") -> None:
        self.rule = rule
        self.field = field
        self.limit = limit
        self.value = shown_value(value)
        super().__init__(rule, f"{field} is {self.value}, but must be {limit}", "", remedy)

    def within(self, part: str) -> None:
        """Put the path of the part that has the field before it, for example `entries[2]`."""
        self.field = f"{part}.{self.field}"
        self.problem = f"{part}.{self.problem}"

    def in_batch(self, index: int) -> None:
        """Set the index of the change in its batch, and add it to `problem`."""
        self.index = index
        self.problem = f"The change at index {index} is invalid: {self.problem}"


class JsonViewError(ConnectorError):
    """A line of JSON is not a valid record.

    `field` is the path of the wrong field. It is empty if the whole line is wrong.
    """

    field: str = ""


class DeliveryError(ConnectorError):
    """Records were not delivered, or their delivery is unknown.

    - `undelivered` is the number of records.
    - `outcome` is that of an append or a commit of write streams: "not taken", or "unknown". With
      "unknown", the rows may be in the topic, and the next session reads whether they are.
    """

    undelivered: int = 0
    outcome: str = ""


class QueueFullError(DeliveryError):
    """A write session has too much in flight, or an outbox has no space. Wait, then try again."""


class WriteStreamError(ConnectorError):
    """A write stream refuses a request.

    - `stream` is its name.
    - `fault` is the name of a `connector.write_streams.rules.Fault`, for example `EXPIRED`.
    - `faults` has the name and the fault of each write stream of a commit that was refused.
    """

    stream: str = ""
    fault: str = ""
    faults: tuple[tuple[str, str], ...] = ()


class RowErrors(WriteStreamError):  # noqa: N818, it is the name of the interface
    """Rows of an append, or of a `TableWriter`, are not valid. Nothing was sent.

    `errors` has the `InvalidChangeError` of each invalid row by its index: `rule`, `field`,
    `limit`.
    """

    errors: Mapping[int, InvalidChangeError]


class OffsetError(WriteStreamError):
    """The offset of an append is not the next one. Nothing was sent.

    - `code` is `OFFSET_OVERLAP`, `OFFSET_OUT_OF_RANGE` or `ROWS_DIFFERENT`.
    - `expected` is the next offset of the write stream.
    - `received` and `rows` are the offset and the number of rows of the append.
    """

    expected: int
    received: int
    rows: int = 0


class OutboxError(ConnectorError):
    """The outbox of a producer is used by another one, belongs to another topic, is damaged, or
    cannot be used.

    `outbox` is the path of the file. If it is damaged, `resume_tokens` has the newest resume token
    that Kafka has, by stream partition, as far as the file can be read.
    """

    outbox: str = ""
    resume_tokens: Mapping[str, bytes] = MappingProxyType({})


class TopicError(ConnectorError):
    """A topic is missing, is compacted, was replaced, or does not fit its use."""


class BrokerError(ConnectorError):
    """Kafka or the schema registry does not answer, or refuses a request, or the local broker
    cannot start.
    """


class OutOfRangeError(ConnectorError):
    """The changes of a range of commit time may be deleted.

    `oldest` is the least `start_commit` (µs) that can be read.
    """

    oldest: int


class TableError(ConnectorError):
    """A Delta table is damaged, was not made by lowmark, or does not have the declared definition.
    Or a disk is full, or an object store refuses.
    """


class WriterConflictError(ConnectorError):
    """Another writer was active, or an older state was restored. Nothing was written."""


class StaleTableError(ConnectorError):
    """Ingest is too far behind for the bound of a read.

    `as_of` is the time (µs) up to which the table can be read now. It is `None` if no time is
    known.
    """

    as_of: int | None = None


def shown_value(value: object) -> str:
    """A value as Python writes it, shortened to 80 characters for an error."""
    try:
        shown = repr(value)
    # repr refuses integers with thousands of digits and very deep nesting.
    except (ValueError, RecursionError):
        shown = (
            f"an integer of {value.bit_length()} bits"
            if isinstance(value, int)
            else f"a {type(value).__name__} of great depth"
        )
    if len(shown) <= 80:
        return shown
    end = f"... ({len(value)} long)" if isinstance(value, str | bytes) else "..."
    return shown[: 80 - len(end)] + end


def argument_invalid(name: str, value: object, allowed: str) -> ConfigError:
    """The error for an argument of a function. `allowed` completes "It must be"."""
    return ConfigError(
        "ARGUMENT_INVALID",
        f"The argument {name} is {shown_value(value)}",
        f"It must be {allowed}",
        "Give such a value. Nothing was changed",
        argument=name,
    )


def check_time(name: str, value: object) -> None:
    """Check an argument that is a time in microseconds, or None.

    Raises:
        ConfigError: It is neither None nor a whole number of 64 bits.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (is_whole and -(2**63) <= value < 2**63):  # type: ignore[operator]
        raise argument_invalid(name, value, "a whole number of microseconds of 64 bits, or None")


def check_name(name: str, value: object) -> None:
    """Check an argument that is a name or a path. Raises `ConfigError` if it is not a text, or is
    empty.
    """
    if not isinstance(value, str) or not value:
        raise argument_invalid(name, value, "a text that is not empty")


def check_note(name: str, note: object) -> None:
    """Check a text that a person gives and that is stored, for example the reason of an action.

    Raises:
        ConfigError: It is not a text, it is empty or only spaces, or it has a NUL character or a
            lone surrogate, which a table or a topic cannot store.
    """
    if isinstance(note, str) and note.strip() and "\0" not in note:
        try:
            note.encode()
        except UnicodeEncodeError:
            pass
        else:
            return
    raise argument_invalid(
        name, note, "a text that is not empty, without NUL characters and lone surrogates"
    )

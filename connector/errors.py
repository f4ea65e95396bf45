"""The exceptions of lowmark.

A bad record is a value (`connector.records.rejection.Rejection`). A bad situation is an exception
of this module. A mistake in the code is a failed assertion. Every exception has the problem, the
cause and the remedy, in this order. Numbers that a program may need are attributes.

    ConnectorError
    ├── ConfigError          a setting is missing, misspelt, or not allowed (OPS-1)
    ├── InvalidChangeError   a change would break a limit (REC-14); also a ValueError
    ├── JsonViewError        a line of JSON is not a valid record (REC-22)
    ├── DeliveryError        records were not delivered, or the result is unknown (REC-17)
    ├── TopicError           a topic is missing, compacted, replaced, or has a wrong setting (REC-1
    to REC-4) ├── BrokerError          a broker cannot be reached, or the local broker cannot start
    ├── JarError             Java is missing, or a pinned jar is missing or different (OPS-2) ├──
    RegistryError        the schema registry cannot be reached, or refuses the request ├──
    TableError           a Delta table was not made by lowmark, or has another definition (TBL-8)
    ├── StorageError         a disk is full ├── WriterConflictError  another writer was active, or
    an older state was restored (TBL-5, TBL-14) ├── StaleTableError      a table is older than its
    reader allows, even with all ingested changes (TBL-16) ├── AuditError           the audit
    failed: records are lost or duplicated, or a dead letter is missing (TBL-6) └──
    StreamHaltedError    too many records of a batch were rejected; an operator must decide (DLQ-5)
"""

from __future__ import annotations


class ConnectorError(Exception):
    """A situation that lowmark cannot repair.

    `problem`, `cause` and `remedy` are sentences without a final full stop. `cause` and `remedy`
    may be empty. `str()` joins the parts that are not empty.
    """

    def __init__(self, problem: str, cause: str = "", remedy: str = "") -> None:
        super().__init__(problem, cause, remedy)
        self.problem = problem
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return ". ".join(part for part in (self.problem, self.cause, self.remedy) if part)


class ConfigError(ConnectorError):
    """A setting is missing, misspelt, or has a value that is not allowed. `problem` names the
    setting and its value.
    """


class InvalidChangeError(ConnectorError, ValueError):
    """A value breaks a limit of REC-14, or a rule of REC-9 or REC-16.

    - `rule` is the name of the broken rule: a `connector.records.model.Rule`, or
      `INVALID_SEQUENCE_NUMBER`, `UNENCODABLE`, `TOO_LARGE` or `UNREADABLE_VALUE`.
    - `field` is the Avro field.
    - `limit` is the allowed value, in words.
    - `value` is the given value, shortened for display.
    - `index` is the index of the change in its batch, counted from 0. It is `None` if there was no
      batch.
    """

    index: int | None = None

    def __init__(self, rule: str, field: str, limit: str, value: object) -> None:
        try:
            shown = repr(value)
        except (
            ValueError,
            RecursionError,
        ):  # repr refuses integers with thousands of digits and very deep nesting
            shown = (
                f"an integer of {value.bit_length()} bits"
                if isinstance(value, int)
                else f"a {type(value).__name__} of great depth"
            )
        self.rule = rule
        self.field = field
        self.limit = limit
        self.value = shown if len(shown) <= 80 else f"{shown[:77]}..."
        super().__init__(f"{field} is {self.value}, but must be {limit}")

    def in_batch(self, index: int) -> None:
        """Set the index of the change in its batch, and add it to `problem`."""
        self.index = index
        self.problem = f"of the change at index {index}, {self.problem}"


class JsonViewError(ConnectorError):
    """A line of JSON is not a valid record.

    `field` is the path of the wrong field. It is empty if the whole line is wrong.
    """

    def __init__(self, problem: str, cause: str = "", remedy: str = "", *, field: str = "") -> None:
        super().__init__(problem, cause, remedy)
        self.field = field


class DeliveryError(ConnectorError):
    """Records were not delivered, or their delivery is unknown. `undelivered` is their number."""

    def __init__(
        self, problem: str, cause: str = "", remedy: str = "", *, undelivered: int = 0
    ) -> None:
        super().__init__(problem, cause, remedy)
        self.undelivered = undelivered


class TopicError(ConnectorError):
    """A topic is missing, is compacted, was replaced, or does not fit its use."""


class BrokerError(ConnectorError):
    """A broker cannot be reached, or the local broker cannot start."""


class JarError(ConnectorError):
    """Java is missing or too old, or a pinned jar cannot be fetched, or the jar differs from the
    lock file.
    """


class RegistryError(ConnectorError):
    """The schema registry cannot be reached, or its answer is not valid."""


class TableError(ConnectorError):
    """A Delta table was not made by lowmark, or does not have the declared definition."""


class StorageError(ConnectorError):
    """A disk refused a write because it is full. Earlier commits are not affected."""


class WriterConflictError(ConnectorError):
    """Another writer was active, or an older state was restored. Nothing was written."""


class StaleTableError(ConnectorError):
    """Ingest is too far behind for the bound of a read.

    `as_of` is the time (µs) up to which the table can be read now. It is `None` if no time is
    known.
    """

    def __init__(
        self, problem: str, cause: str = "", remedy: str = "", *, as_of: int | None = None
    ) -> None:
        super().__init__(problem, cause, remedy)
        self.as_of = as_of


class AuditError(ConnectorError):
    """An audit found lost, duplicated or missing records. `problem` names them and their
    location.
    """


class StreamHaltedError(ConnectorError):
    """The share of rejected records in a batch was above the limit. `reason` is the most frequent
    reason.
    """

    def __init__(
        self, problem: str, cause: str = "", remedy: str = "", *, reason: str = ""
    ) -> None:
        super().__init__(problem, cause, remedy)
        self.reason = reason

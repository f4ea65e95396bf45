"""What can go wrong around the connector, as opposed to within the data.

Bad data is a value (`connector.records.rejection.Rejection`), a bad situation is an exception from this module, bad code is a
failed assertion. Every exception says the problem, the cause and the remedy, in that order, and has the numbers as
attributes where a program might want them.

    ConnectorError
    ├── ConfigError          a setting is missing, misspelt, or not allowed (OPS-1)
    ├── InvalidChangeError   a change that breaks a limit was about to be built (REC-14); also a ValueError
    ├── JsonViewError        a line of JSON is no record (REC-22)
    ├── DeliveryError        the broker did not take what was sent, or did not say so (REC-17)
    ├── TopicError           the topic is missing, compacted, replaced, or shaped otherwise than its users need (REC-1 to REC-4)
    ├── BrokerError          the broker cannot be reached, or the local one cannot be started
    ├── JarError             Java is missing, or a pinned jar cannot be fetched or is not what the lock says (OPS-2)
    ├── RegistryError        the schema registry cannot be reached, or refuses
    ├── TableError           a Delta table at our path is not ours, or not of the declared shape (TBL-8)
    ├── StorageError         a disk refused a write: it is full
    ├── WriterConflictError  somebody else writes where only one may write, or an old state was restored (TBL-5, TBL-14)
    ├── StaleTableError      even with everything that was ingested a table is older than its reader allows (TBL-16)
    ├── AuditError           a promise does not hold: records are lost or doubled, or a letter is missing (TBL-6)
    └── StreamHaltedError    too much of a batch was rejected; the operator decides (DLQ-5)
"""

from __future__ import annotations


class ConnectorError(Exception):
    """A situation that the connector cannot mend by itself.

    `problem`, `cause` and `remedy` are sentences without a final full stop; `str()` joins what there is of them.
    """

    def __init__(self, problem: str, cause: str = "", remedy: str = "") -> None:
        super().__init__(problem, cause, remedy)
        self.problem = problem
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return ". ".join(part for part in (self.problem, self.cause, self.remedy) if part)


class ConfigError(ConnectorError):
    """A setting is missing, misspelt, or has a value that is not allowed. `problem` names the setting and its value."""


class InvalidChangeError(ConnectorError, ValueError):
    """A value breaks a limit of REC-14 or a rule of REC-9 or REC-16.

    `rule` is the name of the broken rule (of `connector.records.model.Rule`, or `INVALID_SEQUENCE_NUMBER`, or `UNENCODABLE`), `field`
    the Avro field, `limit` what is allowed, and `value` what was given, shortened for display. `index` is the place of the
    change in the batch that was given with it, counted from 0; None where there was no batch.
    """

    index: int | None = None

    def __init__(self, rule: str, field: str, limit: str, value: object) -> None:
        try:
            shown = repr(value)
        except (ValueError, RecursionError):  # Python writes no integer of thousands of digits, and nothing that is nested so deep
            shown = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__} of great depth"
        self.rule = rule
        self.field = field
        self.limit = limit
        self.value = shown if len(shown) <= 80 else f"{shown[:77]}..."
        super().__init__(f"{field} is {self.value}, but must be {limit}")

    def in_batch(self, index: int) -> None:
        """Say that it is of the change at this index of a batch."""
        self.index = index
        self.problem = f"of the change at index {index}, {self.problem}"


class JsonViewError(ConnectorError):
    """A line of JSON is no record. `field` is the path of the field that is wrong, empty for the line as a whole."""

    def __init__(self, problem: str, cause: str = "", remedy: str = "", *, field: str = "") -> None:
        super().__init__(problem, cause, remedy)
        self.field = field


class DeliveryError(ConnectorError):
    """Records were not delivered, or nobody knows whether they were. `undelivered` counts them."""

    def __init__(self, problem: str, cause: str = "", remedy: str = "", *, undelivered: int = 0) -> None:
        super().__init__(problem, cause, remedy)
        self.undelivered = undelivered


class TopicError(ConnectorError):
    """A topic is missing, compacted, was replaced, or is not what its users need."""


class BrokerError(ConnectorError):
    """A broker cannot be reached, or the local one cannot be started."""


class JarError(ConnectorError):
    """Java is missing or too old, or a pinned jar cannot be fetched or is not the one that was pinned."""


class RegistryError(ConnectorError):
    """The schema registry cannot be reached, or gave an answer that is none."""


class TableError(ConnectorError):
    """A Delta table is not ours, or not of the declared shape."""


class StorageError(ConnectorError):
    """A disk refused a write: it is full. What was committed before stands."""


class WriterConflictError(ConnectorError):
    """Another writer was at work, or an older state was restored below us. Nothing was written."""


class StaleTableError(ConnectorError):
    """Ingest is behind the bound of a read. `as_of` is the moment in microseconds that can be had, None if none is known."""

    def __init__(self, problem: str, cause: str = "", remedy: str = "", *, as_of: int | None = None) -> None:
        super().__init__(problem, cause, remedy)
        self.as_of = as_of


class AuditError(ConnectorError):
    """An audit found that a promise does not hold. `problem` says which one, and where."""


class StreamHaltedError(ConnectorError):
    """The share of rejected records in a batch was above the limit. `reason` is the most frequent one."""

    def __init__(self, problem: str, cause: str = "", remedy: str = "", *, reason: str = "") -> None:
        super().__init__(problem, cause, remedy)
        self.reason = reason

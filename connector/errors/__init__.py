"""The exceptions of lowmark.

A bad record is a value (`connector.records.rejection.Rejection`). A bad situation is an exception
of this module. A mistake in the code is a failed assertion. Every exception has the problem, the
cause and the remedy, in this order, and a stable code. Values that a program may need are
attributes.

    ConnectorError
    ├── ConfigError          a setting is missing, misspelt, or not allowed (OPS-1)
    ├── InvalidChangeError   a change would break a limit (REC-14); also a ValueError
    ├── JsonViewError        a line of JSON is not a valid record (REC-22)
    ├── DeliveryError        records were not delivered, or the result is unknown (REC-17)
    │   ├── OutboxFullError  the outbox of a producer has no space (PUB-3)
    │   ├── NotSentError     an append to a write stream is not in the topic (WRS-7)
    │   ├── OutcomeUnknownError  an append may be in the topic (WRS-8)
    │   └── QueueFullError   a write session has too many rows in flight (WRS-9)
    ├── WriteStreamError     a write stream refuses a request (WRS-7)
    │   ├── RowErrors        rows of an append are not valid (WRS-5)
    │   ├── OffsetOverlapError, OffsetOutOfRangeError, DifferentRowsError
    │   └── StreamStateError the state or the kind does not allow it (WRS-12 to WRS-14)
    ├── OutboxError          the outbox of a producer is in use, foreign or damaged (PUB-3)
    ├── TopicError           a topic is missing, replaced, or does not fit its use (REC-1 to REC-4)
    ├── BrokerError          a broker cannot be reached, or the local broker cannot start
    ├── JarError             Java is missing, or a pinned jar is missing or different (OPS-2)
    ├── RegistryError        the schema registry cannot be reached, or refuses the request
    ├── TableError           a Delta table is damaged, or not lowmark's, or has another definition
    │                        (TBL-8), or its disk or store refuses
    ├── WriterConflictError  another writer was active, or a state was restored (TBL-5, TBL-14)
    ├── OutOfRangeError      a range of commit time cannot be read (SUB-1)
    ├── BufferFullError      a reader of whole transactions needs too much memory (SUB-3)
    ├── StaleTableError      a table is older than its reader allows (TBL-16)
    ├── AuditError           records are lost or duplicated, or a dead letter is missing (TBL-6)
    └── StreamHaltedError    too many records of a batch were rejected (DLQ-5)

The modules of this package are the catalogue: each error has one function there, with its code,
class and texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, auto
from types import MappingProxyType


class ErrorCode(StrEnum):
    """The name of an error. A name never changes its meaning.

    `docs/reference/errors.md` has the problem, the cause and the remedy of each.
    """

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name

    # settings and names
    CONFIG_MISSING = auto()
    CONFIG_NOT_TOML = auto()
    CONFIG_UNREADABLE = auto()
    SECRET_UNREADABLE = auto()
    SETTING_MISSING = auto()
    SETTING_UNKNOWN = auto()
    SETTING_INVALID = auto()
    SETTINGS_INVALID = auto()
    SETTING_WITHOUT_JAVA_FORM = auto()
    ENVIRONMENT_VARIABLE_UNKNOWN = auto()
    KAFKA_SETTING_INVALID = auto()
    KAFKA_SETTING_RESERVED = auto()
    SASL_MECHANISM_UNSUPPORTED = auto()
    CLIENT_CERTIFICATE_UNUSABLE = auto()
    RECORD_LIMIT_ABOVE_TOPIC = auto()
    TOPIC_OF_TWO_STREAMS = auto()
    STREAM_NOT_NAMED = auto()
    STREAM_UNKNOWN = auto()
    STREAM_PARTITION_UNKNOWN = auto()
    TABLE_UNKNOWN = auto()
    TRANSACTION_UNKNOWN = auto()
    TRANSACTION_AMBIGUOUS = auto()
    RELEASE_UNKNOWN = auto()
    RELEASE_AMBIGUOUS = auto()
    NAME_INVALID = auto()
    NAME_NOT_DISTINCT = auto()
    ARGUMENT_INVALID = auto()
    WAREHOUSE_UNUSABLE = auto()

    # table definitions
    COLUMN_ENCODING_INVALID = auto()
    COLUMN_FAMILY_INVALID = auto()
    COLUMN_NAME_INVALID = auto()
    COLUMN_NAME_REPEATED = auto()
    COLUMN_NAME_RESERVED = auto()
    COLUMN_QUALIFIER_INVALID = auto()
    COLUMN_REPEATED = auto()
    COLUMNS_MISSING = auto()
    COLUMNS_TOO_MANY = auto()
    KEY_DELIMITER_INVALID = auto()
    KEY_INVALID = auto()
    SOURCE_TABLE_INVALID = auto()
    TYPE_UNKNOWN = auto()
    TABLE_COLUMNS_CHANGED = auto()
    TABLE_DEFINITION_DIFFERENT = auto()
    TABLE_DEFINITION_UNREADABLE = auto()

    # records as JSON
    JSON_INVALID = auto()
    RECORD_KIND_INVALID = auto()
    FIELD_INVALID = auto()
    FIELD_MISSING = auto()
    FIELD_REPEATED = auto()
    FIELD_UNKNOWN = auto()
    BYTES_INVALID = auto()
    CHANGE_INVALID = auto()
    LINE_REFUSED = auto()
    FILE_FORMAT_UNKNOWN = auto()
    FILE_UNREADABLE = auto()
    FILE_MALFORMED = auto()
    FILE_COLUMNS_UNSUITABLE = auto()
    FILE_CHANGED = auto()
    ROWS_REJECTED = auto()
    TABLE_NOT_LOADABLE = auto()
    TABLE_NOT_EMPTY = auto()
    AS_OF_TOO_OLD = auto()
    LOAD_ENDED = auto()
    LOAD_WITHHELD = auto()

    # Kafka
    BROKER_UNREACHABLE = auto()
    KAFKA_LOGIN_FAILED = auto()
    KAFKA_TLS_FAILED = auto()
    KAFKA_ACCESS_DENIED = auto()
    KAFKA_REFUSED = auto()
    KAFKA_PARTITION_UNKNOWN = auto()
    TOPIC_MISSING = auto()
    TOPIC_EXISTS = auto()
    TOPIC_FOREIGN = auto()
    TOPIC_COMPACTED = auto()
    TOPIC_REPLACED = auto()
    TOPIC_SHORTENED = auto()
    TOPIC_UNREADABLE = auto()
    RECORDS_DELETED = auto()
    GROUP_UNAVAILABLE = auto()
    POSITIONS_NOT_STORED = auto()
    POSITION_OF_ANOTHER_TOPIC = auto()

    # readers of streams
    READER_STATE_INVALID = auto()
    READER_OPTION_INVALID = auto()
    START_IN_FUTURE = auto()
    START_AFTER_END = auto()
    START_TOO_OLD = auto()
    BUFFER_FULL = auto()
    TRANSACTIONS_UNACKNOWLEDGED = auto()
    GROUP_TOPICS_MISSING = auto()
    RECORD_ACKNOWLEDGED = auto()
    GROUP_STATE_TAKEN = auto()
    GROUP_STATE_TOO_LARGE = auto()

    # producers
    RECORD_REFUSED = auto()
    RECORDS_UNDELIVERED = auto()
    TRANSACTION_NOT_STARTED = auto()
    TRANSACTION_NOT_COMMITTED = auto()
    PRODUCER_FENCED = auto()
    CLAIM_ABOVE_DELIVERED = auto()
    CLAIM_NOT_YET_TRUE = auto()
    HEARTBEAT_UNDELIVERED = auto()
    RESUME_TOKEN_MISSING = auto()
    RECORDS_IN_OUTBOX = auto()
    OUTBOX_FULL = auto()
    OUTBOX_IN_USE = auto()
    OUTBOX_FOREIGN = auto()
    OUTBOX_DAMAGED = auto()
    OUTBOX_UNUSABLE = auto()

    # write streams
    ROWS_INVALID = auto()
    OFFSET_OVERLAP = auto()
    OFFSET_OUT_OF_RANGE = auto()
    ROWS_DIFFERENT = auto()
    APPEND_NOT_SENT = auto()
    APPEND_OUTCOME_UNKNOWN = auto()
    SESSION_QUEUE_FULL = auto()
    SESSION_TAKEN_OVER = auto()
    SESSION_NOT_OPENED = auto()
    APPENDS_UNANSWERED = auto()
    CATALOG_MISSING = auto()
    CATALOG_UNREADABLE = auto()
    CATALOG_UNSUITABLE = auto()
    NOT_FOUND = auto()
    WRONG_KIND = auto()
    NOT_FINALIZED = auto()
    FINALIZED = auto()
    ALREADY_COMMITTED = auto()
    DISCARDED = auto()
    EXPIRED = auto()
    WRITE_STREAMS_REFUSED = auto()
    WRITE_STREAMS_TOO_MANY = auto()
    COMMITTER_BUSY = auto()
    COMMIT_OUTCOME_UNKNOWN = auto()
    PRODUCER_WITHOUT_PARTITION = auto()
    RELEASE_WITHHELD = auto()
    RELEASE_TOO_LATE = auto()
    ROWS_NOT_SHOWN = auto()

    # schema registry
    REGISTRY_UNREACHABLE = auto()
    REGISTRY_ACCESS_DENIED = auto()
    REGISTRY_ANSWER_INVALID = auto()
    REGISTRY_SCHEMA_DIFFERENT = auto()
    REGISTRY_CA_UNREADABLE = auto()

    # local broker
    BROKER_FOLDER_IN_USE = auto()
    BROKER_FOLDER_UNUSABLE = auto()
    BROKER_FOLDER_FOREIGN = auto()
    BROKER_FOLDER_DAMAGED = auto()
    BROKER_ON_ANOTHER_PORT = auto()
    BROKER_NOT_STARTED = auto()
    BROKER_NOT_STOPPING = auto()
    PORT_IN_USE = auto()
    PORT_UNAVAILABLE = auto()

    # Java, jars and Spark
    JAVA_MISSING = auto()
    JAVA_TOO_OLD = auto()
    JAVA_UNUSABLE = auto()
    PYSPARK_MISSING = auto()
    IVY_MISSING = auto()
    IVY_SETTINGS_MISSING = auto()
    JAR_MISSING = auto()
    JAR_DIFFERENT = auto()
    JAR_REPOSITORY_UNREACHABLE = auto()
    JAR_FOLDER_UNUSABLE = auto()
    JAR_DISK_FULL = auto()
    SPARK_SESSION_EXISTS = auto()
    SPARK_SESSION_ENDED = auto()
    SPARK_FAILED = auto()
    SPARK_JARS_MISSING = auto()
    SPARK_SETTING_MISSING = auto()
    SPARK_MASTER_UNREACHABLE = auto()
    SPARK_WITHOUT_EXECUTORS = auto()
    FOLDER_NOT_SHARED = auto()
    EXTRA_MISSING = auto()

    # changelog and ingest
    ALREADY_RUNNING = auto()
    REJECTED_RATIO_EXCEEDED = auto()
    CHANGELOG_EMPTY = auto()
    CHANGELOG_REPLACED = auto()
    CHANGELOG_TRIMMED = auto()
    LOW_WATERMARK_UNKNOWN = auto()
    CHECKPOINT_FOREIGN = auto()
    AUDIT_FAILED = auto()

    # tables and reads
    TABLE_MISSING = auto()
    TABLE_CHANGED = auto()
    TABLE_DAMAGED = auto()
    TABLE_UNREADABLE = auto()
    TABLE_STALE = auto()
    ROWS_BLOCKED = auto()
    CUT_MISSING = auto()
    COMMIT_FOREIGN = auto()
    COMMIT_UNREADABLE = auto()
    CONCURRENT_WRITE = auto()
    DISK_FULL = auto()
    STORE_UNREACHABLE = auto()
    STORE_CREDENTIALS_REFUSED = auto()
    STORE_ACCESS_DENIED = auto()
    STORE_CLOCK_DIFFERENT = auto()
    STORE_NOT_CONDITIONAL = auto()
    BUCKET_MISSING = auto()

    # dead letters
    DEAD_LETTER_MISSING = auto()
    DEAD_LETTERS_UNDELIVERED = auto()
    DEAD_LETTER_TOPIC_TOO_SMALL = auto()
    LEDGER_IN_USE = auto()
    LEDGER_UNREADABLE = auto()
    LEDGER_TOPIC_UNSUITABLE = auto()
    LEDGER_WRITE_UNKNOWN = auto()
    REPAIR_IMPOSSIBLE = auto()
    NEW_CHANGE_IMPOSSIBLE = auto()
    EDITOR_RESULT_EMPTY = auto()
    EDITOR_RESULT_UNCHANGED = auto()
    EDITOR_UNSUITABLE = auto()
    FILE_EXISTS = auto()

    # processes
    SYSTEM_ERROR = auto()


class ConnectorError(Exception):
    """A situation that lowmark cannot repair.

    - `code` is the stable name of the error: an `ErrorCode`, or the rule of an
      `InvalidChangeError`.
    - `problem`, `cause` and `remedy` are sentences without a final full stop. `cause` and `remedy`
      may be empty. `str()` joins the parts that are not empty.
    - `fields` has the values that a program needs for the remedy, by name. For example `stream`,
      `table` or `topic`. Each is also an attribute of the error.
    """

    def __init__(
        self,
        code: ErrorCode | str,
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

    def __str__(self) -> str:
        return ". ".join(part for part in (self.problem, self.cause, self.remedy) if part)


class ConfigError(ConnectorError):
    """A setting is missing, misspelt, or has a value that is not allowed. `problem` names the
    setting and its value.
    """


class InvalidChangeError(ConnectorError, ValueError):
    """A value breaks a limit of REC-14, or a rule of REC-9 or REC-16.

    - `rule` is the name of the broken rule: a `connector.records.model.Rule`, or `UNKNOWN_ENTRY`,
      `INVALID_SEQUENCE_NUMBER`, `UNENCODABLE`, `TOO_LARGE`, `UNREADABLE_VALUE` or
      `COMMIT_TIMESTAMP_TOO_OLD`.
    - `field` is the Avro field.
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
        self.problem = f"of the change at index {index}, {self.problem}"


class JsonViewError(ConnectorError):
    """A line of JSON is not a valid record.

    `field` is the path of the wrong field. It is empty if the whole line is wrong.
    """

    field: str = ""


class DeliveryError(ConnectorError):
    """Records were not delivered, or their delivery is unknown. `undelivered` is their number."""

    undelivered: int = 0


class OutboxFullError(DeliveryError):
    """The outbox of a producer has no space, or its disk is full. The record is in
    `undelivered`.
    """


class NotSentError(DeliveryError):
    """An append to a write stream is not in the topic, and will not be. Append the rows again."""

    outcome: str = "not taken"


class OutcomeUnknownError(DeliveryError):
    """The outcome of a transaction is unknown: the rows of an append may be in the topic.

    The next session reads the outcome: append at the same offset again.
    """

    outcome: str = "unknown"


class QueueFullError(DeliveryError):
    """A write session has too many rows or bytes in flight. Nothing was sent."""


class WriteStreamError(ConnectorError):
    """A write stream refuses a request. `stream` is its name."""

    stream: str = ""


class RowErrors(WriteStreamError):  # noqa: N818, it is the name of the interface
    """Rows of an append are not valid. Nothing was sent.

    `errors` has the `InvalidChangeError` of each invalid row by its index: `rule`, `field`,
    `limit`.
    """

    errors: Mapping[int, InvalidChangeError]


class OffsetOverlapError(WriteStreamError):
    """Some rows of an append have offsets that are taken. Append from `expected` on."""

    expected: int
    received: int
    rows: int


class OffsetOutOfRangeError(WriteStreamError):
    """An offset is after the end `expected` of the write stream."""

    expected: int
    received: int


class DifferentRowsError(WriteStreamError):
    """The last append at this offset had other rows."""

    expected: int
    received: int


class StreamStateError(WriteStreamError):
    """The state or the kind of a write stream does not allow the request. `code` has the reason.

    `errors` has the name and the code of each write stream of a commit that was refused.
    """

    errors: tuple[tuple[str, str], ...] = ()


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
    """A broker cannot be reached, or the local broker cannot start."""


class OutOfRangeError(ConnectorError):
    """A range of commit time cannot be read. `code` names the reason.

    `oldest` is the least `start_commit` (µs) that can be read. It is `None` if the reason is
    another one.
    """

    oldest: int | None = None


class BufferFullError(ConnectorError):
    """A reader of whole transactions needs more memory than `max_buffered_bytes` allows.

    `stream_partition` and `kafka_partition` name what delays the low watermark. They are `None` if
    the cause is another one.
    """

    stream_partition: str | None = None
    kafka_partition: int | None = None


class JarError(ConnectorError):
    """Java is missing or too old, or a pinned jar cannot be fetched, or the jar differs from the
    lock file.
    """


class RegistryError(ConnectorError):
    """The schema registry cannot be reached, or its answer is not valid."""


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


class AuditError(ConnectorError):
    """An audit found lost, duplicated or missing records. `problem` names them and their
    location.
    """


class StreamHaltedError(ConnectorError):
    """The share of rejected records in a batch was above the limit. `reason` is the most frequent
    reason.
    """

    reason: str = ""


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
        ErrorCode.ARGUMENT_INVALID,
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

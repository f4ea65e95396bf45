"""The exceptions of write streams."""

from __future__ import annotations

from collections.abc import Mapping

from connector.errors import (
    ConnectorError,
    ErrorCode,
    InvalidChangeError,
    OffsetError,
    RowErrors,
    WriteStreamError,
)
from connector.text import counted
from connector.write_streams.rules import Fault, Placing

_NEW_STREAM = "Use a write stream with another name"


def state_error(fault: Fault, stream: str) -> WriteStreamError:
    """Return the error for a write stream that refuses a request."""
    match fault:
        case Fault.NOT_FOUND:
            return WriteStreamError(
                ErrorCode.NOT_FOUND,
                f"There is no write stream {stream}",
                "The catalog does not have it. A write stream is there after its first append, or"
                " after finalize",
                "Check the name: it is that of the session, a slash, and the name in the session",
                stream=stream,
            )
        case Fault.WRONG_KIND:
            return WriteStreamError(
                ErrorCode.WRONG_KIND,
                f"The write stream {stream} is of another kind",
                "The kind of a write stream never changes. Only buffered write streams are flushed,"
                " only pending ones are committed, and committed ones are never discarded",
                _NEW_STREAM,
                stream=stream,
            )
        case Fault.NOT_FINALIZED:
            return WriteStreamError(
                ErrorCode.NOT_FINALIZED,
                f"The write stream {stream} is not finalized",
                "Its session may still append to it",
                "Finalize it, then try again",
                stream=stream,
            )
        case Fault.FINALIZED:
            return WriteStreamError(
                ErrorCode.FINALIZED,
                f"The write stream {stream} is finalized",
                "It takes no appends and no flush any more",
                _NEW_STREAM,
                stream=stream,
            )
        case Fault.ALREADY_COMMITTED:
            return WriteStreamError(
                ErrorCode.ALREADY_COMMITTED,
                f"The write stream {stream} is committed",
                "Its rows are released. A commit of exactly the same write streams answers the same"
                " commit timestamp again, and other commits are refused",
                _NEW_STREAM,
                stream=stream,
            )
        case Fault.DISCARDED:
            return WriteStreamError(
                ErrorCode.DISCARDED,
                f"The write stream {stream} is discarded",
                "Its rows never become visible",
                _NEW_STREAM,
                stream=stream,
            )
        case Fault.EXPIRED:
            return WriteStreamError(
                ErrorCode.EXPIRED,
                f"The write stream {stream} is expired",
                "It had no append for the staging retention",
                "Append the rows to a write stream with another name",
                stream=stream,
            )


def refused(action: str, faults: Mapping[str, Fault]) -> WriteStreamError:
    """Return the error for several write streams: the fault of each one (WRS-14)."""
    shown = ", ".join(f"{name}: {fault}" for name, fault in list(faults.items())[:5])
    further = f", and {len(faults) - 5} more" if len(faults) > 5 else ""
    are_open = set(faults.values()) == {Fault.NOT_FINALIZED}
    return WriteStreamError(
        ErrorCode.WRITE_STREAMS_REFUSED,
        f"{counted(len(faults), 'write stream')} cannot be {action}, so none was {action}",
        f"{shown}{further}",
        "Finalize them, then try again" if are_open else "Correct them, or leave them out",
        faults=tuple((name, str(fault)) for name, fault in faults.items()),
    )


def too_many_streams(topic: str, most: int) -> WriteStreamError:
    return WriteStreamError(
        ErrorCode.WRITE_STREAMS_TOO_MANY,
        f"{topic} has {most} open pending or buffered write streams",
        "More are not allowed",
        "Finalize, commit or discard some of them",
        topic=topic,
    )


def offset_error(
    placing: Placing, stream: str, expected: int, received: int, rows: int
) -> ConnectorError:
    """Return the error for an append that is not taken and not a repetition (WRS-7)."""
    if placing is Placing.OVERLAP:
        return OffsetError(
            ErrorCode.OFFSET_OVERLAP,
            f"{rows} rows at offset {received} overlap the end {expected} of the write stream"
            f" {stream}",
            "Some of the rows have offsets that are taken. Nothing was sent",
            "Append the rows from the end on, at the offset `expected`",
            stream=stream,
            expected=expected,
            received=received,
            rows=rows,
        )
    if placing is Placing.DIFFERENT:
        return OffsetError(
            ErrorCode.ROWS_DIFFERENT,
            f"The rows at offset {received} of the write stream {stream} are not the rows that were"
            " appended there",
            f"The last append was at this offset with {rows} rows, and their contents differ."
            " Nothing was sent",
            "Find out why the source gives other rows. To append them, use the offset `expected`",
            stream=stream,
            expected=expected,
            received=received,
        )
    return out_of_range(stream, expected, received)


def out_of_range(stream: str, expected: int, received: int) -> OffsetError:
    return OffsetError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"The offset {received} is after the end {expected} of the write stream {stream}",
        "The rows before it are missing: an earlier append failed, or was not made. Nothing was"
        " sent",
        "Append the missing rows first, at the offset `expected`",
        stream=stream,
        expected=expected,
        received=received,
    )


def row_errors(stream: str, errors: Mapping[int, InvalidChangeError]) -> RowErrors:
    """Return the error for rows that are not valid, by index (WRS-5)."""
    index, first = next(iter(errors.items()))
    return RowErrors(
        ErrorCode.ROWS_INVALID,
        f"{counted(len(errors), 'row')} of an append to the write stream {stream} cannot be"
        " published. Nothing was sent",
        f"Row {index}: {first.problem}",
        "Correct these rows, or store them as dead letters, and append again",
        stream=stream,
        errors=dict(errors),
    )

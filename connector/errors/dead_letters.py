"""Dead letters."""

from __future__ import annotations

from connector.errors import ConnectorError, DeliveryError, WriterConflictError


def dead_letters_undelivered(topic: str, undelivered: int, cause: str) -> DeliveryError:
    return DeliveryError(
        "DEAD_LETTERS_UNDELIVERED",
        f"{undelivered} dead letters were not delivered to {topic}",
        cause,
        "Remove the cause, then publish all of them again. Readers count each dead letter once",
        undelivered=undelivered,
    )


def ledger_in_use(topic: str, cause: str) -> WriterConflictError:
    return WriterConflictError(
        "LEDGER_IN_USE",
        f"Another process acts on the dead letters of {topic}",
        cause,
        "Wait until it has ended, then run this again. It continues with what is left, and nothing"
        " is done twice",
        topic=topic,
    )


def ledger_write_unknown(topic: str, cause: str) -> DeliveryError:
    return DeliveryError(
        "LEDGER_WRITE_UNKNOWN",
        f"A transaction for dead letters of {topic} failed, or its outcome is unknown",
        cause,
        "Run this again. It reads the ledger, and continues with what is left",
        topic=topic,
    )


def dead_letter_missing(
    topic: str, letters: str, stream: str, group: str | None = None
) -> ConnectorError:
    return ConnectorError(
        "DEAD_LETTER_MISSING",
        f"{topic} does not have {letters}",
        "",
        "List all dead letters to find their ids",
        stream=stream,
        group=group,
    )


def dead_letter_ambiguous(
    topic: str, letter_id: str, examples: str, stream: str, group: str | None
) -> ConnectorError:
    return ConnectorError(
        "DEAD_LETTER_AMBIGUOUS",
        f"Several dead letters of {topic} match the id {letter_id}",
        f"For example {examples}",
        "Give more of the id",
        stream=stream,
        group=group,
    )


def repair_impossible(letter_id: str, cause: str) -> ConnectorError:
    return ConnectorError(
        "REPAIR_IMPOSSIBLE",
        f"Dead letter {letter_id} cannot be repaired so",
        cause,
        "Correct the repair steps, or edit the letter again. Your editor ($VISUAL, $EDITOR) must"
        " save its file as UTF-8",
    )


def new_change_impossible(letter_id: str, cause: str) -> ConnectorError:
    return ConnectorError(
        "NEW_CHANGE_IMPOSSIBLE",
        f"There is no new change with the effect of dead letter {letter_id}",
        cause,
        "Send the row again from the source, or discard the letter",
    )

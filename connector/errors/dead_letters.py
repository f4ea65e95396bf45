"""Dead letters and their ledger."""

from __future__ import annotations

from connector.errors import ConnectorError


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

"""Records as JSON, files and loads."""

from __future__ import annotations

from connector.errors import JsonViewError


def json_invalid(cause: str) -> JsonViewError:
    return JsonViewError(
        "JSON_INVALID", "This line is not JSON", cause, "Write one JSON object per line"
    )


def field_repeated(name: str) -> JsonViewError:
    return JsonViewError("FIELD_INVALID", f'"{name}" occurs twice in one object', field=name)


def record_kind_invalid(kinds: str, field: str) -> JsonViewError:
    return JsonViewError("FIELD_INVALID", f"A record has exactly one of {kinds}", field=field)


def field_missing(field: str) -> JsonViewError:
    return JsonViewError("FIELD_INVALID", f"{field} is missing", field=field)


def field_unknown(field: str, owner: str, remedy: str) -> JsonViewError:
    return JsonViewError(
        "FIELD_INVALID", f"{field} is not a field of {owner}", "", remedy, field=field
    )


def field_invalid(field: str, value: str, allowed: str) -> JsonViewError:
    return JsonViewError(
        "FIELD_INVALID", f"{field or 'The line'} is {value}, but must be {allowed}", field=field
    )


def change_invalid(field: str, problem: str) -> JsonViewError:
    return JsonViewError("CHANGE_INVALID", problem, field=field)

"""Names of tables and columns: allowed names, reserved names, and the names of unmapped cells
(TBL-8, TBL-22).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from connector.errors.definitions import column_name_invalid, column_name_repeated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from connector.errors import ConfigError

NAME_PATTERN: Final = r"[A-Za-z0-9](?:[-_A-Za-z0-9]{0,126}[A-Za-z0-9])?"
"""Names of tables and streams. They are names of folders, so dots and slashes are not allowed."""
COLUMN_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_]{0,299}"
"""Names of columns. Every engine accepts them without quotes. Names that begin with `_` are
reserved.
"""

UNMAPPED: Final = "_unmapped"
STATE: Final = "_state"
BUCKET: Final = "_bucket"
BOOKKEEPING: Final = (STATE, BUCKET)
"""Internal columns. Readers do not see them."""

is_name = re.compile(NAME_PATTERN).fullmatch
is_column_name = re.compile(COLUMN_PATTERN).fullmatch


def unmapped_name(family: str, qualifier: bytes) -> str:
    """Return the name of a cell in `_unmapped`: `family:qualifier`, with `%25` for `%` (TBL-22).

    If the qualifier is not UTF-8, every byte outside ASCII is written as `%XX`.
    """
    try:
        return f"{family}:{qualifier.decode().replace('%', '%25')}"
    except UnicodeDecodeError:
        return f"{family}:" + "".join(
            f"%{byte:02X}" if byte > 127 or byte == ord("%") else chr(byte) for byte in qualifier
        )


def name_fault(what: str, name: str) -> ConfigError | None:
    return None if is_column_name(name) else column_name_invalid(what, name)


def repeated_names(what: str, names: Iterable[str]) -> Iterator[ConfigError]:
    """Yield an error for each name that another one equals but for its case."""
    by_lower_case: dict[str, str] = {}
    for name in names:
        if (other := by_lower_case.get(name.lower())) is not None:
            yield column_name_repeated(what, name, other)
        by_lower_case[name.lower()] = name

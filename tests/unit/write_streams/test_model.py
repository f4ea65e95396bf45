"""Names and stored records of write streams (WRS-1, WRS-3)."""

from __future__ import annotations

from typing import Any

import pytest

from connector.errors import ConfigError, ErrorCode
from connector.write_streams.model import (
    Catalog,
    SessionEntry,
    StreamEntry,
    StreamKind,
    check_stream_names,
    to_value,
)


@pytest.mark.parametrize("streams", [None, 5, [], [1, "job/rows"], [None], "job", ["job/rows/x"]])
def test_names_that_are_none_are_refused(streams: Any) -> None:
    """WRS-1: whatever the argument is, and whatever is beside a right name."""
    with pytest.raises(ConfigError) as caught:
        check_stream_names(streams)
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID


@pytest.mark.parametrize(("flushed", "end"), [(0, -5), (-1, 5), (6, 5), (0, 2**63)])
def test_a_record_with_offsets_that_are_not_possible_is_not_of_a_catalog(
    flushed: int, end: int
) -> None:
    """WRS-3: a session would go on at such an offset."""
    entry = StreamEntry(StreamKind.BUFFERED, flushed=flushed, end=end)
    with pytest.raises(ValueError, match="are not offsets"):
        Catalog().keep("job/rows", to_value(entry))


def test_a_catalog_knows_the_topics_that_its_sessions_wrote_to() -> None:
    """WRS-3, REC-4."""
    catalog = Catalog()
    catalog.keep("a", to_value(SessionEntry("o")))
    catalog.keep("b", to_value(SessionEntry("o", topic_id="new")))
    assert catalog.other_topic("new") is None
    assert catalog.other_topic("newer") == "new"

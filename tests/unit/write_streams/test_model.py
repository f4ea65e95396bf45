"""Names and stored records of write streams (WRS-1, WRS-3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connector.errors import ConfigError
from connector.write_streams.model import (
    MAX_APPEND_ROWS,
    MAX_COMMIT_STREAMS,
    MAX_OFFSET,
    MAX_OPEN_STREAMS,
    MAX_TRANSACTION_BYTES,
    STAGING_RETENTION_S,
    Catalog,
    LastAppend,
    SessionEntry,
    StreamEntry,
    StreamKind,
    StreamState,
    catalog_topic,
    check_name,
    check_stream_names,
    commit_id,
    release_partition_of,
    session_id,
    stream_partition_of,
    to_value,
    topic_of_catalog,
)


@pytest.mark.parametrize("streams", [None, 5, [], [1, "job/rows"], [None], "job", ["job/rows/x"]])
def test_names_that_are_none_are_refused(streams: Any) -> None:
    """WRS-1: whatever the argument is, and whatever is beside a right name."""
    with pytest.raises(ConfigError) as caught:
        check_stream_names(streams)
    assert caught.value.code == "ARGUMENT_INVALID"


@pytest.mark.parametrize(("flushed", "end"), [(0, -5), (-1, 5), (6, 5), (0, 2**63)])
def test_a_record_with_offsets_that_are_not_possible_is_not_of_a_catalog(
    flushed: int, end: int
) -> None:
    """WRS-3: a session would go on at such an offset."""
    entry = StreamEntry(StreamKind.BUFFERED, flushed=flushed, end=end)
    with pytest.raises(ValueError, match="are not offsets"):
        Catalog().add("job/rows", to_value(entry))


def test_a_catalog_knows_the_topics_that_its_sessions_wrote_to() -> None:
    """WRS-3, REC-4."""
    catalog = Catalog()
    catalog.add("a", to_value(SessionEntry("o")))
    catalog.add("b", to_value(SessionEntry("o", topic_id="new")))
    assert catalog.other_topic("new") is None
    assert catalog.other_topic("newer") == "new"


def test_limits() -> None:
    """WRS-4, WRS-21: as the requirements have them."""
    assert (MAX_OPEN_STREAMS, MAX_COMMIT_STREAMS, MAX_APPEND_ROWS) == (1_000, 1_000, 1_000)
    assert (MAX_TRANSACTION_BYTES, MAX_OFFSET) == (67_108_864, 9_223_372_036_854_775_807)
    assert STAGING_RETENTION_S == 604_800


def test_names_are_sorted_and_each_once() -> None:
    """WRS-1, WRS-4: one name may be given alone."""
    longest = "A-z_0.9" + "n" * 57
    assert check_stream_names(["b/x", "a/x", "b/x"]) == ["a/x", "b/x"]
    assert check_stream_names(f"{longest}/{longest}") == [f"{longest}/{longest}"]
    assert check_name("name", longest) == longest
    for wrong in (longest + "n", "", "ä", "a/b", "a\n", None, 5):
        with pytest.raises(ConfigError) as caught:
            check_name("name", wrong)
        assert caught.value.code == "ARGUMENT_INVALID"
    names = [f"job/n{n}" for n in range(1_001)]
    assert len(check_stream_names(names[:1_000])) == 1_000
    with pytest.raises(ConfigError, match="1001"):
        check_stream_names(names)


@pytest.mark.parametrize(
    ("kind", "state", "is_staging"),
    [
        *(
            (kind, state, True)
            for kind in ("pending", "buffered")
            for state in ("open", "finalized")
        ),
        *(
            (kind, state, False)
            for kind in ("pending", "buffered")
            for state in ("committed", "discarded")
        ),
        *(("committed", state, False) for state in ("open", "finalized", "discarded")),
    ],
)
def test_only_rows_that_may_wait_for_a_release_are_staged(
    kind: str, state: str, is_staging: bool
) -> None:
    """WRS-4, WRS-21: of them, the open ones count for the limit of a topic."""
    entry = StreamEntry(StreamKind(kind), StreamState(state))
    assert entry.is_staging == is_staging
    two = Catalog(streams={"w/a": entry, "w/b": entry})
    assert two.open_staging() == (2 if is_staging and state == "open" else 0)


def test_a_later_record_of_a_write_stream_covers_an_earlier_one() -> None:
    """WRS-8: by its end, its flushed offset and its state. An append changes the end."""
    entry = StreamEntry(StreamKind.BUFFERED, StreamState.FINALIZED, end=5, flushed=2)
    append = LastAppend(5, 3, "d", 70)
    later = entry.appended(append)
    assert (later.end, later.changed_at, later.last) == (8, 70, append)
    assert entry.covers(entry)
    for earlier in (
        replace(entry, end=4),
        replace(entry, flushed=1),
        replace(entry, state=StreamState.OPEN),
    ):
        assert entry.covers(earlier)
        assert not earlier.covers(entry)


@pytest.mark.parametrize(("flushed", "end"), [(0, 0), (5, 5), (0, 2**63 - 1)])
def test_a_record_with_possible_offsets_is_kept(flushed: int, end: int) -> None:
    """WRS-3."""
    catalog, entry = Catalog(), StreamEntry(StreamKind.BUFFERED, flushed=flushed, end=end)
    catalog.add("job/rows", to_value(entry))
    assert catalog.streams == {"job/rows": entry}


def test_the_topic_has_the_names_of_what_belongs_to_it() -> None:
    """WRS-2, WRS-3, WRS-10, WRS-14, WRS-15."""
    assert stream_partition_of("job", 3) == "write-session/job/3"
    assert release_partition_of("job", 3) == "write-session/job/3/releases"
    assert commit_id("t") == "lowmark.t/commit"
    assert session_id("t", "job") == "lowmark.t/session/job"
    assert topic_of_catalog(catalog_topic("t")) == "t"

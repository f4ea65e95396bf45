"""Which dead-letter topics take every record of a change topic (DLQ-1, DLQ-6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.errors import TopicError
from connector.kafka import topics
from connector.kafka.topics import LETTER_HEADROOM_BYTES, TopicFacts, check_dead_letters

MAX = 2**31 - 1
CHANGES = TopicFacts("t", "id", 1, 1, "delete", "LogAppendTime", -1, 1_000_000)
LETTERS = replace(CHANGES, topic="t.dead-letters")


@pytest.mark.parametrize("more", [-1, 0, 1, 4096, LETTER_HEADROOM_BYTES // 8 - 1])
def test_a_topic_without_room_for_the_headers_is_refused(more: int) -> None:
    """DLQ-1: the remedy names the size that `topic create` would set."""
    letters = replace(LETTERS, max_message_bytes=CHANGES.max_message_bytes + more)
    with pytest.raises(TopicError, match="bytes per message, but t accepts 1000000") as caught:
        check_dead_letters(CHANGES, letters)
    assert "max.message.bytes=2048576 on t.dead-letters" in caught.value.remedy


@pytest.mark.parametrize("size", [1, 1_000_000, MAX - LETTER_HEADROOM_BYTES, MAX - 1, MAX])
def test_the_topics_that_we_create_have_room(size: int) -> None:
    """DLQ-1: also for the largest size that Kafka knows."""
    changes = replace(CHANGES, max_message_bytes=size)
    largest = topics._largest_letter(changes)
    assert size <= largest <= MAX
    check_dead_letters(changes, replace(LETTERS, max_message_bytes=largest))


def test_a_compacted_topic_is_refused() -> None:
    """DLQ-1: letters of one row would replace each other."""
    with pytest.raises(TopicError, match="is compacted"):
        check_dead_letters(CHANGES, replace(LETTERS, cleanup_policy="compact,delete"))

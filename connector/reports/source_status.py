"""The findings about the producers of a stream, in words (OPS-5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from connector.dead_letters.filter import text_of_bytes
from connector.records.views import view_of_time
from connector.state.source_checks import Ignored, SourceChecks, TwoProducers
from connector.text import FEW, counted, duration, summarize_names

RECENT_S: Final = 3600
"""A sign of two producers is a hint for so long. Later, it is only a fact."""

_WHY_IGNORED: Final = {
    Ignored.IN_FUTURE: "later than their arrival",
    Ignored.BACKWARDS: "below an earlier claim",
    Ignored.ENDED: "of an ended stream partition",
    Ignored.OLDER_ANNOUNCEMENT: "announcements older than one before",
    Ignored.LATER_START: "start timestamps of a child that differ from those of another parent",
}
_CONTRADICTIONS: Final = {"DELETE": "a DELETE sets cells", "INSERT": "an INSERT sets no cell"}


def facts_of_checks(checks: SourceChecks, now: int) -> Iterator[tuple[str, str]]:
    """Yield the findings as a name and a text. Of many stream partitions or schemas, the ones with
    the most or the newest findings come first, and the others are only counted.
    """
    claims: dict[str, list[str]] = {}
    for ignored in checks.ignored_claims_by_partition:
        text = f"{ignored.count:,} {_WHY_IGNORED[ignored.reason]}"
        claims.setdefault(ignored.stream_partition, []).append(text)
    yield from _few(
        "ignored claims", [f"of {name}: {', '.join(texts)}" for name, texts in claims.items()]
    )
    two = sorted(checks.two_producers.items(), key=lambda item: -item[1].last_at)
    yield from _few("two producers", [_two(name, producers, now) for name, producers in two])
    if checks.row_images:
        counts = ", ".join(
            f"{_CONTRADICTIONS[mod_type]}: {count:,}"
            for mod_type, count in checks.row_images.items()
        )
        yield "row images", f"changes whose row image contradicts their entries ({counts})"
    schemas = sorted(checks.unknown_fields.items(), key=lambda item: -item[1].records)
    yield from _few(
        "unknown fields",
        [
            f"{summarize_names(unknown.fields) or 'fields'} of schema {id_}, in"
            f" {counted(unknown.records, 'record')}: kept in the changelog, not in tables"
            for id_, unknown in schemas
        ],
    )
    if checks.placement.misplaced:
        yield (
            "key placement",
            (
                f"{checks.placement.misplaced:,} of {counted(checks.placement.sampled, 'change')}"
                " in samples are not in the Kafka partition of their key"
            ),
        )


def hints_of_checks(checks: SourceChecks, now: int) -> Iterator[str]:
    """Yield the problems of producers that an operator must solve, with their remedies."""
    recent = recent_two_producers(checks, now)
    for name, two in list(recent.items())[:FEW]:
        yield (
            f"two producers write stream partition {name}: one that began at"
            f" {view_of_time(two.older_epoch)}, and one that began at"
            f" {view_of_time(two.newer_epoch)}. The changes of both are applied, but the heartbeats"
            " of one say nothing about the other: stop one of them, or give both the same"
            " transactional_id"
        )
    if len(recent) > FEW:
        yield f"two producers write each of {len(recent) - FEW} more stream partitions"
    placement, example = checks.placement, checks.placement.example
    if example is not None:
        yield (
            f"{placement.misplaced:,} of {placement.sampled:,} changes in samples are not in the"
            f" Kafka partition of their key, for example {text_of_bytes(example.key)} in Kafka"
            f" partition {example.kafka_partition} at offset {example.offset}, not in"
            f" {example.right_partition}: a producer has another partitioner. Set it to murmur2,"
            " as Java's clients have it, over the number of Kafka partitions that the record names"
        )


def recent_two_producers(checks: SourceChecks, now: int) -> dict[str, TwoProducers]:
    """Return the stream partitions with a recent sign of two producers, the newest first."""
    newest_first = sorted(checks.two_producers.items(), key=lambda item: -item[1].last_at)
    return {name: two for name, two in newest_first if now - two.last_at < RECENT_S * 1_000_000}


def _two(name: str, two: TwoProducers, now: int) -> str:
    ago = duration(max(0, now - two.last_at) / 1_000_000)
    batches = counted(two.batches, "batch", "batches")
    return f"{name} in Kafka partition {two.kafka_partition}, in {batches}, the last one {ago} ago"


def _few(name: str, texts: list[str]) -> Iterator[tuple[str, str]]:
    for text in texts[:FEW]:
        yield name, text
    if len(texts) > FEW:
        yield name, f"and {len(texts) - FEW} more"

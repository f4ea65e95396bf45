"""The findings about the producers of a stream, in words and as JSON values (OPS-5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from connector.records.views import view_of_bytes, view_of_time
from connector.state.source_checks import Ignored, SourceChecks, TwoProducers
from connector.state.status_json import FEW, summarize_names
from connector.text import counted, duration

RECENT_S: Final = 3600
"""A sign of two producers is a hint for so long. Later, it is only a fact."""

_WHY_IGNORED: Final = {
    Ignored.IN_FUTURE: "later than their arrival",
    Ignored.BACKWARDS: "below an earlier claim",
    Ignored.ENDED: "of an ended stream partition",
    Ignored.OLDER_ANNOUNCEMENT: "announcements older than one before",
    Ignored.LATER_START: "later start timestamps of a child than another parent named",
}
_WHAT_IMAGES_SAY: Final = {"DELETE": "a DELETE sets cells", "INSERT": "an INSERT sets no cell"}


def facts_of_checks(checks: SourceChecks, now: int) -> Iterator[tuple[str, str]]:
    """Yield the findings as a name and a text. Of many stream partitions or schemas, the ones with
    the most or the newest findings come first, and the others are only counted.
    """
    yield from _few("ignored claims", [_claims(name, checks) for name in _most_ignored(checks)])
    two = sorted(checks.two_producers.items(), key=lambda item: -item[1].last_at)
    yield from _few("two producers", [_two(name, one, now) for name, one in two])
    if checks.row_images:
        said = ", ".join(
            f"{_WHAT_IMAGES_SAY[mod_type]}: {count:,}"
            for mod_type, count in checks.row_images.items()
        )
        yield "row images", f"changes whose row image contradicts their entries ({said})"
    schemas = sorted(checks.unknown_fields.items(), key=lambda item: -item[1].records)
    yield from _few(
        "unknown fields",
        [
            f"{summarize_names(of.fields) or 'fields'} of schema {id_}, in"
            f" {counted(of.records, 'record')}: kept in the changelog, not in tables"
            for id_, of in schemas
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
    recent = {
        name: two
        for name, two in checks.two_producers.items()
        if now - two.last_at < RECENT_S * 1_000_000
    }
    for name, two in sorted(recent.items(), key=lambda item: -item[1].last_at)[:FEW]:
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
            f" Kafka partition of their key, for example {_key(example.key)} in Kafka"
            f" partition {example.kafka_partition} at offset {example.offset}, not in"
            f" {example.right_partition}: a producer has another partitioner. Set it to murmur2,"
            " as Java's clients have it, over the number of Kafka partitions that the record names"
        )


def view_of_checks(checks: SourceChecks) -> dict[str, Any]:
    """Convert the findings to JSON values."""
    placement, example = checks.placement, checks.placement.example
    return {
        "ignored_claims_by_partition": [
            {"stream_partition": name, "reason": reason.value, "count": count}
            for name in _most_ignored(checks)
            for reason, count in checks.ignored[name].items()
        ],
        "two_producers": [
            {
                "stream_partition": name,
                "kafka_partition": two.kafka_partition,
                "older_epoch": two.older_epoch,
                "newer_epoch": two.newer_epoch,
                "batches": two.batches,
                "last_at": view_of_time(two.last_at),
            }
            for name, two in checks.two_producers.items()
        ],
        "row_image_mismatches": dict(checks.row_images),
        "unknown_fields": [
            {"schema_id": id_, "fields": list(of.fields), "records": of.records}
            for id_, of in checks.unknown_fields.items()
        ],
        "key_placement": {
            "sampled_at": view_of_time(placement.sampled_at) if placement.sampled_at else None,
            "sampled": placement.sampled,
            "misplaced": placement.misplaced,
            "example": None
            if example is None
            else {
                "key": view_of_bytes(example.key),
                "kafka_partition": example.kafka_partition,
                "offset": example.offset,
                "right_partition": example.right_partition,
                "kafka_partitions": example.kafka_partitions,
            },
        },
    }


def _key(key: bytes) -> str:
    shown = view_of_bytes(key)
    return shown if isinstance(shown, str) else f"base64:{shown['base64']}"


def _most_ignored(checks: SourceChecks) -> list[str]:
    return sorted(checks.ignored, key=lambda name: (-sum(checks.ignored[name].values()), name))


def _claims(name: str, checks: SourceChecks) -> str:
    said = ", ".join(
        f"{count:,} {_WHY_IGNORED[reason]}" for reason, count in checks.ignored[name].items()
    )
    return f"of {name}: {said}"


def _two(name: str, two: TwoProducers, now: int) -> str:
    ago = duration(max(0, now - two.last_at) / 1_000_000)
    seen = "1 batch" if two.batches == 1 else f"{two.batches:,} batches"
    return f"{name} in Kafka partition {two.kafka_partition}, in {seen}, the last one {ago} ago"


def _few(name: str, texts: list[str]) -> Iterator[tuple[str, str]]:
    for text in texts[:FEW]:
        yield name, text
    if len(texts) > FEW:
        yield name, f"and {len(texts) - FEW} more"

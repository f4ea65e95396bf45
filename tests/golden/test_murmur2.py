"""The Kafka partition of a key is Java's: vectors for producers in other languages, and for us
(REC-1).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import murmur2
from hypothesis import given
from hypothesis import strategies as st

VECTORS = json.loads((Path(__file__).parent / "murmur2.json").read_text("ascii"))


def java_partition(key: bytes, kafka_partitions: int) -> int:
    """`Utils.toPositive(Utils.murmur2(key)) % numPartitions` of org.apache.kafka, line by line."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) - len(key) % 4
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    h ^= h >> 15
    return (h & 0x7FFFFFFF) % kafka_partitions


@pytest.mark.parametrize(
    "vector",
    VECTORS["vectors"],
    ids=lambda vector: f"{vector['key'][:16]}/{vector['kafka_partitions']}",
)
def test_vectors_hold(vector: dict[str, str | int]) -> None:
    key = bytes.fromhex(str(vector["key"]))
    assert (
        murmur2(key, vector["kafka_partitions"])
        == vector["kafka_partition"]
        == java_partition(key, int(vector["kafka_partitions"]))
    )


@given(st.binary(max_size=64), st.integers(1, 10_000))
def test_the_clients_hash_is_javas(key: bytes, kafka_partitions: int) -> None:
    assert murmur2(key, kafka_partitions) == java_partition(key, kafka_partitions)

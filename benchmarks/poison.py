"""Many bad records: the ingest rate of good records with 10 % bad ones, and without (TBL-3, DLQ-4).

    python -m benchmarks poison [--quick]

There are half a million changes in four Kafka partitions. The second topic has one more record in
ten that is truncated, is random bytes, or has the key of another row. Both topics are ingested in
turns, and the bad records become dead letters. At the end each dead letter is checked.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from time import perf_counter

from pyspark.sql import functions as F

from benchmarks import machine, workload
from benchmarks.report import Figure, finish, spread
from benchmarks.stage import Stage, stage
from benchmarks.workload import Shape, Workload
from connector.dead_letters.envelope import DeadLetter
from connector.kafka import DeadLetterPublisher
from connector.kafka.topics import TopicFacts
from connector.spark.storage.changelog import Changelog

GOOD_TO_BAD = 9
_BAD = """CASE pmod(xxhash64(value), 3) WHEN 0 THEN substring(value, 1, octet_length(value) - 3)
    WHEN 1 THEN concat(X'7F', value) ELSE value END"""


def poisoned(at: Stage, topic: TopicFacts, work: Workload) -> int:
    """The changes in a topic with bad records among them. Returns how many are bad."""
    good = workload.kafka_records(at.decoded(work), work.shape, topic.kafka_partitions)
    bad = good.where(f"pmod(xxhash64(key), {GOOD_TO_BAD}) = 0").select(
        F.expr("concat(X'FF', key)").alias("key"), F.expr(_BAD).alias("value")
    )
    # Sorted by a hash of their keys, so that good and bad records are mixed.
    mixed = good.unionByName(bad).repartition(8, F.xxhash64("key"))
    mixed.write.format("kafka").option(
        "kafka.bootstrap.servers", at.kafka.bootstrap_servers
    ).option("topic", topic.topic).save()
    return bad.count()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks poison")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the changes, one round, no judgement"
    )
    quick = parser.parse_args().quick
    changes, rounds = (50_000, 1) if quick else (500_000, 3)
    work = Workload(0, changes, changes // 2, Shape.PARTIAL)
    with stage() as at:
        clean, flooded = at.new_topic(), at.new_topic()
        at.produce(clean, at.decoded(work), work.shape)
        bad = poisoned(at, flooded, work)
        times: dict[str, list[float]] = {clean.topic: [], flooded.topic: []}
        with DeadLetterPublisher(at.kafka, flooded.topic) as publisher:
            for number in range(rounds + 1):
                for topic in (clean, flooded):
                    published: list[int] = []

                    def publish(
                        letters: Iterable[DeadLetter], published: list[int] = published
                    ) -> int:
                        published.append(publisher.publish(letters))
                        return published[-1]

                    folder = at.folder / f"round-{number}-{topic.topic}"
                    began = perf_counter()
                    at.ingest(topic, folder, publish=publish)
                    times[topic.topic].append(perf_counter() - began)
                    expect(at, folder, changes, bad if topic is flooded else 0, sum(published))
                    shutil.rmtree(folder)
    print(*machine.facts(), sep="\n")
    print(
        f"{changes} good changes, {bad} bad records; {rounds} rounds in turns, after one that does"
        " not count"
    )
    without, beside = ([changes / seconds for seconds in found[1:]] for found in times.values())
    print(spread("without poison", without, "good changes/s"))
    print(spread("beside poison", beside, "good changes/s"))
    ratio = median(b / w for b, w in zip(beside, without, strict=True))
    return finish(
        [Figure("good_changes_beside_poison_to_without", ratio, "0.5")], validate_record=not quick
    )


def expect(at: Stage, warehouse: Path, changes: int, bad: int, published: int) -> None:
    rows = Changelog(
        at.spark, str(warehouse / "streams" / workload.STREAM / "changelog"), workload.STREAM
    ).rows()
    found = {row["kind"]: row["count"] for row in rows.groupBy("kind").count().collect()}
    assert (found.get("change"), found.get("rejected", 0), published) == (changes, bad, bad), (
        found,
        published,
    )


if __name__ == "__main__":
    raise SystemExit(main())

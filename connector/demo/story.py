"""The steps of the demo, from an empty folder to the result (OPS-2).

1. Start a broker, and write the configuration.
2. Start the pipeline and publish. `readers` reads meanwhile. Some of its steps run only in the full
   demo.
3. Kill the pipeline during the rest, and run it again to the end.
4. Compare the tables and the dead letters with the truth.
5. Print the report.

Each step is one function below. `tell` calls them in this order.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connector.cli.terminal import Progress, a_person_watches, say
from connector.clock import now_us
from connector.config.storage import is_s3, spelled
from connector.demo import pipeline, readers, report, settings, truth
from connector.demo.bank import ACCOUNTS_TABLE
from connector.demo.capture import FILES_TABLE
from connector.demo.compare import letter_differences, row_differences
from connector.demo.folder import DemoFolder, demo_folder
from connector.demo.publish import Published, Publisher
from connector.demo.readers import Readers
from connector.demo.report import Outcome
from connector.demo.settings import KEYS, QUERY_SCRIPT, STREAM, configuration
from connector.demo.source import Input, choose_input
from connector.errors import ConnectorError, ErrorCode
from connector.jars import JarStore, fetch
from connector.kafka.dead_letters.topic import read_letters
from connector.kafka.local.broker import LocalBroker
from connector.kafka.produce.producer import ChangeProducer
from connector.kafka.topics import TopicFacts, create_topic
from connector.lake.plain_table import newest_stored, open_table
from connector.records.model import MAX_ROW_KEY_BYTES
from connector.services.load_config import load_config
from connector.services.warehouses import warehouse_of

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig
    from connector.demo.pipeline import Pipeline

KAFKA_PARTITIONS: Final = 4
_MIN_BATCH: Final = 4000
_MAX_STALENESS: Final = "3s"
_KILLED_WITHIN_S: Final = 1.5
_SAY_EVERY_S: Final = 30.0
_LONG_RUN_TRANSACTIONS: Final = 50_000


@dataclass(frozen=True, slots=True)
class Choices:
    """The options of the caller. None: not given. The full demo also repairs a dead letter and
    shows a stall. `warehouse` is the URI of one in an object store.
    """

    repository: Path | None = None
    output: Path | None = None
    seed: int = 1
    snapshots: int = 2
    is_full: bool = False
    warehouse: str = ""

    @property
    def stall_after_s(self) -> int:
        return settings.SHORT_STALL_AFTER_S if self.is_full else settings.STALL_AFTER_S


def tell(choices: Choices) -> bool:
    """Run the whole demo. Returns whether the result equals the truth. Raises `ConnectorError`. At
    the end, all its processes have ended.
    """
    began = time.monotonic()
    jars = JarStore.from_environment(os.environ)
    chosen = choose_input(choices.repository, now=now_us(), seed=choices.seed)
    for note in chosen.notes:
        say(note)
    outcome = Outcome()
    with demo_folder(choices.output, os.environ, spelled(choices.warehouse)) as folder:
        fetch("spark", jars, say)
        if is_s3(folder.uri):
            fetch("s3", jars, say)
        with LocalBroker.start(folder.broker, jars, say=say) as broker:
            outcome.rates.append(("start a new broker", 0, "", time.monotonic() - began))
            kafka, topic = _prepare(folder, chosen, broker.bootstrap_servers, choices)
            published, reading = _run_and_kill(folder, chosen, kafka, topic, choices, outcome)
            _run_to_the_end(folder, chosen, published, outcome)
            reading.see_end()
            outcome.letters = [letter for letter, _ in read_letters(kafka, STREAM)]
        _compare(folder, chosen, published, outcome)
        outcome.total_s = time.monotonic() - began
        report.show(outcome, published, folder)
    return outcome.is_equal


def _prepare(
    folder: DemoFolder, chosen: Input, bootstrap_servers: str, choices: Choices
) -> tuple[KafkaConfig, TopicFacts]:
    text = configuration(
        *(chosen.sources, bootstrap_servers, str(folder.broker), choices.stall_after_s),
        warehouse=folder.uri or "warehouse",
    )
    folder.config.write_text(text, encoding="utf-8")
    folder.query.write_text(QUERY_SCRIPT, encoding="utf-8")
    config = load_config(folder.config, pipeline.storage_settings(os.environ))
    kafka, warehouse = config.kafka, warehouse_of(config)
    if newest_stored(folder.changelog(STREAM)) is not None:
        raise ConnectorError(
            ErrorCode.DEMO_FOLDER_NOT_EMPTY,
            f"The warehouse {warehouse} is not empty",
            "It contains a demo. Nothing in it was changed",
            "Name a prefix of the bucket that has no objects",
        )
    return kafka, create_topic(kafka, STREAM, kafka_partitions=KAFKA_PARTITIONS)


def _run_and_kill(
    folder: DemoFolder,
    chosen: Input,
    kafka: KafkaConfig,
    topic: TopicFacts,
    choices: Choices,
    outcome: Outcome,
) -> tuple[Published, Readers]:
    """Start the pipeline and publish everything: first step by step for the readers, then the rest
    at once. Kill the pipeline during the rest.
    """
    told = chosen.sources[0]
    environment = {
        # Only this run uses small batches, so that it can be killed between two of them. Its bound
        # makes it apply all the time.
        f"CONNECTOR__STREAMS__{STREAM.upper()}__MAX_OFFSETS_PER_TRIGGER": str(
            max(_MIN_BATCH, told.size)
        ),
        f"CONNECTOR__TABLES__{told.table.upper()}__MAX_STALENESS": _MAX_STALENESS,
        **_quick_java(chosen),
    }
    say("starting the pipeline: connector run")
    with (
        pipeline.running(folder, 1, settings=environment) as run,
        ChangeProducer(kafka, topic) as producer,
    ):
        publisher = Publisher(
            producer,
            kafka,
            topic,
            chosen.sources,
            seed=choices.seed,
            told=told,
            parts=readers.parts(told, choices.snapshots),
            window=readers.window(told, choices.snapshots),
            say=say,
        )
        publisher.begin()
        reading = Readers(
            folder, chosen, told, publisher, run, outcome, choices.snapshots, choices.stall_after_s
        )
        reading.read_snapshots(whole_part=choices.is_full)
        outcome.rates.append(
            (
                "run: start, snapshots during the run",
                publisher.done.records,
                "records",
                time.monotonic() - run.started,
            )
        )
        if choices.is_full:
            began = time.monotonic()
            reading.mend_letter()
            outcome.rates.append(("repair of a dead letter", 0, "", time.monotonic() - began))
            began = time.monotonic()
            reading.see_stall()
            outcome.rates.append(("a stall", 0, "", time.monotonic() - began))
        published = _publish_rest(publisher, chosen, outcome)
        time.sleep(random.Random(choices.seed).uniform(0, _KILLED_WITHIN_S))
        run.kill()
        seconds = time.monotonic() - run.started
    publisher.finish()
    ingested = pipeline.records_ingested(folder, STREAM)
    say(
        f"killed the pipeline with SIGKILL after {seconds:.1f} s, with {ingested:,} of"
        f" {published.records:,} records in the changelog"
    )
    outcome.notes.append(
        f"the pipeline was killed with {ingested:,} of {published.records:,} records in the"
        " changelog, and started again"
    )
    return published, reading


def _publish_rest(publisher: Publisher, chosen: Input, outcome: Outcome) -> Published:
    began, before = time.monotonic(), publisher.done.records
    progress = Progress("changes published")
    publisher.rest(lambda count: progress.show(count, time.monotonic()))
    progress.clear()
    published, seconds = publisher.done, time.monotonic() - began
    outcome.rates.append(("publish the rest", published.records - before, "records", seconds))
    again = published.deliveries.total() - published.changes.total()
    say(
        f"published {published.changes.total():,} changes in {published.transactions:,}"
        f" transactions, out of order, {again:,} of them twice; {len(published.poison):,} bad"
        " records"
    )
    if chosen.capture is not None and chosen.capture.paths_left_out:
        count = len(chosen.capture.paths_left_out)
        outcome.notes.append(
            f"{count:,} paths of more than {MAX_ROW_KEY_BYTES:,} bytes cannot be row keys and were"
            " left out"
        )
    return published


def _run_to_the_end(
    folder: DemoFolder, chosen: Input, published: Published, outcome: Outcome
) -> None:
    before = pipeline.records_ingested(folder, STREAM)
    say("starting the pipeline again: connector run --once")
    with pipeline.running(folder, 2, "--once", settings=_quick_java(chosen)) as run:
        watcher = _Watcher(folder, published.records)
        run.finish(watcher.look)
        ended = time.monotonic()
    watcher.look(run)
    watcher.progress.clear()
    say(f"everything is applied after {ended - run.started:.1f} s; {run.last_line()}")
    ingested_at = watcher.complete_at or ended
    outcome.rates.append(
        (
            "run --once: start, ingest",
            watcher.ingested - before,
            "records",
            ingested_at - run.started,
        )
    )
    outcome.rates.append(
        ("run --once: apply, end", published.deliveries.total(), "changes", ended - ingested_at)
    )
    if watcher.ingested != published.records:
        outcome.differences.append(
            f"the changelog has {watcher.ingested:,} records, but {published.records:,} were"
            " published"
        )


def _quick_java(chosen: Input) -> dict[str, str]:
    return (
        {}
        if sum(source.size for source in chosen.sources) > _LONG_RUN_TRANSACTIONS
        else pipeline.QUICK_JAVA
    )


class _Watcher:
    """Shows how far ingest is: at once in a terminal, else every half a minute."""

    def __init__(self, folder: DemoFolder, records: int) -> None:
        self.progress = Progress(f"of {records:,} records ingested")
        self.ingested = 0
        self.complete_at = 0.0
        self._folder = folder
        self._records = records
        self._say_at = time.monotonic() + _SAY_EVERY_S

    def look(self, _run: Pipeline) -> None:
        now = time.monotonic()
        if self.ingested < self._records:
            self.ingested = pipeline.records_ingested(self._folder, STREAM)
            self.complete_at = now if self.ingested >= self._records else 0.0
        self.progress.show(self.ingested, now)
        if now > self._say_at and not a_person_watches():
            self._say_at = now + _SAY_EVERY_S
            say(f"{self.ingested:,} of {self._records:,} records ingested")


def _compare(folder: DemoFolder, chosen: Input, published: Published, outcome: Outcome) -> None:
    """Compute the truth, read the tables, and print every difference."""
    began = time.monotonic()
    say("computing the expected tables, and comparing")
    expected: dict[str, dict[bytes, truth.Row]] = {}
    if chosen.history is not None:
        files = truth.files(chosen.history.folder, chosen.history.head)
        expected[FILES_TABLE] = {
            path: row for path, row in files.items() if len(path) <= MAX_ROW_KEY_BYTES
        }
    if chosen.operations:
        expected[ACCOUNTS_TABLE] = truth.accounts(chosen.operations)
    for name, rows in expected.items():
        _compare_rows(folder, name, rows, outcome)
    if chosen.operations:
        _compare_money(folder, truth.deposits(chosen.operations), outcome)
    outcome.differences += letter_differences(published.poison, outcome.letters)
    outcome.rates.append(
        ("comparison", sum(map(len, expected.values())), "rows", time.monotonic() - began)
    )


def _compare_rows(
    folder: DemoFolder, name: str, expected: dict[bytes, truth.Row], outcome: Outcome
) -> None:
    outcome.rows[name] = 0
    if not expected and newest_stored(folder.table(name)) is None:
        return  # no change, no table
    found = open_table(folder.table(name))
    rows = list(found.rows())
    outcome.rows[name] = len(rows)
    outcome.differences += row_differences(name, KEYS[name], expected, tuple(found.types), rows)


def _compare_money(folder: DemoFolder, deposits: int, outcome: Outcome) -> None:
    found = open_table(folder.table(ACCOUNTS_TABLE))
    column = list(found.types).index("balance")
    money = sum(row[column] or 0 for row in found.rows())
    if money == deposits:
        outcome.notes.append(
            f"the balances add up to {deposits / 100:,.2f}, the sum of all deposits"
        )
    else:
        outcome.differences.append(
            f"the balances add up to {money:,} cents, but the deposits to {deposits:,}"
        )

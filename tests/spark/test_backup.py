"""A copy of the warehouse that is made while the pipeline runs, and restored later (OPR-3)."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import KafkaConfig
from connector.services.audit import audit
from tests.broker import NewTopic
from tests.documents import ROOT
from tests.spark.live import Live
from tests.spark.streams import account

PAGE = ROOT / "docs/howto/back-up-a-warehouse.md"


@pytest.fixture
def live(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> Iterator[Live]:
    with ExitStack() as stack:
        yield Live(spark, kafka, new_topic(kafka_partitions=2).topic, tmp_path / "warehouse", stack)


def script(number: int) -> str:
    """An example of the page."""
    return re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[
        number
    ]


def shell(number: int, folder: Path) -> None:
    subprocess.run(["bash", "-euo", "pipefail", "-c", script(number)], cwd=folder, check=True)


@pytest.mark.systems
def test_a_restored_copy_reads_what_came_later(live: Live, tmp_path: Path) -> None:
    """OPR-3, nothing_lost, resumable: the commands of the page, while batches and applies run.
    Records after the copy are read from Kafka again, and letters are not doubled.
    """
    stop, copied = threading.Event(), threading.Event()
    pipeline = live.pipeline()
    thread = threading.Thread(target=pipeline.run, args=(stop,))
    thread.start()
    try:
        for number in range(60):
            live.publish(account(f"k{number % 7}", number + 1, name=f"n{number}", amount="1"))
            if number % 10 == 5:
                live.publish(account("bad", number + 1, amount="much"))
            if number == 30:
                logged = ("tables/accounts/data/_delta_log", "_connector/jobs")
                while not all((tmp_path / "warehouse" / name).exists() for name in logged):
                    time.sleep(0.1)
                shell(0, tmp_path)
                copied.set()
            time.sleep(0.1)
    finally:
        stop.set()
        thread.join()
    assert copied.is_set()
    live.pipeline().run_once()
    truth, letters = live.truth(), live.letters()
    assert live.table() == truth
    assert len(letters) == 6

    shutil.move(tmp_path / "warehouse", tmp_path / "lost")
    shell(1, tmp_path)
    restored = live.table()
    assert restored != truth
    live.publish(account("k1", 1000, name="later"))
    live.pipeline().run_once()
    assert live.table() == live.truth() != truth
    assert live.logged_offsets() == live.offsets()
    assert live.letters() == letters
    assert [proof.is_proved for proof in audit(live.config)] == [True]

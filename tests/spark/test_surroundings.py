"""A run outlives Kafka (RUN-2): it is away at the start, and later."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import KafkaConfig
from connector.errors import BrokerError, ConnectorError
from connector.events import Event
from connector.kafka.local.broker import LocalBroker
from connector.kafka.topics import create_topic
from connector.lake.state_reader import progress_of
from connector.services import surroundings
from connector.services.run import run
from connector.services.status import status
from tests.broker import jar_store
from tests.spark.live import Live
from tests.spark.streams import account
from tests.spark.test_stopped_tables import until

FAST_S = 20.0


@pytest.mark.systems
def test_a_run_waits_for_kafka_and_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RUN-2, nothing_lost: at the start, and for longer than Kafka's clients wait. It says so once,
    again after a while, and when it goes on. `--once` fails fast.
    """
    monkeypatch.setattr(surroundings, "_AGAIN_EVERY_S", 20.0)
    with ExitStack() as stack, LocalBroker.start(tmp_path / "broker", jar_store()) as broker:
        kafka = KafkaConfig(broker.bootstrap_servers)
        create_topic(kafka, "orders", kafka_partitions=1)
        live = Live(spark, kafka, "orders", tmp_path / "warehouse", stack)
        live.publish(account("a", 1, name="Ada"))
        broker.kill()
        began = time.monotonic()
        with pytest.raises(BrokerError) as caught:
            run(live.config, spark=spark, once=True)
        assert caught.value.code == "BROKER_UNREACHABLE"
        assert time.monotonic() - began < FAST_S

        stop, events, errors = threading.Event(), list[Event](), list[ConnectorError]()

        def work() -> None:
            try:
                run(live.config, spark=spark, stop=stop, on_event=events.append)
            except ConnectorError as error:
                errors.append(error)

        def said() -> list[str]:
            codes = ("WAITING", "GOES_ON", "RUNNING")
            return [event.code for event in events if event.code in codes]

        thread = threading.Thread(target=work)
        thread.start()
        try:
            until(lambda: said() == ["WAITING"], FAST_S)
            until(lambda: "waits for Kafka since" in status(live.config).pipelines["s"].text)
            broker.restart()
            until(lambda: said()[-1] == "RUNNING")
            until(lambda: status(live.config).pipelines["s"].waiting is None)
            until(lambda: progress_of(str(live.warehouse), "s").ingest_batch == 1)
            broker.kill()
            until(lambda: said()[-1] == "WAITING", 300)
            until(lambda: said()[-2:] == ["WAITING"] * 2, 60)
            broker.restart()
            live.publish(account("b", 2, name="Bob"))
            until(lambda: said()[-1] == "GOES_ON")
            until(lambda: progress_of(str(live.warehouse), "s").ingest_batch == 2)
        finally:
            stop.set()
            thread.join()
        assert errors == []
        assert said().count("RUNNING") == 1
        assert live.table() == live.truth()

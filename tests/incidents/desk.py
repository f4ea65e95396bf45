"""What a person on call has: the configuration, commands, log and alerts of a pipeline."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from connector import cli
from connector.clock import now_us
from connector.config.settings import ConnectorConfig
from connector.errors import ConnectorError, TableError
from connector.events import Event
from connector.kafka import topics
from connector.lake.state_reader import batch_with, table_state_of
from connector.records import codec
from connector.records.model import DataChange, Heartbeat, Record, kafka_key
from connector.reports.series import Histogram, Sample
from connector.services import warehouses
from connector.services.load_config import load_config
from connector.services.metrics import Metrics
from connector.services.reload import ConfigFile
from connector.services.run import run
from connector.warehouse import table as table_path
from tests.spark.live import Live
from tests.spark.test_cut import ANNOUNCED
from tests.unit.test_deploy import ALERTS

WITHIN_S = 60
TABLE = """[tables.{name}]
stream = "s"
source = "{source}"
key = {{ form = "row_key", columns = [{{ name = "id", type = "STRING" }}] }}
max_staleness = "10m"
apply_every = "1s"
buckets = 2
columns = [
  {{ name = "name", family = "f", type = "STRING" }},
  {{ name = "amount", family = "f", type = "{amount}" }},
]
"""


def section(name: str, source: str = "t", amount: str = "INT64") -> str:
    """The section of a table, as a user writes it."""
    return TABLE.format(name=name, source=source, amount=amount)


@dataclass
class Desk(Live):
    """A stream "s", the table "accounts" and a copy of it, in a configuration file.

    `events` are the log of the last run, `out` and `err` those of the last command. `meanwhile` is
    called while the desk waits, for what goes on.
    """

    of_stream: dict[str, str] = field(default_factory=dict)
    sections: list[str] = field(default_factory=lambda: [section("accounts"), section("copies")])
    capsys: pytest.CaptureFixture[str] | None = None
    events: list[Event] = field(default_factory=list)
    error: ConnectorError | None = None
    meanwhile: Callable[[], object] = bool
    out: str = ""
    err: str = ""
    _metrics: Metrics = field(default_factory=Metrics)
    _before: list[Sample] = field(default_factory=list)
    _is_up: bool = False

    @property
    def file(self) -> Path:
        return self.folder / "connector.toml"

    @property
    def folder(self) -> Path:
        return Path(self.warehouse).parent

    @property
    def config(self) -> ConnectorConfig:
        return load_config(self.write())

    def write(self) -> Path:
        """The configuration file, as it is to be now."""
        of_stream = "".join(f"{name} = {value}\n" for name, value in self.of_stream.items())
        head = (
            f'warehouse = "{self.warehouse}"\n[kafka]\n'
            f'bootstrap_servers = "{self.kafka.bootstrap_servers}"\n'
            f'[streams.s]\ntopic = "{self.topic}"\ntrigger = "200ms"\n{of_stream}'
        )
        text = head + "".join(self.sections)
        if not self.file.exists() or self.file.read_text() != text:
            new = self.file.with_suffix(".new")
            new.write_text(text)
            new.replace(self.file)  # the pipeline never reads half of it
        return self.file

    # Commands

    def does(self, command: str) -> int:
        """Run a command line as the page or the status shows it. Returns its exit code."""
        program, *arguments = shlex.split(command)
        assert program == "connector"
        assert self.capsys is not None
        self.capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(warehouses, "_IN_USE", set())  # of this process: a command is another one
            code = cli.invoke(["--config", str(self.write()), *arguments])
        self.out, self.err = self.capsys.readouterr()
        return code

    def status(self) -> str:
        """What `connector status` says, in one line."""
        self.does("connector status")
        return " ".join((self.out + self.err).split())

    # The pipeline

    @contextmanager
    def running(self) -> Iterator[None]:
        """`connector run` beside the block. Its error is in `error` after the block."""
        stop, self.error, self._metrics = threading.Event(), None, Metrics()
        self.events.clear()

        def work() -> None:
            try:
                file = ConfigFile(self.write())
                noted = self._metrics
                run(file, spark=self.spark, stop=stop, on_event=self.events.append, metrics=noted)
            except ConnectorError as error:
                self.error = error
            finally:
                self._is_up = False

        thread, self._is_up = threading.Thread(target=work), True
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(WITHIN_S)
            assert not thread.is_alive()

    def has_ended(self) -> bool:
        return not self._is_up

    def log(self) -> list[str]:
        """The lines of the log, without steps: the code, and the text."""
        return [f"{event.code} {event.text}" for event in self.events if event.level != "debug"]

    def has_logged(self, text: str) -> bool:
        """Whether a line of the log has this text, for example a code."""
        return any(text in line for line in self.log())

    def stopped(self) -> dict[str, str]:
        """The tables that the log calls stopped, with the code of the error."""
        events = [event for event in self.events if event.code == "TABLE_STOPPED"]
        return {str(event.fields["table"]): str(event.fields["error"]) for event in events}

    def applied(self, *tables: str) -> bool:
        """Whether these tables have everything that is in the topic now."""
        ends = topics.end_offsets(self.kafka, topics.describe(self.kafka, self.topic))
        try:
            batch = batch_with(str(self.warehouse), "s", ends)
            states = [table_state_of(str(self.warehouse), "s", table) for table in tables]
        except TableError:
            return False  # a new one
        return batch is not None and all(state.to_batch >= batch for state in states)

    def table(self) -> dict[object, dict[str, object]]:
        """As the last apply left it; without rows before the first one."""
        return (
            super().table() if (Path(table_path(str(self.warehouse), "accounts"))).exists() else {}
        )

    def publish(self, *changes: DataChange, at: int | None = None) -> None:
        """With a heartbeat behind them, as a producer does it."""
        first = [] if self.published else [ANNOUNCED]
        super().publish(*changes, at=at)
        newest = max(change.commit_timestamp for change in self.published)
        control: list[Record] = [*first, Heartbeat("p", min(newest + 1, now_us()))]
        numbers = topics.end_offsets(self.kafka, topics.describe(self.kafka, self.topic))
        framed = [(kafka_key(record), codec.framed(record, len(numbers))) for record in control]
        self.send((number, key, value) for key, value in framed for number in numbers)

    def is_well(self, *alerts: str) -> None:
        """Wait until no person is needed, and the scrape of now, as the one before an incident,
        fires only `alerts`.
        """

        def is_so() -> bool:
            self.meanwhile()
            is_asked = any(
                sample.series.name == "lowmark_stream_refresh_age_seconds" for sample in self._now()
            )
            return is_asked and self.does("connector status --check") == 0

        until(is_so, now=lambda: self.out)
        self._before = self._now()
        assert self.alerts() == set(alerts)

    def shows(
        self,
        *reasons: str,
        alerts: Collection[str] = (),
        log: str = "",
        growing: Sequence[str] = (),
    ) -> None:
        """Wait until `status --check` has these reasons and no other, and the exit code that they
        mean, these alerts fire and no other, and a line of the log has the text `log`. Ages whose
        series begin with one of `growing` grow meanwhile.
        """
        wanted: object = (set(reasons), 1, set(alerts), True)
        now: object = None

        def is_so() -> bool:
            nonlocal now
            self.meanwhile()
            code = self.does("connector status --check")
            named = set(re.findall("^([A-Z_]+ [^:\\n]+):", self.out, re.MULTILINE))
            now = (named, code, self.alerts(*growing), not log or self.has_logged(log))
            return now == wanted

        until(is_so, now=lambda: f"{now} is not {wanted}: {self.out}{self.log()}")

    def _now(self) -> list[Sample]:
        return self._metrics.samples() if self._is_up else []

    def alerts(self, *growing: str) -> set[str]:
        """The alerts that fire if the scrape of now stays for two hours after the one of `note`,
        with ages that grow as in `shows`.
        """
        return firing(self._before, self._now(), self._is_up, growing)


def until(
    is_so: Callable[[], object],
    within_s: float = WITHIN_S,
    now: Callable[[], str] = lambda: "it takes too long",
) -> None:
    end = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end, now()
        time.sleep(0.2)


def firing(
    before: Sequence[Sample], now: Sequence[Sample], is_up: bool, growing: Sequence[str]
) -> set[str]:
    """The alerts that the rules fire, as Prometheus evaluates them."""
    values = {series: ["_"] * 10 for series in {*_values(before), *_values(now)}}
    for series, value in _values(before).items():
        values[series] = [f"{value}x9"]
    later = _values(now)
    for series, shown in values.items():
        step = 60 if series.startswith(tuple(growing)) and growing else 0
        shown.append(f"{later[series]}+{step}x120" if series in later else "_x120")
    values['up{job="lowmark",instance="a"}'] = ["1x9", f"{int(is_up)}x120"]
    inputs = [
        {"series": series, "values": " ".join(shown)} for series, shown in sorted(values.items())
    ]
    fired = 'group by (alertname) (max_over_time(ALERTS{alertstate="firing"}[130m]))'
    never = [{"expr": fired, "eval_time": "129m", "exp_samples": []}]
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": never}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ALERTS, folder)
        wanted = {"rule_files": [ALERTS.name], "evaluation_interval": "1m", "tests": [test]}
        Path(folder, "test.yml").write_text(yaml.safe_dump(wanted))
        done = subprocess.run(
            ["promtool", "test", "rules", "test.yml"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
    said = done.stdout + done.stderr
    fired_now = set(re.findall(r'alertname="(\w+)"', said))
    assert (done.returncode == 0) == (not fired_now), said
    return fired_now


def _values(samples: Sequence[Sample]) -> dict[str, float]:
    """The values by series, as a scrape has them. No rule uses a histogram."""
    shown = dict[str, float]()
    for series, value, of_labels in samples:
        if not isinstance(value, Histogram):
            labels = {"job": "lowmark", "instance": "a"}
            labels = {**dict(zip(series.labels, of_labels, strict=True)), **labels}
            text = ",".join(f'{name}="{label}"' for name, label in labels.items())
            suffix = "_total" if series.kind == "counter" else ""
            shown[f"{series.name}{suffix}{{{text}}}"] = value
    return shown

"""Runs the examples of the pages, in their order, on the deployment that the tutorial builds.

A program of its own: `python -m tests.e2e.pages FOLDER [PAGE …]`. It writes a line of JSON for
each example to `FOLDER/results.jsonl`. One broker serves all pages, and one JVM all commands and
programs. `PAGE` are the pages to run after the tutorial. By default, these are all.

- `console`: each line is a command. `connector` runs in this process.
- `python`: a program. If it uses a name that it does not define, it continues the program above it.
- `sql`: statements for the Spark session of the program above it.
- `toml` and `json` below "Write `NAME`" or "Add … to `NAME`": a file. `python` and `json`, too.
- `text`: what an example shows. It is compared only where the page says `the output`.

What a reader has to replace is replaced here, see `Deployment.as_typed`.
"""

from __future__ import annotations

import builtins
import dis
import io
import json
import os
import re
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, Final

from pyspark.sql import SparkSession

from connector import cli
from connector.services import load_config, run
from connector.spark import configure_session
from connector.spark.jvm import stop_session
from tests.documents import TUTORIAL, Example, examples, pages
from tests.e2e import page_states

CLEAN_UP: Final = "connector broker stop"

ENDLESS: Final = "runs until you stop it"
WHILE_IT_RUNS: Final = "while `connector run` works"
OUTPUT: Final = "the output"
NOT_RUN: Final = "not run: "

_FILE: Final = re.compile(r"\b(Write|Add)\b[^`]*(?:`[^`.]*`[^`]*)*`([\w-]+\.(?:toml|jsonl|py))`")
_TIME: Final = re.compile(r"\b2026-04-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z")
_NOW: Final = datetime(2026, 4, 30, 10, tzinfo=UTC)
"""The present time of the pages. At nine o'clock is an hour ago."""
_GRACE_S: Final = 3.0
_INTERRUPTED: Final = 130


class Deployment:
    """The folder of the tutorial, with its broker, and what the examples have made there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names, self.output = folder, dict[str, Any](), ""
        self._address, self._typed = "", dict[str, str]()
        self._now = datetime.fromtimestamp(int(time.time()), UTC)
        self._pipeline: _Pipeline | None = None

    def run(self, example: Example) -> None:
        """Raises an exception if the example does not work as the page says."""
        if example.note.startswith(NOT_RUN):
            return
        if example.language == "text":
            if example.note == OUTPUT:
                shown = {line.rstrip() for line in example.text.splitlines()}
                missing = shown - {line.rstrip() for line in self.output.splitlines()}
                assert not missing, f"not in the output: {missing}\n{self.output}"
            return
        self._run_pipeline(example.note == WHILE_IT_RUNS)
        text, is_endless = self.as_typed(example.text), example.note == ENDLESS
        is_file = example.language != "console" and _FILE.search(example.before) is not None
        if is_file:
            verb, name = _FILE.findall(example.before)[-1]
            with (self.folder / name).open("a" if verb == "Add" else "w") as file:
                file.write(text)
        work: Callable[[], None] | None = {
            "console": lambda: self._console(text, {0, _INTERRUPTED if is_endless else 0}),
            "python": None if is_file else lambda: self._python(text, example.name),
            "sql": lambda: self._sql(text),
        }.get(example.language)  # type: ignore[assignment]
        if work is None:
            return
        written = io.StringIO()
        # Not that of an earlier example, or of pyspark.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            with ExitStack() as stack:
                stack.enter_context(redirect_stdout(written))
                stack.enter_context(redirect_stderr(_Both(written)))
                if is_endless:
                    stop = signal.SIGTERM if "SIGTERM" in text else signal.SIGINT
                    stack.enter_context(_stopped_by(stop))
                work()
        except KeyboardInterrupt:
            if not is_endless:
                raise
        finally:
            self.output = written.getvalue()

    def close(self) -> None:
        """Stop the pipeline and the Spark session."""
        self._run_pipeline(False)
        self._stop_session()

    def as_typed(self, text: str) -> str:
        """The text of an example, with what a reader replaces: the address of the broker, times of
        the pages, and the absolute path of the warehouse.
        """
        if self._address:
            text = text.replace("127.0.0.1:9092", self._address)
        for shown, typed in self._typed.items():
            text = text.replace(shown, typed)
        text = text.replace("/data/warehouse", f"{self.folder}/warehouse")
        return _TIME.sub(self._present, text)

    def _present(self, found: re.Match[str]) -> str:
        """A time of the pages, moved so that their present is ours, in the same form."""
        time_ = datetime.fromisoformat(found[0]) - _NOW + self._now
        fraction = f".{time_.microsecond:06}" if found[1] else ""
        return f"{time_:%Y-%m-%d}{found[0][10]}{time_:%H:%M:%S}{fraction}Z"

    def prepare(self, page: Path) -> None:
        """End what runs, and make what the examples of a page need."""
        self.close()
        self._typed = page_states.prepare(page, int(self._now.timestamp()) * 1_000_000)

    def _console(self, text: str, allowed: set[int]) -> None:
        if "ID" in text.split():
            text = re.sub(r"\bID\b", page_states.a_dead_letter(text), text)
        for line in text.replace("\\\n", "").splitlines():
            words = shlex.split(line)
            if line == "connector broker start":
                words += ["--port", "0"]
            match words:
                case ["connector", *arguments]:
                    self._stop_session()
                    code = cli.invoke(arguments)
                    assert code in allowed, f"{line}: exit code {code}"
                case ["python", file, *arguments]:
                    self._python((self.folder / file).read_text(), file, arguments)
                case _:
                    raise AssertionError(f"no rule runs this command: {line}")
            if line == "connector broker start":
                self._address = sys.stdout.getvalue().splitlines()[-1]  # type: ignore[attr-defined]

    def _python(self, text: str, name: str, arguments: Sequence[str] = ()) -> None:
        code = compile(text, name, "exec")
        if _unknown(code) <= {*dir(builtins)}:
            self._stop_session()
            self.names = {"__name__": "__main__"}
        before, sys.argv = sys.argv, [name, *arguments]
        try:
            exec(code, self.names)
        finally:
            sys.argv = before

    def _sql(self, text: str) -> None:
        if "spark" not in self.names:
            builder = configure_session(SparkSession.builder.master("local[2]"))
            self.names["spark"] = builder.getOrCreate()
        for statement in filter(str.strip, text.split(";")):
            self.names["spark"].sql(statement).show()

    def _stop_session(self) -> None:
        """Each command and each program is a process, and Spark has one session in a process. The
        other names stay, for an example without Spark that continues.
        """
        session = SparkSession.getActiveSession()
        if session is not None and self._pipeline is None:
            self.names.pop("spark", None)
            stop_session(session)

    def _run_pipeline(self, is_wanted: bool) -> None:
        if is_wanted and self._pipeline is None:
            self._stop_session()
            self._pipeline = _Pipeline()
        elif not is_wanted and self._pipeline is not None:
            pipeline, self._pipeline = self._pipeline, None
            pipeline.stop()


class _Pipeline:
    """What `connector run` does, in a thread: a process would start another JVM."""

    def __init__(self) -> None:
        self._stop, self._error = threading.Event(), list[BaseException]()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._error:
            raise self._error[0]

    def _run(self) -> None:
        try:
            run(load_config("connector.toml"), stop=self._stop)
        except BaseException as error:  # noqa: BLE001, raised by `stop`
            self._error.append(error)


class _Both(io.TextIOBase):
    """Standard error that is kept and shown."""

    def __init__(self, kept: io.StringIO) -> None:
        self._kept, self._shown = kept, sys.stderr

    def write(self, text: str) -> int:
        self._shown.write(text)
        return self._kept.write(text)


@contextmanager
def _stopped_by(number: signal.Signals) -> Iterator[None]:
    """The main thread gets this signal until the block ends, as from a user who presses Ctrl-C."""
    is_over = threading.Event()

    def send() -> None:
        while not is_over.wait(_GRACE_S):
            os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        is_over.set()
        sender.join()


def _unknown(code: CodeType) -> set[str]:
    """The global names that a program reads and does not define."""
    read, bound = set[str](), set[str]()

    def look(of: CodeType, *, is_module: bool) -> None:
        for instruction in dis.get_instructions(of):
            if instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
                read.add(str(instruction.argval))
            elif is_module and instruction.opname == "STORE_NAME":
                bound.add(str(instruction.argval))
        for constant in of.co_consts:
            if isinstance(constant, CodeType):
                look(constant, is_module=False)

    look(code, is_module=True)
    return read - bound


def main(folder: Path, chosen: Sequence[str]) -> None:
    """Run the examples, and write their results."""
    deployment = Deployment(folder)
    os.chdir(folder)
    with (folder / "results.jsonl").open("w") as results:

        def tried(name: str, work: Callable[[], None]) -> None:
            began, error = time.monotonic(), ""
            try:
                work()
            except BaseException:  # noqa: BLE001, also SystemExit
                error = f"{traceback.format_exc()}\n{deployment.output}"
            took = round(time.monotonic() - began, 1)
            results.write(json.dumps({"name": name, "error": error, "seconds": took}) + "\n")
            results.flush()

        try:
            for page in pages():
                if chosen and page != TUTORIAL and page.name not in chosen:
                    continue
                tried(page.name, partial(deployment.prepare, page))
                for example in examples(page):
                    tried(example.name, partial(deployment.run, example))
                if page == TUTORIAL:
                    # The tutorial ends without a broker. The other pages begin with one.
                    assert cli.invoke(["broker", "start"]) == 0
        finally:
            deployment.close()
            cli.invoke(CLEAN_UP.split()[1:])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

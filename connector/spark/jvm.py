"""The JVM of this process: starts it, and knows whether a session of it has ended."""

from __future__ import annotations

import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from subprocess import Popen
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.sql import SparkSession

from connector.errors import argument_invalid
from connector.errors.spark import session_ended
from connector.events import Event, Level, OnEvent, ignore
from connector.reports.metrics import GC_SECONDS, HEAP_MAX, HEAP_USED
from connector.reports.series import Series
from connector.text import is_secret

GONE: Final = (Py4JNetworkError, ConnectionError, AttributeError)
"""The errors of calls to a JVM that has died, or to the JVM objects of a session that was stopped:
pyspark replaces these by None.
"""


SILENT_LOGGERS: Final = (
    # What stops a query or a task is raised, and said once, or the batch is read again.
    *("org.apache.spark.sql.execution.streaming", "org.apache.spark.executor.Executor"),
    *("org.apache.spark.scheduler.TaskSetManager", "org.apache.spark.util.Utils"),
    "org.apache.spark.sql.delta.files.DeltaFileFormatWriter",
    # A stage too long to be compiled runs all the same, a little slower.
    "org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator",
)
LOG_LEVELS: Final = {
    **dict.fromkeys(
        ("org.apache.spark", "org.sparkproject", "io.delta", "org.apache.kafka"), "ERROR"
    ),
    **dict.fromkeys(SILENT_LOGGERS, "OFF"),
}
"""The levels of the loggers of Spark and its clients in a JVM of `spark-submit`."""


_LINE: Final = re.compile(r"[\d:]+ (DEBUG|INFO|WARN|ERROR|FATAL) (.*)")
"""A line of Spark's log, as the configuration of its log has it."""
_LEVELS: Final[Mapping[str, Level]] = {"DEBUG": "debug", "INFO": "info", "WARN": "warning"}
_on_line: OnEvent = ignore
_lines_of_start: list[str] | None = None
"""The lines since the session starts. None: no session starts."""
_starting: Final = list[Popen[bytes]]()
"""The JVM of a session that starts."""


def event_of_line(line: str) -> Event:
    """The event of a line that the JVM has printed."""
    parsed = _LINE.match(line)
    if parsed is None:
        return Event("warning", "SPARK", line)
    return Event(_LEVELS.get(parsed[1], "error"), "SPARK", parsed[2])


def _forward(lines: int) -> None:
    """Send the lines of a JVM as events, until it ends."""
    with open(lines, encoding="utf-8", errors="replace") as output:
        for line in output:
            if line := line.rstrip():
                event = event_of_line(line)
                if (of_start := _lines_of_start) is not None:
                    of_start.append(line)
                    event = replace(event, level="debug")
                _on_line(event)


@contextmanager
def quiet_start() -> Iterator[None]:
    """Lines that the JVM prints in the block are of the level `debug`. If the block fails, they are
    sent again with their own level (RUN-4).
    """
    global _lines_of_start
    _lines_of_start = lines = list[str]()
    try:
        yield
    except Exception:
        _lines_of_start = None
        for line in lines:
            _on_line(event_of_line(line))
        raise
    finally:
        _lines_of_start = None


def launch(settings: Mapping[str, str], on_event: OnEvent | None = None) -> None:
    """Start the JVM of this process, unless it has one. A JVM of `spark-submit` gets `LOG_LEVELS`.
    `on_event` receives the lines that a JVM of this process prints. None: they are printed.

    A JVM that is started here has a process group of its own, so signals to the group of this
    process do not reach it. It ends when its standard input does.
    """
    global _on_line
    _on_line = on_event or ignore
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
        _set_log_levels(SparkContext._jvm)
        return
    if SparkContext._gateway is not None:
        return
    # Every user of the machine can read the command line of a process.
    shown = [(name, value) for name, value in settings.items() if not is_secret(name)]
    conf = SparkConf(loadDefaults=False).setAll(shown)
    with ExitStack() as stack:
        kwargs: dict[str, Any] = {"start_new_session": True}
        if on_event is not None:
            lines, output = os.pipe()
            stack.callback(os.close, output)
            kwargs |= {"stdout": output, "stderr": output}
            threading.Thread(target=_forward, args=(lines,), name="jvm", daemon=True).start()
        gateway = _launched(conf, kwargs)
    SparkContext._ensure_initialized(gateway=gateway)
    signals: Any = gateway.jvm.sun.misc
    with suppress(Py4JError):  # with -Xrs, the JVM handles no signal
        signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)


def _launched(conf: SparkConf, kwargs: dict[str, Any]) -> Any:
    """The gateway of a new JVM. pyspark keeps no handle of one that is still starting."""

    class Jvm(Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            _starting.append(self)

    original, java_gateway.Popen = java_gateway.Popen, Jvm  # type: ignore[attr-defined, assignment]
    try:
        return java_gateway.launch_gateway(conf, popen_kwargs=kwargs)  # type: ignore[no-untyped-call]
    finally:
        java_gateway.Popen = original  # type: ignore[attr-defined]


def interruptible(start: Callable[[], SparkSession]) -> SparkSession:
    """The session that `start` starts in a thread of its own. A KeyboardInterrupt ends the start,
    and kills a JVM of this process: its session has no work yet.

    Without the thread, pyspark would replace the handler of SIGINT, and a KeyboardInterrupt within
    a call to the JVM can be lost.
    """
    session = Future[SparkSession]()

    def work() -> None:
        try:
            session.set_result(start())
        except Exception as error:  # noqa: BLE001 - raised by `result`
            session.set_exception(error)

    thread = threading.Thread(target=work, name="start of Spark", daemon=True)
    try:
        thread.start()
        return session.result()
    except KeyboardInterrupt:
        # The JVM of spark-submit is the parent of this process.
        while thread.is_alive() and "PYSPARK_GATEWAY_PORT" not in os.environ:
            _kill_jvm()
            thread.join(0.05)
        _kill_jvm()
        forget_ended_session()
        raise
    finally:
        _starting.clear()


def _kill_jvm() -> None:
    """Kill the JVM of this process, also one that is still starting."""
    gateway: Any = SparkContext._gateway
    for process in (*_starting, None if gateway is None else gateway.proc):
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it may still be the script that starts it
            process.wait()


def _set_log_levels(jvm: Any) -> None:
    """Spark logs about 1,500 lines for each run, and the lines of lowmark would not be found among
    them (SCL-8). Levels that a file of the user sets stay.
    """
    names = ("log4j2.configurationFile", "log4j.configurationFile")
    if any(jvm.java.lang.System.getProperty(name) is not None for name in names):
        return
    # Otherwise the first class of Spark that logs would set all levels again.
    jvm.org.apache.spark.SparkConf(False).initializeLogIfNecessary(False, True)
    log4j = jvm.org.apache.logging.log4j
    for logger, level in LOG_LEVELS.items():
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.toLevel(level))


def jvm_usage(spark: SparkSession) -> dict[Series, float]:
    """The used and the largest heap of the driver, and the time of its garbage collections. Empty:
    it has ended, or does not answer.
    """
    jvm: Any = spark._jvm
    try:
        beans = jvm.java.lang.management.ManagementFactory
        heap = beans.getMemoryMXBean().getHeapMemoryUsage()
        collectors = beans.getGarbageCollectorMXBeans()
        return {
            HEAP_USED: heap.getUsed(),
            HEAP_MAX: heap.getMax(),
            GC_SECONDS: sum(each.getCollectionTime() for each in collectors) / 1000,
        }
    except (Py4JError, OSError, *GONE):
        return {}


def check_live(spark: SparkSession) -> None:
    """Raise `ConfigError` if it is no session of this process, `ConnectorError` if it has ended."""
    if not isinstance(spark, SparkSession):
        raise argument_invalid(
            "spark", spark, "a pyspark.sql.SparkSession, and not one of Spark Connect"
        )
    if _is_stopped(spark.sparkContext):
        raise session_ended("The Spark session cannot be used")


def _is_stopped(context: SparkContext) -> bool:
    """Whether the session of the context was stopped, or its JVM does not answer."""
    if getattr(context, "_jsc", None) is None:  # also where its start was interrupted
        return True
    try:
        return bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError):
        return True


def is_any_live() -> bool:
    """Whether this process has a session that has not ended."""
    context = SparkContext._active_spark_context
    return context is not None and not _is_stopped(context)


def stop_session(spark: SparkSession) -> None:
    """Stop a session. Its JVM may have died before."""
    with warnings.catch_warnings(), suppress(Py4JError, OSError):
        warnings.simplefilter("ignore", RuntimeWarning)  # "unable to cleanly shutdown"
        spark.stop()
    forget_ended_session()


def forget_ended_session() -> None:
    """Let a new session start where the last one has ended: pyspark would take the old JVM."""
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is not None and _is_stopped(context):
        with warnings.catch_warnings(), suppress(Py4JError, OSError):
            warnings.simplefilter("ignore", RuntimeWarning)
            context.stop()
        SparkContext._active_spark_context = None
    if gateway is not None and SparkContext._active_spark_context is None:
        try:
            gateway.jvm.java.lang.System.nanoTime()
        except (Py4JError, OSError):
            SparkContext._gateway = SparkContext._jvm = None
            SparkSession._instantiatedSession = None

"""`connector publish`: the JSON view in, records out (REC-22, REC-17)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from connector.cli.parameters import RATE, config_and_stream, stream_option
from connector.cli.progress import Progress
from connector.cli.terminal import err
from connector.errors import ConnectorError, DeliveryError, InvalidChangeError, JsonViewError
from connector.errors.records import line_refused
from connector.state.pace import RateLimit
from connector.text import counted

if TYPE_CHECKING:
    from connector.kafka.produce.producer import ChangeProducer


@click.command()
@click.argument("file", type=click.File("rb"), default="-")
@stream_option
@click.option("--max-changes-per-s", type=RATE, help="Limit of records per second, without bursts.")
@click.option(
    "--outbox",
    type=click.Path(path_type=Path),
    help="A file in which each record is stored before it is sent. The next call sends what is"
    " left.",
)
@click.pass_context
def command(
    ctx: click.Context,
    file: IO[bytes],
    stream: str | None,
    max_changes_per_s: float | None,
    outbox: Path | None,
) -> None:
    """Publish the records in FILE or from standard input. Each line is one JSON object, as
    `connector tail` prints it.

    The command stops at the first line that is not a valid record. It prints the number of the line
    and how many records before it were delivered. `kafka_partitions` of a line is ignored: the
    current number of the topic is used. The command adds no announcements of its own.
    """
    from connector.kafka.produce.producer import CopyingProducer

    config, source = config_and_stream(ctx, stream)
    if file.isatty():
        err("reading from the terminal, one JSON object per line; end with Ctrl-D")
    started_at = time.monotonic()
    producer = CopyingProducer(
        config.kafka, source.topic, limits=source.limits, outbox=outbox, registry=config.registry
    )
    for warning in producer.warnings:
        err(f"warning: {warning}")
    with producer:
        limit = None if max_changes_per_s is None else RateLimit(max_changes_per_s)
        _send_all(producer, _lines(file), limit)
    seconds = time.monotonic() - started_at
    err(f"published {counted(producer.delivered, 'record')} to {source.topic} in {seconds:.1f} s")


def _send_all(
    producer: ChangeProducer,
    lines: Iterator[tuple[int, bytes]],
    limit: RateLimit | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    from connector.records.json_view import from_json

    number = 0
    try:
        with Progress() as progress:
            for number, line in lines:
                record = from_json(line.decode()).record
                if limit is not None and (wait_s := limit.wait_s(time.monotonic())):
                    wait(wait_s)
                producer.send(record)
                if number % 100 == 0:
                    progress.count("records sent", number)
    except (JsonViewError, InvalidChangeError, UnicodeDecodeError) as error:
        raise _bad_line(producer, number, error) from error
    except KeyboardInterrupt:
        _deliver(producer)
        err(
            f"interrupted in line {number}; delivered before:"
            f" {counted(producer.delivered, 'record')}"
        )
        raise


def _bad_line(
    producer: ChangeProducer, number: int, error: ConnectorError | UnicodeDecodeError
) -> ConnectorError:
    unknown = _deliver(producer)
    if isinstance(error, UnicodeDecodeError):
        problem = f"byte {error.start + 1} is not UTF-8; write such bytes as base64"
    else:
        problem = str(error)
    return line_refused(number, problem, f"{counted(producer.delivered, 'record')}{unknown}")


def _deliver(producer: ChangeProducer) -> str:
    """Wait for the delivery. Return a sentence about records whose delivery is unknown."""
    try:
        producer.flush()
    except DeliveryError as error:
        return f". The delivery of {error.undelivered:,} more is unknown ({error.cause})"
    return ""


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers from 1, without a byte order mark."""
    for number, line in enumerate(file, 1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if text := text.strip():
            yield number, text
    if file is not sys.stdin.buffer:
        file.close()

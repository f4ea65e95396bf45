"""`connector demo`: sends real changes through a real broker into tables, and compares the result
with an independent truth (OPS-2).

- `source`: the records. `capture` reads a git history. `bank` generates more if the history is
  short.
- `publish`: the order. `delivery` mixes the changes, `lineage` splits and merges stream partitions,
  `poison` makes bad records.
- `readers`: reads during the run: snapshots, a repaired dead letter, a stall, a fresh read.
- `pipeline`: the process that is killed and started again.
- `compare`: compares the result with `truth`, which computes it in another way.
- `report`: the report at the end. `story` runs all steps.
"""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--repository",
    type=click.Path(path_type=Path),
    help="A git repository, also a bare one. Default: the one of this program.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder. Default: a folder in your cache.",
)
@click.option(
    "--warehouse",
    metavar="URI",
    default="",
    help="A warehouse in an object store, e.g. s3a://bucket/prefix. Default: in the folder.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="The seed of all random choices."
)
@click.option(
    "--snapshots",
    type=click.IntRange(1, 1000),
    default=2,
    show_default=True,
    help="How many snapshots are read and compared during the run.",
)
@click.option(
    "--full",
    is_flag=True,
    help=(
        "Also repair a dead letter, let a stream partition fall silent, and read a table with"
        " a merge."
    ),
)
def command(
    repository: Path | None,
    output: Path | None,
    warehouse: str,
    seed: int,
    snapshots: int,
    full: bool,
) -> int:
    """Run the pipeline on sample data and check the result.

    The demo publishes the history of a git repository through a Kafka broker and Spark into Delta
    tables. If the history is short, it adds transfers of a generated bank. It sends changes out of
    order, some of them twice, and bad records, and kills the pipeline during the run. It reads
    snapshots during the run. It takes about two minutes. With --full, it takes about three: it also
    repairs a dead letter, and shows a table that is not a consistent cut while a stream partition
    is silent. The settings of an object store are those of the environment, such as
    CONNECTOR__STORAGE__ENDPOINT. Exit code 1: the result differs from the source.
    """
    import signal
    import sys

    from connector.config.storage import is_local, warehouse_fault
    from connector.demo.story import Choices, tell

    fault = warehouse_fault(warehouse) or ("a URI" if warehouse and is_local(warehouse) else "")
    if fault:
        raise click.BadParameter(f"allowed: {fault}", param_hint="--warehouse")

    # So that SIGTERM also ends the broker and the pipeline.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return 0 if tell(Choices(repository, output, seed, snapshots, full, warehouse)) else 1

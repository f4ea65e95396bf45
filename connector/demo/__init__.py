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
    help="A git repository, bare or not; this program's own if not given.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder; one in the user's cache if not given.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of all random choices.")
@click.option(
    "--snapshots",
    type=click.IntRange(1, 1000),
    default=2,
    show_default=True,
    help="How many are read and compared on the way.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Also mend a dead letter, have a stream partition fall silent, and read a table fresh.",
)
def command(
    repository: Path | None, output: Path | None, seed: int, snapshots: int, full: bool
) -> int:
    """Run the pipeline on sample data and check the result.

    The history of a git repository, and transfers of a generated bank while that is short, go
    through a Kafka broker and Spark into Delta tables; out of order, some twice, with bad records
    among them, and with the pipeline killed on the way. Snapshots are read on the way. It takes
    about two minutes; with --full some three, and then it repairs a dead letter, and a table is no
    consistent cut while a stream partition is silent. Exit code 1: something that came out is not
    the truth.
    """
    import signal
    import sys

    from connector.demo.story import Choices, tell

    # So that SIGTERM also ends the broker and the pipeline.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return 0 if tell(Choices(repository, output, seed, snapshots, full)) else 1

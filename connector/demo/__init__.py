"""`connector demo`: real changes through a real broker into tables, compared with a truth that none of our code made (OPS-2).

source      what is published: `capture` of a git history, and the generated `bank` while that is short
publish     in what order: `delivery` makes disorder, `lineage` splits and merges, `poison` what must be rejected
readers     what is seen meanwhile: snapshots, a dead letter that is mended, a stall, a fresh read
pipeline    the process that is killed and started again
compare     what came out, with what `truth` found in ways of its own
report      the end, for a person; `story` tells it all
"""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--repository", type=click.Path(path_type=Path), help="A git repository, bare or not; this program's own if not given.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="A new folder; one in the user's cache if not given.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of all random choices.")
@click.option("--snapshots", type=click.IntRange(1, 1000), default=2, show_default=True, help="How many are read and compared on the way.")
@click.option("--full", is_flag=True, help="Also mend a dead letter, have a stream partition fall silent, and read a table fresh.")
def command(repository: Path | None, output: Path | None, seed: int, snapshots: int, full: bool) -> int:
    """Real changes, end to end, compared with an independent truth.

    The history of a git repository, and transfers of a generated bank while that is short, go through a Kafka broker and
    Spark into Delta tables; out of order, some twice, with bad records among them, and with the pipeline killed on the way.
    Snapshots are read on the way. It takes about two minutes; with --full some three, and then a dead letter is mended, too, and a table is
    no consistent cut while a stream partition is silent.
    Exit code 1: something that came out is not the truth.
    """
    import signal
    import sys

    from connector.demo.story import Choices, tell

    # So that a polite end, too, takes broker and pipeline along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return 0 if tell(Choices(repository, output, seed, snapshots, full)) else 1

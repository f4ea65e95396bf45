"""Every part breaks, in an order drawn from the seed, while a source goes on committing; then every
promise is judged.

CRASHES and KILLS in the environment say how many lives are to end at a named point, and how many by
SIGKILL (a few unless given), MINUTES after how long no further one begins; `make test-faults SEED=…
CRASHES=… KILLS=…` repeats a run, or makes a long one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.faults.history import kept_on_failure
from tests.faults.system import system
from tests.faults.validators import collected, judge

CRASHES = int(os.environ.get("CRASHES", "1"))
KILLS = int(os.environ.get("KILLS", "1"))
MINUTES = float(os.environ.get("MINUTES", 5 + CRASHES + 2 * KILLS))


@pytest.mark.timeout(300 + 60 * MINUTES)
def test_resumable_whatever_breaks(spark: SparkSession, seed: int) -> None:
    """TBL-2, TBL-5, TBL-9 to TBL-14, REC-18, REC-19, DLQ-4: nothing_lost, nothing_invented,
    newest_wins, deletes_stay_deleted, cut_is_consistent, watermark_is_honest, resumable,
    poison_is_contained.
    """
    rng, until = Random(seed), time.monotonic() + 60 * MINUTES
    with kept_on_failure(seed) as history, system(spark, rng, history) as life:
        while (life.crashes < CRASHES or life.kills < KILLS) and time.monotonic() < until:
            ways: list[Callable[[], None]] = [life.crash] * (CRASHES - life.crashes) + [
                life.kill
            ] * (KILLS - life.kills)
            rng.choice(ways)()
        life.calm()
        judge(collected(life.folder, life.config, life.traffic.source.changes))
        print(f"seed {seed}: {life}")

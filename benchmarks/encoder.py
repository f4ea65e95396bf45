"""The speed of encoding and decoding changes on one core, compared with fastavro (REC-20).

    python -m benchmarks.encoder

There are 5,000 changes with five `SetCell`s each. All keys and values differ, and a body has about
280 bytes. All ways run in turns for several rounds, and the best round of each counts. fastavro has
two figures. One starts from the values that a producer has. The other starts from dicts that were
made before the measurement, with the branch of the union named, which is its best case. lowmark is
compared with the second one. `decode_columns` decodes and validates all changes at once, and
`decode_columns_of_bridge` as many that have the form of a bridge (`benchmarks.forms`).

The last lines are `name value bar`. The bar is the value to reach, or `-`.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from benchmarks import machine
from benchmarks.forms import FORMS, Write
from benchmarks.report import Figure, finish
from connector.engine.decode import decode as decode_columns
from connector.engine.rules import RecordRules
from connector.records.codec import (
    SCHEMA,
    Schemas,
    decode,
    encode,
    frame,
    framed,
    read,
)
from connector.records.model import DataChange, SetCell
from connector.validation import Limits
from tests.fastavro_encoder import encode_with_fastavro, to_datum

CHANGES = 5_000
ROUNDS = 7
SEED = 20241121
START = 1_714_475_984_000_000
GENERAL_PURPOSE_RATE = 60_000
"""Changes a second and core: the upper end of the known rates of general-purpose Avro libraries for
such records.
"""


def changes(count: int, seed: int) -> list[DataChange]:
    chance = random.Random(seed)
    return [
        DataChange(
            stream_partition="shard-0",
            table="customers",
            row_key=b"customer#%08d" % chance.randrange(10**8),
            commit_timestamp=START + index * 37,
            resume_token=b"%016x" % chance.getrandbits(64),
            estimated_low_watermark=START + index * 37 - 1_000_000,
            entries=tuple(
                [
                    SetCell("cf", b"column_%d" % column, chance.randbytes(chance.randrange(12, 24)))
                    for column in range(5)
                ]
            ),
        )
        for index in range(count)
    ]


def hinted(datum: dict[str, Any]) -> dict[str, Any]:
    """The same with the name of the branch. Without it, fastavro checks the whole value to find the
    branch.
    """
    return datum | {"data_change": ("lowmark.DataChange", datum["data_change"])}


def as_batch(records: Sequence[DataChange]) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Keys, values and times of arrival of changes, as columns."""
    return (
        pa.array([record.row_key for record in records], pa.binary()),
        pa.array([framed(record, 4) for record in records], pa.binary()),
        np.array([record.commit_timestamp for record in records]),
    )


def of_bridge(count: int) -> list[DataChange]:
    """Changes of rows of 20 tables, as a bridge sends them."""
    form, chance = FORMS["bridge"](20), random.Random(SEED)
    return [
        change
        for at in range(START, START + count, form.together)
        for change, _ in form.changes(
            at,
            [
                Write(chance.randrange(200_000), at + number, deletes=False)
                for number in range(form.together)
            ],
        )
    ]


def best_rates(
    ways: dict[str, Callable[[Any], object]], inputs: dict[str, list[Any]]
) -> dict[str, float]:
    """Calls a second of each way: the best of some rounds in which all take turns."""
    best = dict.fromkeys(ways, 0.0)
    for _ in range(ROUNDS):
        for name, way in ways.items():
            values = inputs[name]
            began = time.perf_counter()
            for value in values:
                way(value)
            best[name] = max(best[name], len(values) / (time.perf_counter() - began))
    return best


def main() -> int:
    records = changes(CHANGES, SEED)
    parsed = fastavro.parse_schema(json.loads(SCHEMA))
    data = [hinted(to_datum(record, 4)) for record in records]
    bodies = [encode(record, 4) for record in records]
    values = [frame(body, None) for body in bodies]
    schemas = Schemas()
    rules = RecordRules(Limits(), kafka_partitions=4)
    assert bodies == [encode_with_fastavro(record, 4) for record in records], "the bytes differ"

    ways: dict[str, Callable[[Any], object]] = {
        "encode": lambda record: encode(record, 4),
        "encode_fastavro": lambda record: encode_with_fastavro(record, 4),
        "encode_fastavro_dicts": lambda datum: fastavro.schemaless_writer(BytesIO(), parsed, datum),
        "read": lambda value: read(value, schemas),
        "read_fastavro": lambda body: fastavro.schemaless_reader(BytesIO(body), parsed),
        "decode": lambda value: decode(value, schemas),
        "decode_columns": lambda batch: decode_columns(*batch, rules, schemas),
        "decode_columns_of_bridge": lambda batch: decode_columns(*batch, rules, schemas),
    }
    inputs: dict[str, list[Any]] = {
        "encode": records,
        "encode_fastavro": records,
        "encode_fastavro_dicts": data,
    }
    inputs |= {"read": values, "read_fastavro": bodies, "decode": values}
    batches = {"decode_columns": records, "decode_columns_of_bridge": of_bridge(CHANGES)}
    inputs |= {name: [as_batch(some)] for name, some in batches.items()}
    rates = best_rates(ways, inputs)
    for name, some in batches.items():
        rates[name] *= len(some)

    print(*machine.facts(), sep="\n")
    print(
        f"{CHANGES} changes, {sum(map(len, bodies)) / CHANGES:.0f} bytes each, best of {ROUNDS}"
        f" rounds on one core, seed {SEED}"
    )
    bars = {"encode": str(GENERAL_PURPOSE_RATE)}
    figures = [
        Figure(f"{name}_changes_per_s_and_core", rate, bars.get(name, "-"))
        for name, rate in rates.items()
    ]
    won = Figure(
        "encode_gain_over_fastavro", rates["encode"] / rates["encode_fastavro_dicts"], "1.5"
    )
    # The ratio is from one run and also valid on a busy machine. Rates are not.
    finish([*figures, won], validate_record=False)
    return int(not won.holds)


if __name__ == "__main__":
    sys.exit(main())

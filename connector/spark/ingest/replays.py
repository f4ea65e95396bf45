"""Finds the replays of dead letters in a batch, and the order position of each one (DLQ-10).

A record with the header `REPLAY_HEADER` claims to be a replay. The claim is accepted if the
changelog has the row of that dead letter: the rejected record, or for a table letter the change or
staged row. The replay takes its order position, so that it wins no tie. Any other keeps its own.
Neither kind moves a watermark.

Replays are rare, and finding their positions means reading the batch and the changelog again. So a
batch is first read as if it had none. If it has one, the query fails with `UNSEEN_REPLAY`.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.dead_letters.envelope import REPLAY_HEADER

UNSEEN_REPLAY: Final = "lowmark: a record that says that it is a replay"

FIRST: Final = "first"
"""The column with the `order_position` that a replay takes. It is null for all other records."""
ATTEMPT: Final = "attempt"
"""The column with the attempt that a record claims. It is 0 if the record does not claim to be a
replay.
"""

_POSITION: Final = (
    "struct<ingest_batch: bigint, kafka_partition: int, offset: bigint, attempt: int>"
)
_CLAIM_HEADER: Final = (
    f"cast(get(reverse(filter(headers, h -> h.key = '{REPLAY_HEADER}')), 0).value AS string)"
)
_OF_TABLE: Final = "IN ('change', 'staged')"
_REJECTED: Final = "= 'rejected'"
_CLAIM: Final = r"r'(?s)\A(.+)/([0-9]{1,9})\z'"


def without_replays(rows: DataFrame) -> DataFrame:
    """`rows` of the source with `FIRST` and `ATTEMPT`. A replay fails with `UNSEEN_REPLAY`."""
    is_replay = f"array_contains(headers.key, '{REPLAY_HEADER}')"
    return rows.selectExpr(
        "*",
        f"cast(NULL AS {_POSITION}) AS {FIRST}",
        f"CASE WHEN {is_replay} THEN raise_error('{UNSEEN_REPLAY}') ELSE 0 END AS {ATTEMPT}",
    )


def with_replays(rows: DataFrame, logged: DataFrame | None, topic_id: str) -> DataFrame:
    """`rows` of Spark's Kafka source with `FIRST` and `ATTEMPT`.

    `topic_id` is the id of their topic. `logged` are the rows of the changelog; None: there is no
    changelog yet.
    """
    claims = _claims(rows, topic_id)
    wanted = claims.where("claimed_offset IS NOT NULL").groupBy("claimed_partition", "of_table")
    bounds = wanted.agg(
        F.min("claimed_offset").alias("least"), F.max("claimed_offset").alias("greatest")
    ).collect()
    if logged is None or not bounds:
        return claims.selectExpr(*rows.columns, f"cast(NULL AS {_POSITION}) AS {FIRST}", ATTEMPT)
    in_bounds = " OR ".join(
        f"(kind {_OF_TABLE if bound['of_table'] else _REJECTED} AND kafka_partition ="
        f" {bound['claimed_partition']} AND offset BETWEEN {bound['least']}L AND"
        f" {bound['greatest']}L)"
        for bound in bounds
    )
    coordinates = (
        "kafka_partition AS claimed_partition",
        "offset AS claimed_offset",
        f"kind {_OF_TABLE} AS of_table",
    )
    firsts = logged.where(in_bounds).selectExpr(
        *coordinates, f"cast(order_position AS {_POSITION}) AS {FIRST}"
    )
    keys = ["claimed_partition", "claimed_offset", "of_table"]
    return claims.join(firsts, keys, "left").select(*rows.columns, FIRST, ATTEMPT)


def _claims(rows: DataFrame, topic_id: str) -> DataFrame:
    """`rows` with `ATTEMPT`, and the coordinates of the changelog row that a replay names."""
    letter = f"r'(?s)\\A{re.escape(topic_id)}-([0-9]{{1,9}})-([0-9]{{1,18}})(-.+)?\\z'"
    return (
        rows.selectExpr("*", f"{_CLAIM_HEADER} AS claim")
        .selectExpr(
            "*",
            f"coalesce(cast(nullif(regexp_extract(claim, {_CLAIM}, 2), '') AS int), 0)"
            f" AS {ATTEMPT}",
        )
        .selectExpr(
            "*", f"CASE WHEN {ATTEMPT} > 0 THEN regexp_extract(claim, {_CLAIM}, 1) END AS letter"
        )
        .selectExpr(
            *rows.columns,
            ATTEMPT,
            f"cast(nullif(regexp_extract(letter, {letter}, 1), '') AS int) AS claimed_partition",
            f"cast(nullif(regexp_extract(letter, {letter}, 2), '') AS bigint) AS claimed_offset",
            f"coalesce(regexp_extract(letter, {letter}, 3), '') <> '' AS of_table",
        )
    )

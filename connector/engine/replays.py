"""Replays of dead letters in a batch, and the order position of each one (DLQ-10).

A record with the header `REPLAY_HEADER` claims to be a replay. The claim is accepted if the
changelog has the row of that dead letter: the rejected record, or for a table letter the change or
staged row. The replay takes its order position, so that it wins no tie. Any other keeps its own.
Neither kind moves a watermark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.dead_letters.envelope import (
    REPLAY_HEADER,
    ClaimedLetter,
    coordinates_of,
    replay_claim,
)
from connector.records.ordering import OrderPosition


class Replay(NamedTuple):
    """The claim of a record. Without a `letter`, its dead letter is not one of the topic."""

    attempt: int
    letter: ClaimedLetter | None


def is_replay(records: pa.RecordBatch) -> pa.Array:
    """Whether each record says that it is a replay."""
    headers = records["headers"]
    names = pc.struct_field(pc.list_flatten(headers), "key")
    claims = np.zeros(len(records), np.bool_)
    claims[pc.list_parent_indices(headers).filter(pc.equal(names, REPLAY_HEADER))] = True
    return pa.array(claims)


def replays_in(records: pa.RecordBatch, topic_id: str) -> dict[int, Replay]:
    """The replays of dead letters of a topic, by the number of the record."""
    replays = dict[int, Replay]()
    for index in np.flatnonzero(is_replay(records)).tolist():
        headers = records["headers"][index].as_py()
        claim = replay_claim(tuple((header["key"], header["value"]) for header in headers))
        if claim is not None:
            letter, attempt = claim
            replays[index] = Replay(attempt, coordinates_of(letter, topic_id))
    return replays


def positions_with(
    positions: pa.StructArray,
    replays: Mapping[int, Replay],
    logged: Mapping[ClaimedLetter, OrderPosition],
) -> pa.Array:
    """The order positions of records with those of replays. `logged` are those of the dead letters
    that the changelog has.
    """
    if not replays:
        return positions
    own = {index: OrderPosition(**positions[index].as_py()) for index in replays}
    new = {
        index: (logged.get(letter, own[index]) if letter else own[index])._replace(attempt=attempt)
        for index, (attempt, letter) in replays.items()
    }
    mask = np.zeros(len(positions), np.bool_)
    mask[[*new]] = True
    rows = [new[index]._asdict() if index in new else None for index in range(len(positions))]
    return pc.if_else(pa.array(mask), pa.array(rows, positions.type), positions)


def letters_of(replays: Mapping[int, Replay]) -> Collection[ClaimedLetter]:
    """The dead letters that replays name."""
    return {replay.letter for replay in replays.values() if replay.letter is not None}

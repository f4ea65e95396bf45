"""A second definition of the result of a history: no algebra, no tombstones, only a plain dict of
rows.

All deliveries are sorted, oldest first, and each entry changes the dict in turn, as in the source
itself. It shares no code with `connector.tables.merge` or `connector.records.ordering`, not even
the order.
"""

from __future__ import annotations

from collections.abc import Iterable

from connector.records.model import (
    DeleteCells,
    DeleteFamily,
    Mutation,
    SetCell,
    Truncate,
)
from connector.records.ordering import OrderBy
from connector.tables.definition import Versions
from tests.property.histories import Delivery

Cells = dict[tuple[str, bytes, int], bytes]
Visible = dict[tuple[str, bytes], bytes]


def replay(
    deliveries: Iterable[Delivery],
    order_by: OrderBy,
    versions: Versions,
    truncations: Iterable[Truncate] = (),
) -> dict[bytes, Visible]:
    """The visible cells of each row that exists. A truncation comes before equal changes."""
    rows: dict[bytes, Cells] = {}
    events = [(_place(delivery, order_by), delivery) for delivery in deliveries]
    ends = [(_at_source(truncate, order_by), None) for truncate in truncations]
    for _, delivery in sorted([*events, *ends], key=lambda event: event[0]):
        if delivery is None:
            rows.clear()
            continue
        cells = rows.setdefault(delivery.change.row_key, {})
        for entry in delivery.change.entries:
            _do(cells, entry, versions)
    return {row_key: _newest_versions(cells) for row_key, cells in rows.items() if cells}


def _do(cells: Cells, entry: SetCell | DeleteCells | DeleteFamily, versions: Versions) -> None:
    if isinstance(entry, SetCell):
        if versions is Versions.LATEST:
            _drop(
                cells,
                lambda family, qualifier, _: (family, qualifier) == (entry.family, entry.qualifier),
            )
        cells[entry.family, entry.qualifier, entry.cell_timestamp] = entry.value
    elif isinstance(entry, DeleteFamily):
        _drop(cells, lambda family, _, __: family == entry.family)
    else:
        end = entry.range_end or 2**64
        _drop(
            cells,
            lambda family, qualifier, timestamp: (
                (family, qualifier) == (entry.family, entry.qualifier)
                and timestamp in range(entry.range_start, end)
            ),
        )


def _drop(cells: Cells, condemned) -> None:  # type: ignore[no-untyped-def]
    for name in [name for name in cells if condemned(*name)]:
        del cells[name]


def _newest_versions(cells: Cells) -> Visible:
    return {(family, qualifier): value for (family, qualifier, _), value in sorted(cells.items())}


def _place(delivery: Delivery, order_by: OrderBy) -> tuple[object, ...]:
    position = delivery.position
    arrival = (position.ingest_batch, position.kafka_partition, position.offset, position.attempt)
    return (*_at_source(delivery.change, order_by), *arrival)


def _at_source(change: Mutation, order_by: OrderBy) -> tuple[object, ...]:
    if order_by is OrderBy.COMMIT:
        return (change.commit_timestamp, change.tie_breaker, _record_sequence(change))
    sections = [
        section.zfill(16) for section in (change.change_sequence_number or "").lower().split("/")
    ]
    return ("/".join(sections + ["0" * 16] * (4 - len(sections))),)


def _record_sequence(change: Mutation) -> int:
    return 0 if change.transaction is None else change.transaction.record_sequence

"""Charts of jobs as SVG (WEB-2). Colours are classes of the style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from connector.state.jobs import Job, JobKind
from connector.text import duration

HOURS: Final = 6
BARS: Final = 72
"""One for five minutes."""
_BAR_US: Final = HOURS * 3600 * 1_000_000 // BARS
_APPLIES: Final = (JobKind.APPLY, JobKind.REBUILD)
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 360, 100, 56, 18


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars from the oldest to the newest, up to the time of the chart. None: there was no job.

    `bound` is drawn as a line. `text` makes the text of a value.
    """

    title: str
    values: Sequence[float | None]
    text: Callable[[float], str]
    bound: float | None = None

    @property
    def highest(self) -> float:
        """The value at the top."""
        values = [value for value in self.values if value is not None]
        return max([*values, self.bound or 0.0, 0.0]) or 1.0

    @property
    def summary(self) -> str:
        """The chart in words, for those who do not see it."""
        values = [value for value in self.values if value is not None]
        if not values:
            return f"{self.title}: no value"
        bound = "" if self.bound is None else f", bound {self.text(self.bound)}"
        newest, most = self.text(values[-1]), self.text(max(values))
        return f"{self.title}: newest {newest}, highest {most}{bound}"

    def svg(self) -> Markup:
        """Return the chart as an `svg` element."""
        width, height = (_WIDTH - _LEFT) / len(self.values), _HEIGHT - _BOTTOM
        parts = [
            f'<rect class="area" x="{_LEFT}" y="0" width="{_WIDTH - _LEFT}" height="{height}"/>'
        ]
        for index, value in enumerate(self.values):
            if value is None:
                continue
            size = max(1.0, height * value / self.highest)
            kind = "over" if self.bound is not None and value > self.bound else "bar"
            parts.append(
                f'<rect class="{kind}" x="{_LEFT + index * width:.1f}" y="{height - size:.1f}"'
                f' width="{width - 1:.1f}" height="{size:.1f}"/>'
            )
        if self.bound is not None:
            at = height - height * self.bound / self.highest
            line = f'x1="{_LEFT}" x2="{_WIDTH}" y1="{at:.1f}" y2="{at:.1f}"'
            parts.append(f'<line class="bound" {line}/>')
        parts += _labels(self.text(self.highest), height)
        box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(self.summary)}"'
        return Markup(f'<svg class="chart" {box}>{"".join(parts)}</svg>')  # noqa: S704, escaped


def _labels(highest: str, height: float) -> list[str]:
    texts = [
        (_LEFT - 6, 11.0, "end", str(escape(highest))),
        (_LEFT - 6, height, "end", "0"),
        (_LEFT, _HEIGHT - 3.0, "start", f"{HOURS} h ago"),
        (_WIDTH, _HEIGHT - 3.0, "end", "now"),
    ]
    return [
        f'<text x="{x}" y="{y:.0f}" text-anchor="{anchor}">{text}</text>'
        for x, y, anchor, text in texts
    ]


def charts_of_table(jobs: Iterable[Job], now: int, bound_s: int | None) -> list[Chart]:
    """Return the charts of the applies of a table.

    Args:
        jobs: The jobs of the table.
        now: The time at the right edge (µs).
        bound_s: The bound in force. None: the table has no bound.
    """
    done = [job for job in jobs if job.kind in _APPLIES and not job.error]
    ages = [
        (job.ended_at, (job.ended_at - job.watermark_before) / 1_000_000)
        for job in done
        if job.watermark_before
    ]
    return [
        Chart("Age before an apply ended", _bars(ages, now, max), duration, bound_s),
        _durations("Duration of applies", done, now),
        _sums("Changes per five minutes", done, now, lambda job: job.changes),
    ]


def charts_of_stream(batches: Sequence[Job], now: int) -> list[Chart]:
    """Return the charts of the batches of a stream.

    Args:
        batches: The batches.
        now: The time at the right edge (µs).
    """
    return [
        _sums("Records per five minutes", batches, now, lambda job: job.rows_read),
        _sums("Rejected records per five minutes", batches, now, lambda job: job.letters),
        _durations("Duration of batches", batches, now),
    ]


def _durations(title: str, jobs: Iterable[Job], now: int) -> Chart:
    values = ((job.ended_at, job.duration_s) for job in jobs)
    return Chart(title, _bars(values, now, max), _seconds)


def _sums(title: str, jobs: Iterable[Job], now: int, number: Callable[[Job], int]) -> Chart:
    values = ((job.ended_at, number(job)) for job in jobs)
    return Chart(title, _bars(values, now, math.fsum), _count)


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _bars(
    values: Iterable[tuple[int, float]], now: int, joined: Callable[[list[float]], float]
) -> list[float | None]:
    """One value for each bar, of the values with their times (µs) in its five minutes."""
    buckets: list[list[float]] = [[] for _ in range(BARS)]
    first = now - BARS * _BAR_US
    for at, value in values:
        index = (at - first) // _BAR_US
        if 0 <= index < BARS:
            buckets[index].append(value)
    return [joined(bucket) if bucket else None for bucket in buckets]

"""Rates and dead letters of workers, jobs and flows, in the same form in tables, details and JSON.

in/s           entries per second that are appended to the topic of a processor, read by a job, or sent by the sources
               of a flow
out/s          entries per second that are finished by a processor, written by a job, or delivered by the sinks of a
               flow
dead letters   open dead letters (neither replayed nor purged) in the dead-letter queues that the processor, job or
               flow writes to, including dead letters of other programs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

THROUGHPUT: Final = ("in/s", "out/s", "dead letters")  # headings of ``Throughput.cells``


@dataclass(frozen=True)
class Throughput:
    """Rates in entries per second; None: not measured. ``dead_letters``: by topic; None: the topic can't be read."""

    in_rate: float | None = None
    out_rate: float | None = None
    dead_letters: Mapping[str, int | None] = field(default_factory=dict)

    def cells(self) -> list[str]:
        """Return the cells of a table."""
        counts = list(self.dead_letters.values())
        total = "-" if None in counts else f"{sum(each or 0 for each in counts):,}"
        return [rate(self.in_rate), rate(self.out_rate), total]

    def pairs(self) -> dict[str, str]:
        """Return the details by name, without topics that have no dead letters."""
        open_ones = [
            f"{'?' if count is None else f'{count:,}'} in {topic}" for topic, count in self.dead_letters.items()
            if count != 0
        ]  # fmt: skip
        shown = f"{', '.join(open_ones)}; see: tidelog dlq list" if open_ones else "0"
        return dict(zip(THROUGHPUT, (rate(self.in_rate), rate(self.out_rate), shown), strict=True))

    def data(self) -> dict[str, Any]:
        """Return the fields of the JSON."""
        return {"in_rate": self.in_rate, "out_rate": self.out_rate, "dead_letters": dict(self.dead_letters)}


def measured(before: int, after: int, ms: int) -> float | None:
    """Return the rate between two values of a counter; None if the counter was reset or ``ms`` is 0."""
    return (after - before) * 1000 / ms if ms > 0 and after >= before else None


def rate(per_second: float | None) -> str:
    """Return a rate as text, "-" if it was not measured."""
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 10 or not per_second else f"{per_second:.1f}"

"""The timeline of a group: a row for each member and one for the writes, in the terminal and as an SVG file."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final, NamedTuple

COLUMN: Final = 0.5  # seconds per character
BAR: Final = 0.1  # seconds per bar of the SVG file
BARS: Final = "▁▂▃▄▅▆▇█"


class Look(NamedTuple):
    """How a state of a member is shown."""

    letter: str
    color: str


LEADS, IN_SYNC, BEHIND, KILLED, STOPPED, CUT = "leads", "in sync", "not in sync", "killed", "stopped", "cut off"
LOOKS: Final[Mapping[str, Look]] = {
    LEADS: Look("█", "#0b6e8f"),
    IN_SYNC: Look("░", "#a9cfdc"),
    BEHIND: Look("·", "#e6dcc0"),
    KILLED: Look("K", "#b03030"),
    STOPPED: Look("S", "#d9822b"),
    CUT: Look("C", "#6b4c9a"),
}


@dataclass(frozen=True)
class Fault:
    """A fault of the leader, and the writer's longest pause after it."""

    what: str  # "kill -9 m1"
    begins: float  # seconds since the timeline's start, as all times here
    pause_begins: float
    pause: float


class Timeline:
    """The states of the members over time. Threads may share it: lists are only appended to."""

    def __init__(self, members: Sequence[str]) -> None:
        self.members = members
        self.seen: list[tuple[float, Mapping[str, str]]] = []  # time, state of each member
        self.writes: list[float] = []  # times of acknowledgements
        self.faults: list[Fault] = []

    def rows(self, width: int | None = None) -> list[str]:
        """Draw a row for the writes and one for each member: the last ``width`` columns, each for half a second."""
        ends = self.seen[-1][0] if self.seen else 0.0
        count = int(ends / COLUMN) + 1
        states: list[Mapping[str, str]] = []
        for at, seen in self.seen:
            states += [seen] * (int(at / COLUMN) + 1 - len(states))
        rates = self._counts(COLUMN, count)
        most = max([*rates, 1])
        first = max(0, count - (width or count))
        bars = "".join(BARS[min(7, 8 * rate // most)] if rate else " " for rate in rates)
        lines = [f"writes  {bars[first:]}"]
        for name in self.members:
            lane = "".join(LOOKS[each[name]].letter for each in states[first:])
            lines.append(f"{name:6}  {lane}")
        return lines

    def legend(self) -> str:
        return "  ".join(f"{look.letter} {state}" for state, look in LOOKS.items())

    def _counts(self, step: float, count: int) -> list[int]:
        """Count the writes in each step."""
        times = list(self.writes)
        at = [bisect_left(times, number * step) for number in range(count + 1)]
        return [after - before for before, after in pairwise(at)]

    # -- as SVG --------------------------------------------------------------------------------------------------
    def save(self, path: Path, caption: str) -> None:
        """Write the timeline as an SVG file."""
        path.write_text("\n".join(self._svg(caption)) + "\n", encoding="utf-8")

    def _svg(self, caption: str) -> Iterator[str]:
        left, width, top, high, lane = 70, 850, 66, 110, 30
        ends = self.seen[-1][0]
        scale = width / ends
        bottom = top + high + 14 + lane * len(self.members)
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {bottom + 62}" '
            'font-family="sans-serif" font-size="12" fill="#222">'
        )
        yield '<rect width="100%" height="100%" fill="#fff"/>'
        yield f'<text x="{left}" y="20" font-size="14">{escape(caption)}</text>'
        rates = self._counts(BAR, math.ceil(ends / BAR))
        most = max([*rates, 1])
        path = "".join(
            f"M{left + number * BAR * scale:.1f} {top + high}v{-rate / most * high:.1f}h{BAR * scale:.2f}V{top + high}z"
            for number, rate in enumerate(rates)
            if rate
        )
        yield f'<path d="{path}" fill="#3d8b4f"/>'
        yield f'<text x="{left - 8}" y="{top + 10}" text-anchor="end">{most / BAR:,.0f}/s</text>'
        yield f'<text x="{left - 8}" y="{top + high}" text-anchor="end">writes</text>'
        for number, name in enumerate(self.members):
            y = top + high + 14 + lane * number
            yield f'<text x="{left - 8}" y="{y + 17}" text-anchor="end">{escape(name)}</text>'
            for begins, until, state in self._runs(name):
                yield (
                    f'<rect x="{left + begins * scale:.1f}" y="{y}" width="{(until - begins) * scale:.1f}" '
                    f'height="{lane - 6}" fill="{LOOKS[state].color}"><title>{name}: {state}, '
                    f"{begins:.1f} to {until:.1f} s</title></rect>"
                )
        for fault in self.faults:
            x = left + fault.begins * scale
            yield f'<path d="M{x:.1f} {top - 24}V{bottom}" stroke="#b03030" stroke-dasharray="4 3"/>'
            yield (
                f'<path d="M{left + fault.pause_begins * scale:.1f} {top + high}h{fault.pause * scale:.1f}" '
                'stroke="#b03030" stroke-width="4"/>'
            )
            yield f'<text x="{x + 4:.1f}" y="{top - 14}">{escape(fault.what)}</text>'
            yield f'<text x="{x + 4:.1f}" y="{top - 1}" fill="#b03030">longest pause {fault.pause:.2f} s</text>'
        for second in range(0, int(ends) + 1, 5):
            yield f'<text x="{left + second * scale:.1f}" y="{bottom + 14}" text-anchor="middle">{second} s</text>'
        x = float(left)
        for state, look in LOOKS.items():
            yield f'<rect x="{x:.0f}" y="{bottom + 32}" width="14" height="14" fill="{look.color}"/>'
            yield f'<text x="{x + 20:.0f}" y="{bottom + 44}">{state}</text>'
            x += 50 + 7 * len(state)
        yield "</svg>"

    def _runs(self, name: str) -> Iterator[tuple[float, float, str]]:
        """Return when each state of a member begins and ends."""
        runs = [(next(run)[0], state) for state, run in groupby(self.seen, key=lambda each: each[1][name])]
        ends = [begins for begins, _ in runs[1:]] + [self.seen[-1][0]]
        for (begins, state), until in zip(runs, ends, strict=True):
            yield begins, until, state


class Screen:
    """Shows a timeline while it grows: redrawn in place on a terminal, otherwise a line per second."""

    def __init__(self, timeline: Timeline, width: int) -> None:
        self._timeline = timeline
        self._width = width - 13  # margins, and the name of the row
        self._terminal = sys.stdout.isatty()
        self._drawn = 0  # lines on the terminal that the next drawing replaces
        self._second = 0

    def draw(self) -> None:
        if self._terminal:
            lines = self._timeline.rows(self._width)
            self.erase()
            print("".join(f"   {line}\n" for line in lines), end="", flush=True)
            self._drawn = len(lines)
        elif self._timeline.seen and self._timeline.seen[-1][0] >= self._second + 1:
            at, states = self._timeline.seen[-1]
            self._second = int(at)
            told = ", ".join(f"{name} {state}" for name, state in states.items())
            print(f"   {at:5.1f} s   {len(self._timeline.writes):6,} writes   {told}", flush=True)

    def erase(self) -> None:
        """Remove the drawing, so that other lines take its place."""
        if self._drawn:
            print(f"\x1b[{self._drawn}A\x1b[J", end="", flush=True)
            self._drawn = 0

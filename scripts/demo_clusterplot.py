"""The picture of scripts/demo_cluster.py."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.pyplot as plt

from scripts.demo_clusterprograms import Move

GROUPS: Final = ("1", "2")
COLORS: Final = {"1": "tab:blue", "2": "tab:orange"}
STEP: Final = 0.5  # seconds of a point of the rates


class Poll(NamedTuple):
    """What one poll has seen."""

    at: float  # seconds since 1970
    sent: int
    counted: int  # clicks that the job has counted
    visited: int  # clicks that the workers have finished
    owners: tuple[str, ...]  # the group of each partition
    ready: bool  # the job and all workers have started
    unread: int  # clicks that the job has not counted, and clicks that the workers have not finished


def plot(times: Sequence[tuple[float, int]], polls: Sequence[Poll], moves: Sequence[Move], path: Path) -> None:
    """Plot the appends of each group per second, the progress, and the group of each partition.

    times: when each click was appended, in seconds since 1970, and its partition.
    """
    began = polls[0].at
    times = [each for each in times if each[0] >= began]
    ended = polls[-1].at - began
    figure, (rates, progress, lanes) = plt.subplots(
        3, 1, figsize=(11, 9), sharex=True, height_ratios=(3, 3, 2), layout="constrained"
    )
    count = int(ended / STEP) + 1
    edges = [number * STEP for number in range(count + 1)]
    below = [0.0] * count
    for group, values in appends(times, polls, began, count).items():
        above = [low + value / STEP for low, value in zip(below, values, strict=True)]
        rates.stairs(above, edges, baseline=below, fill=True, color=COLORS[group], label=f"group {group}")
        below = above
    rates.set(title="Clicks appended per second, by the group that has their partition", ylabel="clicks per second")
    at = [poll.at - began for poll in polls]
    for values, label, style in (
        ([poll.sent for poll in polls], "sent", {"color": "0.6", "linewidth": 4}),
        ([poll.counted for poll in polls], "counted by the job", {"color": "tab:green"}),
        ([poll.visited for poll in polls], "visited by the workers", {"color": "tab:purple", "linestyle": "--"}),
    ):
        progress.plot(at, values, label=label, **style)
    progress.set(title="Progress", ylabel="clicks")
    partitions = len(polls[0].owners)
    for partition in range(partitions):
        for start, width, group in runs(polls, partition, began):
            lanes.broken_barh([(start, width)], (partition - 0.4, 0.8), color=COLORS[group])
    lanes.set(title="The group of each partition", xlabel="seconds", ylabel="partition", yticks=range(partitions),
              xlim=(0, ended), ylim=(partitions - 0.5, -0.5))  # fmt: skip
    for number, move in enumerate(moves, 1):
        for axes in (rates, progress, lanes):
            axes.axvspan(move.began - began, move.ended - began, color="0.88", zorder=0)
            axes.axvline(move.began - began, color="tab:red", linestyle="--",
                         label=f"{number}: {move.command}" if axes is progress else None)  # fmt: skip
        rates.annotate(str(number), (move.began - began, 0.98), xycoords=("data", "axes fraction"), va="top",
                       ha="right", color="tab:red", fontweight="bold")  # fmt: skip
    rates.legend(loc="lower left")
    progress.legend(loc="upper left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def appends(
    times: Sequence[tuple[float, int]], polls: Sequence[Poll], began: float, count: int
) -> dict[str, list[int]]:  # fmt: skip
    """Count the appends of each group in each step. The group of a partition is that of the last poll before."""
    found = {group: [0] * count for group in GROUPS}
    left = iter(polls)
    poll = following = next(left)
    for at, partition in sorted(times):
        while following.at <= at:
            poll = following
            if (after := next(left, None)) is None:
                break
            following = after
        found[poll.owners[partition]][min(count - 1, int((at - began) / STEP))] += 1
    return found


def runs(polls: Sequence[Poll], partition: int, began: float) -> Iterator[tuple[float, float, str]]:
    """Return the begin and the length of each time for which one group has a partition, in seconds, and the group."""
    found = [(list(run), group) for group, run in groupby(polls, key=lambda poll: poll.owners[partition])]
    ends = [run[0].at for run, _ in found[1:]] + [polls[-1].at]
    for (run, group), end in zip(found, ends, strict=True):
        start = max(0.0, run[0].at - began)
        yield start, end - began - start, group

"""Run a seed: ``python -m tests.simulation SEED [KIND]``. ``--shrink``: also look for a smaller case that fails.

KIND ``group`` is a server group, ``cluster`` are several of them that share slots, ``commits`` is the
commit protocol over several groups. For these, there is no ``--shrink``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.simulation import commits, groups, slots
from tests.simulation.cases import KINDS, case, fails, run, shrunk
from tests.simulation.world import SimulationError

# what runs a seed
OTHERS: dict[str, Callable[[int], object]] = {
    "group": lambda seed: groups.run(groups.case(seed)),
    "cluster": lambda seed: slots.run(slots.case(seed)),
    "commits": lambda seed: commits.run(seed),
}


def main(words: list[str]) -> int:
    shrink = "--shrink" in words
    words = [word for word in words if word != "--shrink"]
    kinds = (*KINDS, *OTHERS)
    if not 1 <= len(words) <= 2 or not words[0].isdigit() or (len(words) == 2 and words[1] not in kinds):
        print(f"{__doc__}\nKIND: {', '.join(kinds)}", file=sys.stderr)
        return 2
    seed, other = int(words[0]), OTHERS.get(words[-1])
    try:
        print(other(seed) if other is not None else run(case(seed, *words[1:])))
    except SimulationError as error:
        print(error)
        if shrink and other is None:
            smaller = shrunk(case(seed, *words[1:]))
            print(f"\nA smaller case:\n{smaller}\n{fails(smaller)}")
        return 1
    return 0


sys.exit(main(sys.argv[1:]))

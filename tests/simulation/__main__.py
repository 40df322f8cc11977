"""Run a seed: ``python -m tests.simulation SEED [KIND]``. ``--shrink``: also look for a smaller case that fails.

KIND ``group`` is a server group, for which there is no ``--shrink``.
"""

from __future__ import annotations

import sys

from tests.simulation import groups
from tests.simulation.cases import KINDS, case, fails, run, shrunk
from tests.simulation.world import SimulationError

GROUP = "group"


def main(words: list[str]) -> int:
    shrink = "--shrink" in words
    words = [word for word in words if word != "--shrink"]
    kinds = (*KINDS, GROUP)
    if not 1 <= len(words) <= 2 or not words[0].isdigit() or (len(words) == 2 and words[1] not in kinds):
        print(f"{__doc__}\nKIND: {', '.join(kinds)}", file=sys.stderr)
        return 2
    seed, is_group = int(words[0]), words[1:] == [GROUP]
    try:
        print(groups.run(groups.case(seed)) if is_group else run(case(seed, *words[1:])))
    except SimulationError as error:
        print(error)
        if shrink and not is_group:
            smaller = shrunk(case(seed, *words[1:]))
            print(f"\nA smaller case:\n{smaller}\n{fails(smaller)}")
        return 1
    return 0


sys.exit(main(sys.argv[1:]))

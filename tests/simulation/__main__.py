"""Run seeds: ``python -m tests.simulation SEED [KIND]``. ``--shrink``: also look for a smaller case that fails."""

from __future__ import annotations

import sys

from tests.simulation.cases import KINDS, SimulationError, case, fails, run, shrunk


def main(words: list[str]) -> int:
    shrink = "--shrink" in words
    words = [word for word in words if word != "--shrink"]
    if not 1 <= len(words) <= 2 or not words[0].isdigit() or (len(words) == 2 and words[1] not in KINDS):
        print(f"{__doc__}\nKIND: {', '.join(KINDS)}", file=sys.stderr)
        return 2
    tried = case(int(words[0]), *words[1:])
    try:
        print(run(tried))
    except SimulationError as error:
        print(error)
        if shrink:
            smaller = shrunk(tried)
            print(f"\nA smaller case:\n{smaller}\n{fails(smaller)}")
        return 1
    return 0


sys.exit(main(sys.argv[1:]))

"""Fail if modules import each other in a circle. Imports under ``TYPE_CHECKING`` and inside functions count.

Prints each circle with the lines that tie it. ``--root DIRECTORY`` checks another checkout. (import-linter's contract
for this also forbids circles between folders, whose modules may well form none.)
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp

Circle = tuple[str, ...]  # each module imports the next one, the last one the first

ALSO = ("_tidelog_server", "benchmarks")  # packages that import-linter's contracts don't mention


def packages(root: Path) -> list[str]:
    """The names of the project's packages."""
    linter = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    return [*ALSO, *linter["root_packages"]]


def circles(graph: grimp.ImportGraph) -> list[Circle]:
    """The shortest circle of each import that is in one; each circle once, short ones first."""
    found: set[Circle] = set()
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            back = graph.find_shortest_chain(imported, importer)
            if back is not None:
                start = back.index(min(back))
                found.add((*back[start:], *back[:start]))
    return sorted(found, key=lambda circle: (len(circle), circle))


def ties(graph: grimp.ImportGraph, circle: Circle) -> Iterator[str]:
    """The import statements of a circle."""
    for importer, imported in zip(circle, (*circle[1:], circle[0]), strict=True):
        for detail in graph.get_import_details(importer=importer, imported=imported):
            yield f"{importer}:{detail['line_number']}: {detail['line_contents']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root.resolve()
    sys.path.insert(0, str(root))  # the checkout, also where another copy is installed

    graph = grimp.build_graph(*packages(root), cache_dir=None)
    found = circles(graph)
    for circle in found:
        print(f"Circle of {len(circle)}: {' -> '.join((*circle, circle[0]))}")
        for tie in ties(graph, circle):
            print(f"    {tie}")
    print(f"{len(graph.modules)} modules, {len(found)} circles of imports")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

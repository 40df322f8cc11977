"""Fail if modules import each other in a cycle. Imports under ``TYPE_CHECKING`` and inside functions count.

Prints each cycle with its import statements. ``--root DIRECTORY`` checks another checkout.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp

Circle = tuple[str, ...]  # each module imports the next one, and the last one imports the first

ALSO = ("_tidelog_server", "benchmarks")  # packages that the contracts of import-linter do not mention


def packages(root: Path) -> list[str]:
    """Return the names of the project's packages."""
    linter = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    return [*ALSO, *linter["root_packages"]]


def circles(graph: grimp.ImportGraph) -> list[Circle]:
    """Return the shortest cycle of each import that is part of one, without duplicates, short ones first."""
    found: set[Circle] = set()
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            back = graph.find_shortest_chain(imported, importer)
            if back is not None:
                start = back.index(min(back))
                found.add((*back[start:], *back[:start]))
    return sorted(found, key=lambda circle: (len(circle), circle))


def ties(graph: grimp.ImportGraph, circle: Circle) -> Iterator[str]:
    """Yield the import statements of a cycle."""
    for importer, imported in zip(circle, (*circle[1:], circle[0]), strict=True):
        for detail in graph.get_import_details(importer=importer, imported=imported):
            yield f"{importer}:{detail['line_number']}: {detail['line_contents']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root.resolve()
    sys.path.insert(0, str(root))  # the checkout, even if another copy is installed

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

"""Imports in the engine and the commands run one way: no module imports, over however many others, itself."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def imports_of(top: str) -> dict[str, set[str]]:
    """Module -> modules of the same tree that it imports: anywhere in it, for type checking only included."""
    files: dict[str, Path] = {}
    for path in (ROOT / top).rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    names.add(whole if whole in files else node.module)
        graph[module] = names & files.keys()
    return graph


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """What is left after modules that import nothing (more) were removed again and again, and the same backwards."""
    left = dict(graph)
    while done := {module for module, names in left.items() if not names & left.keys()}:
        left = {module: names for module, names in left.items() if module not in done}
    while free := left.keys() - {name for names in left.values() for name in names}:
        left = {module: names for module, names in left.items() if module not in free}
    return set(left)


def test_a_circle_is_found() -> None:
    assert in_circles({"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set(), "e": {"a"}}) == {"b", "c"}
    assert in_circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == set()


def test_storage_has_no_circles() -> None:
    graph = imports_of("storage")
    assert graph["storage.keyspace.replay"] > {"storage.keyspace.keyspace", "storage.keyspace.stagemutators"}, (
        "imports are seen"
    )
    assert in_circles(graph) == set()


def test_commands_have_no_circles() -> None:
    assert in_circles(imports_of("commands")) == set()

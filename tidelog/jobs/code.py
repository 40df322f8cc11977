"""The code of a job: its module, and the modules that it imports from the same directory.

Rule 1: The directory is the entry of Python's path that contains the job's module. For an installed package
        (site-packages), it is the job's own top-level package: other packages there belong to other projects.
Rule 2: Imports are read from the source, including those inside functions. The result therefore depends only on files,
        not on the previous imports of a process: an engine, its workers and ``tidelog jobs add`` agree.
Rule 3: Modules that are only found at run time (``importlib``, plugins) are not part of the code.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

MOST: Final = 2000  # maximum number of modules of a job
INSTALLED: Final = ("site-packages", "dist-packages")

Stamp = tuple[int, int, int]  # of a file: inode, size, modification time
_known: dict[Path, SourceFile] = {}  # parsed files: a task checks all of them after a new version was added


@dataclass(frozen=True)
class SourceFile:
    """A module of a job's code."""

    path: Path
    text: bytes
    stamp: Stamp
    imports: frozenset[str]  # names of modules, including those of other projects


def version_of(function: Callable[..., Any]) -> str:
    """Return a hash of the source of a function and its code; different code has a different version.

    If there is no source, hash the function's bytecode.
    """
    module = sys.modules.get(function.__module__)
    try:
        code = inspect.getsource(function) + (inspect.getsource(module) if module is not None else "")
    except (OSError, TypeError):
        return hashlib.sha256(function.__code__.co_code).hexdigest()[:12]
    digest = hashlib.sha256(code.encode())
    if module is not None:
        for name, source in sorted(sources(module).items()):
            if name != module.__name__:
                digest.update(b"\0%s\0%d\0" % (name.encode(), len(source.text)) + source.text)
    return digest.hexdigest()[:12]


def sources(module: ModuleType) -> dict[str, SourceFile]:
    """Return the modules of a job's code by name, the job's own first; empty if that has no file."""
    home = _home(module)
    if home is None:
        return {}
    root, top = home
    found: dict[str, SourceFile] = {}
    waiting = [module.__name__]
    while waiting and len(found) < MOST:
        name = waiting.pop()
        if name in found or (top is not None and name.partition(".")[0] != top):
            continue
        path = Path(str(module.__file__)) if name == module.__name__ else _file(root, name)
        source = None if path is None else _read(path, name)
        if source is not None:
            found[name] = source
            waiting += sorted(source.imports)
    return found


def stamps(module: ModuleType) -> dict[str, Stamp]:
    """Return the stamps of a job's files, which show whether they have changed."""
    return {name: source.stamp for name, source in sources(module).items()}


def _home(module: ModuleType) -> tuple[Path, str | None] | None:
    """Return the directory (Rule 1), and the only top-level name to include, if others are not the job's code."""
    file = getattr(module, "__file__", None)
    if not file or not str(file).endswith(".py"):
        return None
    path = Path(os.path.abspath(file))
    parts = [] if module.__name__ == "__main__" else module.__name__.split(".")
    levels = len(parts) if path.name == "__init__.py" else max(0, len(parts) - 1)
    if levels >= len(path.parents):
        return None
    root = path.parents[levels]
    library = Path(os.__file__).parent
    installed = root == library or any(each in root.parts for each in INSTALLED)
    return root, module.__name__.partition(".")[0] if installed else None


def _file(root: Path, name: str) -> Path | None:
    base = root.joinpath(*name.split("."))
    for path in (base / "__init__.py", base.with_name(base.name + ".py")):
        if path.is_file():
            return path
    return None


def _read(path: Path, name: str) -> SourceFile | None:
    try:
        about = path.stat()
        stamp = (about.st_ino, about.st_size, about.st_mtime_ns)
        known = _known.get(path)
        if known is not None and known.stamp == stamp:
            return known
        text = path.read_bytes()
    except OSError:
        return None
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    try:
        imports = frozenset(_imports(ast.parse(text), package))
    except (SyntaxError, ValueError):
        imports = frozenset()
    _known[path] = source = SourceFile(path, text, stamp, imports)
    return source


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the names that an import may import: for ``from a.b import c`` these are a, a.b and a.b.c."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            names = [base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)]
        else:
            continue
        for name in filter(None, names):
            parts = name.split(".")
            yield from (".".join(parts[:number]) for number in range(1, len(parts) + 1))


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parents, *filter(None, [node.module])])

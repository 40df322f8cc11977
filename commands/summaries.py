"""The first docstring lines of handlers. Compiled handlers have no docstrings, so these are read from the source file.

Rule 1: source files are read when documentation is requested, never at import.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable
from functools import cache


def summary_of(handler: Callable[..., object]) -> str:
    """Return the first line of the handler's docstring; empty if it has none."""
    text = handler.__doc__ or _docstrings(handler.__module__).get(handler.__name__, "")
    return text.strip().partition("\n")[0].rstrip()


@cache
def _docstrings(module: str) -> dict[str, str]:
    """Return the docstrings of the functions of a module, by name; empty if its source file is missing."""
    package, _, name = module.rpartition(".")
    try:
        source = pkgutil.get_data(package, name + ".py")
    except OSError:
        return {}
    functions = [node for node in ast.parse(source or b"").body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_docstring(node) or "" for node in functions}

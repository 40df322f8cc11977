"""The first docstring line of a handler, also of a compiled one, which has no docstring: the source stands beside it.

Rule 1: sources are read when somebody asks for documentation, never at import.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable
from functools import cache


def summary_of(handler: Callable[..., object]) -> str:
    """Empty where there is no docstring."""
    text = handler.__doc__ or _docstrings(handler.__module__).get(handler.__name__, "")
    return text.strip().partition("\n")[0].rstrip()


@cache
def _docstrings(module: str) -> dict[str, str]:
    """Docstrings of the functions of a module, by name; of one that has no source beside it, none."""
    package, _, name = module.rpartition(".")
    try:
        source = pkgutil.get_data(package, name + ".py")
    except OSError:
        return {}
    functions = [node for node in ast.parse(source or b"").body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_docstring(node) or "" for node in functions}

"""Replaces ``${NAME}`` in a file, if the file lists the name under ``environment``.

    environment: [SEARCH_URL]            must be set
    environment: {SEARCH_URL: "http://localhost:9200"}    with a default; null: must be set
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tidelog.options.structs import FromEnvironment, Problems

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USED: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def allowed(given: Any, variables: Mapping[str, str], problems: Problems) -> dict[str, str]:
    """Return the values of the listed names."""
    path = "environment"
    if isinstance(given, list):
        wanted = dict.fromkeys((each for each in given if isinstance(each, str)), None)
        if len(wanted) < len(given):
            problems.add(path, "a list of different names, or a mapping from names to values, is expected")
    elif isinstance(given, dict):
        wanted = given
    else:
        problems.add(path, "a list of names, or a mapping from names to default values, is expected")
        return {}
    found = {}
    for name, default in wanted.items():
        at = f"{path}.{name}"
        if not _NAME.fullmatch(name):
            problems.add(at, f"{name!r} is not the name of a variable")
        elif name in variables:
            found[name] = variables[name]
        elif default is None:
            problems.add(at, f"the environment variable {name} is not set, and the file has no default for it")
        else:
            found[name] = default if isinstance(default, str) else str(default)
    return found


def filled(value: Any, names: Mapping[str, str]) -> Any:
    """Return the value with ``${NAME}`` replaced in all text except keys. ``$${`` is an escaped ``${``; other names
    stay.

    Text that consists of one name only is converted to the type of its option: ``port: "${PORT}"`` is a number.
    """
    if isinstance(value, str):
        whole = _USED.fullmatch(value)
        if whole is not None and whole[1] in names:
            return FromEnvironment(names[whole[1]])
        return _USED.sub(lambda found: "${" if found[1] is None else names.get(found[1], found[0]), value)
    if isinstance(value, dict):
        return {key: filled(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, names) for each in value]
    return value

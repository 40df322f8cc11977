"""Patterns of paths: ``logs/**/*.log``.

    *       any characters of one name, except a leading dot
    ?       one character of a name
    [a-z]   one of these characters; ``[!a-z]``: one of the others
    **      any number of directories, also none, that do not begin with a dot
"""

from __future__ import annotations

import re
from typing import Final

MAGIC: Final = re.compile(r"[*?]|\[[^]]+\]")

_TOKENS: Final = re.compile(r"\*|\?|\[(!?)([^]]+)\]|[^*?\[]+|\[")


def has_pattern(text: str) -> bool:
    return MAGIC.search(text) is not None


def fixed_directory(pattern: str) -> str:
    """Return the directory before the first name with a wildcard, with its last slash: ``logs/`` of ``logs/*.log``."""
    found = MAGIC.search(pattern)
    return pattern if found is None else pattern[: pattern.rfind("/", 0, found.start()) + 1]


def path_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern, for ``fullmatch`` with a path that has the same root. Raises ValueError if it is not valid."""
    made = ""
    names = pattern.split("/")
    for at, name in enumerate(names):
        last = at == len(names) - 1
        if name == "**" and not last:
            made += r"(?:(?!\.)[^/]+/)*"
            continue
        if "**" in name:
            raise ValueError(f"{pattern!r}: ** must be a whole directory, such as logs/**/*.log")
        made += _name(pattern, name) + ("" if last else "/")
    return re.compile(made, re.DOTALL)


def reaches(pattern: str, directory: str) -> bool:
    """Return whether a directory, with its last slash, can contain a path that matches."""
    names = pattern.split("/")[:-1]
    parts = directory.split("/")[:-1]
    for at, part in enumerate(parts):
        if at < len(names) and names[at] == "**":
            return not any(each.startswith(".") for each in parts[at:])
        if at >= len(names) or re.fullmatch(_name(pattern, names[at]), part, re.DOTALL) is None:
            return False
    return True


def _name(pattern: str, name: str) -> str:
    made = r"(?!\.)" if name[:1] in ("*", "?", "[") else ""
    before = ""
    for found in _TOKENS.finditer(name):
        part = found[0]
        if part == "*":
            made += "" if before == "*" else "[^/]*"
        elif part == "?":
            made += "[^/]"
        elif found[2] is not None:
            inner = found[2].replace("\\", r"\\").replace("^", r"\^").replace("[", r"\[")
            try:
                re.compile(f"[{inner}]")
            except re.error:
                raise ValueError(f"{pattern!r}: {part} is not a set of characters, such as [a-z]") from None
            made += f"(?!/)[{'^' if found[1] else ''}{inner}]"
        else:
            made += re.escape(part)
        before = part
    return made

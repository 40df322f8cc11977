"""Plain scalars of the core schema of YAML 1.2 (YAML 1.2.2, 10.3.2): ``yes``, ``12:30`` and ``2026-05-01`` are text.

Flow files and the codec ``yaml`` use this module. PyYAML's own resolvers follow YAML 1.1, where ``12:30`` is 750.
"""

from __future__ import annotations

import re
from typing import Any, Final

INT: Final = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
SPECIAL: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")  # floats too
NULLS: Final = ("", "~", "null", "Null", "NULL")
BOOLEANS: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
WORDS: Final[dict[str, Any]] = {**dict.fromkeys(NULLS), **BOOLEANS}


def integer(text: str) -> int:
    """Return the value of text that INT matches."""
    return int(text, 0 if text[:2] in ("0x", "0o") else 10)

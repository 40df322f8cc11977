#!/usr/bin/env python3
"""Write the tables of docs/flows-functions.md from the declarations; ``--check`` only reports an outdated page.

    <!-- functions: strings -->   the functions of a module of tidelog/flows/expressions
    <!-- grok patterns -->        the names of the library of patterns

A table follows such a line and ends at the next blank line.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tidelog.flows.expressions.catalog import FUNCTIONS, GROUPS  # noqa: E402
from tidelog.flows.expressions.declare import Function  # noqa: E402 - needs the path above
from tidelog.flows.expressions.grokpatterns import GROK  # noqa: E402

PAGE: Final = ROOT / "docs" / "flows-functions.md"
MARK: Final = re.compile(r"(<!-- (functions: (\w+)|grok patterns) -->\n)(?:\|.*\n|`.*\n)*")


def signature(function: Function) -> str:
    names = [f"{each.name}?" if each.optional else each.name for each in function.parameters]
    return f"{function.name}({', '.join([*names, '...'] if function.variadic else names)})"


def code(text: str) -> str:
    """A span of code in a table."""
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def row(function: Function) -> str:
    result = json.dumps(function.result, ensure_ascii=False)
    return f"| `{signature(function)}` | {function.about} | {code(function.example)} returns {code(result)} |"


def table(group: str) -> str:
    rows = [row(each) for each in FUNCTIONS.values() if each.group == group]
    return "\n".join(["| function | description | example |", "|---|---|---|", *rows]) + "\n"


def page(text: str) -> str:
    patterns = ", ".join(f"`{name}`" for name in sorted(GROK)) + "\n"
    return MARK.sub(lambda found: found[1] + (table(found[3]) if found[3] else patterns), text)


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    missing = [name for name in GROUPS if f"<!-- functions: {name} -->" not in text]
    if missing:
        print(f"{PAGE.relative_to(ROOT)} has no table of {', '.join(missing)}")
        return 1
    if page(text) == text:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{PAGE.relative_to(ROOT)} is outdated: run scripts/function_reference.py")
        return 1
    PAGE.write_text(page(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

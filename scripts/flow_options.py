#!/usr/bin/env python3
"""Write the option tables of docs/flows*.md from the declarations; ``--check`` only reports outdated pages.

A table follows a line such as ``<!-- options: tidelog.flows.operators.batch:BatchOperatorOptions -->`` and ends at the
next blank line. The description of an option is the comment after its field, continued in the comment lines below it.
A list of names limits the table: ``<!-- options: module:Class max_bytes codec -->``; ``own`` omits inherited options.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402 - needs the path above

from tidelog.options.onerror import ErrorPolicy  # noqa: E402
from tidelog.options.units import Duration, Size  # noqa: E402

PAGES = [ROOT / "docs" / name for name in ("flows.md", "flows-operators.md", "flows-connectors.md")]
MARK = re.compile(r"(<!-- options: (\S+)((?: \S+)*) -->\n)(?:\|.*\n)*")


def descriptions(kind: type[Any]) -> dict[str, str]:
    """The descriptions of the options, by the attribute's name. Subclasses override those of their bases."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not (isinstance(each, type) and issubclass(each, msgspec.Struct)) or not each.__struct_fields__:
            continue
        lines = inspect.getsource(each).split("\n")
        for node in ast.parse("\n".join(line.removeprefix(" " * _indent(lines)) for line in lines)).body[0].body:  # type: ignore[attr-defined]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                parts = [lines[(node.end_lineno or 0) - 1].partition("  # ")[2]]
                for line in lines[node.end_lineno or 0 :]:
                    if not line.lstrip().startswith("# "):
                        break
                    parts.append(line.strip()[2:])
                if text := " ".join(each for each in parts if each):
                    found[node.target.id] = re.sub(r"^(noqa|type): \S+ - ", "", text)
    return found


def _indent(lines: list[str]) -> int:
    return len(lines[0]) - len(lines[0].lstrip())


def default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return shown(value)


def shown(value: Any) -> str:
    """A value as files write it."""
    if isinstance(value, Duration):
        for unit, factor in (("h", 3600), ("m", 60), ("s", 1)):
            if value >= factor and value % factor == 0:
                return f"`{value / factor:g}{unit}`"
        return f"`{value * 1000:g}ms`"
    if isinstance(value, Size):
        for unit, power in (("GB", 30), ("MB", 20), ("KB", 10)):
            if value and value % (1 << power) == 0:
                return f"`{value >> power}{unit}`"
    if isinstance(value, ErrorPolicy):
        return f"`[retry: {{}}, {value.action}]`" if value.retry else f"`[{value.action}]`"
    if isinstance(value, msgspec.Struct):
        fields = [each for each in value.__struct_fields__ if isinstance(getattr(value, each), msgspec.Struct)]
        return "`{" + ", ".join(f"{each}: {{}}" for each in fields) + "}`"
    if isinstance(value, list | tuple) and value and isinstance(value[0], Duration):
        return "`[" + ", ".join(shown(each).strip("`") for each in value) + "]`"
    return f"`{value}`" if isinstance(value, str) and value else f"`{msgspec.json.encode(value).decode()}`"


def table(name: str, chosen: list[str]) -> str:
    module, _, attribute = name.partition(":")
    kind = getattr(importlib.import_module(module), attribute)
    texts = descriptions(kind)
    fields = msgspec.structs.fields(kind)
    if chosen == ["own"]:
        base = next(each for each in kind.__mro__[1:] if issubclass(each, msgspec.Struct))
        inherited = {each.encode_name: default(each) for each in msgspec.structs.fields(base)}
        fields = tuple(each for each in fields if inherited.get(each.encode_name) != default(each))
    elif chosen:
        fields = tuple(each for each in fields if each.encode_name in chosen)
    rows = ["| option | default | description |", "|---|---|---|"]
    for each in fields:
        text = texts.get(each.name, "").replace("|", "\\|")
        rows.append(f"| `{each.encode_name}` | {default(each)} | {text[:1].upper() + text[1:]} |")
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    return MARK.sub(lambda found: found[1] + table(found[2], found[3].split()), text)


def main() -> int:
    outdated = [each for each in PAGES if page(each.read_text(encoding="utf-8")) != each.read_text(encoding="utf-8")]
    if "--check" in sys.argv[1:]:
        for each in outdated:
            print(f"{each.relative_to(ROOT)} is outdated: run scripts/flow_options.py")
        return 1 if outdated else 0
    for each in outdated:
        each.write_text(page(each.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

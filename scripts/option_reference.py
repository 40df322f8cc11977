#!/usr/bin/env python3
"""Write the option tables of the docs from the declarations; ``--check`` only reports outdated pages.

    <!-- options: tidelog.flows.operators.batch:BatchOperatorOptions -->   the options of a structure
    <!-- options: module:Class own -->                                     without inherited options
    <!-- options: module:Class max_bytes codec -->                         only these
    <!-- options: module:One+Other -->                                     of both
    <!-- options of codec: tidelog.flows.codecs.base:CODECS -->            of all components of a registry

A table follows such a line and ends at the next blank line. The description of an option is

- for a structure of msgspec: the comment after its field, continued in the comment lines below it,
- for a TypedDict: the same, in the form ``default | for | description``,
- for another class: ``name: description`` in its docstring, with the default of the parameter of ``__init__``,
- for a command of the CLI: its help.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any, is_typeddict

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import click  # noqa: E402 - needs the path above
import msgspec  # noqa: E402

from tidelog.options.onerror import ErrorPolicy  # noqa: E402
from tidelog.options.units import Duration, Size  # noqa: E402

PAGES = [
    ROOT / "docs" / name
    for name in ("flows.md", "flows-operators.md", "flows-connectors.md", "topics.md", "workers.md")
]
HEAD = ["option", "default", "description"]
MARK = re.compile(r"(<!-- options(?: of (\w+))?: (\S+)((?: \S+)*) -->\n)(?:\|.*\n)*")


def descriptions(kind: type[Any]) -> dict[str, str]:
    """The descriptions of the options, by the attribute's name. Subclasses override those of their bases."""
    found: dict[str, str] = {}
    for each in reversed(bases(kind)):
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


def bases(kind: type[Any]) -> list[type[Any]]:
    """The classes that declare options of a structure or a TypedDict, itself first."""
    if is_typeddict(kind):  # it does not know its bases
        there = [each for each in vars(sys.modules[kind.__module__]).values() if is_typeddict(each)]
        return [each for each in there if each.__annotations__.keys() <= kind.__annotations__.keys()]
    return [each for each in kind.__mro__ if issubclass(each, msgspec.Struct) and each.__struct_fields__]


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
    if isinstance(value, str) and value and value.isprintable():
        return f"`{value}`"
    return f"`{msgspec.json.encode(value).decode()}`"


def loaded(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def rows(name: str, chosen: list[str]) -> list[list[str]]:
    """The cells of each option: name, default, for a TypedDict what it is for, and description."""
    if "+" in name:
        module, _, classes = name.partition(":")
        found: dict[str, list[str]] = {}
        for row in (row for each in classes.split("+") for row in rows(f"{module}:{each}", [])):
            found.setdefault(row[0], row)
        return list(found.values())
    kind = loaded(name)
    if isinstance(kind, click.Command):
        return [_of_command(each) for each in kind.params if isinstance(each, click.Option) and not each.hidden]
    if is_typeddict(kind):
        texts = descriptions(kind)
        return [[f"`{each}`", *texts[each].split(" | ")] for each in kind.__annotations__]
    if not issubclass(kind, msgspec.Struct):
        texts = paragraphs(inspect.getdoc(kind) or "")
        known = [each for each in inspect.signature(kind).parameters.values() if not chosen or each.name in chosen]
        return [
            [f"`{each.name}`", "required" if each.default is each.empty else _plain(each.default), texts[each.name]]
            for each in known
        ]
    return _of_structure(kind, chosen)


def _plain(value: object) -> str:
    return f"`{value.__name__ if isinstance(value, type) else repr(value)}`"


def _of_structure(kind: type[msgspec.Struct], chosen: list[str]) -> list[list[str]]:
    texts = descriptions(kind)
    fields = msgspec.structs.fields(kind)
    if chosen == ["own"]:
        base = next(each for each in kind.__mro__[1:] if issubclass(each, msgspec.Struct))
        inherited = {each.encode_name: default(each) for each in msgspec.structs.fields(base)}
        fields = tuple(each for each in fields if inherited.get(each.encode_name) != default(each))
    elif chosen:
        fields = tuple(each for each in fields if each.encode_name in chosen)
    return [[f"`{each.encode_name}`", default(each), texts.get(each.name, "")] for each in fields]


def _of_command(option: click.Option) -> list[str]:
    name = f"{option.opts[-1]} {option.metavar}" if option.metavar else option.opts[-1]
    value = option.to_info_dict()["default"]
    plain = "" if option.is_flag or value in (None, "") else shown(value)
    return [f"`{name}`", "required" if option.required else plain, option.help or ""]


def paragraphs(text: str) -> dict[str, str]:
    """The parts of a docstring that begin with the name of an option and a colon."""
    found: dict[str, str] = {}
    name = ""
    for line in text.split("\n"):
        if start := re.match(r"(\w+): (.*)", line):
            name, found[start[1]] = start[1], start[2]
        elif line.startswith("    ") and name:
            found[name] += f" {line.strip()}"
        else:
            name = ""
    return {each: about.replace("``", "`") for each, about in found.items()}


def table(name: str, chosen: list[str], kind: str = "") -> str:
    """The table for a line of a page. ``kind``: what a registry contains."""
    if not kind:
        found = rows(name, chosen)
        return written([*HEAD[:2], "for", HEAD[2]] if len(found[0]) > len(HEAD) else HEAD, found)
    owners: dict[Any, list[str]] = {}  # by options: the components that have them
    for component, where in loaded(name).items():
        owners.setdefault(loaded(where).Options, []).append(f"`{component}`")
    found = [[", ".join(names), *row] for options, names in owners.items() for row in _of_structure(options, [])]
    return written([kind, *HEAD], found)


def written(head: list[str], found: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for *cells, text in found:
        text = text.replace("|", "\\|")
        lines.append(f"| {' | '.join([*cells, text[:1].upper() + text[1:]])} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    return MARK.sub(lambda found: found[1] + table(found[3], found[4].split(), found[2] or ""), text)


def main() -> int:
    outdated = [each for each in PAGES if page(each.read_text(encoding="utf-8")) != each.read_text(encoding="utf-8")]
    if "--check" in sys.argv[1:]:
        for each in outdated:
            print(f"{each.relative_to(ROOT)} is outdated: run scripts/option_reference.py")
        return 1 if outdated else 0
    for each in outdated:
        each.write_text(page(each.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

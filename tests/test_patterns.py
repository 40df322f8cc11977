"""Each regular expression of the packages takes time in proportion to the text, also where the text is made to hurt.

A text that a pattern matches is made from the pattern. Each of its characters, and each pair, is repeated thousands of
times, and something is put at the end that does not match. A pattern that backtracks takes seconds for such a text.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "_tidelog_server", "commands", "coordinator", "persistence", "pyspark_tidelog", "replication", "resp", "respserver",
    "storage", "tidelog",
)  # fmt: skip
REPEATED = 5_000  # quadratic: 12,500,000 steps, some tenths of a second; linear: less than a millisecond
SECONDS = 0.06  # of this process's own time
FLAGS = {"IGNORECASE": re.IGNORECASE, "DOTALL": re.DOTALL, "ASCII": re.ASCII}


def patterns() -> Iterator[tuple[str, bytes | str, re.RegexFlag, set[str]]]:
    """Where a pattern is, the pattern, its flags, how it is used. What an f-string fills in becomes an x."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(source)) if "re." in source else ():
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                    continue
                of = node.func.value
                if not (isinstance(of, ast.Name) and of.id == "re") or node.func.attr == "escape":
                    continue
                text = literal(node.args[0])
                if text is None:  # made at run time: a glob's part, a user's own pattern
                    continue
                flags = re.RegexFlag(0)
                for each in [*node.args[1:], *(one.value for one in node.keywords)]:
                    if isinstance(each, ast.Attribute) and each.attr in FLAGS:
                        flags |= FLAGS[each.attr]
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                yield place, text, flags, uses(node, path)


def uses(call: ast.Call, path: Path) -> set[str]:
    """By which methods a pattern is applied: one that is always matched from a place on may backtrack once."""
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr != "compile":
        return {call.func.attr}
    source = path.read_text(encoding="utf-8")
    assigned = re.search(r"(\w+)(?:: Final)? = re\.compile", source.splitlines()[call.lineno - 1])
    if assigned is None:
        return {"search"}
    found = set()
    for each in (ROOT / path.relative_to(ROOT).parts[0]).rglob("*.py"):
        text = source if each == path else each.read_text(encoding="utf-8")
        if each == path or (not assigned[1].startswith("_") and assigned[1] in text):
            found |= set(re.findall(rf"\b{assigned[1]}\.(\w+)\(", text))
    return found or {"search"}


def literal(node: ast.expr) -> bytes | str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, (bytes, str)):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "x" for each in node.values)
    return None


def sample(parsed: Any, most: int) -> str:
    """A short text that a pattern matches. most: how often a part is repeated that may be."""
    made = ""
    for kind, what in parsed:
        name = str(kind)
        if name == "LITERAL":
            made += chr(what)
        elif name == "NOT_LITERAL":
            made += "b" if what == ord("a") else "a"
        elif name == "ANY":
            made += "a"
        elif name == "IN":
            made += member(what)
        elif name == "BRANCH":
            made += sample(what[1][most % len(what[1])], most)
        elif name == "SUBPATTERN":
            made += sample(what[3], most)
        elif name == "ATOMIC_GROUP":
            made += sample(what, most)
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, inner = what
            made += sample(inner, most) * min(max(low, most), int(high), low + most)
    return made


def member(what: Any) -> str:
    """A character of a class."""
    negated = str(what[0][0]) == "NEGATE"
    if negated:
        for each in "a1 .-_:/":
            if not any(within(each, one) for one in what[1:]):
                return each
    kind, value = what[0]
    if str(kind) == "RANGE":
        return chr(value[0])
    if str(kind) == "LITERAL":
        return chr(value)
    return {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a"}.get(str(value), "a")


def within(char: str, one: Any) -> bool:
    kind, value = one
    if str(kind) == "RANGE":
        return bool(value[0] <= ord(char) <= value[1])
    if str(kind) == "LITERAL":
        return bool(value == ord(char))
    return {"CATEGORY_DIGIT": char.isdigit(), "CATEGORY_SPACE": char.isspace()}.get(str(value), False)


def attacks(pattern: re.Pattern[Any]) -> Iterator[str]:
    parsed = re._parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)  # type: ignore[attr-defined]
    samples = {sample(parsed, most)[:40] for most in (0, 1, 2)}
    for text in sorted(samples):
        for end in ("\x00", "\n", ""):
            for at in range(len(text)):
                yield text[:at] + text[at] * REPEATED + end
                yield text[: at + 1] + text[at : at + 2] * REPEATED + end
            yield text * (REPEATED // max(1, len(text))) + end


def taken(pattern: re.Pattern[Any], text: str, how: Iterable[str]) -> float:
    """Seconds of the methods, search in place of all those that look at each place of the text."""
    given = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
    methods = sorted({each if each in ("match", "fullmatch") else "search" for each in how})
    found: list[float] = []
    while not found or (found[-1] > SECONDS and len(found) < 3):  # a machine that is busy may double a time
        began = time.process_time()
        for each in methods:
            getattr(pattern, each)(given)
        found.append(time.process_time() - began)
    return min(found)


@pytest.mark.slow
def test_each_pattern_takes_linear_time() -> None:
    found = list(patterns())
    assert len(found) > 60, "patterns are found no more"
    slow = []
    for place, text, flags, how in found:
        pattern: re.Pattern[Any] = re.compile(text, flags)
        for attack in attacks(pattern):
            if (seconds := taken(pattern, attack, how)) > SECONDS:
                slow.append(f"{place}: {text!r}: {seconds:.2f} s for {attack[:30]!r}... ({len(attack)} characters)")
                break
    assert not slow, "\n".join(slow)


def test_a_pattern_that_backtracks_is_found() -> None:
    """The test above can fail."""
    pattern = re.compile(r"\d+\.?\d*")
    assert any(
        taken(pattern, each + "x", ("fullmatch",)) > SECONDS / 10 for each in attacks(pattern) if len(each) > REPEATED
    )

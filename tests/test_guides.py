"""The guides run in order on one server: a topic of one name is the same topic in each of them, and in the examples."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]
OPTIONS = ("partition_by", "partitions", "partition_size", "max_age", "overflow", "hard_limit", "codec")


def code(path: Path) -> str:
    text = path.read_text()
    if path.suffix == ".py":
        return text
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def declared(path: Path) -> Iterator[tuple[str, str, str]]:
    """(topic, what, its value) of what a program says of topics."""
    tree = ast.parse(code(path))
    records = {
        node.name: {
            each.target.id: ast.unparse(each.annotation)
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or ast.unparse(call.func) not in ("Topic", "app.topic") or not call.args:
            continue
        if not isinstance(call.args[0], ast.Constant) or len(call.args) < 2:
            continue
        name = str(call.args[0].value)
        for keyword in call.keywords:
            if keyword.arg in OPTIONS:
                yield name, keyword.arg, ast.unparse(keyword.value)
        for field, kind in records.get(ast.unparse(call.args[1]), {}).items():
            yield name, f"the type of {field}", kind


def test_topics_of_one_name_are_the_same_topic() -> None:
    known: dict[tuple[str, str], tuple[str, str]] = {}
    contradictions = []
    for path in GUIDES:
        for topic, what, value in declared(path):
            place, before = known.setdefault((topic, what), (path.name, value))
            if before != value:
                contradictions.append(f"{topic}: {what} is {before} in {place} and {value} in {path.name}")
    assert contradictions == []
    assert ("orders", "partition_by") in known
    assert ("totals", "partition_by") in known


def test_jobs_of_one_name_are_the_same_job() -> None:
    """Another job of the same name takes the place of the first one, or is refused."""
    known: dict[str, str] = {}
    for path in GUIDES:
        for node in ast.walk(ast.parse(code(path))):
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            if any(ast.unparse(each).startswith("job(") for each in decorators):
                name = node.name if isinstance(node, ast.FunctionDef) else ""
                assert known.setdefault(name, path.name) == path.name, name
    assert known["tally"] == "jobs.md"

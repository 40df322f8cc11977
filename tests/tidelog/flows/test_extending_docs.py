"""docs/flows-extending.md: its examples run, and its tables name the methods that there are."""

from __future__ import annotations

import inspect
import re
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from tidelog.flows.api.connector import Sink, Source
from tidelog.flows.api.operator import Operator

TEXT = (Path(__file__).parents[3] / "docs" / "flows-extending.md").read_text()
CODE = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(CODE, "flows-extending.md", "exec"), names)
    return names


@pytest.mark.parametrize("name", re.findall(r"^def (test_\w+)", CODE, re.MULTILINE))
def test_examples(page: dict[str, Any], name: str) -> None:
    page[name]()


def test_the_flow_of_the_example_can_be_declared(page: dict[str, Any]) -> None:
    assert page["shouting"](deque(), []).spec().name == "shouting"


@pytest.mark.parametrize(("heading", "kind"), [("Sources", Source), ("Sinks", Sink), ("Operators", Operator)])
def test_every_method_is_described(heading: str, kind: type[Any]) -> None:
    section = TEXT[TEXT.index(f"## {heading}") :].partition("\n## ")[0]
    public = [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]
    helpers = {"spawn", "breaker", "ports", "required", "needs_server", "wait"}  # described in the class only
    missing = [name for name in public if name not in helpers and not re.search(rf"\b{name}\b", section)]
    assert missing == []

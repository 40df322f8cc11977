"""docs/flows-operators.md: its tables name every option with its default, its examples are right."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import yaml

from tests.tidelog import doctables
from tidelog.flows import registry
from tidelog.flows.declare import Op, operator_spec
from tidelog.flows.operators.aggregates import KINDS
from tidelog.options.structs import Problems

TEXT = (Path(__file__).parents[3] / "docs" / "flows-operators.md").read_text()
SECTIONS = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PYTHON = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def default(field: Any) -> str:
    """As the docs write it."""
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=float).decode()


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_the_table_has_every_option_with_its_default(name: str) -> None:
    fields = {each.encode_name: default(each) for each in msgspec.structs.fields(registry.operator(name).Options)}
    section = SECTIONS[name]
    written = doctables.rows(section, "| Option |") if "| Option |" in section else {}
    assert written == fields


def test_sections_are_in_the_order_of_the_alphabet() -> None:
    assert list(SECTIONS) == sorted(SECTIONS)
    assert set(SECTIONS) <= set(registry.OPERATORS)


def test_ports_are_named() -> None:
    for name in ("window", "counter"):
        (port,) = registry.operator(name).ports(registry.operator(name).__new__(registry.operator(name)))
        assert f"port `{port}`" in SECTIONS[name]


def test_aggregates_are_all_there() -> None:
    assert set(doctables.rows(SECTIONS["window"], "Aggregates:")) == set(KINDS)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_right(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = ModuleType("shop.flows")
    for name in ("add_customer", "score", "score_all"):
        setattr(shop, name, len)
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.flows", shop)
    problems = Problems()
    for one in yaml.safe_load(example):
        ((kind, options),) = one.items()
        assert operator_spec(Op(kind, options), kind, problems) is not None, problems.found
    assert not problems


def test_the_program_runs() -> None:
    for code in PYTHON:
        exec(compile(code, "shop.py", "exec", dont_inherit=True), {"__name__": "shop"})

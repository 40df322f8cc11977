"""docs/flows-operators.md: its tables name every option with its default, its examples are right."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import yaml

from tests.tidelog import doctables
from tidelog.flows import registry
from tidelog.flows.declare import Op, operator_spec
from tidelog.flows.operators.aggregatekinds import KINDS
from tidelog.options.structs import Problems

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "flows-operators.md").read_text()
SECTIONS = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PYTHON = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_the_section_has_the_table_of_its_options(name: str) -> None:
    options = registry.operator(name).Options
    marker = f"<!-- options: {options.__module__}:{options.__qualname__} -->"
    assert (marker in SECTIONS[name]) == bool(msgspec.structs.fields(options))


def test_option_tables_are_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts/option_reference.py"))
    for page in script["PAGES"]:
        assert script["page"](page.read_text()) == page.read_text(), f"{page.name}: run scripts/option_reference.py"


def test_each_documented_option_has_a_description() -> None:
    script = runpy.run_path(str(ROOT / "scripts/option_reference.py"))
    for page in script["PAGES"]:
        tables = re.findall(r"^<!-- options.*-->\n((?:\|.*\n)*)", page.read_text(), re.MULTILINE)
        assert all(tables)
        for row in "".join(tables).splitlines():
            assert row.split(" | ")[-1].strip("| "), row


def test_sections_are_in_the_order_of_the_alphabet() -> None:
    assert list(SECTIONS) == sorted(SECTIONS)
    assert set(SECTIONS) <= set(registry.OPERATORS)


def test_ports_are_named() -> None:
    for name in ("window", "counter"):
        (port,) = registry.operator(name).ports(registry.operator(name).__new__(registry.operator(name)))
        assert f"port `{port}`" in SECTIONS[name]


def test_aggregates_are_all_there() -> None:
    assert set(doctables.rows(SECTIONS["window"], "| aggregate |")) == set(KINDS)


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

"""docs/flows-connectors.md: it names every connector, option, codec and interceptor, and its examples are valid.

``test_operator_docs`` compares the option tables with the declarations.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from tests.tidelog import doctables
from tidelog.flows import registry
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.codecs.base import CODECS
from tidelog.flows.connectors.builtin.script import Act
from tidelog.flows.declare import connector_spec
from tidelog.flows.interceptors.base import POSTPROCESSORS, PREPROCESSORS
from tidelog.flows.registry import component
from tidelog.options.structs import Problems

TEXT = (Path(__file__).parents[3] / "docs" / "flows-connectors.md").read_text()
SECTIONS = {
    found[1]: found[2] for found in re.finditer(r"^##+ `?(\w+)`?\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
}
COMMON = "".join(
    TEXT[TEXT.index(f"## {title}") :].partition("\n## ")[0]
    for title in ("Options of connectors that carry bytes", "Connectors over HTTP", "Databases", "Message brokers")
)
BASES = {"tcp_server": "tcp_client", "otlp": "http_server"}  # whose options a connector has as well
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def _names(kind: Any) -> set[str]:
    return {each.encode_name for each in msgspec.structs.fields(kind)}


@pytest.mark.parametrize("name", registry.CONNECTORS)
def test_every_option_is_described(name: str) -> None:
    kind = registry.connector(name).Options
    section = SECTIONS[name] + SECTIONS.get(BASES.get(name, ""), "")
    described = set(re.findall(r"`(\w+)`", section)) | set(re.findall(r"^\| `(\w+)`", COMMON, re.MULTILINE))
    assert _names(kind) - _names(ConnectorOptions) <= described


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_valid(example: str) -> None:
    problems = Problems()
    for name, options in yaml.safe_load(example).get("connectors", {}).items():
        connector_spec(name, options.pop("type"), options, name, problems)
    assert problems.found == []


@pytest.mark.parametrize(
    ("title", "known"),
    [("| codec |", CODECS), ("| preprocessor |", PREPROCESSORS), ("| postprocessor |", POSTPROCESSORS)],
)
def test_codecs_and_interceptors(title: str, known: dict[str, str]) -> None:
    assert doctables.rows(TEXT, title).keys() == known.keys()
    options = TEXT[TEXT.index(f"<!-- options of {title.strip('| ')}:") :].partition("\n\n")[0]
    for name in known:
        kind, _ = component("thing", known, name)
        rows = re.findall(rf"^\|[^|]*`{name}`[^|]*\| `(\w+)` \|", options, re.MULTILINE)
        assert _names(kind.Options) == set(rows), name


def test_every_operator_has_a_section() -> None:
    operators = (Path(__file__).parents[3] / "docs" / "flows-operators.md").read_text()
    assert set(registry.OPERATORS) - set(re.findall(r"^## `(\w+)`$", operators, re.MULTILINE)) == set()


def test_every_act_of_the_script_is_described() -> None:
    assert set(doctables.rows(SECTIONS["script"], "| `act` | outcome")) == set(get_args(Act))

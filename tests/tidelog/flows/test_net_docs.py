"""docs/flows-connectors.md, connectors over HTTP: tables name every option with its default, examples can be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.tidelog import doctables
from tidelog.flows import registry
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.declare import connector_spec
from tidelog.options.structs import Problems
from tidelog.options.units import Duration, Size

TEXT = (Path(__file__).parents[3] / "docs" / "flows-connectors.md").read_text()
SECTION = re.compile(r"^## `?(\w+)`?\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SECTIONS = {found[1]: found[2] for found in SECTION.finditer(TEXT)}
OURS = ("elastic", "http_client", "http_server", "metrics", "websocket_client", "websocket_server")
BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = [(name, example) for name in OURS for example in BLOCK.findall(SECTIONS[name])]


def default(field: Any) -> str:
    """As the docs write it."""
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    if isinstance(value, Duration):
        return f"{value:g}s"
    if isinstance(value, Size):
        return f"{value >> 20}MB"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@pytest.mark.parametrize("name", OURS)
def test_the_table_has_every_option_with_its_default(name: str) -> None:
    common = {each.name for each in msgspec.structs.fields(ConnectorOptions)}
    fields = msgspec.structs.fields(registry.connector(name).Options)
    own = {each.name: default(each) for each in fields if each.name not in common}
    assert doctables.rows(SECTIONS[name], "| Option |") == own


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_examples_are_right(name: str, example: str) -> None:
    problems = Problems()
    for what, options in yaml.safe_load(example).get("connectors", {}).items():
        connector_spec(what, options.pop("type"), options, what, problems)
    assert problems.found == []

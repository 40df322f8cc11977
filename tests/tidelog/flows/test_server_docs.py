"""docs/flows-connectors.md, connectors on servers and those that need nothing else: tables, examples, completeness."""

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
from tidelog.flows.connectors.builtin.script import Act
from tidelog.flows.connectors.payload import PayloadOptions
from tidelog.flows.declare import connector_spec
from tidelog.options.structs import Problems
from tidelog.options.units import Duration, Size

TEXT = (Path(__file__).parents[3] / "docs" / "flows-connectors.md").read_text()
SECTIONS = {
    found[1]: found[2] for found in re.finditer(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
}
OURS = (
    "stream", "wal", "dead_letters", "redis_pubsub", "redis_list", "redis_stream", "kafka", "cron", "metronome", "null",
    "fault", "script",
)  # fmt: skip
REQUIRED = {"key", "topic", "schedule"}  # some are required by a check, because one half of a connector needs them


def default(name: str, field: Any) -> set[str]:
    """As the docs may write it."""
    if field.required:
        return {"required"}
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    if value is None:
        return {"none"}
    if isinstance(value, Duration):
        return {f"`{value:g}s`"}
    if isinstance(value, Size):
        return {f"`{value >> 20}MB`"}
    if value == "":
        return {"required"} if name in REQUIRED else {'`""`'}
    return {f"`{value}`"} if isinstance(value, str) else {f"`{msgspec.json.encode(value).decode()}`"}


@pytest.mark.parametrize("name", OURS)
def test_the_table_has_every_option_with_its_default(name: str) -> None:
    options = registry.connector(name).Options
    common = PayloadOptions if issubclass(options, PayloadOptions) else ConnectorOptions
    others = {each.name for each in msgspec.structs.fields(common)}
    own = {each.name: default(each.name, each) for each in msgspec.structs.fields(options) if each.name not in others}
    found = doctables.rows(SECTIONS[name], "| Option |")
    assert set(found) == set(own)
    assert {option: value for option, value in found.items() if value not in own[option]} == {}


@pytest.mark.parametrize("name", OURS)
def test_examples_are_right(name: str) -> None:
    problems = Problems()
    for example in re.findall(r"^```yaml\n(.*?)^```$", SECTIONS[name], re.MULTILINE | re.DOTALL):
        for what, options in yaml.safe_load(example)["connectors"].items():
            connector_spec(what, options.pop("type"), options, what, problems)
    assert problems.found == []


def test_every_connector_and_operator_is_there() -> None:
    headings = set(re.findall(r"^##+ `?(\w+)`?$", TEXT, re.MULTILINE))
    assert set(registry.CONNECTORS) - headings == set()
    operators = (Path(__file__).parents[3] / "docs" / "flows-operators.md").read_text()
    assert set(registry.OPERATORS) - set(re.findall(r"^## `(\w+)`$", operators, re.MULTILINE)) == set()


def test_every_act_of_the_script_is_there() -> None:
    assert set(doctables.rows(SECTIONS["script"], "| `act` | what")) == set(get_args(Act))

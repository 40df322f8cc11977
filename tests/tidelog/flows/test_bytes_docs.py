"""docs/flows-connectors.md: its tables name every option, codec and interceptor of connectors that carry bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tidelog import doctables
from tidelog.flows import registry
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.codecs.base import CODECS
from tidelog.flows.components import find
from tidelog.flows.connectors.payload import PayloadOptions
from tidelog.flows.connectors.sockets.tcp import TcpClientOptions
from tidelog.flows.connectors.sockets.udp import UdpOptions
from tidelog.flows.interceptors.base import POSTPROCESSORS, PREPROCESSORS
from tidelog.options.units import Duration, Size

TEXT = (Path(__file__).parents[3] / "docs" / "flows-connectors.md").read_text()


def _options(kind: Any) -> dict[str, Any]:
    """By name, the default; ``...`` where there is none."""
    made: dict[str, Any] = {}
    for each in msgspec.structs.fields(kind):
        if each.required:
            made[each.name] = ...
        elif each.default_factory is not msgspec.NODEFAULT:
            made[each.name] = each.default_factory()
        else:
            made[each.name] = each.default
    return made


def _agrees(told: str, default: Any) -> bool:
    given = re.findall(r"`([^`]+)`", told)
    if default is ... or default is None or default == []:
        return told.strip() == ("required" if default is ... else "none")
    if isinstance(default, bool):
        return given == [str(default).lower()]
    if isinstance(default, Duration):
        return Duration.read(given[0]) == default
    if isinstance(default, Size):
        return Size.read(given[0]) == default
    if isinstance(default, (str, int)):
        return given == [str(default)]
    return given == ["{retry: {}}"]


def _check(title: str, kind: Any, without: Any) -> None:
    rows = doctables.rows(TEXT, title)
    inherited = {} if without is None else _options(without)
    own = {name: default for name, default in _options(kind).items() if name not in inherited}
    changed = {"codec"} if kind.__name__ == "StdioOptions" else set()
    assert set(rows) == set(own) | changed
    for name, told in rows.items():
        assert _agrees(told, _options(kind)[name]), (name, told)


def test_options_of_all() -> None:
    _check("## Options of connectors that carry bytes", PayloadOptions, ConnectorOptions)


@pytest.mark.parametrize("name", ["stdio", "file", "tcp_client", "tcp_server", "udp_server", "exit"])
def test_options_of_each(name: str) -> None:
    base = {"exit": ConnectorOptions, "tcp_server": TcpClientOptions}.get(name, PayloadOptions)
    _check(f"\n## {name}\n", registry.connector(name).Options, base)


def test_udp_client_has_no_table() -> None:
    assert set(_options(UdpOptions)) - set(_options(PayloadOptions)) == {"host", "port"}
    assert "A sink with `host` and `port`." in TEXT


@pytest.mark.parametrize(
    ("title", "known"),
    [("| codec |", CODECS), ("| preprocessor |", PREPROCESSORS), ("| postprocessor |", POSTPROCESSORS)],
)
def test_codecs_and_interceptors(title: str, known: dict[str, str]) -> None:
    table = TEXT[TEXT.index(title) :].split("\n\n")[0].splitlines()[2:]
    told: dict[str, set[str]] = {}
    for line in table:
        names, _, options = line.strip("|").rsplit("|", 2)
        words = set(re.findall(r"`([a-z_]+)`", options))
        told |= dict.fromkeys(re.findall(r"`([^`]+)`", names), words)
    assert set(told) == set(known)
    for name in known:
        kind, _ = find("thing", known, name)
        assert set(_options(kind.Options)) <= told[name], name


def test_every_connector_of_this_page_is_known() -> None:
    for name in ("stdio", "file", "tcp_client", "tcp_server", "udp_server", "udp_client", "exit"):
        assert registry.connector(name).type == name

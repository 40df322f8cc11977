"""A flow as a graph of entities and channels, as plain values and in Mermaid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.runtime.graph import Graph, build
from tidelog.flows.spec import FlowSpec


async def of_spec(spec: FlowSpec) -> dict[str, Any]:
    """Return the graph of a flow that does not run."""
    return of_graph(spec, build(spec, FlowContext(spec.name, spec.server)))


def of_graph(spec: FlowSpec, graph: Graph) -> dict[str, Any]:
    """Return the graph. ``entities``: name, kind (source, operator, sink), type, and the pipeline of an operator.
    ``channels``: from, port, to.
    """
    entities: list[dict[str, Any]] = []
    for kind, nodes in (("source", graph.sources), ("sink", graph.sinks)):
        entities += [{"name": name, "kind": kind, "type": spec.connectors[name].type} for name in nodes]
    for pipeline, line in graph.operators.items():
        for node, each in zip(line, spec.pipelines[pipeline].operators, strict=True):
            entities.append({"name": node.name, "kind": "operator", "type": each.type, "pipeline": pipeline})
    channels = [
        {
            "from": each.producer.name, "from_kind": each.producer.kind, "port": each.port, "to": each.consumer.name,
            "to_kind": each.consumer.kind, "authoritative": each.authoritative,
        }
        for each in graph.channels
    ]  # fmt: skip
    return {"alias": spec.name, "entities": entities, "channels": channels}


def mermaid(picture: Mapping[str, Any]) -> str:
    """Return the graph as a Mermaid flowchart. A dotted arrow leads to a sink whose outcome is ignored."""
    lines = ["flowchart LR"]
    pipelines: dict[str, list[Mapping[str, Any]]] = {}
    for each in picture["entities"]:
        if each["kind"] == "operator":
            pipelines.setdefault(each["pipeline"], []).append(each)
    connectors = {each["name"]: each["type"] for each in picture["entities"] if each["kind"] != "operator"}
    lines += [f'    {_id(name)}(["{_text(name)}<br>{_text(kind)}"])' for name, kind in connectors.items()]
    for name, operators in pipelines.items():
        lines.append(f'    subgraph {_id("pipeline", name)}["{_text(name)}"]')
        lines += [f'        {_id(each["name"])}["{_text(each["type"])}"]' for each in operators]
        lines.append("    end")
    for each in picture["channels"]:
        arrow = "-->" if each["authoritative"] else "-.->"
        label = "" if each["port"] == "out" else f"|{_text(each['port'])}|"
        lines.append(f"    {_id(each['from'])} {arrow}{label} {_id(each['to'])}")
    return "\n".join(lines) + "\n"


def _id(*parts: str) -> str:
    """Return an ID that is not a keyword of Mermaid, such as ``end``."""
    return "n_" + re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}_", "_".join(parts))


def _text(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace("|", "&#124;")

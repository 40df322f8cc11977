"""The state of flows as plain values, which are the response bodies of the HTTP API.

A name can refer to several instances. Their status is the worst status, and their counters are added.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import yaml

import tidelog
from tidelog.flows.api.signals import PAUSED
from tidelog.flows.files import diagram
from tidelog.flows.runtime.node import FlowNode
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.service import streamgroups
from tidelog.flows.service.history import FlowHistory, backlog, rates, totals
from tidelog.flows.service.host import DeployedFlow, FlowHost, worst
from tidelog.flows.spec import Edge, FlowSpec
from tidelog.operating.redaction import HIDDEN, is_secret, redacted


def version() -> dict[str, Any]:
    return {"version": tidelog.__version__, "debug": False}


def status(host: FlowHost) -> dict[str, Any]:
    """Return the number of flows by status. ``all_running``: all are running, and the desired state is known."""
    counts = dict(Counter(each.status for each in host.flows.values()))
    well = set(counts) <= {"running"} and not host.problem
    return {"all_running": well, "num_flows": len(host.flows), "flows": counts}


def flow(deployed: DeployedFlow, alias: str, host: FlowHost | None = None) -> dict[str, Any]:
    """Return the state of a flow. ``alias``: its name, or the alias of an instance."""
    problem = "" if host is None else host.problem
    chosen = deployed.chosen(alias)
    spec = deployed.spec
    under_way = unsettled(chosen)
    return {
        "alias": alias,
        "status": worst(each.status for each in chosen),
        "connectors": list(spec.connectors),
        "pipelines": list(spec.pipelines),
        "instances": [{"alias": each.alias, "status": each.status} for each in chosen],
        "unsettled": under_way["count"],
        "from": deployed.by,
        "error": next((each.error for each in chosen if each.error), "") if chosen or not problem
        else f"not started yet: {problem}",
        "dead_letters": None if spec.server is None else streamgroups.dead_letter_topic(spec),
        "blocked": [] if host is None else blocked(host, [each.alias for each in chosen]),
    }  # fmt: skip


def overview(deployed: DeployedFlow, history: FlowHistory) -> dict[str, Any]:
    """Return the figures of a flow for a list of all flows. ``rates``: events per second in the last samples."""
    chosen = deployed.instances
    recent = history.recent(deployed.name)
    last = recent[-1] if recent else None
    total = totals(chosen)
    under_way = unsettled(chosen)
    held = [
        {"source": one["source"], **one["reasons"][0]}
        for each in breaker(deployed, deployed.name)["instances"] for one in each["sources"] if one["reasons"]
    ] if chosen else []  # fmt: skip
    return {
        "alias": deployed.name,
        "status": deployed.status,
        "error": next((each.error for each in chosen if each.error), ""),
        **total._asdict(),
        "unsettled": under_way["count"],
        "oldest_s": under_way["oldest_s"],
        "lag": None if last is None else last.lag,
        "backlog": backlog(chosen),
        "p99_ms": None if last is None else last.p99_ms,
        "reasons": held,
        "rates": rates(recent[-60:]),
    }


def declaration(deployed: DeployedFlow) -> str | None:
    """Return the declaration of a flow in YAML, without secrets; None if it was declared in Python."""
    if deployed.given is None:
        return None
    plain = without_secrets(_plain(deployed.given))
    return yaml.safe_dump({"flows": {deployed.name: plain}}, sort_keys=False, allow_unicode=True, width=100)


def blocked(host: FlowHost, aliases: Collection[str]) -> list[dict[str, Any]]:
    """Return the Python functions of these instances that blocked the process, latest first."""
    found = [each for each in tuple(host.watchdog.blocked.values()) if each.times and each.call.flow in aliases]
    return [each.shown() for each in sorted(found, key=lambda each: each.last, reverse=True)]


def connector(deployed: DeployedFlow, alias: str, name: str) -> dict[str, Any]:
    """Return a connector, in the form of Tremor's API with extensions."""
    chosen = deployed.chosen(alias)
    spec = deployed.spec.connectors[name]
    statuses = [_connector_status(each, name) for each in chosen]
    graphs = [each.graph for each in chosen]
    connections = [each.connections[name] for each in graphs if name in each.connections]
    sources = [each.sources[name] for each in graphs if name in each.sources]
    sinks = [each.sinks[name] for each in graphs if name in each.sinks]
    return {
        "alias": name,
        "status": worst(statuses),
        "connectivity": "connected" if connections and all(each.connected for each in connections) else "disconnected",
        "pipelines": _neighbours(deployed.spec, name),
        "type": spec.type,
        "source": bool(sources),
        "sink": bool(sinks),
        "authoritative": spec.options.authoritative,
        "error": redacted(
            next((each.error for each in connections if each.error and not each.connected), "")
            or next((each.error_text for each in sinks if each.error_text), "")
        ),
        "connects": sum(each.connects for each in connections),
        "counts": {"source": _summed(sources), "sink": _summed(sinks)},
        "described": [dict(each.graph.connectors[name].context.described) for each in chosen if each.graph.connectors],
        "options": without_secrets(_plain(spec.given)),
        "instances": [
            {"alias": each.alias, "status": found} for each, found in zip(chosen, statuses, strict=True)
        ],
    }  # fmt: skip


def _connector_status(running: RunningFlow, name: str) -> str:
    connection = running.graph.connections.get(name)
    source, sink = running.graph.sources.get(name), running.graph.sinks.get(name)
    if connection is not None and connection.failed:
        return "failed"
    if running.ended or running.status == "draining":
        return running.status
    own = (f"{PAUSED}:api", f"{PAUSED}:{name}")  # a paused sink below does not make this connector paused
    held = source is not None and any(each.reason in own for each in source.breaker.reasons)
    if held or (sink is not None and sink.paused):
        return PAUSED
    return "running" if connection is not None and connection.connected else "initializing"


def _neighbours(spec: FlowSpec, name: str) -> dict[str, list[dict[str, str]]]:
    """Return the neighbors of a connector by its port: a pipeline or connector, and the port there."""
    found: dict[str, list[dict[str, str]]] = {}
    for link in spec.edges:
        if link.source == name:
            found.setdefault(link.port, []).append({"alias": link.target, "port": "in"})
        if link.target == name:
            found.setdefault("in", []).append({"alias": link.source, "port": _port(link)})
    return found


def _port(link: Edge) -> str:
    return link.port if link.place is None else f"{link.place}.{link.port}"


def breaker(deployed: DeployedFlow, alias: str) -> dict[str, Any]:
    """Return the reasons for which each source of each instance does not send. A source without reasons may send."""
    instances: list[dict[str, Any]] = []
    moves = True
    now = asyncio.get_running_loop().time()
    for each in deployed.chosen(alias):
        sources = [
            {
                "source": name,
                "open": not reasons,
                "reasons": [
                    {"reason": one.reason, "since_s": round(max(0.0, now - one.since), 3) if one.since else None,
                     "detail": redacted(one.detail)}
                    for one in reasons
                ],
            }
            for name, reasons in each.reasons().items()
        ]  # fmt: skip
        moves = moves and all(one["open"] for one in sources)
        instances.append({"alias": each.alias, "status": each.status, "error": each.error, "sources": sources})
    return {"alias": alias, "moves": moves, "instances": instances}


def unsettled(chosen: Sequence[RunningFlow]) -> dict[str, Any]:
    """Return the number of events in flight, the age of the oldest in seconds, and their positions. ``stored``: events
    that are not in flight yet.
    """
    count, oldest, where, stored = 0, None, Counter[str](), Counter[str]()
    for each in chosen:
        one = each.unsettled()
        count += one.count
        if one.oldest is not None:
            oldest = max(oldest or 0.0, round(one.oldest, 3))
        where.update(one.where)
        stored.update(one.stored)
    found = {"count": count, "oldest_s": oldest, "where": dict(where)}
    return {**found, "stored": dict(stored)} if stored else found


def pipeline(deployed: DeployedFlow, alias: str, name: str) -> dict[str, Any]:
    """Return a pipeline: its operators in order, its connections, and its graph in Mermaid."""
    chosen = deployed.chosen(alias)
    operators = []
    for place, each in enumerate(deployed.spec.pipelines[name].operators):
        nodes = [one.graph.operators[name][place] for one in chosen]
        operators.append({
            "name": f"{name}.{place}", "type": each.type, "ports": ["out", "err", *each.ports],
            "options": without_secrets(_plain(each.given)), "counts": _summed(nodes),
            "kept": sum(node.operator.kept() for node in nodes), "waiting": sum(_waiting(node) for node in nodes),
        })  # fmt: skip
    whole = graph(deployed, alias)
    own = {each["name"] for each in whole["entities"] if each.get("pipeline") == name}
    channels = [each for each in whole["channels"] if each["from"] in own or each["to"] in own]
    ends = own | {each[end] for each in channels for end in ("from", "to")}
    part = {**whole, "entities": [each for each in whole["entities"] if each["name"] in ends], "channels": channels}
    return {"alias": name, "operators": operators, "channels": channels, "mermaid": diagram.mermaid(part)}


def graph(deployed: DeployedFlow, alias: str) -> dict[str, Any]:
    """Return all entities and channels with their counters, for drawing."""
    chosen = deployed.chosen(alias)
    found = diagram.of_graph(deployed.spec, chosen[0].graph)
    for place, each in enumerate(found["channels"]):
        same = [one.graph.channels[place] for one in chosen]
        each["name"] = same[0].name
        each["events"] = sum(one.passed for one in same)
        each["waiting"] = sum(one.events for one in same)
        each["batches"] = sum(len(one.items) for one in same)
        each["capacity"] = sum(one.capacity for one in same)
        each["dropped"] = sum(one.dropped for one in same)
    for entity in found["entities"]:
        wanted = (entity["name"], entity["kind"])
        nodes = [node for one in chosen for node in one.graph.nodes if (node.name, node.kind) == wanted]
        entity["counts"] = _summed(nodes)
        entity["waiting"] = sum(_waiting(node) for node in nodes)
    return {**found, "alias": alias}


def not_ready(host: FlowHost) -> list[str]:
    """Return the reasons for which the process is not ready, one line each."""
    found = [host.problem] if host.problem else []
    for deployed in host.flows.values():
        if not deployed.instances:
            found.append(f"{deployed.name}: not started yet")
        for each in deployed.instances:
            if each.status == "failed":
                found.append(f"{each.alias}: failed: {each.error}")
            elif each.status == "initializing":
                found += [f"{each.alias}: {one}" for one in _starting(each)]
    return found


def _starting(running: RunningFlow) -> list[str]:
    found = []
    for name, connection in running.graph.connections.items():
        if not connection.connects:
            why = connection.error or "no reply yet"
            found.append(f"{name} ({running.spec.connectors[name].type}) is not connected: {why}")
    return found or ["initializing"]


def _summed(nodes: Iterable[FlowNode]) -> dict[str, int]:
    found = Counter[str]()
    for node in nodes:
        found.update(node.counts)
    return dict(found)


def _waiting(node: FlowNode) -> int:
    return sum(each.events for each in node.inputs) + node.held


def _plain(given: Any) -> Any:
    """Options as they were declared, with Python functions as names."""
    if callable(given):
        return f"{getattr(given, '__module__', '?')}:{getattr(given, '__qualname__', repr(given))}"
    if isinstance(given, dict):
        return {name: _plain(each) for name, each in given.items()}
    if isinstance(given, (list, tuple)):
        return [_plain(each) for each in given]
    if isinstance(given, str):
        return str(given)  # without the FromEnvironment mark
    return given if isinstance(given, (int, float, bool, type(None))) else repr(given)


def without_secrets(given: Any, name: str = "") -> Any:
    """Return options without passwords and tokens, in URLs and under names of secrets."""
    secret = is_secret(name) or name in ("environment", "storage_options")
    if isinstance(given, dict):
        return {key: without_secrets(each, name if secret else str(key)) for key, each in given.items()}
    if isinstance(given, (list, tuple)):
        return [without_secrets(each, name) for each in given]
    if secret and given not in (None, False, True):
        return HIDDEN
    return redacted(given) if isinstance(given, str) else given

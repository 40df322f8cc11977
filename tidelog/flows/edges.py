"""The edges between connectors and pipelines: parsing and validation.

    in -> enrich -> search          a chain
    enrich.err -> dead_letters      with a port; the default is out
    enrich.2.overflow -> seen       a port of one operator, by its position
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from tidelog.flows.spec import ConnectorSpec, Edge, PipelineSpec
from tidelog.options.structs import Problems, nearest

NAME_RULE: Final = "it must have 1 to 100 letters, digits, - and _, and begin with a letter"
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
MOST: Final = 500  # maximum number of elements in a chain
SHOWN: Final = 200  # characters of a chain in an error text
_END: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)(?:\.(\d+))?(?:\.([A-Za-z_][A-Za-z0-9_-]*))?")


def parse(text: str, path: str, problems: Problems) -> list[Edge]:
    """Parse a chain such as ``a -> b.port -> c``."""
    ends = [each.strip() for each in text.split("->", MOST)]
    if len(ends) > MOST:
        problems.add(path, f"a chain can have at most {MOST} elements")
        return []
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    if len(ends) < 2:
        problems.add(path, f"{text!r} is not a chain such as source -> target")
        return []
    found = []
    for left, right in pairwise(ends):
        source, target = _END.fullmatch(left), _END.fullmatch(right)
        if source is None or target is None:
            bad = left if source is None else right
            problems.add(path, f"{bad[:SHOWN]!r} in {text!r} is not a name, name.port or name.position.port")
        elif target[2] or (target[3] and target[3] != "in"):
            whole = "the target must be a connector or pipeline without a port"
            problems.add(path, f"{right[:SHOWN]!r} in {text!r}: {whole}")
        else:
            found.append(Edge(source[1], source[3] or "out", target[1], int(source[2]) if source[2] else None))
    return found


def check_port(name: str, option: str, *reserved: str) -> None:
    """Raise ValueError if an operator can't have a port of this name: it is not valid, is in or err, or is reserved."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{option}: {name[:SHOWN]!r} is not a valid name of a port: {NAME_RULE}")
    names = ("in", "err", *reserved)
    if name in names:
        raise ValueError(f"{option}: the port can't be named {name!r}: choose a name other than {', '.join(names)}")


def check(
    edges: Iterable[tuple[Edge, str]],
    connectors: Mapping[str, ConnectorSpec],
    pipelines: Mapping[str, PipelineSpec],
    path: str,
    problems: Problems,
    *,
    settle: bool,
) -> None:
    """Validate names, ports, directions, cycles and dead ends. ``links`` contains the path of each edge."""
    known = [*connectors, *pipelines]
    good = []
    for link, at in edges:
        missing = [each for each in (link.source, link.target) if each not in known]
        for name in missing:
            problems.unknown(at, f"there is no connector or pipeline {name!r}", name, known)
        if not missing and _ports(link, at, connectors, pipelines, problems):
            good.append(link)
    _circle(good, connectors, path, problems)
    lefts = {each.source for each, _ in edges}
    rights = {each.target for each, _ in edges}
    for name in pipelines:
        if name not in rights:
            problems.add(f"{path}.pipelines.{name}", f"no edge leads to the pipeline {name!r}")
        out = {each.port for each, _ in edges if each.source == name}
        operators = pipelines[name].operators
        named = {port for each in operators for port in each.ports if port not in ("overflow", *each.required)}
        required = operators and operators[-1].required  # checked in _operators
        if settle and not required and not out & {"out", *named}:
            problems.add(
                f"{path}.pipelines.{name}",
                f"{name}.out is not connected, so events would be settled without reaching a sink; connect it to a"
                " connector, such as null",
            )
        _operators(name, pipelines[name], edges, path, problems)
    for name in connectors:
        if name not in lefts | rights:
            problems.add(f"{path}.connectors.{name}", f"the connector {name!r} is not connected")


def _operators(
    name: str, pipeline: PipelineSpec, edges: Iterable[tuple[Edge, str]], path: str, problems: Problems
) -> None:
    """Check that required ports are connected, and that no operator follows one that does not emit on ``out``."""
    for place, operator in enumerate(pipeline.operators):
        at = f"{path}.pipelines.{name}[{place}]"
        if operator.last and place + 1 < len(pipeline.operators):
            ports = ", ".join(operator.ports)
            problems.add(at, f"{operator.type} must be the last operator: it emits events on {ports}, and not on out")
        for port in operator.required:
            if port == "out" and place + 1 < len(pipeline.operators):
                continue  # it leads to the next operator
            ways = [each.place for each, _ in edges if (each.source, each.port) == (name, port)]
            if None not in ways and place not in ways:
                remedy = f"connect {name}.{port}, to null if its events are to be discarded"
                problems.add(at, f"the port {port!r} of {operator.type} is not connected: {remedy}")


def _ports(
    link: Edge,
    at: str,
    connectors: Mapping[str, ConnectorSpec],
    pipelines: Mapping[str, PipelineSpec],
    problems: Problems,
) -> bool:
    good = True
    source, target = connectors.get(link.source), connectors.get(link.target)
    if target is not None and not target.is_sink:
        text = f"events can't be written to {link.target!r}: connectors of type {target.type} are only sources"
        problems.add(at, text)
        good = False
    if source is not None:
        ports = ("out", "err", "responses") if source.is_source and source.is_sink else ("out", "err")
        if link.place is not None or link.port not in ports:
            text = f"the connector {link.source!r} has no port {link.port!r}: it has {', '.join(ports)}"
            problems.add(at, text)
            good = False
        return good
    operators = pipelines[link.source].operators
    if link.place is not None and link.place >= len(operators):
        text = f"the pipeline {link.source!r} has {len(operators)} operators, numbered from 0: there is no {link.place}"
        problems.add(at, text)
        return False
    chosen = operators if link.place is None else operators[link.place : link.place + 1]
    known = {"out", "err", *(port for each in chosen for port in each.ports)}
    if link.port == "out" and chosen and chosen[-1].last:
        names = ", ".join(chosen[-1].ports)
        problems.add(at, f"{chosen[-1].type} emits no events on {link.source}.out: connect its ports: {names}")
        return False
    if link.port not in known:
        problems.add(at, f"the pipeline {link.source!r} has no port {link.port!r}; {nearest(link.port, known)}")
        return False
    return good


def _circle(edges: Iterable[Edge], connectors: Mapping[str, ConnectorSpec], path: str, problems: Problems) -> None:
    """Find cycles of pipelines and sinks with responses. The source and the sink of a connector are separate vertices.
    """
    answering = {name: f"{name}.responses" if each.is_source else name for name, each in connectors.items()}
    ways: dict[str, list[str]] = {}
    for each in edges:
        one = connectors.get(each.source)
        if one is None or not one.is_source or each.port == "responses":
            source = answering.get(each.source, each.source)
            ways.setdefault(source, []).append(answering.get(each.target, each.target))
    state: dict[str, int] = {}  # 1: on the current path, 2: done

    def visit(name: str, way: list[str]) -> None:
        state[name] = 1
        for follower in ways.get(name, ()):
            if state.get(follower) == 1:
                circle = [*way[way.index(follower) :], follower] if follower in way else [name, follower]
                problems.add(f"{path}.connect", f"a cycle: {' -> '.join(circle)}")
            elif follower not in state:
                visit(follower, [*way, follower])
        state[name] = 2

    for name in list(ways):
        if name not in state:
            visit(name, [name])

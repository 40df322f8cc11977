"""Builds entities and channels from a declaration.

The breaker of a source initially has the reason ``starting:<sink>`` for each authoritative sink that the source can
reach, until the sink is connected. An operator that guards its outputs receives the ``starting`` reasons of the sinks
behind it, and the sources above receive that of the operator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from tidelog.flows.api.connector import Connector, Sink, Source
from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.signals import STARTING, Trigger
from tidelog.flows.runtime.channel import EventChannel
from tidelog.flows.runtime.connection import ConnectorConnection
from tidelog.flows.runtime.node import FlowNode
from tidelog.flows.runtime.operatornode import OperatorNode
from tidelog.flows.runtime.sinknode import SinkNode
from tidelog.flows.runtime.sourcenode import SourceNode
from tidelog.flows.spec import ConnectorSpec, Edge, FlowSpec

RESPONSES = "responses"  # the port of a connector that is both a source and a sink


@dataclass
class Graph:
    """The entities of one running flow."""

    sources: dict[str, SourceNode] = field(default_factory=dict)  # by connector
    sinks: dict[str, SinkNode] = field(default_factory=dict)  # by connector
    operators: dict[str, list[OperatorNode]] = field(default_factory=dict)  # by pipeline
    connectors: dict[str, Connector] = field(default_factory=dict)
    connections: dict[str, ConnectorConnection] = field(default_factory=dict)
    channels: list[EventChannel] = field(default_factory=list)

    @property
    def nodes(self) -> list[FlowNode]:
        """The entities in the order in which they start: sinks, operators, sources."""
        operators = (each for line in self.operators.values() for each in line)
        return [*self.sinks.values(), *operators, *self.sources.values()]


def build(spec: FlowSpec, context: FlowContext) -> Graph:
    """Build the entities of a valid declaration, without starting them."""
    graph = Graph()
    lefts = {each.source for each in spec.edges}
    rights = {each.target for each in spec.edges}
    for name, one in spec.connectors.items():
        if name in lefts or name in rights:
            _connector(graph, one, context, spec, as_source=name in lefts, as_sink=name in rights)
    for name, pipeline in spec.pipelines.items():
        line = [OperatorNode(f"{name}.{place}", each.make(), context) for place, each in enumerate(pipeline.operators)]
        graph.operators[name] = line
        for producer, consumer in pairwise(line):
            _connect(graph, producer, "out", consumer, context)
    for link in spec.edges:
        target: FlowNode = (
            graph.sinks[link.target] if link.target in spec.connectors else graph.operators[link.target][0]
        )
        for left, port in _producers(graph, spec, link):
            _connect(graph, left, port, target, context)
    for source in graph.sources.values():
        _starting(source, context)
    return graph


def _connector(
    graph: Graph, one: ConnectorSpec, context: FlowContext, spec: FlowSpec, *, as_source: bool, as_sink: bool
) -> None:
    made = one.make()
    options = one.options
    made.context = own = ConnectorContext(one.name, context)
    retry = None if options.reconnect == "none" else options.reconnect.retry
    connection = ConnectorConnection(one.name, made, retry, context)
    graph.connectors[one.name] = made
    graph.connections[one.name] = connection
    if as_sink and isinstance(made, Sink):
        sink = SinkNode(one.name, made, connection, context, options.timeout)
        sink.authoritative = options.authoritative
        own.sink = graph.sinks[one.name] = sink
        if options.paused:
            sink.pause(one.name)
    if as_source and isinstance(made, Source):
        source = SourceNode(one.name, made, connection, context, options, settles=spec.settle)
        own.source = graph.sources[one.name] = source
        if options.paused:
            source.pause(one.name)


def _producers(graph: Graph, spec: FlowSpec, link: Edge) -> list[tuple[FlowNode, str]]:
    if link.source in spec.connectors:
        sink, source = graph.sinks.get(link.source), graph.sources.get(link.source)
        if source is None or link.port == RESPONSES:
            assert sink is not None  # noqa: S101 - the declaration was validated
            return [(sink, "out" if link.port == RESPONSES else link.port)]
        return [(source, link.port)]
    line = graph.operators[link.source]
    if link.place is not None:
        return [(line[link.place], link.port)]
    if link.port == "out":
        return [(line[-1], "out")]
    if link.port == "err":
        return [(each, "err") for each in line]
    return [(each, link.port) for each in line if link.port in each.operator.ports()]


def _connect(graph: Graph, producer: FlowNode, port: str, consumer: FlowNode, context: FlowContext) -> None:
    authoritative = not isinstance(consumer, SinkNode) or consumer.authoritative
    channel = EventChannel(producer, port, consumer, context.queue, authoritative)
    producer.outputs.setdefault(port, []).append(channel)
    consumer.inputs.append(channel)
    graph.channels.append(channel)


def _starting(source: SourceNode, context: FlowContext) -> None:
    for _, trigger in _reached(source, context, set()):
        source.breaker.trigger(trigger, 0.0)


def _reached(node: FlowNode, context: FlowContext, seen: set[int]) -> list[tuple[str, Trigger]]:
    """Return the initial reasons behind a node, each with the node's port."""
    found = []
    guards = isinstance(node, OperatorNode) and node.operator.guards
    for port, channels in node.outputs.items():
        if guards:  # a reason behind two ports applies to both
            seen = set()
        for channel in channels:
            consumer = channel.consumer
            reason = f"{STARTING}:{consumer.name}"
            if isinstance(consumer, SinkNode):
                if not consumer.authoritative:
                    continue
                consumer.active.setdefault(reason, Trigger(reason, context.version()))
                behind = list(consumer.active.values())  # starting, and paused if the sink is paused initially
            elif isinstance(consumer, OperatorNode) and consumer.operator.guards:
                if reason not in consumer.active:
                    consumer.active[reason] = Trigger(reason, context.version())
                passed = _reached(consumer, context, set())
                behind = [each for own, each in passed if not consumer.operator.breaker(each, own)]
                behind.append(consumer.active[reason])
            elif id(consumer) in seen or not isinstance(consumer, FlowNode):
                continue
            else:
                seen.add(id(consumer))
                behind = [trigger for _, trigger in _reached(consumer, context, seen)]
            found += [(port, each) for each in behind]
    return found

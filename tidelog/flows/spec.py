"""``FlowSpec``: a validated flow, from files or from Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tidelog.flows.api.connector import Connector
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.operator import Operator

ConnectorClass: TypeAlias = type[Connector]


@dataclass(frozen=True)
class ConnectorSpec:
    """A connector of a flow."""

    name: str
    type: str  # as in files; "python" if it was declared in Python
    make: Callable[[], Connector]  # called once for each instance
    options: ConnectorOptions
    is_source: bool
    is_sink: bool
    given: dict[str, Any] = field(default_factory=dict)  # the options as they were declared, for the API
    kind: ConnectorClass | None = None  # the class of ``type``, which checks its options; None: declared in Python


@dataclass(frozen=True)
class OperatorSpec:
    """An operator at its position in a pipeline."""

    type: str
    make: Callable[[], Operator]
    ports: tuple[str, ...]  # in addition to out and err
    guards: bool
    given: Any = None
    required: tuple[str, ...] = ()  # ports that must be connected
    needs_server: bool = False
    last: bool = False  # emits nothing on out


@dataclass(frozen=True)
class PipelineSpec:
    """A sequence of operators."""

    name: str
    operators: tuple[OperatorSpec, ...]  # at least one


@dataclass(frozen=True)
class Edge:
    """An edge from a port to a connector or a pipeline."""

    source: str  # a connector or a pipeline
    port: str
    target: str
    place: int | None = None  # position of the operator with this port; None: all operators that have it


@dataclass(frozen=True)
class FlowSpec:
    """A flow."""

    name: str
    connectors: dict[str, ConnectorSpec]
    pipelines: dict[str, PipelineSpec]
    edges: tuple[Edge, ...]
    instances: int = 1
    paused: bool = False  # initially
    queue: int = 128  # capacity of each channel in batches
    settle: bool = True  # False: events have no tokens, and nothing is guaranteed
    debug: bool = False
    drain_timeout: float = 30.0  # s
    server: str | None = None  # URL of the tidelog server

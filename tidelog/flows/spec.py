"""A flow as it was declared, checked: what files and Python end in, and what is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidelog.flows.api.connector import Connector
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.operator import Operator


@dataclass(frozen=True)
class ConnectorSpec:
    """A connector of a flow."""

    name: str
    type: str  # as in files; "python" for one made in Python
    make: Callable[[], Connector]  # once for each instance
    options: ConnectorOptions
    is_source: bool
    is_sink: bool
    given: dict[str, Any] = field(default_factory=dict)  # the options as they were given, for the API


@dataclass(frozen=True)
class OperatorSpec:
    """An operator at its place in a pipeline."""

    type: str
    make: Callable[[], Operator]
    ports: tuple[str, ...]  # besides out and err
    guards: bool
    given: Any = None
    required: tuple[str, ...] = ()  # ports that must lead somewhere
    needs_server: bool = False
    last: bool = False  # nothing leaves by out


@dataclass(frozen=True)
class PipelineSpec:
    """A line of operators."""

    name: str
    operators: tuple[OperatorSpec, ...]  # at least one


@dataclass(frozen=True)
class Edge:
    """From a port to a connector or a pipeline."""

    source: str  # a connector, a pipeline
    port: str
    target: str
    place: int | None = None  # of the operator in the pipeline whose port it is; None: all that have it


@dataclass(frozen=True)
class FlowSpec:
    """A flow."""

    name: str
    connectors: dict[str, ConnectorSpec]
    pipelines: dict[str, PipelineSpec]
    edges: tuple[Edge, ...]
    instances: int = 1
    paused: bool = False  # from the beginning
    queue: int = 128  # batches in each channel
    settle: bool = True  # False: events have no tokens, nothing is guaranteed
    debug: bool = False
    drain_timeout: float = 30.0  # s
    server: str | None = None  # URL of the tidelog server

"""Flows: events in through connectors, through pipelines of operators, out through connectors, and what became of each
event back along the way it came.

    declare      ``Flow``, ``op``: a flow made in Python
    links        connections between connectors and pipelines, and what is wrong with them
    options      options of connectors and operators: read, checked, all problems at once
    named        codecs and interceptors by name
    registry     types of connectors and operators by name
    spec         a flow as it was declared, checked
    serveraccess  the tidelog server, for connectors and operators
    api/         events, tokens, ``Source``, ``Sink``, ``Operator``
    runtime/     entities, channels, contraflow, the breaker, a running flow
    connectors/  sources and sinks
    operators/   what pipelines are made of
    codecs/      bytes as values
    interceptors/  bytes as messages
    files/       flows in YAML
    service/     flows of one process: deployed, replaced, steered over HTTP, seen on a page
    testing/     a pipeline in a test, with a clock that is moved by hand
"""

from tidelog.flows.api.errors import FlowError, FlowFileError, RejectError, RetryError
from tidelog.flows.api.event import Event
from tidelog.flows.declare import Flow, Op, op
from tidelog.flows.operators.userfunctions import operator

__all__ = ["Event", "Flow", "FlowError", "FlowFileError", "Op", "RejectError", "RetryError", "op", "operator"]

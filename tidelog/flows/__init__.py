"""Flows: events pass from sources through pipelines of operators to sinks, and the outcome of each event is reported
back to its source.

    declare        ``Flow``, ``op``: the declaration of a flow in Python
    edges          the edges between connectors and pipelines: parsing, validation
    registry       types of connectors and operators, codecs and interceptors by name
    spec           a flow as it was declared, after validation
    serveraccess   the tidelog server, for connectors and operators
    api/           events, tokens, ``Source``, ``Sink``, ``Operator``
    runtime/       entities, channels, contraflow: a running flow
    connectors/    sources and sinks
    operators/     the steps of pipelines
    expressions/   the language of expressions
    branching/     the operator ``branch``, with a flow of its own
    codecs/        conversion between bytes and values
    interceptors/  conversion between bytes and messages
    files/         flows in YAML
    service/       the flows of one process: deployment, HTTP API, page, metrics
    testing/       tests of pipelines, with a manually advanced clock

A connector, operator, codec or interceptor declares its options in its own module, as a class named ``...Options``.
"""

from tidelog.flows.api.errors import FlowError, FlowFileError, RejectError, RetryError
from tidelog.flows.api.event import Event
from tidelog.flows.declare import Flow, Op, op
from tidelog.flows.operators.userfunctions import To, operator

__all__ = ["Event", "Flow", "FlowError", "FlowFileError", "Op", "RejectError", "RetryError", "To", "op", "operator"]

"""Test utilities for flows, used by tidelog's own tests and by those of users.

    flowtest         ``PipelineTest``, ``FlowTest``: tests of a pipeline and of a whole flow
    casetests        the tests in flow files
    differences      differences between expected and actual values
    connectorchecks  ``check_source``, ``check_sink``: the conformance of connectors
    transformchecks  ``check_codec``, ``check_operator``: the conformance of codecs and operators
    virtualloop      an event loop with a virtual clock and a seed
"""

from tidelog.flows.testing.connectorchecks import ConformanceError, check_sink, check_source
from tidelog.flows.testing.flowtest import FlowTest, PipelineTest
from tidelog.flows.testing.transformchecks import check_codec, check_operator
from tidelog.flows.testing.virtualloop import DeadlockError, LivelockError, VirtualLoop, simulate

__all__ = [
    "ConformanceError", "DeadlockError", "FlowTest", "LivelockError", "PipelineTest", "VirtualLoop", "check_codec",
    "check_operator", "check_sink", "check_source", "simulate",
]  # fmt: skip

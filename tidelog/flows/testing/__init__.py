"""Test utilities for flows: ours, and for users.

    flowtest     ``PipelineTest``, ``FlowTest``: tests of a pipeline and of a whole flow
    virtualloop  an event loop with a virtual clock and a seed
"""

from tidelog.flows.testing.flowtest import FlowTest, PipelineTest
from tidelog.flows.testing.virtualloop import DeadlockError, LivelockError, VirtualLoop, simulate

__all__ = ["DeadlockError", "FlowTest", "LivelockError", "PipelineTest", "VirtualLoop", "simulate"]

"""What tests of flows use, ours and users'.

    loop   an event loop with a virtual clock and a seed
    kit    ``PipelineTest``, ``FlowTest``: fed, read and steered by hand
"""

from tidelog.flows.testing.kit import FlowTest, PipelineTest
from tidelog.flows.testing.loop import DeadlockError, LivelockError, VirtualLoop, simulate

__all__ = ["DeadlockError", "FlowTest", "LivelockError", "PipelineTest", "VirtualLoop", "simulate"]

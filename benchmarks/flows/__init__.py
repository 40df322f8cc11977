"""Figures of flows: ``python -m benchmarks.flows``.

    through  events a second through one flow in this process
    streams  events a second from a stream of a server through a function to another, at least once
    beside   the same by another library, over redis-server
    idle     what flows cost that have nothing to do
    hanging  what a flow holds while its sink hangs, on a simulated clock
"""

"""Figures of workers: ``python -m benchmarks.workers``.

    modes    the processors that are measured, and the process that measures one
    rates    events a second, by mode
    quiet    what idle workers cost, and how long an event takes to its handler
    beside   other libraries' workers, over redis-server
"""

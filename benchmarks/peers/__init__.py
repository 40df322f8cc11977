"""Python's worker libraries over Redis, each with the same handler: one worker process, a no-op for each event.

    programs        what is installed for each, and how its program is run
    handled         what the programs share: the count, the clock, the line they print
    on_faststream   FastStream: a subscriber of a Redis stream, 100 messages a read
    on_faststream_publishing  the same, appending what a function makes of an event to another stream
    on_taskiq       taskiq-redis: its stream broker, 100 messages a read, 100 tasks at a time
    on_arq          arq: 100 jobs at a time
    on_streaq       streaq: 100 tasks at a time
    on_benthos      Benthos, the engine of Redpanda Connect: the mappings of a flow, without Redis

A program fills its queue on an empty server, then works until all is done. What is measured is the time from the first
call of the handler to the last one. Each runs in a virtual environment of its own, since arq wants an older redis-py.
They import nothing of tidelog.
"""

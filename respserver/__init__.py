"""The server: the ``tidelog-server`` program and the parts of a running server.

    clock      the clocks, which tests replace
    data       the data directory that is open, and the keyspace built from it
    gates      what stands against commands at the moment
    program    the ``tidelog-server`` program: arguments, start, signals, exit codes
    reporting  INFO and MEMORY, gathered from the parts
    server     all parts, built in one place; the tick, the start, the end
    testing    the server in the test's own process, with a clock moved by hand
    ticks      the write path: log, then reply

The other parts are in folders by subject. They stand on one another in this order, each on those before it:
``config``, ``observe``, the files here, ``clients``, ``execution``, ``roles``, ``upkeep``.
"""

__version__ = "0.1.0"  # the one place where the running server's version stands; a test holds pyproject.toml to it
